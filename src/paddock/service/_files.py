"""Files, trees and ports of a sandbox: the guest does the work, by the sandbox's own user."""

from __future__ import annotations

from typing import Any, TypeVar

from paddock import model
from paddock.backends._pump import Meter
from paddock.model import Action, ByteReader, ByteStream, ByteWriter, ChangeStream

from . import _validate
from ._context import handles
from ._gate import Entry
from ._live import Live
from ._policies import Policies
from ._sandboxes import Sandboxes
from ._store import Row
from ._streams import Both, Changes, Inbound, Outbound, Record

R = TypeVar("R")


class Files:
    def __init__(self, sandboxes: Sandboxes, live: Live, policies: Policies) -> None:
        self._sandboxes, self._live, self._policies = sandboxes, live, policies

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
    async def value(self, action: Action[Any], entry: Entry) -> object:
        """What is answered at once."""
        return (await self._ask(action, entry))[1]

    @handles(model.ReadFile, model.DownloadTree)
    async def read(self, action: model.ReadFile | model.DownloadTree, entry: Entry) -> ByteReader:
        row, inner = await self._ask(action, entry)
        return Outbound(inner, Meter(), Record(row, self._live, entry))

    @handles(model.WriteFile, model.UploadTree)
    async def write(self, action: model.WriteFile | model.UploadTree, entry: Entry) -> ByteWriter:
        row, inner = await self._ask(action, entry)
        record = Record(row, self._live, entry)
        return Inbound(inner, record.waking(), record)

    @handles(model.WatchFiles)
    async def watch(self, action: model.WatchFiles, entry: Entry) -> ChangeStream:
        row, inner = await self._ask(action, entry)
        return Changes(inner, Record(row, self._live, entry))

    @handles(model.ConnectPort)
    async def connect(self, action: model.ConnectPort, entry: Entry) -> ByteStream:
        row, inner = await self._ask(action, entry)
        return Both(inner, Record(row, self._live, entry))

    async def _ask(self, action: Action[R], entry: Entry) -> tuple[Row, R]:
        _validate.check_file(action)
        reference: Any = getattr(action, "sandbox", None)
        async with self._sandboxes.use(reference, entry) as (row, held):
            if row.sandbox.policy is not None:
                await self._policies.file(action, row, held.instance.template, entry)
            return row, await held.instance.file(action)
