"""Vouch for the log: sign its heads in the background, and verify it. See docs/design/evidence.md."""

from __future__ import annotations

import asyncio
import hashlib
import math
from contextlib import suppress
from pathlib import Path

import msgspec

from paddock import audit
from paddock.daemon.clock import Clock
from paddock.daemon.context import Operation, handles
from paddock.daemon.store.database import Row
from paddock.daemon.tasks import Activity
from paddock.errors import InvalidStateError, NotConfiguredError, UnrecordedError
from paddock.model import AuditKey, AuditReport, AuditStatement, GetAuditKey, VerifyAudit
from paddock.model.config import Config

SIGN_SECONDS = 10.0
_BEFORE = 60.0
"""A create is requested before its sandbox exists."""
_UNSIGNED_SECONDS = 60.0
"""A program that ends sooner than it would sign leaves that to the next one, up to this."""


class Evidence:
    def __init__(self, state_dir: Path, log: audit.AuditLog, clock: Clock, config: Config) -> None:
        """Prepare. `config` limits the bytes and the age of the log; only closed parts are removed."""
        self._state_dir, self._audit, self._clock, self._key_file = state_dir, log, clock, config.audit_key_file
        self._most_bytes = config.audit_mib * 2**20 or math.inf
        self._most_seconds = config.audit_days * 86_400.0 or math.inf
        self._signer = audit.HeadSigner(log.directory, self._key)
        self._found: audit.SigningKey | None = None
        self._seen: dict[str, int] = {}
        self._told: set[str] = set()
        self._since = clock.boottime()

    async def run(self, activity: Activity) -> None:
        """Sign and trim until cancelled."""
        async for _ in activity.rounds(SIGN_SECONDS):
            if await asyncio.to_thread(self._sizes) != self._seen:
                await asyncio.to_thread(self.sign)
                await asyncio.to_thread(self.keep)

    def sign(self) -> None:
        """Sign what is new. A failure is recorded once; `verify` names what no signature covers."""
        seen = self._sizes()
        try:
            self._signer.sign()
        except (OSError, NotConfiguredError, audit.Broken) as error:
            self._tell("audit.unsigned", str(error))
        else:
            self._seen = seen
        for segment, problem in self._signer.broken.items():
            self._tell("audit.broken", f"segment {segment}, {problem}")

    def keep(self) -> None:
        """Pack closed segments, and remove those that are too old or too many; a signed head says so."""
        directory = self._audit.directory
        try:
            audit.pack(directory)
            remove = audit.outdated(directory, self._most_bytes, self._clock.wall() - self._most_seconds)
            if remove:
                self._audit.event("audit.removed", parts=[part.path.name for part in remove[:100]], number=len(remove))
                self._signer.sign(remove)
        except (OSError, NotConfiguredError, UnrecordedError, audit.Broken) as error:
            self._tell("audit.retention", str(error))

    async def aclose(self) -> None:
        """Sign the last head, after the last record, unless this was a short program and heads are recent."""
        with suppress(OSError):
            if self._clock.boottime() - self._since >= SIGN_SECONDS or self._age() > _UNSIGNED_SECONDS:
                self.sign()  # here: where a program ends, there may be no other thread any more

    @handles(VerifyAudit)
    async def verify(self, action: VerifyAudit, op: Operation) -> AuditReport:
        return await asyncio.to_thread(audit.verify, self._audit.directory)

    @handles(GetAuditKey)
    async def key(self, action: GetAuditKey, op: Operation) -> AuditKey:
        found = await asyncio.to_thread(self._key)
        return AuditKey(id=found.id, pem=audit.public_pem(found.public))

    async def statement(self, row: Row, op: Operation) -> AuditStatement:
        signed = await asyncio.to_thread(self._statement, row)
        op.done({"sha256": hashlib.sha256(signed.payload.encode()).hexdigest()})
        return signed

    def _statement(self, row: Row) -> AuditStatement:
        """Signed after the records are, up to a head that vouches for all of them."""
        self.sign()
        names = (row.id, *filter(None, [row.sandbox.spec.name]))
        stream = audit.Stream(
            self._audit.directory,
            audit.RecordFilter(sandboxes=names, since=row.sandbox.created_at - _BEFORE),
            audit.Cursor(),
        )
        session = audit.Session(row.id)
        for found in stream.in_order():
            session.take(found)
        head = audit.last_signed(self._audit.directory)
        if head is None:
            raise InvalidStateError("the audit log cannot be signed", hint="`paddock audit tail --kind audit` says why")
        key = self._key()
        envelope = audit.envelope(session.statement({"head": head[0], "sha256": head[1], "key": key.id}), key)
        return msgspec.convert(envelope, AuditStatement)

    def _key(self) -> audit.SigningKey:
        if self._found is None:
            self._found = audit.open_key(self._state_dir, self._key_file)
        return self._found

    def _sizes(self) -> dict[str, int]:
        """Of the segments."""
        return {name: audit.size(self._audit.directory, name) for name in audit.chains(self._audit.directory)}

    def _age(self) -> float:
        """Seconds since the last head, or since the first record."""
        heads = self._audit.directory / audit.HEADS
        if heads.exists():
            return self._clock.wall() - heads.stat().st_mtime
        first = min((name[:20] for name in self._sizes()), default="")
        return self._clock.wall() - int(first) / 1e9 if first.isdigit() else 0.0

    def _tell(self, event: str, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            with suppress(UnrecordedError):  # closed, or the disk is full
                self._audit.event(event, message=message[:1024])
