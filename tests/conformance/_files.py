"""Files by name: read, write, list, stat, change, search, watch."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from paddock.errors import FileError, InvalidArgumentError, RequestError
from paddock.model import (
    CopyFile,
    FileKind,
    FindFiles,
    GrepFiles,
    MakeDirectory,
    MoveFile,
    ReadFile,
    RemoveFile,
    SetFileAttributes,
    WatchFiles,
    WriteFile,
)

from ._box import drain, pour
from ._host import PeakMemory
from ._lab import Bench, Lab, eventually, guarantee

MIB = 1 << 20
LARGE_MIB = 64


class FileConformance(Bench):
    """Reading and writing."""

    @guarantee()
    async def test_what_was_written_is_read_by_commands_and_back(self, lab: Lab) -> None:
        box = await lab.box()
        everything = bytes(range(256)) * 3
        info = await box.write("file", everything)
        assert (info.kind, info.size_bytes, info.name) == (FileKind.FILE, 768, "file")
        assert await box.read("file") == everything
        assert (await box.run("cat", "file")).out == everything

    @guarantee()
    async def test_relative_paths_are_below_the_working_directory(self, lab: Lab) -> None:
        box = await lab.box()
        info = await box.write("a/b", b"x")
        assert info.path == f"{box.workdir}/a/b"
        assert await box.read(info.path) == b"x"

    @guarantee()
    async def test_an_empty_file_can_be_written_and_read(self, lab: Lab) -> None:
        box = await lab.box()
        assert (await box.write("empty", b"")).size_bytes == 0
        assert await box.read("empty") == b""

    @guarantee()
    async def test_missing_parents_are_made_by_a_write(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("deep/deeper/deepest/file", b"x")
        assert (await box.stat("deep/deeper")).kind == FileKind.DIRECTORY

    @guarantee()
    async def test_the_mode_of_a_written_file_is_the_one_asked_for(self, lab: Lab) -> None:
        box = await lab.box()
        for mode in (0o600, 0o640, 0o777, 0o400):
            assert (await box.write(f"file{mode:o}", b"", mode=mode)).mode == mode
            assert (await box.stat(f"file{mode:o}")).mode == mode
        assert (await box.write("ordinary", b"")).mode == 0o644

    @guarantee()
    async def test_a_written_file_belongs_to_the_user_who_wrote_it(self, lab: Lab) -> None:
        box = await lab.box()
        info = await box.write("mine", b"")
        assert (await box.sh("echo $(id -u):$(id -g)")).text == f"{info.uid}:{info.gid}"

    @guarantee()
    async def test_nobody_sees_half_a_file(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("file", b"old")
        writer = await box.file(WriteFile, path="file")
        for _ in range(40):
            await writer.write(bytes(65536))
        assert await box.read("file") == b"old"
        await writer.aclose()
        assert await box.read("file") == bytes(40 * 65536)
        assert await box.names() == ["file"], "nothing is left beside it"

    @guarantee()
    async def test_a_write_that_was_given_up_leaves_nothing(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("file", b"old")
        for path in ("file", "new"):
            writer = await box.file(WriteFile, path=path)
            await writer.write(b"half")
            await writer.abort()
        await writer.abort()

        async def clean() -> bool:
            return await box.names() == ["file"]

        await eventually("nothing is left of what was given up", clean)
        assert await box.read("file") == b"old"

    @guarantee()
    async def test_an_open_reader_keeps_the_file_that_it_opened(self, lab: Lab) -> None:
        box = await lab.box()
        old = b"o" * (8 * MIB)
        await box.write("file", old)
        reader = await box.file(ReadFile, path="file")
        first = await reader.read(1)
        await box.write("file", b"new")
        assert first + await drain(reader) == old

    @guarantee()
    async def test_appending_writes_in_place(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("log", b"one\n")
        inode = (await box.run("ls", "-i", "log")).text
        await box.write("log", b"two\n", append=True)
        assert await box.read("log") == b"one\ntwo\n"
        assert (await box.run("ls", "-i", "log")).text == inode

    @guarantee()
    async def test_appending_makes_the_file_if_it_is_missing(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("new/log", b"x", append=True)
        assert await box.read("new/log") == b"x"

    @guarantee()
    async def test_a_part_of_a_file_can_be_read(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("file", b"0123456789")
        wanted = {
            (0, None): b"0123456789",
            (3, None): b"3456789",
            (3, 4): b"3456",
            (0, 0): b"",
            (8, 100): b"89",
            (10, None): b"",
            (99, 5): b"",
        }
        for (offset, length), part in wanted.items():
            assert await box.read("file", offset=offset, length=length) == part

    @guarantee()
    async def test_parts_that_cannot_be_are_refused(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("file", b"0123456789")
        for fields in ({"offset": -1}, {"length": -1}):
            with pytest.raises(InvalidArgumentError):
                await box.read("file", **fields)

    @guarantee()
    async def test_a_large_file_streams_in_constant_memory_both_ways(self, lab: Lab) -> None:
        box = await lab.box()
        block = hashlib.sha256(b"block").digest() * 2048
        peak = PeakMemory()
        info = await pour(await box.file(WriteFile, path="large"), [block] * (LARGE_MIB * 16))
        assert info is not None
        assert info.size_bytes == LARGE_MIB * MIB
        digest, reader = hashlib.sha256(), await box.file(ReadFile, path="large")
        while part := await reader.read():
            digest.update(part)
        await reader.aclose()
        assert peak.growth_bytes() < 24 * MIB
        assert (await box.run("sha256sum", "large")).text.split()[0] == digest.hexdigest()

    @guarantee()
    async def test_a_reader_can_be_let_go_in_the_middle(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("file", bytes(4 * MIB))
        for _ in range(10):
            reader = await box.file(ReadFile, path="file")
            await reader.read(1)
            await reader.aclose()
        assert len(await box.read("file")) == 4 * MIB

    @guarantee()
    async def test_many_files_can_be_read_and_written_at_once(self, lab: Lab) -> None:
        box = await lab.box()
        await asyncio.gather(*(box.write(f"f{n}", b"%d" % n * 10_000) for n in range(30)))
        parts = await asyncio.gather(*(box.read(f"f{n}") for n in range(30)))
        assert parts == [b"%d" % n * 10_000 for n in range(30)]

    @guarantee()
    async def test_refusals_carry_the_kernels_reason(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("file", b"x")
        await box.sh("mkdir -p dir/full; ln -s loop loop")
        long = "n" * 256
        for wanted, attempt in {
            "read missing ENOENT": lambda: box.read("missing"),
            "read directory EISDIR": lambda: box.read("dir"),
            "read below file ENOTDIR": lambda: box.read("file/x"),
            "read loop ELOOP": lambda: box.read("loop"),
            "read long ENAMETOOLONG": lambda: box.read(long),
            "write directory EISDIR": lambda: box.write("dir", b""),
            "write below file ENOTDIR": lambda: box.write("file/x", b""),
            "append directory EISDIR": lambda: box.write("dir", b"", append=True),
            "stat missing ENOENT": lambda: box.stat("missing"),
            "list missing ENOENT": lambda: box.names("missing"),
            "list file ENOTDIR": lambda: box.names("file"),
            "mkdir existing EEXIST": lambda: box.file(MakeDirectory, path="dir", parents=False),
            "mkdir on file EEXIST": lambda: box.file(MakeDirectory, path="file"),
            "mkdir orphan ENOENT": lambda: box.file(MakeDirectory, path="no/parent", parents=False),
            "move missing ENOENT": lambda: box.file(MoveFile, source="missing", destination="x"),
            "copy missing ENOENT": lambda: box.file(CopyFile, source="missing", destination="x"),
            "remove missing ENOENT": lambda: box.file(RemoveFile, path="missing"),
            "remove full ENOTEMPTY": lambda: box.file(RemoveFile, path="dir"),
            "set missing ENOENT": lambda: box.file(SetFileAttributes, path="missing", mode=0o600),
            "watch missing ENOENT": lambda: box.file(WatchFiles, path="missing"),
            "find missing ENOENT": lambda: box.file(FindFiles, path="missing"),
            "grep missing ENOENT": lambda: box.file(GrepFiles, path="missing", pattern="x"),
        }.items():
            with pytest.raises(FileError) as caught:
                await attempt()
            assert caught.value.details.get("errno") == wanted.split()[-1], f"{wanted}: {caught.value!r}"

    @guarantee("root_user")  # without one, everything is the one user's that there is
    async def test_file_actions_have_no_more_rights_than_the_user(self, lab: Lab) -> None:
        box = await lab.box()
        for attempt in (
            lambda: box.write("/proof", b""),
            lambda: box.write("/etc/proof", b""),
            lambda: box.file(RemoveFile, path="/etc/passwd"),
        ):
            with pytest.raises(FileError) as caught:
                await attempt()
            assert caught.value.details["errno"] in {"EACCES", "EPERM", "EROFS"}

    @guarantee("root_user")
    async def test_file_actions_can_be_roots(self, lab: Lab) -> None:
        box = await lab.box()
        assert (await box.write("/root/proof", b"x", user="root", mode=0o600)).uid == 0
        assert await box.read("/root/proof", user="root") == b"x"
        with pytest.raises(FileError):
            await box.read("/root/proof")

    @guarantee()
    async def test_unknown_users_have_no_files(self, lab: Lab) -> None:
        box = await lab.box()
        with pytest.raises(RequestError):
            await box.read("file", user="paddock-nobody-here")
