"""File actions, through the host's side and a real guest."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import socket
import subprocess
import tarfile

import pytest

from paddock.errors import FileError, InvalidArgumentError
from paddock.model import (
    ConnectPort,
    CopyFile,
    DownloadTree,
    FileKind,
    FindFiles,
    GrepFiles,
    ListFiles,
    MakeDirectory,
    MoveFile,
    ReadFile,
    RemoveFile,
    SetFileAttributes,
    StatFile,
    UploadTree,
    WatchFiles,
    WriteFile,
)
from tests.backends.boxes import sandbox
from tests.conformance import eventually

ODD = b"odd \xff\n name".decode("utf-8", "surrogateescape")


class Box:
    """A sandbox's files, in the words of the tests."""

    def __init__(self, instance, directory):
        self.instance = instance
        self.work = directory / "run" / instance.id / "root" / "workspace"

    async def __call__(self, action, **fields):
        return await self.instance.file(action(sandbox=self.instance.id, **fields))

    async def write(self, path, data, **fields):
        writer = await self(WriteFile, path=path, **fields)
        await writer.write(data)
        return await writer.aclose()

    async def read(self, path, **fields):
        reader = await self(ReadFile, path=path, **fields)
        return await read_all(reader)


async def read_all(reader):
    parts = []
    while data := await reader.read():
        parts.append(data)
    await reader.aclose()
    return b"".join(parts)


@pytest.fixture(params=["descriptors", "frames"])
def box(tmp_path, request):
    def runner(body):
        async def main():
            async with sandbox(tmp_path) as instance:
                (await instance.connection("user")).descriptors = request.param == "descriptors"
                await body(Box(instance, tmp_path))

        asyncio.run(main())

    return runner


def test_what_is_written_is_read(box):
    async def body(files):
        data = os.urandom(5_000_000)
        info = await files.write("deep/er/file", data)
        assert (info.path, info.kind, info.size_bytes, info.mode) == (
            "/workspace/deep/er/file",
            FileKind.FILE,
            len(data),
            0o644,
        )
        assert await files.read("/workspace/deep/er/file") == data
        assert await files.read("deep/er/file", offset=10, length=20) == data[10:30]
        assert await files.read("deep/er/file", offset=len(data) + 5) == b""
        assert await files.read("deep/er/file", length=0) == b""
        await files.write("empty", b"")
        assert await files.read("empty") == b""

    box(body)


def test_a_file_is_replaced_whole_or_not_at_all(box):
    async def body(files):
        await files.write("f", b"old", mode=0o640)
        writer = await files(WriteFile, path="f")
        await writer.write(b"new")
        assert await files.read("f") == b"old"
        await writer.abort()
        assert await files.read("f") == b"old"
        assert os.listdir(files.work) == ["f"]
        info = await files.write("f", b"new")
        assert info.mode == 0o640
        info = await files.write("f", b"new", mode=0o755)
        assert info.mode == 0o755

    box(body)


def test_losing_the_connection_leaves_no_half_file(box):
    async def body(files):
        writer = await files(WriteFile, path="f")
        await writer.write(b"x" * 100_000)
        files.instance.close_connections()
        await files.write("g", b"")

        async def clean():
            return [info.name for info in await files(ListFiles, path=".")] == ["g"]

        await eventually("the agent has noticed, and cleaned up", clean)

    box(body)


def test_append_is_in_place(box):
    async def body(files):
        await files.write("log", b"one\n")
        inode = (files.work / "log").stat().st_ino
        await files.write("log", b"two\n", append=True)
        assert await files.read("log") == b"one\ntwo\n"
        assert (files.work / "log").stat().st_ino == inode
        await files.write("fresh", b"x", append=True)

    box(body)


def test_writing_through_a_link_reaches_the_file_behind_it(box):
    async def body(files):
        await files.write("real", b"1")
        os.symlink("real", files.work / "link")
        await files.write("link", b"2")
        assert await files.read("real") == b"2"
        assert (await files(StatFile, path="link")).target == "real"

    box(body)


def test_names_that_are_not_utf8_survive(box):
    async def body(files):
        await files.write(ODD, b"x")
        (info,) = await files(ListFiles, path=".")
        assert info.path == "/workspace/" + ODD
        assert await files.read(info.path) == b"x"
        assert os.listdir(os.fsencode(files.work)) == [os.fsencode(ODD)]
        assert (await files(FindFiles, path=".", name="odd*"))[0].path == info.path

    box(body)


