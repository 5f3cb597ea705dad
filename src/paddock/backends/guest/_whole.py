"""All that is below a directory, with owners and whatever else belongs to files, as an archive: out of one sandbox and
into another, while everybody else there stands still."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paddock.backends._guest_files import FileReader, FileWriter, open_reader, open_writer
from paddock.wire.guest import Download, DownloadFlags, File, Op, Upload, UploadFlags

from ._place import encode
from ._requests import Nothing, ask, of_file

if TYPE_CHECKING:
    from paddock.backends._guest_connection import GuestConnection


async def pack_whole(connection: GuestConnection, path: str, left_out: Sequence[str] = ()) -> FileReader:
    """`left_out` are relative to `path`."""
    message = Download(flags=DownloadFlags.WHOLE, path=encode(path), left_out=tuple(map(encode, left_out)))
    return await open_reader(connection, ask(Op.DOWNLOAD, message, of_file(path)), Nothing, works=True)


async def unpack_exact(connection: GuestConnection, path: str, left_out: Sequence[str] = ()) -> FileWriter:
    """What is there becomes what the archive says."""
    message = Upload(flags=UploadFlags.EXACT, path=encode(path), left_out=tuple(map(encode, left_out)))
    request = ask(Op.UPLOAD, message, of_file(path, "what can be laid there"))
    return await open_writer(connection, request, Nothing, _Exact)


class _Exact(FileWriter):
    def __init__(self, channel: Any, pipe: Any) -> None:
        super().__init__(channel, pipe, works=True)

    async def _info(self) -> Any:
        return await self._channel.result(File)
