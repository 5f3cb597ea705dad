"""Adds files that a sandbox needs and an image may lack: mount points, homes, and configuration of host and network.

It also reads the image's users from its /etc/passwd and /etc/group, and chooses the one for its commands.
"""

from __future__ import annotations

import errno
import os
import re
import stat

from paddock.errors import ImageInvalidError
from paddock.linux import openat2
from paddock.linux.descriptors import closing
from paddock.model import FileKind, User
from paddock.storage.pool.hostile import HostileTree
from paddock.storage.pool.removal import clear, make_directory
from paddock.storage.pool.trees import DIRECTORY, NEW
from paddock.supervisor.layout import ORDINARY_ID

_LARGEST = 1 << 20
_MOST = 64
_HIGHEST_ID = 65535
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}", re.A)
_HOME = re.compile(r"(?:/[A-Za-z0-9_.@+-]+)+", re.A)
_NOWHERE = frozenset({"/nonexistent", "/dev/null", "/proc", "/sys", "/dev", "/tmp"})  # noqa: S108 - where no home is


def accounts(root: int, wanted: str, *, whole: bool) -> tuple[tuple[User, ...], User]:
    """Return the users of the image, root first, and the one of `wanted` (`USER[:GROUP]`, names or numbers).

    Not `whole`: a sandbox has one id and so one user, even if the image names another. Raises ImageInvalidError if the
    wanted user is missing.
    """
    tree = HostileTree(root)
    passwd = _read(tree, b"etc/passwd")
    users = _users(passwd)
    try:
        chosen = find_user(wanted, passwd, _read(tree, b"etc/group"))
    except LookupError as error:
        raise ImageInvalidError(f"the image is to run as {wanted[:80]!r}: {error}") from None
    if not whole:
        found = next((user for user in users if user.uid == ORDINARY_ID), None)
        name = f"uid{ORDINARY_ID}" if any(user.name == "user" for user in users) else "user"
        one = found or User(name=name, uid=ORDINARY_ID, gid=ORDINARY_ID, home=f"/home/{name}")
        return (users[0], _own(one)), _own(one)
    others = [user for user in users if user.name != chosen.name]
    if chosen.uid == 0:
        return (chosen, *others[: _MOST - 1]), chosen
    return (*others[: _MOST - 1], chosen), chosen


def _own(user: User) -> User:
    return User(name=user.name, uid=ORDINARY_ID, gid=ORDINARY_ID, home=user.home)


def _users(text: str) -> list[User]:
    """Parse /etc/passwd. Root is always there, and always 0, even if the image differs."""
    found: dict[str, User] = {"root": User(name="root", uid=0, gid=0, home="/root")}
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) != 7 or not _NAME.fullmatch(fields[0]):
            continue
        uid, gid = _id(fields[2]), _id(fields[3])
        if uid is None or gid is None or (fields[0] == "root") != (uid == 0):
            continue
        if fields[0] not in found or fields[0] == "root":
            found[fields[0]] = User(name=fields[0], uid=uid, gid=gid, home=_home(fields[5], fields[0]))
    return list(found.values())


def find_user(wanted: str, passwd: str, groups: str) -> User:
    """Find the user as Docker reads `USER`: an unknown number is a user all the same, of group 0. LookupError.

    `passwd` and `groups` are the texts of the files, which an attacker may have written.
    """
    users = _users(passwd)
    name, _, group = wanted.partition(":")
    number = _id(name)
    found = next((user for user in users if user.name == name or (number is not None and user.uid == number)), None)
    if not name:
        found = users[0]
    if found is None:
        if number is None:
            raise LookupError(f"no user {name[:80]!r} in /etc/passwd")
        found = User(name=f"uid{number}", uid=number, gid=0, home=f"/home/uid{number}")
    if not group:
        return found
    gid = _groups(groups).get(group, _id(group))
    if gid is None:
        raise LookupError(f"no group {group[:80]!r} in /etc/group")
    return User(name=found.name, uid=found.uid, gid=gid, home=found.home)