def test_refusals_carry_the_kernels_name(box):
    async def body(files):
        os.mkfifo(files.work / "fifo")
        await files(MakeDirectory, path="full/inner")
        for errno, action, fields in (
            ("ENOENT", ReadFile, {"path": "none"}),
            ("EISDIR", ReadFile, {"path": "."}),
            ("EINVAL", ReadFile, {"path": "fifo"}),
            ("EINVAL", WriteFile, {"path": "fifo"}),
            ("ENXIO", WriteFile, {"path": "fifo", "append": True}),
            ("EISDIR", WriteFile, {"path": "full"}),
            ("ENOTEMPTY", RemoveFile, {"path": "full"}),
            ("ENOENT", RemoveFile, {"path": "none"}),
            ("ENOENT", RemoveFile, {"path": "none", "recursive": True}),
            ("ENOENT", StatFile, {"path": "none"}),
            ("ENOTDIR", ListFiles, {"path": "fifo"}),
            ("ENOENT", GrepFiles, {"path": "none", "pattern": "x"}),
            ("ENOENT", WatchFiles, {"path": "none"}),
            ("ENOENT", CopyFile, {"source": "none", "destination": "x"}),
            ("ENOENT", MoveFile, {"source": "none", "destination": "x"}),
            ("ENOENT", DownloadTree, {"path": "none"}),
            ("EEXIST", MakeDirectory, {"path": "full", "parents": False}),
            ("ENAMETOOLONG", StatFile, {"path": "n" * 300}),
            ("ENAMETOOLONG", StatFile, {"path": "n/" * 3000}),
            ("ECONNREFUSED", ConnectPort, {"port": 1}),
        ):
            with pytest.raises(FileError) as caught:
                await files(action, **fields)
            assert caught.value.details["errno"] == errno, action
        with pytest.raises(InvalidArgumentError, match="NUL"):
            await files(StatFile, path="a\0b")
        with pytest.raises(InvalidArgumentError, match="empty"):
            await files(StatFile, path="")
        await files(RemoveFile, path="none", missing_ok=True)
        await files(RemoveFile, path="none", missing_ok=True, recursive=True)

    box(body)


@contextlib.contextmanager
def small_disk(directory):
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(directory)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


@pytest.mark.root
def test_a_disk_that_is_full_is_told_and_leaves_nothing(box):
    if os.getuid() != 0:
        pytest.skip("needs uid 0: mounts a small file system")

    async def body(files):
        with small_disk(files.work / "small"):
            with pytest.raises(FileError) as caught:
                await files.write("small/f", b"x" * 8_000_000)
            assert caught.value.details["errno"] == "ENOSPC"
            assert os.listdir(files.work / "small") == []
            await files.write("elsewhere", b"x" * 1000)
            info = await files(MoveFile, source="elsewhere", destination="small/moved")
            assert info.size_bytes == 1000
            assert not (files.work / "elsewhere").exists()

    box(body)


def test_list_is_sorted_and_goes_as_deep_as_asked(box):
    async def body(files):
        for name in ("b/2", "b/1", "a", "c"):
            await files.write(name, b"")
        os.symlink("b", files.work / "link")
        assert [i.path[11:] for i in await files(ListFiles, path=".")] == ["a", "b", "c", "link"]
        deep = await files(ListFiles, path="/workspace", depth=2)
        assert [i.path[11:] for i in deep] == ["a", "b", "b/1", "b/2", "c", "link"]

    box(body)


def test_results_larger_than_a_frame_arrive_whole(box):
    async def body(files):
        for n in range(5000):
            (files.work / f"{n:05}{'x' * 100}").touch()
        assert len(await files(ListFiles, path=".")) == 5000
        assert len(await files(FindFiles, path=".", limit=10)) == 10

    box(body)


def test_grep_tells_lines_and_passes_over_binary_files(box):
    async def body(files):
        await files.write("a.txt", "nothing\nwörd here\n".encode())
        await files.write("b.bin", b"w\xc3\xb6rd\0")
        await files.write("c.md", "wörd\n".encode())
        os.mkfifo(files.work / "fifo")
        found = await files(GrepFiles, path=".", pattern=r"\bw.rd\b")
        assert [(m.path, m.line_number, m.line) for m in found] == [
            ("/workspace/a.txt", 2, "wörd here"),
            ("/workspace/c.md", 1, "wörd"),
        ]
        assert [m.path for m in await files(GrepFiles, path=".", pattern="w", name="*.md")] == ["/workspace/c.md"]
        assert len(await files(GrepFiles, path="a.txt", pattern=".", limit=1)) == 1
        with pytest.raises(InvalidArgumentError, match="regular expression"):
            await files(GrepFiles, path=".", pattern="(")

    box(body)


