"""The files of a sandbox, as its own users see them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO, Literal, overload

from paddock import model
from paddock.client._blocking import CHUNK_BYTES, AsyncContent, achunks, arun_blocking, open_local
from paddock.client._opening import aopens
from paddock.client._transfer import TransferReport
from paddock.errors import FileError, InternalError, InvalidArgumentError
from paddock.model import FileInfo, GrepMatch

from .changes import AsyncChanges
from .process import AsyncReader, AsyncWriter
from .transport import AsyncTransport

if TYPE_CHECKING:
    from typing import Unpack

    from paddock._renamed import OldProgress
    from paddock.client._transfer import Moved

Path = str | os.PathLike[str]


class AsyncFilesystem:
    """`sandbox.files`. Paths are those inside; relative ones start at the template's working directory.

    A user of the sandbox does everything inside it, so that no name in there leads anywhere else.
    A refusal is a FileError. It is also Python's own: FileNotFoundError, PermissionError, IsADirectoryError.
    """

    def __init__(self, sandbox: str, transport: AsyncTransport, user: str | None = None) -> None:
        self._sandbox = sandbox
        self._transport = transport
        self._user = user

    def as_user(self, user: str) -> AsyncFilesystem:
        """Return the same files, touched by another user."""
        return AsyncFilesystem(self._sandbox, self._transport, user)

    async def read(self, path: Path, *, max_bytes: int = 256 << 20) -> bytes:
        """Return the whole file. FileError with EFBIG if it holds more than `max_bytes`: it is a stranger's."""
        parts: list[bytes] = []
        left = max_bytes
        async with self.open(path, "rb", length=max_bytes + 1) as reader:
            async for chunk in reader:
                left -= len(chunk)
                if left < 0:
                    raise FileError(
                        f"{os.fspath(path)!r} holds more than {max_bytes} bytes",
                        hint="read_to(), max_bytes=",
                        errno="EFBIG",
                    )
                parts.append(chunk)
        return b"".join(parts)

    async def read_text(self, path: Path, encoding: str = "utf-8", errors: str = "strict") -> str:
        return (await self.read(path)).decode(encoding, errors)

    async def read_to(self, path: Path, target: Path | BinaryIO) -> int:
        """Into a local file, in constant memory. The number of bytes."""
        if isinstance(target, str | os.PathLike):
            with await arun_blocking(open_local, target, "wb") as file:
                return await self.read_to(path, file)
        total = 0
        async with self.open(path, "rb") as reader:
            async for chunk in reader:
                await arun_blocking(target.write, chunk)
                total += len(chunk)
        return total

    @overload
    @aopens
    async def open(
        self, path: Path, mode: Literal["rb"] = "rb", *, offset: int = 0, length: int | None = None
    ) -> AsyncReader: ...
    @overload
    @aopens
    async def open(self, path: Path, mode: Literal["wb", "ab"], *, permissions: int | None = None) -> AsyncWriter: ...
    @aopens
    async def open(
        self,
        path: Path,
        mode: str = "rb",
        *,
        offset: int = 0,
        length: int | None = None,
        permissions: int | None = None,
    ) -> AsyncReader | AsyncWriter:
        """Open a file to read (`rb`), write (`wb`) or append (`ab`) in constant memory.

        Leave it open in a `with` block. A file that is written is put in place at the end of the block, unless that
        raises. `offset` and `length` say which part is read, `permissions` is the mode of a new file.
        """
        if mode in ("wb", "ab"):
            action = model.WriteFile(
                sandbox=self._sandbox, path=os.fspath(path), mode=permissions, append=mode == "ab", user=self._user
            )
            return AsyncWriter(await self._transport.perform(action))
        if mode != "rb":
            raise InvalidArgumentError(
                f"mode={mode!r}: files are opened as 'rb', 'wb' or 'ab'",
                hint="read_text() reads text, write() takes it",
            )
        source = model.ReadFile(
            sandbox=self._sandbox, path=os.fspath(path), offset=offset, length=length, user=self._user
        )
        return AsyncReader(await self._transport.perform(source))

    async def write(self, path: Path, data: AsyncContent, *, mode: int | None = None, append: bool = False) -> FileInfo:
        """Text (as UTF-8), bytes, a file object or an iterable of bytes, in constant memory.

        Nobody sees half a file: it is put in place at the end, or not at all. Missing directories are made.
        """
        action = model.WriteFile(sandbox=self._sandbox, path=os.fspath(path), mode=mode, append=append, user=self._user)
        handle = await self._transport.perform(action)
        try:
            async for chunk in achunks(data):
                await handle.write(chunk)
            info = await handle.aclose()
        except BaseException:
            await handle.abort()
            raise
        if info is None:
            raise InternalError(f"nothing is known of {os.fspath(path)!r} after it was written")
        return info

    async def write_from(self, path: Path, source: Path, *, mode: int | None = None) -> FileInfo:
        """From a local file, in constant memory."""
        with await arun_blocking(open_local, source, "rb") as file:
            return await self.write(path, file, mode=mode)

    async def list(self, path: Path = ".", *, depth: int = 1) -> tuple[FileInfo, ...]:
        """Sorted by name. `depth=1` is the directory itself."""
        return await self._transport.perform(
            model.ListFiles(sandbox=self._sandbox, path=os.fspath(path), depth=depth, user=self._user)
        )

    async def stat(self, path: Path, *, follow: bool = False) -> FileInfo:
        """Of a symbolic link itself, unless `follow`."""
        return await self._transport.perform(
            model.StatFile(sandbox=self._sandbox, path=os.fspath(path), follow=follow, user=self._user)
        )

    async def exists(self, path: Path) -> bool:
        """Tell whether there is such a file. A symbolic link that points nowhere exists."""
        try:
            await self.stat(path)
        except FileError as error:
            if error.details.get("errno") in ("ENOENT", "ENOTDIR"):
                return False
            raise
        return True

    async def make_dir(self, path: Path, *, mode: int | None = None, parents: bool = True) -> FileInfo:
        return await self._transport.perform(
            model.MakeDirectory(
                sandbox=self._sandbox, path=os.fspath(path), mode=mode, parents=parents, user=self._user
            )
        )

    async def move(self, source: Path, destination: Path) -> FileInfo:
        return await self._transport.perform(
            model.MoveFile(
                sandbox=self._sandbox,
                source=os.fspath(source),
                destination=os.fspath(destination),
                user=self._user,
            )
        )

    async def copy(self, source: Path, destination: Path) -> FileInfo:
        """Directories with everything in them."""
        return await self._transport.perform(
            model.CopyFile(
                sandbox=self._sandbox,
                source=os.fspath(source),
                destination=os.fspath(destination),
                user=self._user,
            )
        )

    async def remove(self, path: Path, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Remove a file or directory. One that isn't empty needs `recursive`."""
        await self._transport.perform(
            model.RemoveFile(
                sandbox=self._sandbox,
                path=os.fspath(path),
                recursive=recursive,
                missing_ok=missing_ok,
                user=self._user,
            )
        )

    async def chmod(self, path: Path, mode: int) -> FileInfo:
        return await self._transport.perform(
            model.SetFileAttributes(sandbox=self._sandbox, path=os.fspath(path), mode=mode, user=self._user)
        )

    async def chown(self, path: Path, uid: int | None = None, gid: int | None = None) -> FileInfo:
        """Ids as they are inside. Needs `as_user("root")`."""
        return await self._transport.perform(
            model.SetFileAttributes(sandbox=self._sandbox, path=os.fspath(path), uid=uid, gid=gid, user=self._user)
        )

    async def find(self, path: Path = ".", name: str = "*", *, limit: int = 10_000) -> tuple[FileInfo, ...]:
        """Below `path`, what is named like the shell pattern `name`."""
        return await self._transport.perform(
            model.FindFiles(sandbox=self._sandbox, path=os.fspath(path), name=name, limit=limit, user=self._user)
        )

    async def grep(
        self, pattern: str, path: Path = ".", *, name: str = "*", limit: int = 1_000
    ) -> tuple[GrepMatch, ...]:
        """Lines that match the regular expression, in files named like `name`. Binary files are passed over."""
        action = model.GrepFiles(
            sandbox=self._sandbox, path=os.fspath(path), pattern=pattern, name=name, limit=limit, user=self._user
        )
        return await self._transport.perform(action)

    async def watch(self, path: Path, *, recursive: bool = False) -> AsyncChanges:
        """Return what happens there from now on; iterate over it."""
        action = model.WatchFiles(sandbox=self._sandbox, path=os.fspath(path), recursive=recursive, user=self._user)
        return AsyncChanges(await self._transport.perform(action))

    async def upload(
        self,
        local_dir: Path,
        path: Path,
        *,
        exclude: tuple[str, ...] = (),
        on_progress: Moved | None = None,
        **old: Unpack[OldProgress],
    ) -> TransferReport:
        """Copy a local directory's content to below `path`, in constant memory. Symbolic links go as links; sockets,
        pipes and devices are left out and reported. `exclude` are shell patterns of names that are passed over, with
        what is below them. `on_progress` is called with the bytes of each step."""
        if old:
            from paddock import _renamed

            (on_progress,) = _renamed.keywords("upload", old, on_progress=(on_progress, None))
        from paddock.client._pack import Packer

        packer = await arun_blocking(Packer, local_dir, exclude=exclude)
        handle = await self._transport.perform(
            model.UploadTree(sandbox=self._sandbox, path=os.fspath(path), user=self._user)
        )
        try:
            async for chunk in achunks(packer):
                await handle.write(chunk)
                if on_progress is not None:
                    on_progress(len(chunk))
            await handle.aclose()
        except BaseException:
            await handle.abort()
            raise
        return packer.report()

    async def download(
        self,
        path: Path,
        local_dir: Path,
        *,
        max_bytes: int = 4 << 30,
        max_files: int = 100_000,
        skip_unsafe: bool = False,
        on_progress: Moved | None = None,
        **old: Unpack[OldProgress],
    ) -> TransferReport:
        """Copy what is below `path` into a new local directory, in constant memory. The sandbox is not trusted: names
        and links that lead out, devices, and more than `max_bytes` or `max_files` raise GuestProtocolError, and nothing
        is left; with `skip_unsafe` such entries (but not the bounds) are passed over and reported. Owners and setuid
        bits are dropped. AlreadyExistsError if `local_dir` holds anything. `on_progress` is called with the bytes of
        each step."""
        if old:
            from paddock import _renamed

            (on_progress,) = _renamed.keywords("download", old, on_progress=(on_progress, None))
        from paddock.client._unpack import Unpacker

        action = model.DownloadTree(sandbox=self._sandbox, path=os.fspath(path), user=self._user)
        unpacker = await arun_blocking(
            Unpacker, local_dir, max_bytes=max_bytes, max_files=max_files, skip_unsafe=skip_unsafe
        )
        try:
            async with AsyncReader(await self._transport.perform(action)) as reader:
                while not unpacker.complete and (data := await reader.read(CHUNK_BYTES)):
                    await arun_blocking(unpacker.feed, data)
                    if on_progress is not None:
                        on_progress(len(data))
            return await arun_blocking(unpacker.finish)
        finally:
            await arun_blocking(unpacker.close)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            from paddock import _renamed

            return _renamed.method(self, name)

    def __repr__(self) -> str:
        user = f" as {self._user}" if self._user else ""
        return f"<{type(self).__name__} of {self._sandbox}{user}>"
