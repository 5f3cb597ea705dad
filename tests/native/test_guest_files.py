"""Files by name: what each operation does, beside what the system's own tools do."""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paddock.wire.guest import (
    MkdirFlags,
    Op,
    RemoveFlags,
    SetFlags,
    StatFlags,
    WalkedFlags,
    Write,
    WriteFlags,
)
from tests.native.driver import EMULATOR, Connection, Guest, GuestError, foreign_to
from tests.native.filing import Files, Operation, Watching
from tests.native.test_commands import eventually

REGULAR, DIRECTORY, LINK, OTHER = 1, 2, 3, 4
CREATED, MODIFIED, REMOVED, MOVED_FROM, MOVED_TO, OVERFLOW = range(1, 7)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "r").mkdir()
    return tmp_path / "r"


@pytest.fixture
def files(host: Connection, root: Path) -> Files:
    return Files(host, root)


def refused(action: Callable[[], object]) -> int:
    with pytest.raises(GuestError) as caught:
        action()
    return caught.value.errno


# one file


def test_stat_tells_what_the_kernel_tells(files: Files, root: Path) -> None:
    (root / "file").write_bytes(b"12345")
    os.chmod(root / "file", 0o4751)
    os.utime(root / "file", ns=(5, -1_500_000_000))
    (root / "link").symlink_to("file")
    os.mkfifo(root / "fifo")
    info = files.stat("./file")
    assert (info.kind, info.size, info.mode, info.modified) == (REGULAR, 5, 0o4751, -1_500_000_000)
    assert info.path == files.at("file")
    info = files.stat("link")
    assert (info.kind, info.target) == (LINK, b"file")
    assert files.stat("link", StatFlags.FOLLOW).kind == REGULAR
    assert (files.stat("").kind, files.stat("fifo").kind) == (DIRECTORY, OTHER)
    (root / "way").symlink_to("/usr/bin")
    assert files.stat("way/..//").path == files.at("way/.."), "a link may come before the dots"


def test_directories_are_made_with_their_parents(files: Files, root: Path) -> None:
    assert files.mkdir("a/b/c", MkdirFlags.PARENTS | MkdirFlags.MODE, 0o700).mode == 0o700
    files.mkdir("a/b/c")
    assert refused(lambda: files.mkdir("a", 0)) == errno.EEXIST
    assert refused(lambda: files.mkdir("x/y", 0)) == errno.ENOENT
    (root / "file").touch()
    assert refused(lambda: files.mkdir("file")) == errno.EEXIST
    assert refused(lambda: files.mkdir("file/below")) == errno.ENOTDIR
    (root / "dangling").symlink_to("nowhere")
    assert refused(lambda: files.mkdir("dangling")) == errno.EEXIST


def test_attributes_are_set_one_by_one(files: Files, root: Path) -> None:
    (root / "file").touch()
    assert files.set("file", SetFlags.MODE, mode=0o640).mode == 0o640
    assert files.set("file", SetFlags.MODIFIED, modified=-1).modified == -1
    if os.getuid() == 0:
        info = files.set("file", SetFlags.UID | SetFlags.MODE, uid=7, gid=8, mode=0o4755)
        assert (info.uid, info.gid, info.mode) == (7, 0, 0o4755)
    assert refused(lambda: files.set("none", SetFlags.MODE, mode=0)) == errno.ENOENT


def test_a_part_of_a_file_is_read(files: Files, root: Path) -> None:
    (root / "file").write_bytes(b"0123456789")
    for offset, length in ((0, 10), (3, 4), (8, 100), (10, 1), (99, 5), (0, 0), (3, 1 << 64 - 1)):
        assert files.read("file", offset, length) == b"0123456789"[offset : offset + length]
    large = os.urandom(3_000_000)
    (root / "large").write_bytes(large)
    assert files.read("large") == large
    assert files.read("/proc/self/status"), "what has no size and no pages"


