"""Files, trees and ports of a sandbox: the guest does the work, by the sandbox's own user."""

from __future__ import annotations

import os
from typing import Any, TypeVar

from paddock import model
from paddock.backends.base import Instance
from paddock.backends.pump import Meter, transfer
from paddock.daemon.access.policies import Policies
from paddock.daemon.context import Operation, handles
from paddock.daemon.store.database import Row
from paddock.errors import InvalidArgumentError, InvalidStateError, logged
from paddock.model import Action, ByteReader, ByteStream, ByteWriter, ChangeStream, FileInfo, replace

from . import validate
from .running import RunningSandboxes
from .sandboxes import Sandboxes
from .streams import Changes, Inbound, Outbound, PortRelay, Record

R = TypeVar("R")
_NEW, _OLD = ".paddock-promoted", ".paddock-replaced"


class Files:
    def __init__(self, sandboxes: Sandboxes, running: RunningSandboxes, policies: Policies) -> None:
        self._sandboxes, self._running, self._policies = sandboxes, running, policies

    @handles(
        model.StatFile,
        model.ListFiles,
        model.MakeDirectory,
        model.MoveFile,
        model.CopyFile,
        model.RemoveFile,
        model.SetFileAttributes,
        model.FindFiles,
        model.GrepFiles,
    )
    async def value(self, action: Action[Any], op: Operation) -> object:
        """Return the answer of an action that needs no stream."""
        return (await self._ask(action, op))[1]

    @handles(model.ReadFile, model.DownloadTree)
    async def read(self, action: model.ReadFile | model.DownloadTree, op: Operation) -> ByteReader:
        row, inner = await self._ask(action, op)
        return Outbound(inner, Meter(), Record(row, self._running, op))

    @handles(model.WriteFile, model.UploadTree)
    async def write(self, action: model.WriteFile | model.UploadTree, op: Operation) -> ByteWriter:
        row, inner = await self._ask(action, op)
        record = Record(row, self._running, op)
        return Inbound(inner, record.waking(), record)

    @handles(model.WatchFiles)
    async def watch(self, action: model.WatchFiles, op: Operation) -> ChangeStream:
        row, inner = await self._ask(action, op)
        return Changes(inner, Record(row, self._running, op))

    @handles(model.ConnectPort)
    async def connect(self, action: model.ConnectPort, op: Operation) -> ByteStream:
        row, inner = await self._ask(action, op)
        return PortRelay(inner, Record(row, self._running, op))

    async def _ask(self, action: Action[R], op: Operation) -> tuple[Row, R]:
        validate.check_file(action)
        reference: Any = getattr(action, "sandbox", None)
        async with self._sandboxes.use(reference, op) as (row, running):
            action = await _from_home(action, running.instance)  # the policy judges what the guest gets
            if row.sandbox.policy is not None:
                await self._policies.file(action, row, running.instance.template, op)
            return row, await running.instance.file(action)

    @handles(model.PromoteChild)
    async def promote(self, action: model.PromoteChild, op: Operation) -> None:
        """Move files that a child made to their place in the sandbox around it: all of them or none. Running processes
        may see some of both. The archive of one is unpacked inside the other."""
        if not action.path.startswith("/") or action.path.strip("/") == "" or ".." in action.path.split("/"):
            raise InvalidArgumentError(
                f"path={action.path!r} must be an absolute path of a directory below /", field="path"
            )
        async with self._sandboxes.use(action.child, op) as (child, from_):
            pass
        async with self._sandboxes.use(action.sandbox, op) as (outer, into):
            pass  # an archive of an hour delays no pause
        if child.id == outer.id:
            raise InvalidStateError("a sandbox cannot take its own place", hint="name one of its children")
        async with self._sandboxes.explain_death(outer):
            moved = await self._replace(child, from_.instance, into.instance, action.path)
        op.done({"child": child.id, "path": action.path, "entries": moved})

    async def _replace(self, child: Row, source: Instance, target: Instance, path: str) -> int:
        new, old = f"{path}/{_NEW}", f"{path}/{_OLD}"
        await _remove(target, new, old)
        for left in (new, old):
            await target.file(model.MakeDirectory(sandbox=target.id, path=left))
        try:
            async with self._sandboxes.explain_death(child):
                await _carry(source, target, path, new)
            await _remove(target, f"{new}/{_NEW}", f"{new}/{_OLD}")
            before = [file for file in await _entries(target, path) if _name(file) not in (_NEW, _OLD)]
            after = await _entries(target, new)
            await _swap(target, path, before, after)
        finally:
            # It ended, or is full: what is left says what it is by its name.
            with logged("remove the directories of a promotion", target.id):
                await _remove(target, new, old)
        return len(after)


async def _from_home(action: Action[R], instance: Instance) -> Action[R]:
    user = getattr(action, "user", None)
    for name in ("path", "source", "destination"):
        path = getattr(action, name, None)
        if isinstance(path, str) and (found := await from_home(path, user, instance)) != path:
            action = replace(action, **{name: found})
    return action


async def from_home(path: str, user: str | None, instance: Instance) -> str:
    """Return the path with the home of the user in place of a `~` in front."""
    if path != "~" and not path.startswith("~/"):
        return path
    return (await instance.user(user)).home + path[1:]


async def _carry(source: Instance, target: Instance, path: str, new: str) -> None:
    reader = await source.file(model.DownloadTree(sandbox=source.id, path=path))
    await transfer(reader, target.file(model.UploadTree(sandbox=target.id, path=new)))


async def _remove(target: Instance, *paths: str) -> None:
    for path in paths:
        await target.file(model.RemoveFile(sandbox=target.id, path=path, recursive=True, missing_ok=True))


async def _entries(instance: Instance, path: str) -> list[FileInfo]:
    found = await instance.file(model.ListFiles(sandbox=instance.id, path=path))
    return [file for file in found if os.path.dirname(file.path) == path.rstrip("/")]


async def _swap(target: Instance, path: str, before: list[FileInfo], after: list[FileInfo]) -> None:
    """Rename the old entries out and the new ones in; undo it if one of them can't be moved."""
    moves = [(f"{path}/{_name(file)}", f"{path}/{_OLD}/{_name(file)}") for file in before]
    moves += [(f"{path}/{_NEW}/{_name(file)}", f"{path}/{_name(file)}") for file in after]
    done: list[tuple[str, str]] = []
    try:
        for source, destination in moves:
            await target.file(model.MoveFile(sandbox=target.id, source=source, destination=destination))
            done.append((source, destination))
    except BaseException:
        for source, destination in reversed(done):
            with logged("move back", target.id):
                await target.file(model.MoveFile(sandbox=target.id, source=destination, destination=source))
        raise


def _name(file: FileInfo) -> str:
    return file.path.rsplit("/", 1)[1]
