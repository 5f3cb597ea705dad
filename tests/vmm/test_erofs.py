"""A view: directories as a read-only file system whose blocks are read where the files lie."""

from __future__ import annotations

import errno
import filecmp
import os
import random
import socket
import struct
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paddock.vmm._blocks import BlockServer, View
from paddock.vmm._erofs import BLOCK, Source, write_view
from paddock.vmm._loop import Loop

_EROFS = "erofs" in Path("/proc/filesystems").read_text()
_GO, _REQUEST = 7, struct.Struct(">IHHQQI")


def _tree(root: Path) -> Path:
    """Many names in one directory, all kinds of files, sizes around a block, names that are no text."""
    (root / "many").mkdir(parents=True)
    for number in range(700):
        (root / "many" / f"{number:03}-{'x' * (number % 60)}").write_bytes(b"%d" % number * (number % 9))
    for size in (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7):
        (root / f"size-{size}").write_bytes(random.Random(size).randbytes(size))
    (root / "deep/er").mkdir(parents=True)
    (root / "deep/er/link").symlink_to("../" + "y" * 200)
    os.mkfifo(root / "fifo")
    os.link(root / "size-1", root / "twin")
    (root / os.fsdecode(b"\xff\xfe")).write_text("bytes")
    (root / "many").chmod(0o1777)
    return root


def _make(tmp_path: Path, *sources: Source) -> View:
    with (tmp_path / "view").open("wb") as metadata, (tmp_path / "table").open("wb") as table:
        write_view(sources, metadata, table)
    return View(str(tmp_path / "view"), str(tmp_path / "table"))


