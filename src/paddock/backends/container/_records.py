"""`containers/<sandbox>/`: what a later daemon needs to find a container, and to say how it ended.

record.json                    the record below
init.sock user.sock root.sock  where the guest serves: made by us, never seen inside
birth/                         seen inside, read-only: the socket while pid 1 is told what it is; with a way out, whom
                               programs trust
birth/told/                    files that lie over some of /proc, and a /sys
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

from paddock.backends._base import TreeMount
from paddock.errors import SandboxDiedError
from paddock.linux import proc
from paddock.model import SandboxId, Template
from paddock.supervisor import layout

_ROOT = "/carried"
_GONE = ".gone-"
RECORD, BIRTH = layout.CONTAINER_RECORD, layout.CONTAINER_SHOWN


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """`pid` is pid 1 of the container, `start` when that was started, in ticks since the boot `boot`. `deadline` is in
    seconds of CLOCK_BOOTTIME. While it is paused, `left_seconds` of its TTL are left, and `deadline` is that of its
    retention. `most_seconds` were left of its TTL when that was last known."""

    id: SandboxId
    incarnation: int
    deadline: float
    left_seconds: float | None = None
    most_seconds: float = 1e9
    retention_seconds: float = layout.RETENTION_SECONDS
    template: Template
    env: dict[str, str] = {}
    """What every command has: the guest does not know it."""
    boot: str
    pid: int = 0
    start: int = 0
    killed: Literal["", "deadline", "caller"] = ""
    trees: tuple[TreeMount, ...] = ()
    """Those of the pool that are carried out again."""
    loaded: bool = False
    """What was in them is in the container. Before that, nothing in it is worth more than what the pool has."""
    carried: bool = False
    """It has ended, and what it left in them is in the pool."""
    lost: str = ""
    """Or is nowhere any more, for this reason."""
    tree: str = ""
    """The pool's tree of its root file system: what it was when it was last held still."""
    engine: str = ""
    """The engine's own id for it; empty until it is there."""
    exits: bool = False
    late: bool = False
    """It was given them while it ran: its environment says nothing of certificates."""

    @property
    def root(self) -> TreeMount:
        """As the jail has it that carries it."""
        return TreeMount(tree=self.tree, target=_ROOT, writable=True, layers=self.template.layers)

    @property
    def container(self) -> str:
        """As its engine knows it: its name may be that of its successor by now."""
        return self.engine or name_of(self.id)

    @property
    def owes(self) -> bool:
        """What is in the container is newer than what is in the pool."""
        return bool(self.trees) and self.loaded and not self.carried

    def lives(self) -> bool:
        """As the kernel says, which knows better than any engine."""
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
        """Nothing where it has been removed meanwhile."""
        place = self.place(record.id)
        scratch = place / f"{RECORD}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            scratch.write_bytes(msgspec.json.encode(record))
            scratch.replace(place / RECORD)

    def read(self, id: SandboxId, incarnation: int | None = None) -> Record | None:
        """Return the record, or that of one incarnation alone: its successor under the same id is another's."""
        try:
            record = msgspec.json.decode((self.place(id) / RECORD).read_bytes(), type=Record)
        except (OSError, msgspec.DecodeError):
            return None
        return record if incarnation in (None, record.incarnation) else None

    def change(self, id: SandboxId, incarnation: int, **new: Any) -> Record | None:
        """Write down what is new of it, and nothing else: what others have written meanwhile stays. What it was; None
        where it is gone."""
        with self._changing:
            record = self.read(id, incarnation)
            if record is not None:
                self.write(msgspec.structs.replace(record, **new))
            return record

    def move_deadline(self, id: SandboxId, incarnation: int, deadline: float) -> float:
        """Write it down; what it was. SandboxDied."""
        record = self.read(id, incarnation)
        if record is not None and record.lives():
            left = deadline - proc.boottime()
            record = self.change(id, incarnation, deadline=deadline, left_seconds=None, most_seconds=left)
            if record is not None:
                return record.deadline
        raise SandboxDiedError(f"sandbox {id} is gone")

    def note_times(self, id: SandboxId, incarnation: int, left: float | None, deadline: float) -> Record | None:
        """Write down what pid 1 says of its TTL: never more than was left when that was last known."""
        record = self.read(id, incarnation)
        if record is None:
            return None
        now = proc.boottime()
        most = max(0.0, min(deadline - now if left is None else left, record.most_seconds))
        if left is None:
            until = now + most
        elif record.left_seconds is None:
            # Not later than pid 1 holds it: one that has ended by it must not seem to have ended before.
            until = min(deadline, now + record.retention_seconds)
        else:
            until = record.deadline
        new: dict[str, Any] = {"left_seconds": None if left is None else most, "deadline": until, "most_seconds": most}
        self.change(id, incarnation, **new)
        return msgspec.structs.replace(record, **new)

    @contextlib.asynccontextmanager
    async def alone(self, id: SandboxId, doing: Literal["hold", "carry"]) -> AsyncGenerator[None]:
        """One at a time holds a container still to bring its files to its trees. One at a time has a jail that carries
        out of it, however long another holds it still: what was read of it before is not to be relied on. SandboxDied.
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
        """At once: who comes to write something in it writes nothing where the next of that id is to be."""
        gone = self.directory / f"{_GONE}{os.urandom(8).hex()}"
        with contextlib.suppress(OSError):
            self.place(id).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what killed daemons left half removed."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.directory):
                if name.startswith(_GONE):
                    shutil.rmtree(self.directory / name, ignore_errors=True)