def test_a_catastrophic_pattern_does_not_stop_the_agent(box):
    async def body(files):
        await files.write("f", b"a" * 60 + b"!\n")
        looking = asyncio.ensure_future(files(GrepFiles, path=".", pattern="(a+)+$"))
        assert await files.read("f", length=1) == b"a"
        assert await looking == ()
        assert len(await files(ListFiles, path=".")) == 1

    box(body)


def test_trees_are_copied_moved_and_removed(box):
    async def body(files):
        await files.write("t/x", b"1", mode=0o751)
        await files.write("t/d/y", b"2")
        os.symlink("../x", files.work / "t/d/l")
        os.mkfifo(files.work / "t/fifo")
        os.chmod(files.work / "t/d", 0o555)
        info = await files(CopyFile, source="t", destination="u")
        assert (info.path, info.kind) == ("/workspace/u", FileKind.DIRECTORY)
        assert [(i.path[12:], i.kind, i.mode) for i in await files(ListFiles, path="u", depth=9)] == [
            (i.path[12:], i.kind, i.mode) for i in await files(ListFiles, path="t", depth=9)
        ]
        assert os.readlink(files.work / "u/d/l") == "../x"
        with pytest.raises(InvalidArgumentError, match="into itself"):
            await files(CopyFile, source="t", destination="t/d/again")
        await files(MoveFile, source="u", destination="v")
        await files(RemoveFile, path="v", recursive=True)
        await files(RemoveFile, path="t/x")
        assert [i.name for i in await files(ListFiles, path=".")] == ["t"]
        await files.write("one", b"1")
        await files(CopyFile, source="one", destination="two")
        assert await files.read("two") == b"1"

    box(body)


def test_remove_does_not_follow_links_and_reaches_any_depth(box):
    async def body(files):
        await files.write("keep/f", b"")
        (files.work / "t").mkdir()
        os.symlink("../keep", files.work / "t/link")
        fd = os.open(files.work / "t", os.O_DIRECTORY)
        for n in range(1500):
            os.mkdir("d", dir_fd=fd)
            inner = os.open("d", os.O_DIRECTORY, dir_fd=fd)
            if n % 300 == 0:
                os.close(os.open("file", os.O_CREAT, dir_fd=inner))
            os.close(fd)
            fd = inner
        os.close(fd)
        await files(RemoveFile, path="t", recursive=True)
        assert [i.path[11:] for i in await files(ListFiles, path=".", depth=2)] == ["keep", "keep/f"]

    box(body)


def test_attributes_are_set(box):
    async def body(files):
        await files.write("f", b"")
        assert (await files(SetFileAttributes, path="f", mode=0o600)).mode == 0o600
        if os.getuid() == 0:
            info = await files(SetFileAttributes, path="f", uid=12, gid=34)
            assert (info.uid, info.gid, info.mode) == (12, 34, 0o600)

    box(body)


