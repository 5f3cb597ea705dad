"""Keep policies of sandboxes: compile once, store by revision, change while they hold.

This module judges and records commands and files that callers ask for from outside; the gateway judges the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from os import close, fsencode
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from paddock import model
from paddock.daemon.context import Component, Context, Operation
from paddock.daemon.store.database import Row
from paddock.daemon.store.trees import WORKSPACE
from paddock.errors import ApprovalNeededError, InternalError, InvalidStateError, NotFoundError, PolicyDeniedError
from paddock.model import Action, ExecSpec, PolicyDocument, PolicyRevision, Principal, Sandbox, Template, replace
from paddock.model.policy import ActionKind
from paddock.storage import Pool
from paddock.storage.diff.listing import is_new

from .approvals import Approvals
from .gateways import Gateways
from .secrets import SecretBindings

if TYPE_CHECKING:
    from paddock.policy.commands import Files, Judgement
    from paddock.policy.network import Snapshot

K = TypeVar("K")
V = TypeVar("V")
Exact: TypeAlias = Callable[[], Awaitable[Sequence[str]]]
_KEEP = (
    "INSERT INTO policies (revision, document, kept_at) VALUES (?, ?, ?)"
    " ON CONFLICT (revision) DO UPDATE SET kept_at = excluded.kept_at"
)
_SET = "UPDATE sandboxes SET policy = ? WHERE id = ? AND state IN ('running', 'paused')"
_PRUNE = (
    "DELETE FROM policies WHERE kept_at < ? AND revision NOT IN (SELECT policy FROM sandboxes WHERE policy IS NOT NULL)"
    " AND revision NOT IN (SELECT policy FROM snapshots WHERE policy IS NOT NULL)"
)
_IN_WORKSPACE = (
    "SELECT policy FROM sandboxes WHERE policy IS NOT NULL AND json_extract(workspace, '$.workspace') = ?"
    " GROUP BY policy ORDER BY max(created_at) DESC"
)
"""The revisions of sandboxes that worked in it, latest first, as long as they are recorded."""
_MOST_KEPT = 64
_KEPT_SECONDS = 3600.0
"""A stored revision stays for days, so a create needn't store it again."""
_encode = msgspec.msgpack.Encoder().encode