@contextmanager
def _mounted(view: View, tmp_path: Path) -> Generator[Path]:
    image, place = tmp_path / "image", tmp_path / "mounted"
    image.write_bytes(view.read(0, view.size))
    place.mkdir()
    subprocess.run(["mount", "-t", "erofs", "-o", "loop,ro", image, place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.root
@pytest.mark.skipif(not _EROFS, reason="this kernel has no erofs; virtual machines of test_microvm read views as well")
def test_a_kernel_finds_in_a_view_what_is_in_the_directories(tmp_path: Path) -> None:
    first, second = _tree(tmp_path / "first"), _tree(tmp_path / "second")
    (first / "usr/local").mkdir(parents=True)
    (first / "usr/local/ours").write_text("kept")
    (first / "usr/gone").write_text("replaced")
    (second / "local").mkdir()
    (second / "local/theirs").write_text("not taken")
    owners = {"/deep": (1000, 1001), "/": (7, 8)}
    view = _make(
        tmp_path,
        Source(place=str(first), path="/", owners=owners),
        Source(place=str(second), path="/usr", without=frozenset({"local"})),
    )
    with _mounted(view, tmp_path) as place:
        for name in ("many", "deep/er", "usr/many", "usr/deep"):
            source = second / name.removeprefix("usr/") if name.startswith("usr/") else first / name
            assert sorted(os.listdir(place / name)) == sorted(os.listdir(source))
        for name in os.listdir(os.fsencode(first)):
            if (first / os.fsdecode(name)).is_file():
                assert filecmp.cmp(place / os.fsdecode(name), first / os.fsdecode(name), shallow=False)
        for number in range(0, 700, 13):
            name = f"{number:03}-{'x' * (number % 60)}"
            assert (place / "usr/many" / name).read_bytes() == (second / "many" / name).read_bytes()
        assert os.readlink(place / "deep/er/link") == "../" + "y" * 200
        assert (place / "fifo").is_fifo()
        assert [(place / "twin").stat().st_nlink, (place / "twin").samefile(place / "size-1")] == [2, True]
        assert (place / "many").stat().st_mode == (first / "many").stat().st_mode
        assert (place / "size-1").stat().st_mtime_ns == (first / "size-1").stat().st_mtime_ns
        assert [(place / "deep/er").stat().st_uid, (place / "deep").stat().st_gid] == [1000, 1001]
        assert [(place / "many").stat().st_uid, (place / "usr/many").stat().st_gid] == [7, 0]
        assert [os.listdir(place / "usr/local"), (place / "usr/gone").exists()] == [["ours"], False]


def test_a_file_that_changed_is_an_error_and_never_other_bytes(tmp_path: Path) -> None:
    root = _tree(tmp_path / "tree")
    view = _make(tmp_path, Source(place=str(root), path="/"))
    (root / f"size-{BLOCK}").write_bytes(b"!" * BLOCK)
    (root / f"size-{BLOCK + 1}").unlink()
    (root / f"size-{BLOCK - 1}").unlink()
    (root / f"size-{BLOCK - 1}").symlink_to("/etc/passwd")
    said: list[int | None] = []
    for number in range(view._count):  # pyright: ignore[reportPrivateUsage]
        start = view._extent(number)[0]  # pyright: ignore[reportPrivateUsage]
        try:
            view.read(start * BLOCK, 1)
        except OSError as error:
            said.append(error.errno)
    assert sorted(filter(None, said)) == sorted([errno.ENOENT, errno.EIO, errno.ELOOP])


@contextmanager
def _served(view: View) -> Generator[tuple[socket.socket, threading.Event]]:
    over = threading.Event()

    class UntilItHangsUp(Loop):
        def unwatch(self, fd: int) -> None:
            super().unwatch(fd)
            over.set()
            self.stop()

    loop = UntilItHangsUp()
    ours, theirs = socket.socketpair()
    BlockServer(loop, theirs, view)
    thread = threading.Thread(target=loop.run)
    thread.start()
    ours.settimeout(60)
    try:
        yield ours, over
    finally:
        ours.close()
        thread.join()


def _exactly(stream: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        more = stream.recv(length - len(data))
        assert more, "the server has ended"
        data += more
    return bytes(data)


def _greet(stream: socket.socket) -> int:
    assert _exactly(stream, 18)[:16] == b"NBDMAGICIHAVEOPT"
    stream.sendall(struct.pack(">I8sII", 3, b"IHAVEOPT", _GO, 0))
    return struct.unpack_from(">Q", _exactly(stream, 20 + 12 + 20), 22)[0]


def test_blocks_are_served_and_nothing_beyond_the_end(tmp_path: Path) -> None:
    view = _make(tmp_path, Source(place=str(_tree(tmp_path / "tree")), path="/"))
    with _served(view) as (stream, over):
        size = _greet(stream)
        assert size == view.size
        stream.sendall(_REQUEST.pack(0x25609513, 0, 0, 1, 0, size) + _REQUEST.pack(0x25609513, 0, 0, 2, size - 1, 2))
        assert _exactly(stream, 16) == struct.pack(">IIQ", 0x67446698, 0, 1)
        assert _exactly(stream, size) == view.read(0, size)
        assert _exactly(stream, 16) == struct.pack(">IIQ", 0x67446698, errno.EINVAL, 2)
        stream.sendall(_REQUEST.pack(0x25609513, 0, 1, 3, 0, 4) + b"ruin")  # writes
        assert over.wait(60)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_a_client_says_the_server_ends_or_goes_on(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    root = tmp_path / "tree"
    root.mkdir()
    (root / "file").write_bytes(b"x" * 5000)
    view = _make(tmp_path, Source(place=str(root), path="/"))
    with _served(view) as (stream, _):
        _greet(stream)
        try:
            for _ in range(20):
                magic = 0x25609513 if chance.random() < 0.9 else chance.getrandbits(32)
                head = _REQUEST.pack(
                    magic, chance.getrandbits(16), chance.choice((0, 0, 0, 9)), 5, chance.getrandbits(14), 4096
                )
                stream.sendall(head[: chance.randint(1, 40)])
        except (BrokenPipeError, ConnectionResetError):
            return
