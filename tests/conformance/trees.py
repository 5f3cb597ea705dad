"""What a test of a pool works with: processes of its own, trees to write into, and content that is up to no good."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from paddock.storage import Pool

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def in_child(work: Callable[[], None]) -> int:
    """Starts `work` in a forked child and returns its pid. The child ends with 0, or with 1 if `work` raises."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Root:
    """The directory `root` of a tree, for a test to write into as a sandbox would."""

    def __init__(self, pool: Pool, name: str) -> None:
        tree = pool.open(name)
        try:
            self.fd = os.open("root", _DIRECTORY, dir_fd=tree)
        finally:
            os.close(tree)
        self.path = Path(f"/proc/self/fd/{self.fd}")

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def fill_with_hostility(root: Path, outside: Path, *, depth: int) -> None:
    """What a sandbox may leave to trouble whoever deletes or copies its tree."""
    (root / "link-to-root").symlink_to("/")
    (root / "link-outside").symlink_to(outside)
    (root / "link-up").symlink_to("../../..")
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "socket"))
    for name in ("new\nline", "-rf", " ", "\udcff\udcfe", "x" * 255, ".gone-0000000000000000", ".links"):
        (root / name).mkdir()
        (root / name / name).write_text(name, errors="surrogateescape")
    closed = root / "closed"
    (closed / "within").mkdir(parents=True)
    (closed / "within" / "file").write_text("closed")
    (closed / "within").chmod(0)
    closed.chmod(0)
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(depth):  # no path is long enough for it
        os.mkdir("deep", dir_fd=at)
        below = os.open("deep", _DIRECTORY, dir_fd=at)
        os.close(at)
        at = below
    os.mkdir("d" * 255, dir_fd=at)
    os.close(at)


def everything_in(pool: Pool) -> set[str]:
    """All that lies in the pool."""
    pool.create("zz_probe")
    try:
        tree = pool.open("zz_probe")
        try:
            above = os.open("..", _DIRECTORY, dir_fd=tree)
            try:
                return set(os.listdir(above)) - {"zz_probe"}
            finally:
                os.close(above)
        finally:
            os.close(tree)
    finally:
        pool.delete("zz_probe")


def describe(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything about a tree that a copy must keep, by path; what is too deep to have one, by its depth."""
    found: dict[str, tuple[object, ...]] = {}
    top = f"{root}/."  # what is a link itself is not walked
    for path, directories, files, fd in os.fwalk(top, follow_symlinks=False):
        for name in (*directories, *files):
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            link = os.readlink(name, dir_fd=fd) if stat.S_ISLNK(info.st_mode) else ""
            size = 0 if stat.S_ISDIR(info.st_mode) else info.st_size
            links = 0 if stat.S_ISDIR(info.st_mode) else info.st_nlink
            where = os.path.relpath(os.path.join(path, name), top)
            found[where] = (info.st_mode, info.st_uid, info.st_gid, size, links, info.st_mtime_ns, info.st_rdev, link)
    return found