class Policies(Component):
    def __init__(self, context: Context, gateways: Gateways, bindings: SecretBindings, approvals: Approvals) -> None:
        super().__init__(context)
        self._gateways, self._bindings, self._approvals = gateways, bindings, approvals
        self._compiled: dict[str, Snapshot] = {}
        self._kept: dict[bytes, tuple[Snapshot, float]] = {}
        """Those stored lately, and when, by the text that they were compiled from: most sandboxes of a program have the
        same."""

    async def keep(self, document: PolicyDocument) -> Snapshot:
        """Compile a document and store it under its revision. Raises PolicyInvalidError."""
        from paddock.policy.network import compile

        text, now = _encode(document), self._clock.wall()
        snapshot, at = self._kept.get(text) or (await asyncio.to_thread(compile, document), 0.0)
        if not 0.0 <= now - at < _KEPT_SECONDS:
            self._store.execute(_KEEP, (snapshot.revision, snapshot.to_bytes(), now))
            _remember(self._kept, text, (snapshot, now))
            _remember(self._compiled, snapshot.revision, snapshot)
        return snapshot

    async def of(self, revision: str) -> Snapshot:
        found = self._compiled.get(revision)
        if found is not None:
            return found
        from paddock.policy.network import Snapshot

        kept = self._store.execute("SELECT document FROM policies WHERE revision = ?", (revision,)).fetchone()
        if kept is None:
            raise InternalError(f"the policy {revision} is recorded, and its document is gone")
        snapshot = await asyncio.to_thread(Snapshot.from_bytes, kept[0])
        if snapshot.revision != revision:
            raise InternalError(f"what is kept as policy {revision} is {snapshot.revision}")
        return _remember(self._compiled, snapshot.revision, snapshot)

    def prune(self, before: float) -> None:
        """Forget revisions that no sandbox and no snapshot has, and that no request has named since."""
        self._store.execute(_PRUNE, (before,))
        self._kept.clear()  # the clock may have been wrong when they were stored, or now

    async def get(self, row: Row) -> PolicyRevision:
        revision = row.sandbox.policy
        if revision is None:
            return PolicyRevision()
        return PolicyRevision(revision=revision, document=(await self.of(revision)).document)

    async def resume(self, row: Row) -> None:
        """Restore the network access of a sandbox. Nothing gets out if that fails."""
        async with self._lanes.exclusive(_lane(row)):
            row = self._store.get(row.id) or row
            if row.sandbox.policy is not None:
                await self._gateways.open(row, await self.of(row.sandbox.policy))

    async def set(self, action: model.SetPolicy, row: Row, op: Operation) -> Sandbox:
        """Set the policy of a sandbox. The caller shares its lane: it isn't made again meanwhile."""
        if Principal(row.sandbox.owner).sandbox is not None:
            raise PolicyDeniedError(f"{row.id} was made by a program inside a sandbox: those have no network")
        async with self._lanes.exclusive(_lane(row)):
            row = self._store.get(row.id) or row
            before, expected = row.sandbox.policy, action.expect_revision
            if expected is not None and expected != before:
                raise InvalidStateError(
                    f"the policy of {row.id} was changed meanwhile", hint=f"paddock policy show {row.id}", policy=before
                )
            snapshot = None if action.policy is None else await self.keep(action.policy)
            if snapshot is not None:
                await self._check_files(row, snapshot.document)
                await self._bindings.extend(row, snapshot.document.secrets)
            # Once recorded it has to hold, even if the caller leaves.
            await self._tasks.complete(self._change(row, snapshot), name=f"sandbox {row.id}: policy")
        row = self._store.get(row.id) or row
        op.done({"policy": None if snapshot is None else snapshot.revision, "before": before})
        return row.sandbox

    async def ask(
        self,
        kind: ActionKind,
        action: Action[object],
        op: Operation,
        *,
        about: str,
        what: str,
        own: str | None = None,
        workspace: str | None = None,
        exact: Exact | None = None,
    ) -> None:
        """Ask for approval before something of `workspace`, or under the policy `own`, leaves or is deleted. The
        question shows `exact`, or else `about`. Raises ApprovalNeededError, PolicyDeniedError.

        For a workspace the policies of all sandboxes count that worked in it. They still count after these have ended,
        and after a later one with a wider policy.
        """
        rows = () if workspace is None else self._store.execute(_IN_WORKSPACE, (workspace,)).fetchall()
        for revision in (own, *(row[0] for row in rows)):
            if revision is not None and kind in (await self.of(revision)).document.approve:
                exactly = (about,) if exact is None else await exact()
                self._approvals.require(kind, action, op, about=about, revision=revision, what=what, exact=exactly)
                return

    async def command(self, action: model.RunExec | model.StartExec, row: Row, op: Operation) -> None:
        """PolicyDeniedError, ApprovalNeededError, UnrecordedError: then it is not started."""
        rules = (await self._own_document(row)).commands
        if rules is None:
            return
        from paddock.policy.commands import Commands

        spec = action.spec
        verdict = Commands(rules).judge(spec.argv, spec.env)
        what = f"the command {' '.join(spec.argv)}" + (f" in {spec.cwd}" if spec.cwd else "")
        self._settle("command", verdict, replace(action, id=None), row, op, what)

    async def in_environment(self, row: Row, spec: ExecSpec) -> ExecSpec:
        """Return the command with what tells installers of the policy's own indexes, unless its caller said else."""
        from paddock.policy.network import index_variables

        found = index_variables(await self._own_document(row))
        return replace(spec, env={**found, **row.sandbox.spec.env, **spec.env}) if found else spec

    async def file(self, action: Action[Any], row: Row, template: Template, op: Operation) -> None:
        """Check an access to a file. PolicyDeniedError, ApprovalNeededError and UnrecordedError leave it as it is."""
        rules = (await self._own_document(row)).files
        if rules is None:
            return
        from paddock.policy.commands import Files, Judgement

        files = Files(rules, workdir=template.workdir, home=_home(template))
        record_verdict = _judged(files, action)
        if record_verdict is None:
            return
        if (
            record_verdict.verdict == "approve"
            and isinstance(action, model.RemoveFile)
            and await _is_own(self._pool, files.absolute(action.path), row, template)
        ):
            record_verdict = Judgement(
                verdict="allow", rule=record_verdict.rule, reason=f"{action.path!r} was made by the sandbox itself"
            )
        self._settle("file", record_verdict, action, row, op, record_verdict.reason)

    async def _own_document(self, row: Row) -> PolicyDocument:
        assert row.sandbox.policy is not None
        return (await self.of(row.sandbox.policy)).document

    def _settle(
        self, what: str, verdict: Judgement, action: Action[Any], row: Row, op: Operation, summary: str
    ) -> None:
        revision = row.sandbox.policy or ""
        detail: dict[str, object] = {"revision": revision, "instance_id": row.instance_id}

        def record(allowed: bool, reason: str) -> None:
            op.record_verdict(f"policy.{what}", allowed=allowed, rule=verdict.rule, reason=reason, detail=detail)

        if verdict.verdict == "deny":
            record(False, verdict.reason)
            raise PolicyDeniedError(
                f"{verdict.rule} forbids it: {verdict.reason}", hint=f"paddock policy show {row.id}", rule=verdict.rule
            )
        if verdict.verdict == "allow":
            return record(True, verdict.reason)
        try:
            self._approvals.require(
                what,
                replace(action, sandbox=row.id),
                op,
                about=row.id,
                revision=revision,
                what=summary,
                instance_id=row.instance_id,
            )
        except (PolicyDeniedError, ApprovalNeededError) as error:
            if isinstance(error, ApprovalNeededError):
                detail["approval"] = error.approval_id
            record(False, f"{verdict.reason}; {error.message}")
            raise
        record(True, f"{verdict.reason}; a person said yes")

    async def _check_files(self, row: Row, document: PolicyDocument) -> None:
        """Refuse new protected paths: a create mounts them, and nothing does later."""
        wanted = () if document.files is None else document.files.protect
        if not wanted:
            return
        revision = row.sandbox.policy
        before = None if revision is None else (await self.of(revision)).document.files
        new = [path for path in wanted if "*" not in path and (before is None or path not in before.protect)]
        if new:
            raise InvalidStateError(
                f"{new[0]!r} can't be protected in {row.id} any more: that is done when a sandbox is made",
                hint="take a snapshot of it, and make another one from that under this policy",
            )

    async def _change(self, row: Row, snapshot: Snapshot | None) -> None:
        before, now = row.sandbox.policy, None if snapshot is None else snapshot.revision
        if not self._store.execute(_SET, (now, row.id)).rowcount:
            raise InvalidStateError(f"sandbox {row.id} has ended meanwhile", hint=f"paddock inspect {row.id}")
        row = self._store.get(row.id) or row
        if snapshot is None:
            await self._gateways.withdraw(row)
        elif before is not None:
            await self._gateways.revise(row, snapshot)
        else:
            try:
                await self._gateways.open(row, snapshot)
            except BaseException:
                self._store.execute(_SET, (None, row.id))
                raise