def test_what_is_no_file_is_not_read(files: Files, root: Path) -> None:
    os.mkfifo(root / "fifo")
    (root / "loop").symlink_to("loop")
    (root / "file").touch()
    assert refused(lambda: files.read("fifo")) == errno.EINVAL
    assert refused(lambda: files.read("")) == errno.EISDIR
    assert refused(lambda: files.read("loop")) == errno.ELOOP
    assert refused(lambda: files.read("file/x")) == errno.ENOTDIR
    assert refused(lambda: files.read("n" * 256)) == errno.ENAMETOOLONG


# writing


def test_a_written_file_replaces_what_was_there_at_once(files: Files, root: Path) -> None:
    (root / "file").write_bytes(b"old")
    operation = Operation(files.host, Op.WRITE, Write(path=files.at("file")))
    files.host.reply(operation.channel)
    operation.send(b"new" * 1000)
    files.host.ping()
    assert (root / "file").read_bytes() == b"old"
    operation.eof()
    operation.finish()
    assert (root / "file").read_bytes() == b"new" * 1000
    assert os.listdir(root) == ["file"]


def test_a_write_that_is_given_up_leaves_nothing(files: Files, root: Path, guest: Guest) -> None:
    (root / "file").write_bytes(b"old")
    for path in ("file", "new"):
        operation = Operation(files.host, Op.WRITE, Write(path=files.at(path)))
        files.host.reply(operation.channel)
        operation.send(b"half")
        operation.close()
    other = guest.connect()
    operation = Operation(other, Op.WRITE, Write(path=files.at("file")))
    other.reply(operation.channel)
    operation.send(b"half")
    other.close()
    eventually("the operations are over", lambda: not guest.children())
    assert os.listdir(root) == ["file"]
    assert (root / "file").read_bytes() == b"old"


def test_a_large_file_is_written_whole(files: Files, root: Path) -> None:
    data = os.urandom(3_000_000)
    info = files.write("a/b/file", data, WriteFlags.MODE, 0o600)
    assert (info.size, info.mode, info.path) == (len(data), 0o600, files.at("a/b/file"))
    assert (root / "a/b/file").read_bytes() == data


def test_appending_is_done_in_place(files: Files, root: Path) -> None:
    files.write("log", b"one\n", WriteFlags.APPEND)
    inode = (root / "log").stat().st_ino
    files.write("log", b"two\n", WriteFlags.APPEND)
    assert ((root / "log").read_bytes(), (root / "log").stat().st_ino) == (b"one\ntwo\n", inode)


def test_what_replaces_a_file_keeps_its_mode_owner_and_attributes(files: Files, root: Path) -> None:
    path = root / "file"
    path.write_bytes(b"old")
    if os.getuid() == 0:
        os.chown(path, 7, 8)
    os.chmod(path, 0o750)
    os.setxattr(path, "user.paddock", b"kept\0")
    before = path.stat()
    files.write("file", b"new")
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino
    assert os.getxattr(path, "user.paddock") == b"kept\0"


def test_a_link_is_written_through_and_stays(files: Files, root: Path) -> None:
    (root / "d").mkdir()
    (root / "d/real").write_bytes(b"old")
    (root / "link").symlink_to("d/../d/other")
    (root / "d/other").symlink_to("real")
    (root / "dangling").symlink_to(root / "made/here")
    files.write("link", b"new")
    files.write("dangling", b"x")
    assert (root / "d/real").read_bytes() == b"new"
    assert (root / "made/here").read_bytes() == b"x"
    assert (root / "link").is_symlink()
    (root / "loop").symlink_to("loop")
    assert refused(lambda: files.write("loop", b"")) == errno.ELOOP


def test_what_cannot_be_written_to_says_why(files: Files, root: Path) -> None:
    (root / "dir").mkdir()
    (root / "file").touch()
    os.mkfifo(root / "fifo")
    assert refused(lambda: files.write("dir", b"")) == errno.EISDIR
    assert refused(lambda: files.write("dir", b"", WriteFlags.APPEND)) == errno.EISDIR
    assert refused(lambda: files.write("dir/..", b"")) == errno.EISDIR
    assert refused(lambda: files.write("file/x", b"")) == errno.ENOTDIR
    assert refused(lambda: files.write("fifo", b"")) == errno.EINVAL
    assert refused(lambda: files.write("n" * 256, b"")) == errno.ENAMETOOLONG


# trees


