"""The files of a sandbox, as its own users see them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO, Literal, overload

from paddock import model
from paddock.client._blocking import CHUNK_BYTES, AsyncContent, achunks, arun_blocking, open_local
from paddock.client._command import renamed
from paddock.client._opening import aopens
from paddock.client._transfer import TransferReport
from paddock.errors import FileError, InternalError, InvalidArgumentError
from paddock.model import FileInfo, GrepMatch

from .changes import AsyncChanges
from .process import AsyncReader, AsyncWriter
from .transport import AsyncTransport

if TYPE_CHECKING:
    from typing import Any, TypeVar, Unpack

    from paddock._renamed import OldProgress
    from paddock.client._transfer import Moved

    A = TypeVar("A", bound=model.Action[Any])

Path = str | os.PathLike[str]
_PATHS = {"path", "source", "destination"}


class AsyncFilesystem:
    """`sandbox.files`.

    A user of the sandbox does everything inside it, so that no name in there leads anywhere else.
    A refusal is a FileError. It is also Python's own: FileNotFoundError, PermissionError, IsADirectoryError.
    Every method raises SandboxDiedError after the sandbox has ended.

    Example:
        ```python
        await sandbox.files.write("notes/today.txt", "hello")
        print(await sandbox.files.read_text("notes/today.txt"))  # hello
        ```
    """

    def __init__(self, sandbox: str, transport: AsyncTransport, user: str | None = None) -> None:
        self._sandbox = sandbox
        self._transport = transport
        self._user = user

    def _about(self, kind: type[A], **fields: Any) -> A:
        """Return an action on files of this sandbox."""
        for name in _PATHS & fields.keys():
            fields[name] = os.fspath(fields[name])
        fields.update(sandbox=self._sandbox, user=self._user)
        return kind(**fields)

    def as_user(self, user: str) -> AsyncFilesystem:
        """Return the same files, touched by another user.

        Args:
            user: A name of a user inside, such as `root`.

        Returns:
            The files. A user that the sandbox lacks is a NotFoundError at the first use.

        Example:
            ```python
            await sandbox.files.as_user("root").write("/etc/motd", "hello")
            ```
        """
        return AsyncFilesystem(self._sandbox, self._transport, user)

    async def read(self, path: Path, *, max_bytes: int = 256 << 20) -> bytes:
        """Read a whole file.

        Args:
            path: The file.
            max_bytes: Raise if it holds more. The sandbox isn't trusted: a file may be of any size.

        Returns:
            Its bytes.

        Raises:
            FileError: The file doesn't exist, or it holds more than `max_bytes` (EFBIG).

        Example:
            ```python
            data = await sandbox.files.read("/etc/passwd")
            print(data[:5])  # b'root:'
            ```
        """
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
        """Read a whole file as a text, of at most 256 MiB.

        Args:
            path: The file.
            encoding: The text's encoding.
            errors: What becomes of bytes that aren't: `strict`, `replace` or `ignore`, as in `bytes.decode`.

        Returns:
            The text.

        Raises:
            FileError: The file doesn't exist.
            UnicodeDecodeError: It isn't a text of this encoding, with `strict`.

        Example:
            ```python
            print((await sandbox.files.read_text("/etc/passwd")).splitlines()[0])  # root:…
            ```
        """
        return (await self.read(path)).decode(encoding, errors)

    async def read_to(self, path: Path, target: Path | BinaryIO) -> int:
        """Copy a file into a local one, in constant memory.

        Args:
            path: The file inside.
            target: A local path, which it overwrites, or a file object that takes bytes.

        Returns:
            The number of bytes.

        Raises:
            FileError: The file inside doesn't exist.
            OSError: This program can't write the local file.

        Example:
            ```python
            await sandbox.exec("seq 1000 > numbers")
            print(await sandbox.files.read_to("numbers", "numbers.txt"))  # 3893
            ```
        """
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

        Use a `with` block. At its end paddock puts a written file in place, unless the block raises.

        Args:
            path: The file.
            mode: `rb`, `wb` or `ab`.
            offset: Read from this byte on.
            length: Read at most so many bytes.
            permissions: The mode of a new file, such as 0o600.

        Returns:
            A reader for `rb`, a writer for the others.

        Raises:
            InvalidArgumentError: The mode doesn't exist.
            FileError: The user can't open the file.

        Example:
            ```python
            async with await sandbox.files.open("log.txt", "wb") as file:
                await file.write("hello")
            async with await sandbox.files.open("log.txt", offset=1, length=3) as file:
                print(await file.read())  # b'ell'
            ```
        """
        if mode in ("wb", "ab"):
            action = self._about(model.WriteFile, path=path, mode=permissions, append=mode == "ab")
            return await self._transport.perform(action)
        if mode != "rb":
            raise InvalidArgumentError(
                f"mode={mode!r}: files are opened as 'rb', 'wb' or 'ab'",
                hint="read_text() reads text, write() takes it",
            )
        source = self._about(model.ReadFile, path=path, offset=offset, length=length)
        return await self._transport.perform(source)

    async def write(self, path: Path, data: AsyncContent, *, mode: int | None = None, append: bool = False) -> FileInfo:
        """Write a file, in constant memory. It creates missing directories.

        A reader never sees half a file: paddock puts it in place at the end, or not at all.

        Args:
            path: The file.
            data: A text (as UTF-8), bytes, a file object, or an iterable of bytes.
            mode: The permissions, such as 0o755. None: those it has, or the usual ones.
            append: Add to its end instead. Then a reader may see a part.

        Returns:
            Its size, permissions and owner.

        Raises:
            FileError: The user can't write the file.

        Example:
            ```python
            info = await sandbox.files.write("run.sh", "echo hello", mode=0o755)
            print(info.path, info.size_bytes)  # /workspace/run.sh 10
            ```
        """
        action = self._about(model.WriteFile, path=path, mode=mode, append=append)
        async with await self._transport.perform(action) as file:
            async for chunk in achunks(data):
                await file.write(chunk)
            info = await file.aclose()
        if info is None:
            raise InternalError(f"nothing is known of {os.fspath(path)!r} after it was written")
        return info

    async def write_from(self, path: Path, source: Path, *, mode: int | None = None) -> FileInfo:
        """Copy a local file into the sandbox, in constant memory.

        Args:
            path: The file inside.
            source: The local file.
            mode: The permissions, such as 0o755. None: those it has, or the usual ones.

        Returns:
            Its size, permissions and owner.

        Raises:
            FileError: The user can't write the file inside.
            OSError: This program can't read the local file.

        Example:
            ```python
            info = await sandbox.files.write_from("readme.md", "project/README.md")
            ```
        """
        with await arun_blocking(open_local, source, "rb") as file:
            return await self.write(path, file, mode=mode)

    async def list(self, path: Path = ".", *, depth: int = 1) -> tuple[FileInfo, ...]:
        """List a directory.

        Args:
            path: The directory.
            depth: How deep: 1 is the directory itself, 2 its subdirectories too, up to 256.

        Returns:
            A tuple of FileInfo, sorted by name.

        Raises:
            FileError: The directory doesn't exist.

        Example:
            ```python
            for info in await sandbox.files.list("/etc"):
                print(info.name, info.kind, info.size_bytes)
            ```
        """
        return await self._transport.perform(self._about(model.ListFiles, path=path, depth=depth))

    async def stat(self, path: Path, *, follow: bool = False) -> FileInfo:
        """Describe a file.

        Args:
            path: The file, directory or link.
            follow: Describe the target of a symbolic link, not the link itself.

        Returns:
            Its kind, size, permissions, owner and time.

        Raises:
            FileError: The file doesn't exist.

        Example:
            ```python
            info = await sandbox.files.stat("/etc/passwd")
            print(info.kind, oct(info.mode))  # file 0o644
            ```
        """
        return await self._transport.perform(self._about(model.StatFile, path=path, follow=follow))

    async def exists(self, path: Path) -> bool:
        """Tell whether there is such a file. A symbolic link that points nowhere exists.

        Args:
            path: The file, directory or link.

        Returns:
            True if there is one.

        Raises:
            FileError: The user can't search a directory above it.

        Example:
            ```python
            print(await sandbox.files.exists("/etc/passwd"))  # True
            ```
        """
        try:
            await self.stat(path)
        except FileError as error:
            if error.details.get("errno") in ("ENOENT", "ENOTDIR"):
                return False
            raise
        return True

    async def make_dir(self, path: Path, *, mode: int | None = None, parents: bool = True) -> FileInfo:
        """Create a directory. One that is there stays as it is.

        Args:
            path: The directory.
            mode: Its permissions, such as 0o700.
            parents: Create missing directories above it, too. Without, one that is there is a FileExistsError.

        Returns:
            Its permissions and owner.

        Raises:
            FileError: The user can't create it.

        Example:
            ```python
            await sandbox.files.make_dir("src/app")
            ```
        """
        return await self._transport.perform(self._about(model.MakeDirectory, path=path, mode=mode, parents=parents))

    async def move(self, source: Path, destination: Path) -> FileInfo:
        """Rename a file or directory, or move it elsewhere.

        Args:
            source: What to move.
            destination: Its new path. It replaces a file there.

        Returns:
            The moved file.

        Raises:
            FileError: The file doesn't exist, or the user can't write there.

        Example:
            ```python
            await sandbox.files.write("draft.txt", "hello")
            await sandbox.files.move("draft.txt", "final.txt")
            ```
        """
        return await self._transport.perform(self._about(model.MoveFile, source=source, destination=destination))

    async def copy(self, source: Path, destination: Path) -> FileInfo:
        """Copy a file, or a directory with everything in it.

        Args:
            source: What to copy.
            destination: The path of the copy. It replaces a file there.

        Returns:
            The copy.

        Raises:
            FileError: The file doesn't exist, or the user can't write there.

        Example:
            ```python
            await sandbox.files.copy("/etc/passwd", "passwd.bak")
            ```
        """
        return await self._transport.perform(self._about(model.CopyFile, source=source, destination=destination))

    async def remove(self, path: Path, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Remove a file or a directory.

        Args:
            path: What to remove.
            recursive: Remove everything in a directory, too. Without, it has to be empty.
            missing_ok: A file that isn't there isn't an error.

        Raises:
            FileError: The file doesn't exist, or the directory isn't empty.
            ApprovalNeededError: The policy asks a person first.

        Example:
            ```python
            await sandbox.files.write("build/a.o", b"")
            await sandbox.files.remove("build", recursive=True)
            ```
        """
        await self._transport.perform(
            self._about(model.RemoveFile, path=path, recursive=recursive, missing_ok=missing_ok)
        )

    async def chmod(self, path: Path, mode: int) -> FileInfo:
        """Change the permissions of a file.

        Args:
            path: The file.
            mode: Its permissions, such as 0o755.

        Returns:
            The changed file.

        Raises:
            FileError: The file doesn't exist, or it belongs to another user.

        Example:
            ```python
            await sandbox.files.write("run.sh", "echo hello")
            await sandbox.files.chmod("run.sh", 0o755)
            ```
        """
        return await self._transport.perform(self._about(model.SetFileAttributes, path=path, mode=mode))

    async def chown(self, path: Path, uid: int | None = None, gid: int | None = None) -> FileInfo:
        """Change the owner of a file. It needs `as_user("root")`.

        Args:
            path: The file.
            uid: The number of a user inside. None leaves it.
            gid: The number of a group inside. None leaves it.

        Returns:
            The changed file.

        Raises:
            FileError: The file doesn't exist, or the user may not do that.

        Example:
            ```python
            await sandbox.files.write("run.sh", "echo hello")
            await sandbox.files.as_user("root").chown("run.sh", uid=0, gid=0)
            ```
        """
        return await self._transport.perform(self._about(model.SetFileAttributes, path=path, uid=uid, gid=gid))

    async def find(self, path: Path = ".", name: str = "*", *, limit: int = 10_000) -> tuple[FileInfo, ...]:
        """Find files by their name.

        Args:
            path: The directory to search, with all below it.
            name: A shell pattern, such as `*.py`.
            limit: At most so many.

        Returns:
            A tuple of FileInfo.

        Raises:
            FileError: The directory doesn't exist.

        Example:
            ```python
            await sandbox.files.write("src/app.py", "print()")
            print([info.name for info in await sandbox.files.find("src", "*.py")])  # ['app.py']
            ```
        """
        return await self._transport.perform(self._about(model.FindFiles, path=path, name=name, limit=limit))

    async def grep(
        self, pattern: str, path: Path = ".", *, name: str = "*", limit: int = 1_000
    ) -> tuple[GrepMatch, ...]:
        """Find lines that match a regular expression. It skips binary files.

        Args:
            pattern: A regular expression.
            path: The directory to search, with all below it, or one file.
            name: Only files with a name like this shell pattern.
            limit: At most so many lines.

        Returns:
            A tuple of matches, each with path, line number and line.

        Raises:
            InvalidArgumentError: `pattern` isn't a regular expression.
            FileError: The directory doesn't exist.

        Example:
            ```python
            for match in await sandbox.files.grep("^root:", "/etc", name="passwd"):
                print(match.path, match.line_number)  # /etc/passwd 1
            ```
        """
        action = self._about(model.GrepFiles, path=path, pattern=pattern, name=name, limit=limit)
        return await self._transport.perform(action)

    async def watch(self, path: Path, *, recursive: bool = False) -> AsyncChanges:
        """Watch a file or directory from now on.

        Args:
            path: The file or directory.
            recursive: Watch everything below it, too.

        Returns:
            An iterator over the changes.

        Raises:
            FileError: The file doesn't exist.

        Example:
            ```python
            async with await sandbox.files.watch(".") as changes:
                await sandbox.files.write("new.txt", "hello")
                print((await anext(changes)).kind)
            ```
        """
        action = self._about(model.WatchFiles, path=path, recursive=recursive)
        return await self._transport.perform(action)

    async def upload(
        self,
        local_dir: Path,
        path: Path,
        *,
        exclude: tuple[str, ...] = (),
        on_progress: Moved | None = None,
        **old: Unpack[OldProgress],
    ) -> TransferReport:
        """Copy the content of a local directory to below `path`, in constant memory.

        Symbolic links stay links. It leaves out sockets, pipes and devices, and reports them.

        Args:
            local_dir: The local directory.
            path: The directory inside.
            exclude: Shell patterns of names to skip, with all below them.
            on_progress: Called with the number of bytes of each step.

        Returns:
            How many files and bytes, and the names that it left out.

        Raises:
            InvalidArgumentError: `local_dir` isn't a directory.
            FileError: The user can't write a file inside.

        Example:
            ```python
            report = await sandbox.files.upload("project", "/workspace/project", exclude=(".git",))
            print(report.entries, report.total_bytes)
            ```
        """
        if old:
            (on_progress,) = renamed("upload", old, on_progress=(on_progress, None))
        from paddock.client._pack import Packer

        packer = await arun_blocking(Packer, local_dir, exclude=exclude)
        async with await self._transport.perform(self._about(model.UploadTree, path=path)) as archive:
            async for chunk in achunks(packer):
                await archive.write(chunk)
                if on_progress is not None:
                    on_progress(len(chunk))
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
        """Copy all below `path` into a new local directory, in constant memory.

        The sandbox isn't trusted: an entry that leads out of `local_dir`, or a device, raises GuestProtocolError. Then
        it leaves no file. The copies have no owners and no setuid bits of the sandbox. Your umask limits their modes.

        Args:
            path: The directory inside.
            local_dir: The local directory. It must be empty or missing.
            max_bytes: Raise GuestProtocolError if there are more.
            max_files: Raise GuestProtocolError if there are more.
            skip_unsafe: Leave such entries out and report them, instead of raising.
            on_progress: Called with the number of bytes of each step.

        Returns:
            How many files and bytes, and the names that it left out.

        Raises:
            FileError: The directory inside doesn't exist.
            AlreadyExistsError: `local_dir` holds a file.
            GuestProtocolError: There is an unsafe entry, or too much.

        Example:
            ```python
            await sandbox.files.write("out/report.txt", "hello")
            report = await sandbox.files.download("out", "report")
            print(report.total_bytes)  # 5
            ```
        """
        if old:
            (on_progress,) = renamed("download", old, on_progress=(on_progress, None))
        from paddock.client._unpack import Unpacker

        action = self._about(model.DownloadTree, path=path)
        unpacker = await arun_blocking(
            Unpacker, local_dir, max_bytes=max_bytes, max_files=max_files, skip_unsafe=skip_unsafe
        )
        try:
            async with await self._transport.perform(action) as reader:
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
