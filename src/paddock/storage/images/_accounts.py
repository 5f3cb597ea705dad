"""Who there is in an image, by its own /etc/passwd and /etc/group, and who of them its commands run as."""

from __future__ import annotations

import re

from paddock.errors import ImageInvalid
from paddock.keeper.layout import ORDINARY_ID
from paddock.model import FileKind, User
from paddock.storage._hostile import HostileTree

_LARGEST = 1 << 20
_MOST = 64
_HIGHEST_ID = 65535
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}", re.A)
_HOME = re.compile(r"(?:/[A-Za-z0-9_.@+-]+)+", re.A)
_NOWHERE = frozenset({"/nonexistent", "/dev/null", "/proc", "/sys", "/dev", "/tmp"})  # noqa: S108 - where no home is


def accounts(root: int, wanted: str, *, whole: bool) -> tuple[tuple[User, ...], User]:
    """Those of the image, root first, and the one that `wanted` (`USER[:GROUP]`, names or numbers) means.

    Not `whole`: of all ids there is one, and so one user; what the image wants cannot be had. ImageInvalid: it wants
    somebody who is not there.
    """
    tree = HostileTree(root)
    users = _users(_read(tree, b"etc/passwd"))
    chosen = _choose(wanted, users, _groups(_read(tree, b"etc/group")))
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
    """Root is always there, and always 0: the sandbox has him whatever the image says."""
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


def _choose(wanted: str, users: list[User], groups: dict[str, int]) -> User:
    """As Docker reads `USER`: a number that no line has is a user all the same, of group 0."""
    name, _, group = wanted.partition(":")
    number = _id(name)
    found = next((user for user in users if user.name == name or (number is not None and user.uid == number)), None)
    if not name:
        found = users[0]
    if found is None:
        if number is None:
            raise ImageInvalid(f"the image is to run as {name[:80]!r}, who is not in its /etc/passwd")
        found = User(name=f"uid{number}", uid=number, gid=0, home=f"/home/uid{number}")
    if not group:
        return found
    gid = groups.get(group, _id(group))
    if gid is None:
        raise ImageInvalid(f"the image is to run in the group {group[:80]!r}, which is not in its /etc/group")
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
    """A home has to be a directory of its own that can be written: there lies what background commands print."""
    if path in _NOWHERE or not _HOME.fullmatch(path) or {".", ".."} & set(path.split("/")):
        return "/root" if name == "root" else f"/home/{name}"
    return path


def _id(text: str) -> int | None:
    """An id that a sandbox has."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 and int(text) <= _HIGHEST_ID else None


def _read(tree: HostileTree, path: bytes) -> str:
    """Empty, where there is no such file."""
    node = tree.node(path)
    if node is None or node.kind is not FileKind.FILE:
        return ""
    if node.size > _LARGEST:
        raise ImageInvalid(f"/{path.decode()} of the image has more than {_LARGEST >> 20} MiB")
    with tree.reading(path) as fd, open(fd, "rb", closefd=False) as file:
        return file.read(_LARGEST).decode("utf-8", "replace")


def knows(root: int, user: User) -> bool:
    """Whether the image has a line for that id."""
    return any(each.uid == user.uid for each in _users(_read(HostileTree(root), b"etc/passwd")))
