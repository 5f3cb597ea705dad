"""What a state directory has on this machine: processes, mounts, control groups, namespaces, loop devices, files.

Only what can be told to belong to the state directory is counted, so that neighbours on the same machine don't disturb.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

Found = frozenset[str]
Descriptor = tuple[int, int, int, str]
"""Number, device, inode, and the kind of one that has no path."""

_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
_BY_KEY = ("processes", "descriptors")
_ESCAPE = re.compile(r"\\([0-7]{3})")


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Things in words. What belongs to nobody's state directory is not in it."""

    processes: dict[int, str]
    """By pid, with a description. They hold a file or socket of the state directory, or descend from one that does, or
    are in its pid namespace."""
    mounts: Found
    """Of this process's mount namespace, and of those of `processes`."""
    cgroups: Found
    """Below the own one, in every hierarchy: the supervisor's, and those that carry the id of one of `sandboxes`."""
    namespaces: Found
    """That `processes` are in and this process is not."""
    descriptors: dict[Descriptor, str]
    """Of this process, with what /proc shows of each. That text can change while the descriptor doesn't: its file is
    deleted or renamed; its file system, the pool of a supervisor that leaves, is mounted nowhere any more and becomes
    `/`.
    """
    loop_devices: Found
    files: Found
    """Two levels of the state directory: trees are counted, what is in them is not."""
    nft_tables: Found

    @classmethod
    def take(cls, state_dir: Path, *, marker: str | None = None, sandboxes: Iterable[str] = ()) -> Snapshot:
        """`marker` is an argument that processes of the test have; `sandboxes` are ids to look for in cgroup names."""
        root = state_dir.resolve()
        pids = _owned_processes(root, marker)
        return cls(
            processes={pid: _describe(pid) for pid in pids},
            mounts=frozenset(_mounts(root, pids)),
            cgroups=frozenset(_cgroups([*sandboxes, _supervisors_group(state_dir)])),
            namespaces=frozenset(_namespaces(pids)),
            descriptors=dict(_descriptors()),
            loop_devices=frozenset(_loop_devices(root)),
            files=frozenset(_files(root)),
            nft_tables=frozenset(_nft_tables()),
        )

    def difference(self, later: Snapshot, *, ignore: Iterable[str] = ()) -> dict[str, Found]:
        """What `later` has that this one had not, by kind; empty when nothing was left."""
        left: dict[str, Found] = {}
        for kind in self.__struct_fields__:
            was, now = getattr(self, kind), getattr(later, kind)
            new: Found = frozenset(now[key] for key in now if key not in was) if kind in _BY_KEY else now - was
            if kind not in ignore and new:
                left[kind] = new
        return left


def wait_until_clean(
    before: Snapshot,
    state_dir: Path,
    *,
    seconds: float = 60.0,
    marker: str | None = None,
    sandboxes: Iterable[str] = (),
    ignore: Iterable[str] = (),
) -> None:
    """Returns when nothing more is there than `before`. The kernel takes namespaces and mounts down by and by.

    AssertionError, with everything that was left, when that takes longer than `seconds`.
    """
    deadline = time.monotonic() + seconds
    sandboxes, ignore = tuple(sandboxes), tuple(ignore)
    while True:
        left = before.difference(Snapshot.take(state_dir, marker=marker, sandboxes=sandboxes), ignore=ignore)
        if not left:
            return
        if time.monotonic() > deadline:
            lines = (f"  {kind}: {item}" for kind, items in left.items() for item in sorted(items))
            raise AssertionError(f"left behind after {seconds:g} s:\n" + "\n".join(lines))
        time.sleep(0.05)


def _owned_processes(root: Path, marker: str | None) -> set[int]:
    sockets = _sockets_below(root)
    parents: dict[int, int] = {}
    spaces: dict[int, str] = {}
    owned: set[int] = set()
    for pid in _all_pids():
        try:
            parents[pid] = int(_read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])
            spaces[pid] = _link(f"/proc/{pid}/ns/pid")
            marked = marker is not None and marker.encode() in _read(f"/proc/{pid}/cmdline")
        except OSError:
            continue
        if marked or _holds_something_of(pid, root, sockets):
            owned.add(pid)
    owned.discard(os.getpid())
    return _with_kin(owned, parents, spaces)


def _with_kin(owned: set[int], parents: dict[int, int], spaces: dict[int, str]) -> set[int]:
    """With all descendants, and with all in the same foreign pid namespace."""
    mine = spaces.get(os.getpid(), "")
    while True:
        foreign = {spaces[pid] for pid in owned if spaces[pid] not in ("", mine)}
        more = {pid for pid in parents if parents[pid] in owned or spaces[pid] in foreign} - owned - {os.getpid()}
        if not more:
            return owned
        owned = owned | more