def _groups(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in text.splitlines():
        fields = line.split(":")
        gid = _id(fields[2]) if len(fields) == 4 else None
        if gid is not None:
            found.setdefault(fields[0], gid)
    return found


def _home(path: str, name: str) -> str:
    """Return the home: a separate, writable directory. It contains the output of background commands."""
    if path in _NOWHERE or not _HOME.fullmatch(path) or {".", ".."} & set(path.split("/")):
        return "/root" if name == "root" else f"/home/{name}"
    return path


def _id(text: str) -> int | None:
    """Parse an id that a sandbox has."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 and int(text) <= _HIGHEST_ID else None


def _read(tree: HostileTree, path: bytes) -> str:
    """Read a file. Empty, if it isn't there."""
    node = tree.node(path)
    if node is None or node.kind is not FileKind.FILE:
        return ""
    if node.size > _LARGEST:
        raise ImageInvalidError(f"/{path.decode()} of the image has more than {_LARGEST >> 20} MiB")
    with tree.reading(path) as file:
        return file.read(_LARGEST).decode("utf-8", "replace")


def knows(root: int, user: User) -> bool:
    """Tell whether the image has a line for that id."""
    return any(each.uid == user.uid for each in _users(_read(HostileTree(root), b"etc/passwd")))


_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
_PLACES = (("dev", 0o755), ("proc", 0o555), ("sys", 0o555), ("tmp", 0o1777), ("run", 0o755))
# The same as in container engines: these files are the sandbox's, not the image's.
_FILES = {
    "etc/hosts": "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    "etc/hostname": "sandbox\n",
    "etc/resolv.conf": "",
}


class Finish:
    """The directory `root` of an image's tree, without other writers.

    `base` is an offset for owners. None: all is ours.
    """

    def __init__(self, root: int, base: int | None) -> None:
        self._root, self._base = root, base

    def places(self) -> None:
        os.fchmod(self._root, 0o755)
        if self._base is not None:
            os.fchown(self._root, self._base, self._base)
        for name, mode in _PLACES:
            self._directory(name, 0, 0, mode)
        if not stat.S_ISDIR(self._mode("etc") or 0):
            self._directory("etc", 0, 0, 0o755)
        for path, text in _FILES.items():
            self._file(path, text)

    def account(self, user: User) -> None:
        """Add a line for a user that the image lacks."""
        line = f"{user.name}:x:{user.uid}:{user.gid}:{user.name}:{user.home}:/bin/sh\n".encode()
        try:
            fd = openat2.open_beneath(self._root, b"etc/passwd", _APPEND)
        except FileNotFoundError:
            self._file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n" + line.decode())
            return
        except OSError:
            return  # not a file: then it names no user
        with closing(fd):
            if stat.S_ISREG(os.fstat(fd).st_mode):
                os.write(fd, line)

    def directory_of(self, user: User, path: str, mode: int) -> None:
        """Make a directory of the user's and those above it, if there is nothing."""
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            at, last = "/".join(parts[:depth]), depth == len(parts)
            found_mode = self._mode(at)
            if found_mode is None:
                self._directory(at, user.uid if last else 0, user.gid if last else 0, mode if last else 0o755)
            elif not stat.S_ISDIR(found_mode):
                return  # a file, or a link of the image's, is left as it is

    def _mode(self, path: str) -> int | None:
        """Return the mode of the file at `path`. 0: a part of the path isn't a directory. None: it is missing."""
        try:
            fd = openat2.open_beneath(self._root, path.encode(), os.O_PATH | os.O_NOFOLLOW)
        except OSError as error:
            return None if error.errno == errno.ENOENT else 0
        with closing(fd):
            return os.fstat(fd).st_mode

    def _directory(self, path: str, uid: int, gid: int, mode: int) -> None:
        """Make a directory in place of any other file: the supervisor mounts on it through no link."""
        parent, name = self._above(path)
        with closing(parent):
            if not make_directory(parent, name):
                return
            with closing(os.open(name, DIRECTORY, dir_fd=parent)) as fd:
                if self._base is not None:
                    os.fchown(fd, self._base + uid, self._base + gid)
                os.fchmod(fd, mode | (0 if self._base is not None else stat.S_IRWXU))

    def _file(self, path: str, text: str) -> None:
        parent, name = self._above(path)
        with closing(parent):
            clear(parent, name)
            with os.fdopen(os.open(name, NEW, 0o644, dir_fd=parent), "wb") as file:
                file.write(text.encode())
                if self._base is not None:
                    os.fchown(file.fileno(), self._base, self._base)
                os.fchmod(file.fileno(), 0o644)

    def _above(self, path: str) -> tuple[int, str]:
        above, _, name = path.rpartition("/")
        return openat2.open_beneath(self._root, (above or ".").encode(), _PLACE), name