def snapshot(path: Path) -> list[str]:
    done = subprocess.run(
        ["find", ".", "-printf", "%P %y %m %l %s\\n"], cwd=path, capture_output=True, text=True, check=True
    )
    lines = (line for line in done.stdout.splitlines() if not line.startswith(" d"))
    return sorted(" ".join(line.split(" ")[:-1]) if " d " in line else line for line in lines)


def plant(root: Path) -> None:
    for name in ("a/b/c", "a/empty", "z"):
        (root / name).mkdir(parents=True)
    (root / "a/file").write_bytes(b"x" * 100_000)
    (root / "a/b/c/deep").write_bytes(b"deep")
    (root / "a/run").write_bytes(b"#!/bin/sh\n")
    (root / "a/run").chmod(0o755)
    (root / "a/link").symlink_to("file")
    (root / "a/b/away").symlink_to("/")
    (root / "z/\u00fc\udcff").touch()
    os.mkfifo(root / "a/fifo")
    (root / "a/b").chmod(0o750)


def test_lists_and_finds_are_those_of_find(files: Files, root: Path) -> None:
    plant(root)

    def found(*arguments: str) -> list[bytes]:
        done = subprocess.run(["find", root, "-mindepth", "1", *arguments, "-print0"], capture_output=True, check=True)
        return sorted(done.stdout.split(b"\0")[:-1])

    for depth in (1, 2, 3, 50):
        listed, flags = files.list("", depth)
        assert sorted(info.path for info in listed) == found("-maxdepth", str(depth))
        assert flags == 0
    for name in ("*", "f*", "?", "[a-c]", "[!a-z]*", "none"):
        assert sorted(info.path for info in files.find("", name)[0]) == found("-name", name)
    listed, _ = files.list("", 50)
    assert [info.path for info in listed] == sorted((info.path for info in listed), key=lambda path: path.split(b"/"))
    for info in listed:
        is_ = os.lstat(info.path)
        assert (info.mode, info.uid, info.gid, info.size) == (
            stat.S_IMODE(is_.st_mode),
            is_.st_uid,
            is_.st_gid,
            is_.st_size,
        )
        assert info.modified == is_.st_mtime_ns


def test_a_find_stops_at_its_limit_and_says_so(files: Files, root: Path) -> None:
    for number in range(30):
        (root / f"{number:02}").touch()
    found, flags = files.find("", limit=10)
    assert [os.path.basename(info.path) for info in found] == [b"%02d" % number for number in range(10)]
    assert flags == WalkedFlags.TRUNCATED
    assert files.find("", limit=30)[1] == 0


def test_a_list_is_of_a_directory(files: Files, root: Path) -> None:
    (root / "file").touch()
    assert refused(lambda: files.list("file")) == errno.ENOTDIR
    assert refused(lambda: files.list("none")) == errno.ENOENT


def test_a_copy_is_that_of_cp(files: Files, root: Path) -> None:
    plant(root)
    os.utime(root / "a/file", (1, 2))
    files.copy("a", "copy")
    subprocess.run(["cp", "-a", root / "a", root / "other"], check=True)
    assert snapshot(root / "copy") == snapshot(root / "other")
    assert (root / "copy/file").stat().st_mtime == 2
    assert files.copy("a/file", "z/one").size == 100_000
    assert refused(lambda: files.copy("a", "a/b/inside")) == errno.EINVAL
    assert refused(lambda: files.copy("a", "z")) == errno.EEXIST
    assert refused(lambda: files.copy("none", "x")) == errno.ENOENT


def test_a_move_renames_and_crosses_file_systems(files: Files, root: Path) -> None:
    plant(root)
    before = snapshot(root / "a")
    files.move("a", "moved")
    assert snapshot(root / "moved") == before
    target = Path("/dev/shm") / f"paddock-native-{os.getpid()}"
    if os.stat("/dev/shm").st_dev == os.stat(root).st_dev:
        pytest.skip("/dev/shm is no other file system here")
    try:
        files.move("moved", os.fspath(target))
        assert snapshot(target) == before
        assert not (root / "moved").exists()
    finally:
        subprocess.run(["rm", "-rf", target], check=True)


