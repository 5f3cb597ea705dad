"""`containers/<sandbox>/`: the state from which a later daemon finds a container, and learns the reason of its end.

record.json                    the record below
init.sock user.sock root.sock  the guest's sockets: made by us, never visible inside
birth/                         visible inside, read-only: the socket for pid 1's orders, and with network access the
                               trusted certificates
birth/told/                    files that cover some of /proc, and a /sys
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any, Literal
from weakref import WeakValueDictionary

import msgspec

from paddock.backends.base import TreeMount
from paddock.errors import SandboxDiedError
from paddock.linux import proc
from paddock.model import SandboxId, Template
from paddock.supervisor import layout

_ROOT = "/carried"
_GONE = ".gone-"
RECORD, BIRTH = layout.CONTAINER_RECORD, layout.CONTAINER_SHOWN


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a container.

    `pid` is pid 1 of the container, and `start` its start in ticks since the boot `boot`.

    `deadline` is in seconds of CLOCK_BOOTTIME. During a pause `left_seconds` is the rest of its TTL, and `deadline` the
    end of its retention. `most_seconds` is the last known rest of its TTL.
    """

    id: SandboxId
    instance_id: int
    deadline: float
    left_seconds: float | None = None
    most_seconds: float = 1e9
    retention_seconds: float = layout.RETENTION_SECONDS
    template: Template
    env: dict[str, str] = {}
    """The environment of every command, which the guest doesn't know."""
    boot: str
    pid: int = 0
    start: int = 0
    killed: Literal["", "deadline", "caller"] = ""
    trees: tuple[TreeMount, ...] = ()
    """The pool's trees that paddock copies back."""
    loaded: bool = False
    """The container has the trees' content. Before that, the pool's copy is the current one."""
    carried: bool = False
    """The container has ended, and the pool has its trees' content."""
    lost: str = ""
    """The reason why that content is lost."""
    tree: str = ""
    """The pool's tree of its root file system, as of its last pause."""
    engine: str = ""
    """The engine's id of the container. It is empty before its creation."""
    exits: bool = False
    late: bool = False
    """It got them during its run, so its environment has no certificates."""

    @property
    def root(self) -> TreeMount:
        """The root file system as a mount of the carrying jail."""
        return TreeMount(tree=self.tree, target=_ROOT, writable=True, layers=self.template.layers)

    @property
    def container(self) -> str:
        """The engine's name for it. Its own name may already be that of its successor."""
        return self.engine or name_of(self.id)

    @property
    def owes(self) -> bool:
        """Whether the container's content is newer than the pool's."""
        return bool(self.trees) and self.loaded and not self.carried

    def lives(self) -> bool:
        """Whether it lives, by the kernel instead of the engine."""
        return self.pid > 0 and proc.is_same(self.pid, self.start, self.boot) and proc.state(self.pid) not in "ZX"


def name_of(id: SandboxId) -> str:
    return f"paddock-{id}"


class Records:
    """Writes are by rename: a reader sees a whole record or none."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._changing = threading.Lock()
        self._turns: WeakValueDictionary[tuple[SandboxId, str], asyncio.Lock] = WeakValueDictionary()

    def place(self, id: SandboxId) -> Path:
        return self.directory / id

    def make(self, record: Record) -> Path:
        """FileExistsError: there is one of that id."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = self.place(record.id)
        place.mkdir(mode=0o700)
        try:
            self.write(record)
            (place / BIRTH).mkdir(mode=0o755)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        return place

    def write(self, record: Record) -> None:
        """Write the record, unless it is no longer there."""
        place = self.place(record.id)
        scratch = place / f"{RECORD}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            scratch.write_bytes(msgspec.json.encode(record))
            scratch.replace(place / RECORD)

    def read(self, id: SandboxId, instance_id: int | None = None) -> Record | None:
        """Return the record, or None if `instance_id` differs: then a successor has the id."""
        try:
            record = msgspec.json.decode((self.place(id) / RECORD).read_bytes(), type=Record)
        except (OSError, msgspec.DecodeError):
            return None
        return record if instance_id in (None, record.instance_id) else None

    def change(self, id: SandboxId, instance_id: int, **new: Any) -> Record | None:
        """Change only these fields of the record, and keep other programs' changes.

        Return the old record, or None if it is missing.
        """
        with self._changing:
            record = self.read(id, instance_id)
            if record is not None:
                self.write(msgspec.structs.replace(record, **new))
            return record

    def move_deadline(self, id: SandboxId, instance_id: int, deadline: float) -> float:
        """Record a new deadline, and return the old one. Raises SandboxDiedError."""
        record = self.read(id, instance_id)
        if record is not None and record.lives():
            left = deadline - proc.boottime()
            record = self.change(id, instance_id, deadline=deadline, left_seconds=None, most_seconds=left)
            if record is not None:
                return record.deadline
        raise SandboxDiedError(f"sandbox {id} is gone")

    def note_times(self, id: SandboxId, instance_id: int, left: float | None, deadline: float) -> Record | None:
        """Record pid 1's report about its TTL, which can't exceed the last known rest."""
        record = self.read(id, instance_id)
        if record is None:
            return None
        now = proc.boottime()
        most = max(0.0, min(deadline - now if left is None else left, record.most_seconds))
        if left is None:
            until = now + most
        elif record.left_seconds is None:
            # Not later than pid 1's own deadline: otherwise an expired sandbox would seem to have ended early.
            until = min(deadline, now + record.retention_seconds)
        else:
            until = record.deadline
        new: dict[str, Any] = {"left_seconds": None if left is None else most, "deadline": until, "most_seconds": most}
        self.change(id, instance_id, **new)
        return msgspec.structs.replace(record, **new)

    @contextlib.asynccontextmanager
    async def alone(self, id: SandboxId, doing: Literal["hold", "carry"]) -> AsyncGenerator[None]:
        """Take the lock of a sandbox for one kind of work.

        One task at a time pauses a container to copy its files to its trees. One task at a time has a jail that copies
        its files out, even if another pauses it for long. Data from before the lock isn't reliable. Raises
        SandboxDiedError.
        """
        if not self.place(id).is_dir():
            raise SandboxDiedError(f"sandbox {id} is gone")
        async with self._turns.setdefault((id, doing), asyncio.Lock()):
            yield

    def all(self) -> Iterator[Record]:
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return
        for name in names:
            if name.startswith(("sb_", "wk_")) and (record := self.read(SandboxId(name))) is not None:
                yield record

    def remove(self, id: SandboxId) -> None:
        """Remove a record at once, so that a late writer can't write into the directory of the next sandbox with that
        id.
        """
        gone = self.directory / f"{_GONE}{os.urandom(8).hex()}"
        with contextlib.suppress(OSError):
            self.place(id).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def sweep(self) -> None:
        """Delete the partly removed records of killed daemons."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.directory):
                if name.startswith(_GONE):
                    shutil.rmtree(self.directory / name, ignore_errors=True)
