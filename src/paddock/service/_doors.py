"""Wires sandboxes to the gateway: `Egress` as `_egress.py` asks for it. See docs/design/egress.md.

The gateway may die at any moment: what it had is offline then, and is opened again here for the sandboxes of this
service, on the sockets that the keeper has held all the while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import msgspec

from paddock.audit import AuditLog
from paddock.backends._base import Exits
from paddock.egress._client import GatewayClient, Judge
from paddock.egress._control import Close, Open, Record, Revise, Secret
from paddock.egress._secret_book import from_bytes, to_bytes
from paddock.errors import GatewayUnavailable, InternalError, NotConfigured, NotFound, PaddockError, SandboxDied
from paddock.model import PolicyDocument, Recording, SandboxId, State

from . import _trust
from ._egress import Egress, Snapshot
from ._malware_lists import MalwareLists
from ._store import Row
from ._tasks import Tasks

_LONGEST_PAUSE_SECONDS = 30.0


class Authority(Protocol):
    """Of one sandbox; both in PEM. The key is in memory only."""

    @property
    def certificate(self) -> bytes: ...
    @property
    def key(self) -> bytes: ...


def _make_authority() -> Authority:
    from paddock.egress._authority import Authority  # cryptography: not before a sandbox needs it

    return Authority.make("sandbox")


class _Door(msgspec.Struct):
    row: Row
    snapshot: Snapshot
    authority: Authority | None = None
    lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)


class Doors:
    """`exits` gives the sockets of a living sandbox; `judge` answers for approvals; `authority` makes one
    for the sandbox of that id; `secrets` says, for the gateway, which ones a sandbox has; `recorded` says what it is by
    now and what holds for it, whoever has set that: None of one that has ended, or is another by now."""

    def __init__(
        self,
        state_dir: Path,
        *,
        exits: Callable[[Row], Awaitable[Exits | None]],
        tasks: Tasks,
        audit: AuditLog,
        judge: Judge,
        authority: Callable[[], Authority] = _make_authority,
        secrets: Callable[[Row], Awaitable[bytes]] | None = None,
        recorded: Callable[[Row], Awaitable[tuple[Row, Snapshot] | None]] | None = None,
    ) -> None:
        self._state, self._exits, self._tasks, self._audit = state_dir, exits, tasks, audit
        self._authority, self._secrets, self._recorded = authority, secrets, recorded
        self._doors: dict[SandboxId, _Door] = {}
        self._made: asyncio.Task[Authority] | None = None
        self._client = GatewayClient(state_dir, on_lost=self._lost, judge=judge)
        self._lists = MalwareLists(state_dir, tasks=tasks, audit=audit)

    def has(self, row: Row) -> bool:
        """This service sees to the ways out of it."""
        door = self._doors.get(row.id)
        return door is not None and door.row.incarnation == row.incarnation

    async def open(self, row: Row, snapshot: Snapshot) -> None:
        door = self._doors.get(row.id)
        if door is None or door.row.incarnation != row.incarnation:
            door = _Door(row, snapshot)
        async with door.lock:
            door.row, door.snapshot = row, snapshot
            await self._lists.read(row.id, snapshot.document)
            await self._open_twice(door)
            self._doors[row.id] = door

    async def revise(self, row: Row, snapshot: Snapshot) -> None:
        door = self._doors.get(row.id)
        if door is None:
            await self.open(row, snapshot)
            return
        async with door.lock:
            if door.row.incarnation > row.incarnation:
                return  # it was made again since, under what was recorded then
            door.row, door.snapshot = row, snapshot
            unread = await self._read_lists(row, snapshot)
            await self._open_twice(door)
            if unread is not None:
                raise unread  # the revision holds all the same: what needs that list is refused

    async def _read_lists(self, row: Row, snapshot: Snapshot) -> NotConfigured | None:
        try:
            await self._lists.read(row.id, snapshot.document)
        except NotConfigured as error:
            return error
        return None

    async def close(self, row: Row) -> None:
        if row.state in (State.RUNNING, State.PAUSED) and row.sandbox.policy is None:
            # It lives on, and has its sockets: whoever calls is told no, and does not wait for an answer.
            from paddock.policy.egress import compile

            await self.revise(row, compile(PolicyDocument()))
            return
        door = self._doors.get(row.id)
        if door is not None and door.row.incarnation == row.incarnation:
            del self._doors[row.id]
            self._lists.forget(row.id)
        try:
            if await self._client.connect(start=False):
                await self._client.order(Close(n=0, sandbox=row.id, incarnation=row.incarnation))
        except PaddockError as error:  # it looks for the living itself
            self._audit.event("egress.close", sandbox=row.id, message=error.message[:1024])

    async def secret(self, id: SandboxId, name: str, secret: bytes) -> None:
        """Returns when it holds for the next request. Without a gateway there is none."""
        if await self._client.connect(start=False):
            await self._client.order(Secret(n=0, sandbox=id, name=name, secret=secret))

    async def start_recording(self, row: Row) -> None:
        await self._client.order(Record(n=0, sandbox=row.id, incarnation=row.incarnation, on=True))

    async def take_recording(self, row: Row) -> Recording:
        """InvalidState: there is none."""
        answer = await self._client.order(Record(n=0, sandbox=row.id, incarnation=row.incarnation, on=False))
        return msgspec.msgpack.decode(answer.recording, type=Recording)

    async def aclose(self) -> None:
        """Lets go of the gateway, which goes on."""
        self._doors.clear()
        await self._client.aclose()

    async def _open_twice(self, door: _Door) -> None:
        try:
            await self._open(door)
        except GatewayUnavailable:  # it was leaving, having had no door for a while, or has died
            await self._open(door)  # what it had open is cut; its successor knows this revision only

    async def _open(self, door: _Door) -> None:
        row, snapshot = door.row, door.snapshot.to_bytes()
        if row.state is not State.CREATING:
            try:
                await self._client.order(Revise(n=0, sandbox=row.id, incarnation=row.incarnation, snapshot=snapshot))
                return
            except NotFound:
                pass  # it has no such door
        exits = await self._exits(row)
        if exits is None:
            raise InternalError(f"somebody who is no gateway has the sockets of {row.id}", hint="paddock kill it")
        sockets = (*exits.tcp, exits.dns_udp, exits.dns_tcp, exits.diag)
        try:
            if door.authority is None:
                door.authority = await self._new_authority()
            order = Open(
                n=0,
                sandbox=row.id,
                incarnation=row.incarnation,
                snapshot=snapshot,
                certificate=door.authority.certificate,
                key=door.authority.key,
                sockets=len(sockets),
                secrets=b"" if self._secrets is None else await self._secrets(row),
            )
        except BaseException:
            for one in sockets:
                one.close()
            raise
        opening = asyncio.ensure_future(self._client.order(order, sockets))
        await asyncio.sleep(0)  # it is on its way
        try:
            # What programs inside trust, while the gateway makes the door.
            _trust.write(self._state, row.id, door.authority.certificate)
        finally:
            answer = await opening
        if answer.certificate not in (b"", order.certificate):
            # Of the services that have seen the gateway before die, another one was quicker: its authority signs.
            _trust.write(self._state, row.id, answer.certificate)
        await self._tell_changes(row, order.secrets)

    async def _tell_changes(self, row: Row, told: bytes) -> None:
        """Of secrets since they were packed: who rotated or revoked one before the gateway had the door, told nobody.
        Until nothing is new: what another service has told meanwhile may be newer than what we tell."""
        while self._secrets is not None and (before := from_bytes(told)) and (now := await self._secrets(row)) != told:
            for one in from_bytes(now):
                if one not in before:
                    await self._client.order(Secret(n=0, sandbox=row.id, name=one.name, secret=to_bytes(one)))
            told = now

    async def _new_authority(self) -> Authority:
        """One that was made ahead; and another is, for the next sandbox."""
        made, self._made = self._made, None
        authority = await (made or asyncio.to_thread(self._authority))
        self._made = self._tasks.start(asyncio.to_thread(self._authority), name="make an authority", awaited=True)
        return authority

    def _lost(self) -> None:
        if self._doors:
            self._tasks.start(self._reopen(), name="open the doors of sandboxes again")

    async def _reopen(self) -> None:
        """Until all that live have theirs. A door of one that has died is nobody's."""
        pause = 0.1
        left = list(self._doors.values())
        while left:
            again: list[_Door] = []
            for door in left:
                try:
                    await self._reopen_one(door)
                except PaddockError as error:
                    again.append(door)
                    self._audit.event("egress.offline", sandbox=door.row.id, message=error.message[:1024])
            left = again
            if left:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _reopen_one(self, door: _Door) -> None:
        async with door.lock:
            if self._doors.get(door.row.id) is not door:
                return
            try:
                await self._open_recorded(door)
            except SandboxDied:
                if self._doors.get(door.row.id) is door:
                    del self._doors[door.row.id]

    async def _open_recorded(self, door: _Door) -> None:
        """Under what holds by now. Another service may have set it, and told a gateway of it that has died since."""
        now = None if self._recorded is None else await self._recorded(door.row)
        while True:
            if now is not None:
                door.row, door.snapshot = now
                await self._read_lists(*now)  # without a list, what needs it is refused
            await self._open(door)
            now = None if self._recorded is None else await self._recorded(door.row)
            if now is None or now[1].revision == door.snapshot.revision:
                return


_: type[Egress] = Doors
