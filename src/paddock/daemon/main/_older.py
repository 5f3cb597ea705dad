"""Handle what older versions left: programs that write to the state directory themselves, files of sessions, and
figures that chose a level."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Set
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from paddock.errors import NotConfiguredError
from paddock.model.caller import SessionProcess
from paddock.model.config import FILE, Config
from paddock.supervisor import layout

if TYPE_CHECKING:
    from paddock.daemon.store.database import Store

_SUPERVISOR = "keeper"
"""The old name of the supervisor and its files."""
_FIELD_PID = 4  # "1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF", proc_locks(5)


def refuse_older_programs(state_dir: Path) -> None:
    """Raise NotConfiguredError if a program of an older paddock still works in `state_dir`.

    The caller has the daemon's lock and no segment of the audit log yet. Such a program locks a segment as long as it
    lives. Of today's processes only the gateway does so beside the daemon. An older supervisor locks another file.
    """
    state_dir = state_dir.resolve()
    files = {*(state_dir / layout.AUDIT).glob("*.jsonl"), *state_dir.glob(f"{_SUPERVISOR}.lock")}
    gateway = state_dir / layout.GATEWAY_LOCK
    for pid in _lockers() if files else ():
        locked = set(_locked(pid, {gateway, *files}))
        if locked and gateway not in locked:
            raise NotConfiguredError(
                f"a program of an older paddock (pid {pid}) still works in {state_dir}",
                hint=f"let it finish, or end it: kill {pid}",
            )


def rename_files(state_dir: Path) -> None:
    """Give the supervisor's files the names of today, once no older program works in `state_dir`."""
    old = state_dir / f"{_SUPERVISOR}.json"
    if not old.exists():
        return
    for ending in ("lock", "sock", "log"):
        old.with_suffix(f".{ending}").unlink(missing_ok=True)
    with suppress(FileNotFoundError):  # where that supervisor mounted, in a namespace that has ended with it
        shutil.rmtree(state_dir / _SUPERVISOR)
    old.rename(state_dir / layout.SUPERVISOR_CONFIG)


class _SessionFile(msgspec.Struct):
    """The first line of a session's file. The others name the sandboxes that came later."""

    token: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    pid: int
    start_time: str
    boot_id: str
    sandboxes: tuple[str, ...]


def take_over_sessions(state_dir: Path, store: Store) -> None:
    """Record in the rows of sandboxes with which sessions they end: files said that until schema 19."""
    directory = state_dir / "sessions"
    for path in directory.glob("*.json"):
        first, *later = path.read_bytes().split(b"\n")
        with suppress(msgspec.DecodeError, UnicodeDecodeError):  # not one of our files
            found = msgspec.json.decode(first, type=_SessionFile)
            of = SessionProcess(token=found.token, pid=found.pid, start_time=found.start_time, boot_id=found.boot_id)
            for id in (*found.sandboxes, *map(bytes.decode, later)):
                store.join(id, of)
    shutil.rmtree(directory, ignore_errors=True)


def forget_figures(state_dir: Path, config: Config) -> str | None:
    """Delete the figures by which earlier releases chose a level, and return what to tell the one who starts first."""
    try:
        (state_dir / layout.LEVELS).unlink()
    except OSError:
        return None
    return (
        "the default level doesn't depend on measurements any more: a sandbox for which no level is named is a"
        f" {config.level.value} from now on. To have another default, write a line such as"
        f' level = "gvisor" into {state_dir / FILE}'
    )


def _lockers() -> list[int]:
    """Return the processes that took a lock with `flock`. A dead one stays listed while a child has its descriptor."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:  # gVisor has none, and some containers hide it: there such a program isn't found
        return []
    fields = map(str.split, lines)
    # A request that waits has "->" before its kind.
    return sorted({int(line[_FIELD_PID]) for line in fields if line[1] == "FLOCK"})


def _locked(pid: int, files: Set[Path]) -> Iterator[Path]:
    """Yield those of `files` that `pid` has locked; none for a process that is dead, dying, or another user's.

    The link of a descriptor is not enough: a program in a sandbox may lock another file with the same path. Only
    stat(2) tells whether it is the same file; /proc/locks names other devices and inodes on btrfs and overlayfs.
    """
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for descriptor in descriptors:
        link = f"/proc/{pid}/fd/{descriptor}"
        try:
            path = Path(os.readlink(link))
            if path in files and path.samefile(link) and "FLOCK" in _fdinfo(pid, descriptor):
                yield path
        except OSError:
            continue  # closed meanwhile, or the file is missing here


def _fdinfo(pid: int, descriptor: str) -> str:
    return Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text()