def protected(policy: Snapshot | None, template: Template) -> tuple[str, ...]:
    """Return the absolute paths that a sandbox from this template has read-only inside."""
    if policy is None or policy.document.files is None:
        return ()
    from paddock.policy.commands import Files

    return Files(policy.document.files, workdir=template.workdir, home=_home(template)).fixed


def _home(template: Template) -> str:
    user = template.user(None)
    return user.home if user else "/"


def _judged(files: Files, action: Action[Any]) -> Judgement | None:
    """None: it changes nothing."""
    from paddock.policy.commands import strictest

    match action:
        case model.WriteFile(path=path) | model.MakeDirectory(path=path) | model.SetFileAttributes(path=path):
            return files.write(path)
        case model.CopyFile(destination=path) | model.UploadTree(path=path):
            return files.replace(path)
        case model.MoveFile(source=source, destination=destination):
            return strictest(files.replace(source), files.replace(destination))
        case model.RemoveFile(path=path):
            return files.remove(path)
        case _:
            return None


async def _is_own(pool: Callable[[], Pool], path: str, row: Row, template: Template) -> bool:
    """Tell whether the file at the absolute `path` is newer than this sandbox. False when in doubt."""
    place = _place(path, row, template)
    if place is None or pool().driver == "copy":  # there a tree holds all that is below it, too
        return False
    since_ns = int(row.sandbox.created_at * 1_000_000_000)
    return await asyncio.to_thread(_look, pool(), *place, since_ns)


def _look(pool: Pool, tree: str, layers: tuple[str, ...], path: str, since_ns: int) -> bool:
    with ExitStack() as opened:

        def opening(name: str) -> int:
            fd = pool.open(name)
            opened.callback(close, fd)
            return fd

        try:
            return is_new(opening(tree), [opening(layer) for layer in layers], fsencode(path), since_ns)
        except (NotFoundError, OSError):
            return False


def _place(path: str, row: Row, template: Template) -> tuple[str, tuple[str, ...], str] | None:
    """Return the tree in which a program wrote `path`, its lower layers, and the path in it. None: not a tree of
    paddock's."""
    if row.workspace is not None and path.startswith(WORKSPACE + "/"):
        return row.workspace.tree, row.workspace.layers, path.removeprefix(WORKSPACE + "/")
    elsewhere = (*(mount.target for mount in row.sandbox.spec.mounts), *(("/usr",) if template.host_usr else ()))
    if path == "/" or any((path + "/").startswith(target.rstrip("/") + "/") for target in elsewhere):
        return None
    return row.id, template.layers, path.removeprefix("/")


def _lane(row: Row) -> str:
    """Of those who set the policy of one sandbox, one after the other."""
    return f"policy of {row.id}"


def _remember(cache: dict[K, V], key: K, value: V) -> V:
    cache.pop(key, None)
    while len(cache) >= _MOST_KEPT:
        del cache[next(iter(cache))]
    cache[key] = value
    return value