def tar_of(*members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, fields, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            for field, value in fields.items():
                setattr(member, field, value)
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


async def upload(files, data, path="in"):
    writer = await files(UploadTree, path=path)
    with contextlib.suppress(BrokenPipeError):
        await writer.write(data)
    return await writer.aclose()


def test_a_tree_goes_in_and_comes_out_again(box):
    async def body(files):
        big = os.urandom(1_000_000)
        data = tar_of(
            ("d", {"type": tarfile.DIRTYPE, "mode": 0o555}, b""),
            ("d/big", {"mode": 0o755}, big),
            ("d/hard", {"type": tarfile.LNKTYPE, "linkname": "d/big"}, b""),
            ("d/soft", {"type": tarfile.SYMTYPE, "linkname": "../x"}, b""),
            ("x", {"mode": 0o4777, "uid": 7, "mtime": 1000}, b"x"),
            ("./no/parents/" + ODD, {}, b"y"),
        )
        info = await upload(files, data)
        assert info.path == "/workspace/in"
        assert await files.read("in/d/hard") == big
        x = await files(StatFile, path="in/x")
        assert (x.mode, x.modified_at) == (0o755, 1000)
        assert (files.work / "in/d/big").stat().st_nlink == 2
        out = await read_all(await files(DownloadTree, path="in"))
        with tarfile.open(fileobj=io.BytesIO(out)) as archive:
            names = sorted(archive.getnames())
            assert names == ["d", "d/big", "d/hard", "d/soft", "no", "no/parents", "no/parents/" + ODD, "x"]
            assert archive.extractfile("d/big").read() == big
        await upload(files, data)  # over what is there
        single = await read_all(await files(DownloadTree, path="in/x"))
        with tarfile.open(fileobj=io.BytesIO(single)) as archive:
            assert archive.getnames() == ["x"]

    box(body)


@pytest.mark.parametrize(
    ("words", "members"),
    [
        ("outside", [("/etc/x", {}, b"")]),
        ("outside", [("a/../../x", {}, b"")]),
        ("directory", [("l", {"type": tarfile.SYMTYPE, "linkname": "/tmp"}, b""), ("l/x", {}, b"")]),
        ("directory", [("l", {"type": tarfile.SYMTYPE, "linkname": ".."}, b""), ("l/x", {}, b"")]),
        ("outside", [("l", {"type": tarfile.LNKTYPE, "linkname": "../x"}, b"")]),
        ("device", [("n", {"type": tarfile.CHRTYPE}, b"")]),
        ("FIFO", [("n", {"type": tarfile.FIFOTYPE}, b"")]),
        ("directory", [("l", {"type": tarfile.SYMTYPE, "linkname": "d"}, b""), ("l/x", {}, b"")]),
    ],
)
def test_an_archive_that_reaches_outside_is_refused(box, words, members):
    async def body(files):
        with pytest.raises((InvalidArgumentError, FileError), match=words):
            await upload(files, tar_of(*members))
        assert not (files.work / "x").exists()

    box(body)


def test_a_virtualenv_comes_back_with_its_links_whatever_they_say(box):
    targets = {
        "bin/python": "/usr/bin/python3",
        "bin/python3": "python",
        "lib64": "../../lib",
        "loop": "loop",
        "no": "x",
    }

    async def body(files):
        links = [(name, {"type": tarfile.SYMTYPE, "linkname": target}, b"") for name, target in targets.items()]
        await upload(
            files, tar_of(*links, ("f", {}, b""), ("hard", {"type": tarfile.LNKTYPE, "linkname": "f"}, b"")), "a"
        )
        await upload(files, await read_all(await files(DownloadTree, path="a")), "b")
        for name, target in targets.items():
            assert os.readlink(files.work / "b" / name) == target

    box(body)


def test_a_link_that_was_there_is_replaced_and_never_written_through(box):
    async def body(files):
        await files.write("outside/kept", b"kept")
        for target in ("../outside/kept", str(files.work / "outside/kept")):
            members = (("way", {"type": tarfile.SYMTYPE, "linkname": target}, b""), ("way", {}, b"new"))
            await upload(files, tar_of(*members))
            assert await files.read("in/way") == b"new"
        assert await files.read("outside/kept") == b"kept"

    box(body)


def test_below_a_file_there_is_nothing(box):
    async def body(files):
        await files.write("f", b"")
        for path in ("f/a", "f/a/b"):
            with pytest.raises(FileError) as caught:
                await files.write(path, b"")
            assert caught.value.details["errno"] == "ENOTDIR"

    box(body)


def test_what_is_no_archive_is_refused(box):
    async def body(files):
        with pytest.raises(InvalidArgumentError, match="tar"):
            await upload(files, b"hello" * 1000)

    box(body)


async def until(changes, wanted):
    seen = []
    while not wanted <= {(c.path, c.kind) for c in seen}:
        seen += await changes.next()
    return seen


def test_changes_are_told(box):
    async def body(files):
        changes = await files(WatchFiles, path=".", recursive=True)
        await files.write("f", b"1", append=True)
        await files.write("d/e/g", b"1")
        os.rename(files.work / "f", files.work / "h")
        os.unlink(files.work / "h")
        async with asyncio.timeout(60):
            await until(
                changes,
                {
                    ("/workspace/f", "created"),
                    ("/workspace/f", "modified"),
                    ("/workspace/d", "created"),
                    ("/workspace/d/e", "created"),
                    ("/workspace/f", "moved_from"),
                    ("/workspace/h", "moved_to"),
                    ("/workspace/h", "removed"),
                },
            )
            await files.write("d/e/later", b"")
            await until(changes, {("/workspace/d/e/later", "moved_to")})
        await changes.aclose()

    box(body)


def test_a_watch_ends_with_what_it_watches(box):
    async def body(files):
        await files(MakeDirectory, path="d")
        changes = await files(WatchFiles, path="d")
        await files(RemoveFile, path="d")
        async with asyncio.timeout(60):
            seen = []
            while found := await changes.next():
                seen += found
        assert [(c.path, c.kind) for c in seen] == [("/workspace/d", "removed")]

    box(body)


def test_a_port_inside_is_reached_and_halves_close_apart(box):
    async def body(files):
        async def serve(reader, writer):
            data = await reader.read()  # until the other half is closed
            writer.write(data[::-1])
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, family=socket.AF_INET)
        async with server:
            stream = await files(ConnectPort, port=server.sockets[0].getsockname()[1])
            data = os.urandom(3_000_000)
            await stream.write(data)
            await stream.write_eof()
            assert await read_all(stream) == data[::-1]

    box(body)
