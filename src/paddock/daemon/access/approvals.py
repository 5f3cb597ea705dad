# ruff: noqa: S608 (statements are put together from the constants below, never from values)
"""Approvals: asked, answered by a person, used once; and their rows in the store's file."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec

from paddock import model
from paddock.daemon.clock import boot_id
from paddock.daemon.context import Component, Context, Operation, handles
from paddock.daemon.store.database import LEAST_PREFIX, exactly_one, has_ended
from paddock.errors import ApprovalNeededError, InvalidStateError, PaddockError, PolicyDeniedError
from paddock.model import Approval, ApprovalAnswer, ApprovalRequest, ApprovalState, IdPrefix, Principal, mint, replace
from paddock.model.approval import arguments_digest

_SELECT = f"SELECT {', '.join(Approval.__fields__)} FROM approvals"
_OF_SANDBOX = "owner = :owner AND sandbox = :sandbox AND boot_id = :boot AND deadline > :clock"
_EXACTLY = (
    f"{_OF_SANDBOX} AND kind = :kind AND instance_id = :instance_id AND revision = :revision AND digest = :digest"
)
_FIND = (
    f"{_SELECT} WHERE {_EXACTLY} AND state IN ('granted', 'pending', 'denied')"
    " ORDER BY state = 'granted' DESC, state = 'pending' DESC, created_at, id LIMIT 1"
)
_COUNT_PENDING = f"SELECT count(*) FROM approvals WHERE {_OF_SANDBOX} AND state = 'pending'"
_ASK = (
    "INSERT INTO approvals (id, owner, kind, sandbox, instance_id, revision, digest, summary, state, created_at,"
    " expires_at, deadline, boot_id) VALUES (:id, :owner, :kind, :sandbox, :instance_id, :revision, :digest, :summary,"
    " 'pending', :wall, :wall + :seconds, :clock + :seconds, :boot)"
)
_DECIDE = (
    "UPDATE approvals SET state = ?, decided_at = ?, decided_by = ?, reason = ?, expires_at = ?, deadline = ?"
    " WHERE id = ?"
)
_EXPIRE = (
    "UPDATE approvals SET state = 'expired'"
    " WHERE state IN ('pending', 'granted') AND NOT (boot_id = ? AND deadline > ?)"
)
_WITHDRAW = "UPDATE approvals SET state = 'expired' WHERE sandbox = ? AND state IN ('pending', 'granted')"

WAIT_SECONDS = 900.0
"""Seconds that a question waits for its answer, and that an approval waits for its use."""
MOST_PENDING = 32
KEPT_SECONDS = 7 * 86_400
_SUMMARY_CHARS = 512
_NO = ApprovalAnswer(granted=False, state=ApprovalState.DENIED)
_canonical = msgspec.json.Encoder(order="deterministic").encode


class Approvals(Component):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._boot = boot_id()
        self._answered = asyncio.Condition()

    @handles(model.ListApprovals)
    async def list(self, action: model.ListApprovals, op: Operation) -> tuple[Approval, ...]:
        owner = self._owner(op)
        if action.approval is not None:
            return (await self._wait(self._find(action, owner), owner, action.wait_seconds),)
        where = "owner = ?" if action.all else "owner = ? AND state = 'pending'"
        return self._store.every(_approval, f"{_SELECT} WHERE {where} ORDER BY created_at, id", (owner,))

    async def _wait(self, one: Approval, owner: str, seconds: float) -> Approval:
        """Return the approval when it is no longer pending, or after so many seconds as it is."""
        if one.state is not ApprovalState.PENDING or not seconds > 0:
            return one
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, one.expires_at - self._clock.wall())), self._answered:
                await self._answered.wait_for(lambda: self._get(owner, one.id) != one)
        self._expire()
        return self._get(owner, one.id) or one

    def consume(self, owner: str, request: ApprovalRequest) -> ApprovalAnswer:
        """Use up the approval of exactly this request. Without one, ask a person, once."""
        request = replace(request, summary=printable(request.summary))
        wall = self._clock.wall()
        values: dict[str, object] = {name: getattr(request, name) for name in ApprovalRequest.__fields__}
        values |= {"owner": owner, "wall": wall, "boot": self._boot, "clock": self._clock.boottime()}
        found = self._store.one(_approval, _FIND, values)
        if found is None:
            self._store.execute("DELETE FROM approvals WHERE expires_at < ?", (wall - KEPT_SECONDS,))
            if self._store.execute(_COUNT_PENDING, values).fetchone()[0] >= MOST_PENDING:
                reason = f"{MOST_PENDING} others of this sandbox wait for an answer already"
                return ApprovalAnswer(granted=False, state=ApprovalState.DENIED, reason=reason)
            id = mint(IdPrefix.APPROVAL)
            self._store.execute(_ASK, {**values, "id": id, "seconds": WAIT_SECONDS})
            found = self._get(owner, id)
            assert found is not None
            self._audit.event("approval.asked", sandbox=request.sandbox, approval=found.id, what=_detail(request))
            if self._config.approval_webhook is not None:
                from ._webhook import Webhook  # with all that HTTP needs

                Webhook(self._context).asked(found)
        elif found.state is ApprovalState.GRANTED:
            found = replace(found, state=ApprovalState.USED)
            self._store.execute("UPDATE approvals SET state = 'used', used_at = ? WHERE id = ?", (wall, found.id))
            # The use is recorded before the action; a failure to act uses the approval up too.
            self._audit.event("approval.used", sandbox=request.sandbox, approval=found.id, what=_detail(request))
        return ApprovalAnswer(
            granted=found.state is ApprovalState.USED, id=found.id, state=found.state, reason=found.reason or ""
        )

    def judge(self, request: ApprovalRequest) -> ApprovalAnswer:
        """Answer the gateway's question, whether that sandbox may do this once."""
        row = self._store.get(request.sandbox)
        if (
            row is None
            or has_ended(row)
            or (row.instance_id, row.sandbox.policy) != (request.instance_id, request.revision)
        ):
            return _NO
        try:
            return self.consume(row.sandbox.owner, request)
        except PaddockError:  # it cannot be asked, or not be recorded
            return _NO

    def require(
        self,
        kind: str,
        action: model.Action[object],
        op: Operation,
        *,
        about: str,
        revision: str,
        what: str,
        instance_id: int = 0,
        exact: Sequence[str] = (),
    ) -> None:
        """Raise ApprovalNeededError until a person has approved exactly this action, which may then run once.

        `exact`: what it is about at this moment, beyond its own arguments."""
        request = ApprovalRequest(
            kind=kind,
            sandbox=about,
            instance_id=instance_id,
            revision=revision,
            digest=arguments_digest(kind.encode(), _canonical(action), *(part.encode() for part in exact)),
            summary=what,
        )
        answer = self.consume(op.principal.id, request)
        if answer.granted:
            return
        if answer.state is ApprovalState.DENIED:
            raise PolicyDeniedError(
                f"{printable(what)}: somebody said no" + (f": {answer.reason}" if answer.reason else ""),
                rule="approvals",
            )
        raise ApprovalNeededError(
            f"{printable(what)}: a person has to say yes first",
            hint=f"paddock approvals approve {answer.id}, then the same again",
            approval=answer.id,
        )

    @handles(model.GrantApproval, model.DenyApproval)
    async def decide(self, action: model.GrantApproval | model.DenyApproval, op: Operation) -> Approval:
        owner = self._owner(op)
        one = self._find(action, owner)
        to, reason = ApprovalState.GRANTED, None
        if isinstance(action, model.DenyApproval):
            to, reason = ApprovalState.DENIED, None if action.reason is None else printable(action.reason)
        if to not in model.APPROVAL_MOVES[one.state]:
            raise InvalidStateError(
                f"approval {one.id} is {one.state.value}"
                + (f" by {Principal(one.decided_by).name}" if one.decided_by else ""),
                hint="what asked for it has to ask again",
            )
        wall, clock = self._clock.wall(), self._clock.boottime()  # from now on it holds for so long
        values = (to.value, wall, op.principal.id, reason, wall + WAIT_SECONDS, clock + WAIT_SECONDS, one.id)
        self._store.execute(_DECIDE, values)
        op.sandbox = one.sandbox if one.sandbox.startswith(IdPrefix.SANDBOX) else None
        op.done({"approval": one.id, "kind": one.kind, "digest": one.digest})
        await self._wake()
        return self._find(action, owner)

    async def withdraw(self, sandbox: model.SandboxId) -> None:
        """Expire the questions of a sandbox that has ended. Callers that wait for an answer wait no longer."""
        if self._store.execute(_WITHDRAW, (sandbox,)).rowcount:
            await self._wake()

    async def _wake(self) -> None:
        async with self._answered:
            self._answered.notify_all()

    def _owner(self, op: Operation) -> str:
        """Return whose approvals are meant, and mark expired ones."""
        if op.principal.sandbox is not None:  # with any policy
            raise PolicyDeniedError("nobody inside a sandbox sees or answers what a person is asked", rule="approvals")
        self._expire()
        return op.principal.id

    def _expire(self) -> None:
        self._store.execute(_EXPIRE, (self._boot, self._clock.boottime()))

    def _find(self, action: model.ListApprovals | model.GrantApproval | model.DenyApproval, owner: str) -> Approval:
        reference = action.approval or ""
        found = self._get(owner, reference)
        if found is not None:
            return found
        prefix = reference.startswith(IdPrefix.APPROVAL) and len(reference) >= LEAST_PREFIX
        several = self._store.beginning(_approval, _SELECT, owner, reference) if prefix else ()
        return exactly_one(several, "approval", reference, hint="paddock approvals ls --all")

    def _get(self, owner: str, id: str) -> Approval | None:
        return self._store.one(_approval, f"{_SELECT} WHERE owner = ? AND id = ?", (owner, id))


def printable(text: str) -> str:
    """Return bounded text in which nothing moves a cursor or reorders the line: a sandbox may have written it."""
    plain = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    return plain if len(plain) <= _SUMMARY_CHARS else plain[: _SUMMARY_CHARS - 1] + "…"


def _detail(request: ApprovalRequest) -> dict[str, object]:
    return {name: getattr(request, name) for name in ("kind", "digest", "summary", "revision", "instance_id")}


def _approval(*columns: object) -> Approval:
    return msgspec.convert(dict(zip(Approval.__fields__, columns, strict=True)), Approval)