def _holds_something_of(pid: int, root: Path, sockets: frozenset[str]) -> bool:
    for name in ("cwd", "root", "exe"):
        if _below(_link(f"/proc/{pid}/{name}"), root):
            return True
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    links = (_link(f"/proc/{pid}/fd/{number}") for number in numbers)
    return any(link in sockets or _below(link, root) for link in links)


def _sockets_below(root: Path) -> frozenset[str]:
    """As links in /proc/<pid>/fd show them. /proc/net/unix is of the own network namespace, where they are made."""
    found: set[str] = set()
    for line in Path("/proc/net/unix").read_text(errors="surrogateescape").splitlines()[1:]:
        words = line.split(maxsplit=7)
        if len(words) == 8 and _below(words[7], root):
            found.add(f"socket:[{words[6]}]")
    return frozenset(found)


def _describe(pid: int) -> str:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text()
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")[:120].decode("utf-8", "replace")
    except OSError:
        return f"{pid} (ended meanwhile)"
    head, _, tail = fields.rpartition(")")
    return f"{head}) state {tail.split()[0]} started {tail.split()[19]}: {arguments!r}"


def _mounts(root: Path, pids: set[int]) -> Iterator[str]:
    for pid in (os.getpid(), *pids):
        try:
            table = Path(f"/proc/{pid}/mountinfo").read_text()
        except OSError:
            continue
        space = _link(f"/proc/{pid}/ns/mnt")
        for line in table.splitlines():
            words = [_unescape(word) for word in line.split()]
            if _below(words[4], root) or any(_below(word, root) for word in words[8:]):
                yield f"{space} {words[4]}"


def _supervisors_group(state_dir: Path) -> str:
    """What a supervisor calls the group of all its sandboxes (supervisor/_context.py)."""
    return f"paddock_{hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:12]}"


def _cgroups(names: list[str]) -> Iterator[str]:
    mounted = Path("/proc/self/mountinfo").read_text().splitlines()
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        base = _hierarchy(number, controllers, mounted)
        if base is None:
            continue
        for directory, children, _ in os.walk(base / path.lstrip("/")):
            for child in children:
                if any(name in child for name in names):
                    yield f"{directory}/{child}"


def _hierarchy(number: str, controllers: str, mounted: list[str]) -> Path | None:
    wanted = set(controllers.removeprefix("name=").split(","))
    for line in mounted:
        words, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        if kind == "cgroup2" if number == "0" else kind == "cgroup" and wanted <= set(re.split(r"[,=]", options)):
            return Path(_unescape(words.split()[4]))
    return None


def _namespaces(pids: set[int]) -> Iterator[str]:
    own = {_link(f"/proc/self/ns/{kind}") for kind in _NAMESPACES}
    for pid in pids:
        for kind in _NAMESPACES:
            link = _link(f"/proc/{pid}/ns/{kind}")
            if link and link not in own:
                yield link


def _descriptors() -> Iterator[tuple[Descriptor, str]]:
    for name in os.listdir("/proc/self/fd"):
        link = _link(f"/proc/self/fd/{name}")
        if link and link != f"/proc/{os.getpid()}/fd":  # that is the listing itself
            with suppress(OSError):
                found = os.fstat(int(name))
                kind = "" if link.startswith("/") else link
                yield (int(name), found.st_dev, found.st_ino, kind), f"{name} -> {link}"


def _loop_devices(root: Path) -> Iterator[str]:
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            file = backing.read_text().rstrip("\n")
        except OSError:
            continue
        if _below(file.removesuffix(" (deleted)"), root):
            yield f"{backing.parts[3]} {file}"


def _files(root: Path) -> Iterator[str]:
    for pattern in ("*", "*/*"):
        for path in root.glob(pattern):
            yield str(path.relative_to(root))


def _nft_tables() -> Iterator[str]:
    program = shutil.which("nft")
    if program is None or os.getuid() != 0:
        return
    listing = subprocess.run([program, "list", "tables"], capture_output=True, text=True, check=False)
    yield from (line for line in listing.stdout.splitlines() if "paddock" in line)


def _all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _read(path: str) -> bytes:
    """Read a whole file of /proc with few system calls: there is one for each process of the machine."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while part := os.read(fd, 1 << 16):
            content += part
        return content
    finally:
        os.close(fd)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _below(path: str, root: Path) -> bool:
    return path == str(root) or path.startswith(f"{root}/")


def _unescape(word: str) -> str:
    """proc(5): blanks, newlines and backslashes are octal in mountinfo."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), word)