def test_a_removed_tree_is_gone_whatever_its_modes(files: Files, root: Path) -> None:
    plant(root)
    (root / "kept").mkdir()
    (root / "kept/file").touch()
    (root / "a/b/c/way").symlink_to(root / "kept")
    (root / "a/b").chmod(0)
    (root / "a").chmod(0o500)
    assert refused(lambda: files.remove("a")) == errno.ENOTEMPTY
    files.remove("a", RemoveFlags.RECURSIVE)
    assert not os.path.lexists(root / "a")
    assert os.listdir(root / "kept") == ["file"]
    assert refused(lambda: files.remove("a", RemoveFlags.RECURSIVE)) == errno.ENOENT
    files.remove("a", RemoveFlags.MISSING_OK)
    files.remove("a", RemoveFlags.RECURSIVE | RemoveFlags.MISSING_OK)
    files.remove("kept/file", RemoveFlags.RECURSIVE)
    files.remove("kept")


def test_a_directory_of_many_files_is_listed_copied_and_removed(files: Files, root: Path) -> None:
    (root / "many").mkdir()
    for number in range(10_000):
        (root / f"many/{number:05}").touch()
    listed, _ = files.list("many")
    assert [os.path.basename(info.path) for info in listed] == [b"%05d" % number for number in range(10_000)]
    files.copy("many", "more")
    assert len(os.listdir(root / "more")) == 10_000
    files.remove("many", RemoveFlags.RECURSIVE)
    assert os.listdir(root) == ["more"]


DEPTH = 20_000


