"""Subordinate ids: a range of uids and gids that root has given to an ordinary user (subuid(5)).

Only newuidmap(1) and newgidmap(1), set-user-id programs, may map them into a namespace of their caller. In namespaces
from here the ids are those of a whole system, 0 to 65535. The caller is one of them, so its files still belong to it
there. The others are the range.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from paddock.linux import caps, kernel_files, namespaces
from paddock.linux.files import find_program
from paddock.linux.namespaces import IdMap

COUNT = 65536
NEEDED = COUNT - 1
AS_ROOT = "run paddock as root"
_UID_FILE, _GID_FILE = "/etc/subuid", "/etc/subgid"


class SubordinateIds(NamedTuple):
    """The first uid and the first gid of `NEEDED` each."""

    uid: int
    gid: int


def granted() -> SubordinateIds | str:
    """Return the caller's ids, or a sentence about why there are none."""
    if _was_root():
        return "root without CAP_SYS_ADMIN can have none"
    missing = [name for name in ("newuidmap", "newgidmap") if find_program(name) is None]
    if missing:
        return f"{' and '.join(missing)} cannot be found"
    names = {str(os.getuid())}
    with suppress(KeyError):  # a uid without an entry: the files may name the number
        names.add(pwd.getpwuid(os.getuid()).pw_name)
    uid, gid = (_first(path, names) for path in (_UID_FILE, _GID_FILE))
    if uid is None or gid is None:
        where = " and ".join(path for path, first in ((_UID_FILE, uid), (_GID_FILE, gid)) if first is None)
        return f"{where} give you no range of {NEEDED} ids"
    return SubordinateIds(uid, gid)


def remedy() -> str:
    """Return the command by which root grants the missing ids to the caller."""
    if _was_root():
        return as_root()
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    if any(find_program(tool) is None for tool in ("newuidmap", "newgidmap")):
        return "apt-get install uidmap"
    return f"usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {name}"


def as_root() -> str:
    """Return how an ordinary user gets the rights of root. In most containers root itself has too few."""
    return "run the container with --privileged" if _was_root() or caps.is_bounded(caps.SYS_ADMIN) else AS_ROOT


def _was_root() -> bool:
    """Tell whether this is root without CAP_SYS_ADMIN, who has become an ordinary user (`daemon/main/_process.py`)."""
    return namespaces.read_uid_map(os.getpid()) == [IdMap(os.getuid(), 0, 1)]


def _first(path: str, names: set[str]) -> int | None:
    """Return the start of the first range that is large enough."""
    try:
        lines = kernel_files.read(path).decode(errors="replace").splitlines()
    except OSError:
        return None
    for name, _, rest in (line.partition(":") for line in lines):
        start, _, count = rest.partition(":")
        if name in names and start.isdecimal() and count.isdecimal() and int(count) >= NEEDED:
            return int(start)
    return None


def identity(own: int) -> tuple[IdMap, ...]:
    """Return the identity map for a namespace below one of these: a line of a map can't span two of its parent's."""
    return IdMap(0, 0, own), IdMap(own, own, 1), IdMap(own + 1, own + 1, COUNT - own - 1)


def open_namespace(ids: SubordinateIds, own: int) -> int:
    """Return the descriptor of a new empty user namespace, in which the caller is `own`.

    Raises OSError with a message.

    Any process with the caller's uid may enter it, and has all capabilities there.
    """

    def write_maps(pid: int) -> None:
        _map("newuidmap", pid, _around(ids.uid, os.getuid(), own))
        _map("newgidmap", pid, _around(ids.gid, os.getgid(), own))

    return namespaces.user_namespace(write_maps)


def _around(first: int, caller: int, own: int) -> tuple[IdMap, ...]:
    return IdMap(0, first, own), IdMap(own, caller, 1), IdMap(own + 1, first + own, COUNT - own - 1)


def _map(name: str, pid: int, maps: Iterable[IdMap]) -> None:
    program = find_program(name)
    if program is None:
        raise FileNotFoundError(f"{name} cannot be found")
    reader, writer = os.pipe2(os.O_CLOEXEC)
    with open(reader, "rb") as output:
        try:
            actions = [(os.POSIX_SPAWN_DUP2, writer, 1), (os.POSIX_SPAWN_DUP2, writer, 2)]
            argv = [name, str(pid), *(str(number) for line in maps for number in line)]
            child = os.posix_spawn(program, argv, {"LC_ALL": "C"}, file_actions=actions)
        finally:
            os.close(writer)
        said = output.read()
    try:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except ChildProcessError:
        status = 0  # the program that we are part of has it buried; what it did shows below
    kind = name.removeprefix("new").removesuffix("map")
    if status != 0 or not kernel_files.read(f"/proc/{pid}/{kind}_map"):
        words = said.decode(errors="replace").strip().splitlines() or [f"it ended with {status}"]
        raise PermissionError(f"{name}: {words[-1]}")
