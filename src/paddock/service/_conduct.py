"""What a sandbox's policy says about commands and files that are asked for from outside: judged, recorded, asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from os import close, fsencode
from typing import TYPE_CHECKING, Any

from paddock.errors import ApprovalNeeded, NotFound, PolicyDenied
from paddock.model import (
    Action,
    CopyFile,
    MakeDirectory,
    MoveFile,
    PolicyDocument,
    RemoveFile,
    RunExec,
    SetFileAttributes,
    StartExec,
    Template,
    UploadTree,
    WriteFile,
    replace,
)
from paddock.storage import Pool
from paddock.storage._listing import is_new

from ._approvals import Approvals
from ._context import Component, Context
from ._gate import Entry
from ._policies import Policies
from ._store import Row
from ._workspace_tree import WORKSPACE

if TYPE_CHECKING:
    from paddock.policy.door import DoorVerdict, Files


def protected(document: PolicyDocument, template: Template) -> tuple[str, ...]:
    """The absolute paths that a sandbox from this template has read-only inside."""
    if document.files is None:
        return ()
    from paddock.policy.door import Files

    return Files(document.files, workdir=template.workdir, home=_home(template)).fixed


def _home(template: Template) -> str:
    user = template.user(None)
    return user.home if user else "/"


class Conduct(Component):
    """Only asked about sandboxes that have a policy."""

    def __init__(self, context: Context, policies: Policies, approvals: Approvals) -> None:
        super().__init__(context)
        self._policies, self._approvals = policies, approvals

    async def command(self, action: RunExec | StartExec, row: Row, entry: Entry) -> None:
        """PolicyDenied, ApprovalNeeded, Unrecorded: then it is not started."""
        rules = (await self._document(row)).commands
        if rules is None:
            return
        from paddock.policy.door import Commands

        spec = action.spec
        verdict = Commands(rules).judge(spec.argv, spec.env)
        what = f"the command {' '.join(spec.argv)}" + (f" in {spec.cwd}" if spec.cwd else "")
        self._settle("command", verdict, replace(action, id=None), row, entry, what)

    async def file(self, action: Action[Any], row: Row, template: Template, entry: Entry) -> None:
        """PolicyDenied, ApprovalNeeded, Unrecorded: then it is left as it is."""
        rules = (await self._document(row)).files
        if rules is None:
            return
        from paddock.policy.door import DoorVerdict, Files

        files = Files(rules, workdir=template.workdir, home=_home(template))
        judged = _judged(files, action)
        if judged is None:
            return
        if (
            judged.verdict == "approve"
            and isinstance(action, RemoveFile)
            and await _is_own(self._pool, files.absolute(action.path), row, template)
        ):
            judged = DoorVerdict(
                verdict="allow", rule=judged.rule, reason=f"{action.path!r} was made by the sandbox itself"
            )
        self._settle("file", judged, action, row, entry, judged.reason)

    async def _document(self, row: Row) -> PolicyDocument:
        assert row.sandbox.policy is not None
        return (await self._policies.of(row.sandbox.policy)).document

    def _settle(
        self, what: str, verdict: DoorVerdict, action: Action[Any], row: Row, entry: Entry, summary: str
    ) -> None:
        revision = row.sandbox.policy or ""
        detail: dict[str, object] = {"revision": revision, "incarnation": row.incarnation}

        def record(allowed: bool, reason: str) -> None:
            entry.judged(f"policy.{what}", allowed=allowed, rule=verdict.rule, reason=reason, detail=detail)

        if verdict.verdict == "deny":
            record(False, verdict.reason)
            raise PolicyDenied(
                f"{verdict.rule} forbids it: {verdict.reason}", hint=f"paddock policy show {row.id}", rule=verdict.rule
            )
        if verdict.verdict == "allow":
            return record(True, verdict.reason)
        try:
            self._approvals.require(
                what,
                replace(action, sandbox=row.id),
                entry,
                about=row.id,
                revision=revision,
                what=summary,
                incarnation=row.incarnation,
            )
        except (PolicyDenied, ApprovalNeeded) as error:
            record(False, f"{verdict.reason}; {error.message}")
            raise
        record(True, f"{verdict.reason}; a person said yes")


def _judged(files: Files, action: Action[Any]) -> DoorVerdict | None:
    """None: it changes nothing."""
    from paddock.policy.door import strictest

    match action:
        case WriteFile(path=path) | MakeDirectory(path=path) | SetFileAttributes(path=path):
            return files.write(path)
        case CopyFile(destination=path) | UploadTree(path=path):
            return files.fill(path)
        case MoveFile(source=source, destination=destination):
            return strictest(files.move(source), files.fill(destination))
        case RemoveFile(path=path):
            return files.remove(path)
        case _:
            return None


async def _is_own(pool: Callable[[], Pool], path: str, row: Row, template: Template) -> bool:
    """Whether what is at the absolute `path` was not there when this sandbox was made. False when in doubt."""
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
        except (NotFound, OSError):
            return False


def _place(path: str, row: Row, template: Template) -> tuple[str, tuple[str, ...], str] | None:
    """The tree where what is at `path` was written, what it lies over, and the path in it; None: none of ours."""
    if row.workspace is not None and path.startswith(WORKSPACE + "/"):
        return row.workspace.tree, row.workspace.layers, path.removeprefix(WORKSPACE + "/")
    elsewhere = (*(mount.target for mount in row.sandbox.spec.mounts), *(("/usr",) if template.host_usr else ()))
    if path == "/" or any((path + "/").startswith(target.rstrip("/") + "/") for target in elsewhere):
        return None
    return row.id, template.layers, path.removeprefix("/")