@pytest.fixture
def deep() -> Iterator[Path]:
    """Directories in directories, with a file at the bottom. In memory: ext4 takes milliseconds to remove each."""
    root = Path(tempfile.mkdtemp(prefix="paddock-native-", dir="/dev/shm"))
    fd = os.open(root, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("d", dir_fd=fd)
        fd = into(fd)
    os.close(os.open("file", os.O_CREAT, dir_fd=fd))
    os.close(fd)
    yield root
    subprocess.run(["rm", "-rf", root], check=True)


def into(directory: int) -> int:
    inner = os.open("d", os.O_RDONLY, dir_fd=directory)
    os.close(directory)
    return inner


def test_a_tree_deeper_than_any_path_is_walked_copied_and_removed(host: Connection, deep: Path) -> None:
    files = Files(host, deep)
    found, flags = files.find("", "d")
    assert flags == WalkedFlags.TRUNCATED
    assert len(found) > 1000
    assert max(len(info.path) for info in found) in (4094, 4095)
    assert files.grep("", "x") == []
    assert len(files.download("d")) > 1_000_000
    files.copy("d", "copy")
    depth, fd = 1, os.open(deep / "copy", os.O_RDONLY)
    while os.listdir(fd) == ["d"]:
        depth, fd = depth + 1, into(fd)
    assert (os.listdir(fd), depth) == (["file"], DEPTH)
    os.close(fd)
    for name in ("d", "copy"):
        files.remove(name, RemoveFlags.RECURSIVE)
    assert os.listdir(deep) == []


# grep


def test_grep_tells_the_lines_of_grep(files: Files, root: Path) -> None:
    (root / "a").mkdir()
    (root / "a/one.txt").write_bytes(b"first\nsecond needle\r\nthird\nneedle 42 last")
    (root / "a/two.md").write_bytes(b"needle elsewhere\n")
    (root / "a/binary").write_bytes(b"needle\0needle")
    (root / "a/link").symlink_to("two.md")
    (root / "a/large").write_bytes(b"".join(b"line %d of many\n" % n for n in range(100_000)) + b"needle here\n")
    os.mkfifo(root / "a/fifo")
    for pattern in ("needle", "needle( [0-9]+)? ", "^second|last$", "[0-9]{2}9 of", "line 7777. of", "e"):
        done = subprocess.run(
            ["grep", "-rnIE", "--exclude=fifo", pattern, root / "a"], capture_output=True, check=False, text=True
        )
        wanted = sorted(line for line in done.stdout.splitlines())
        got = [f"{os.fsdecode(m.path)}:{m.line_number}:{os.fsdecode(m.line)}" for m in files.grep("a", pattern)]
        assert sorted(got) == [line.rstrip("\r") for line in wanted]
    assert [m.line_number for m in files.grep("a", r"needle \d", "*.txt")] == [4]
    assert [m.line for m in files.grep("a/two.md", "needle")] == [b"needle elsewhere"]
    assert len(files.grep("a", "line", limit=7)) == 7
    assert refused(lambda: files.grep("none", "x")) == errno.ENOENT


def test_a_line_without_an_end_is_searched_in_pieces(files: Files, root: Path) -> None:
    (root / "line").write_bytes(b"needle " * 1_000_000 + b"\nlast needle")
    found = files.grep("line", "needle")
    assert {match.line_number for match in found} == {1, 2}
    assert max(len(match.line) for match in found) == 8000
    assert (found[-1].line_number, found[-1].line) == (2, b"last needle")


# watching


def test_a_watch_tells_what_happens(files: Files, root: Path) -> None:
    watch = Watching(files, "")
    (root / "made").write_bytes(b"x")
    (root / "made").rename(root / "moved")
    (root / "moved").unlink()
    watch.until({("made", CREATED), ("made", MODIFIED), ("made", MOVED_FROM), ("moved", MOVED_TO), ("moved", REMOVED)})
    watch.close()


def test_a_watch_reports_a_written_file_by_its_final_name_only(files: Files, root: Path) -> None:
    watch = Watching(files, "")
    files.write("final", b"content")
    files.write("final", b"over it")
    (root / ".paddock-17").touch()  # a user's own name
    seen = watch.until({("final", MOVED_TO), (".paddock-17", CREATED)})
    assert {path for path, _ in seen} == {"final", ".paddock-17"}
    watch.close()


def test_a_watch_of_one_directory_does_not_look_below(files: Files, root: Path) -> None:
    (root / "a/b").mkdir(parents=True)
    watch = Watching(files, "a")
    (root / "a/b/below").touch()
    (root / "a/here").touch()
    assert not any("below" in path for path, _ in watch.until({("a/here", CREATED)}))
    watch.close()


def test_a_directory_that_was_filled_before_it_was_watched_is_told_of(files: Files, root: Path) -> None:
    watch = Watching(files, "", recursive=True)
    (root.parent / "outside/x/y").mkdir(parents=True)
    (root.parent / "outside/x/y/z").touch()
    (root.parent / "outside").rename(root / "in")
    watch.until({("in", MOVED_TO), ("in/x", CREATED), ("in/x/y", CREATED), ("in/x/y/z", CREATED)})
    (root / "in/x/y/z").write_bytes(b"x")
    watch.until({("in/x/y/z", MODIFIED)})
    (root / "in/x").rename(root / "x")
    (root / "x/y/new").touch()
    watch.until({("x", MOVED_TO), ("x/y/new", CREATED)})
    watch.close()


def test_a_watch_knows_ten_thousand_directories_that_come_and_go(files: Files, root: Path) -> None:
    for number in range(2_000):
        (root / f"d{number}/e").mkdir(parents=True)
    watch = Watching(files, "", recursive=True)
    for _ in range(3):
        for number in range(0, 2_000, 400):
            subprocess.run(["rm", "-r", root / f"d{number}"], check=True)
            watch.until({(f"d{number}", REMOVED)})
            (root / f"d{number}").mkdir()
            watch.until({(f"d{number}", CREATED)})
    (root / "d1999/e/last").touch()
    watch.until({("d1999/e/last", CREATED)})
    watch.close()


def test_changes_that_were_lost_are_told_of_as_such(files: Files, root: Path, host: Connection) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    watch = Watching(files, "")
    one, other = (os.fspath(root / name) for name in ("one", "other"))
    Path(one).touch()
    for _ in range(limit // 4 + 20_000):  # nobody reads: the streams fill, then the queue
        os.rename(one, other)
        os.rename(other, one)
    watch.until({(os.fspath(root), OVERFLOW)})
    watch.close()


def test_a_watch_ends_with_its_directory(files: Files, root: Path) -> None:
    (root / "a").mkdir()
    watch = Watching(files, "a", recursive=True)
    (root / "a").rmdir()
    assert ("a", REMOVED) in watch.next()
    while watch.next():
        pass
    assert refused(lambda: Watching(files, "a")) == errno.ENOENT


# hostile requests


def test_paths_that_are_none_are_refused(host: Connection) -> None:
    files = Files(host, Path("/"))
    for path in ("", "relative"):
        files.root = b""
        assert refused(lambda path=path: files.stat(path)) == errno.EINVAL
    for op in range(Op.STAT, Op.WATCH + 1):
        with pytest.raises(GuestError):
            host.reply(host.open(op, b"\1"))
    host.ping()


def test_operations_leave_no_descriptor_and_no_process(files: Files, root: Path, guest: Guest) -> None:
    plant(root)
    before = guest.descriptors()
    for _ in range(5):
        files.list("", 9)
        files.write("file", b"x")
        files.read("file")
        files.download("a")
    files.host.ping()  # and with it the agent has done what follows the last answer
    assert guest.descriptors() == before
    assert not guest.children()


@pytest.fixture
def nobody(program: Path, tmp_path: Path) -> Iterator[Files]:
    """The files of a directory that belongs to nobody, as nobody."""
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    directory = Path(tempfile.mkdtemp(prefix="paddock-native-", dir="/tmp"))
    try:
        directory.chmod(0o711)
        (directory / "files").mkdir()
        os.chown(directory / "files", 65534, 65534)
        shutil.copy(program, directory / "guest")
        start = directory / "start"
        emulator = f"{EMULATOR} -0 guest " if foreign_to(program) else ""
        whose = "setpriv --reuid 65534 --regid 65534 --clear-groups"
        start.write_text(f"#!/bin/sh\nexec {whose} {emulator}{directory}/guest\n")
        start.chmod(0o755)
        with Guest(start, tmp_path / "n") as guest:
            host = guest.connect()
            yield Files(host, directory / "files")
            host.close()
    finally:
        shutil.rmtree(directory)


def test_a_user_may_not_replace_what_open_would_refuse(nobody: Files) -> None:
    root = Path(os.fsdecode(nobody.root))
    for mode in (0, 0o444):
        (root / "file").write_bytes(b"old")
        os.chown(root / "file", 65534, 65534)
        (root / "file").chmod(mode)
        assert refused(lambda: nobody.write("file", b"new")) == errno.EACCES
        assert (root / "file").read_bytes() == b"old"
        assert os.listdir(root) == ["file"]
        (root / "file").unlink()


def test_a_user_removes_a_tree_that_is_closed_to_its_owner(nobody: Files) -> None:
    root = Path(os.fsdecode(nobody.root))
    (root / "a/b/c").mkdir(parents=True)
    (root / "a/b/c/file").touch()
    for name in ("a/b/c", "a/b", "a"):
        os.chown(root / name, 65534, 65534)
        (root / name).chmod(0)
    nobody.remove("a", RemoveFlags.RECURSIVE)
    assert os.listdir(root) == []


def test_anothers_file_that_a_user_may_write_becomes_the_users(nobody: Files) -> None:
    root = Path(os.fsdecode(nobody.root))
    (root / "file").write_bytes(b"old")
    (root / "file").chmod(0o666)
    info = nobody.write("file", b"new")
    assert (info.uid, info.gid, info.mode) == (65534, 65534, 0o666)


def test_what_a_user_may_not_read_is_passed_over(nobody: Files) -> None:
    root = Path(os.fsdecode(nobody.root))
    (root / "open").mkdir()
    (root / "open/file").write_bytes(b"needle\n")
    for name in ("closed", "a"):
        (root / name).mkdir(mode=0o700)
        (root / name / "file").write_bytes(b"needle\n")
    found, flags = nobody.find("", "file")
    assert ([info.path for info in found], flags) == ([nobody.at("open/file")], 0)
    assert [match.path for match in nobody.grep("", "needle")] == [nobody.at("open/file")]
    with tarfile.open(fileobj=io.BytesIO(nobody.download(""))) as archive:
        assert archive.getnames() == ["a", "closed", "open", "open/file"]
    assert refused(lambda: nobody.copy("closed", "copy")) == errno.EACCES
