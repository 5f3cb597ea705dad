"""Write `run/<sandbox>/`, where the next supervisor and any daemon find what lives."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from typing import Any, NamedTuple, cast

from paddock.linux.descriptors import closing, write_all
from paddock.linux.whole import write_whole
from paddock.supervisor.layout import RETENTION_SECONDS
from paddock.supervisor.plan import JAIL, WAITING, is_name

STATE = "state.json"
ENDED = ".ended"
_LARGEST = 1 << 20


@dataclasses.dataclass(slots=True, kw_only=True)
class Record:
    """Record a live sandbox: enough to find it again after the supervisor's death, and to tell it from another.

    `start` is the start time of its pid 1 in ticks since boot, `deadline` is in seconds of CLOCK_BOOTTIME. It ends with
    the sandbox `parent`, if there is one.
    """

    id: str
    pid: int
    start: int
    boot: str
    slot: int | None
    group: str | None
    deadline: float
    tree: str
    template: str
    limits: dict[str, float]
    trees: dict[str, int | None] = dataclasses.field(default_factory=dict[str, int | None])
    """The other trees that it writes, and their limits in bytes."""
    instance_id: int = 0
    parent: str = ""
    exits: bool = False
    late: bool = False
    """Whether the exits were made while it ran."""
    paused: bool = False
    """Whether it stays paused until a resume, under any supervisor."""
    idle_seconds: float = 0.0
    """Seconds without use until it is paused; 0: never."""
    retention_seconds: float = RETENTION_SECONDS
    left_seconds: float | None = None
    """Seconds left of its TTL, which stops in a pause: `deadline` is that of its retention then."""
    kind: str = JAIL
    devices: list[str] = dataclasses.field(default_factory=list[str])
    """Devices of the host beside those that all sandboxes have."""
    env: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    """The environment of its commands. The daemon that adopts it sends it to the agents."""

    def to_message(self) -> dict[str, Any]:
        """Return its fields, to read and not to change: `dataclasses.asdict` would copy them deeply."""
        return {name: getattr(self, name) for name in self.__slots__}


class Ended(NamedTuple):
    """Record how a sandbox ended: the limit that ended it, if one did, a reason, and its kind, empty if unknown."""

    limit: str | None
    reason: str
    kind: str = JAIL


class Records:
    """Write and read the directory `run`, by descriptor. Writes are renames: a reader sees a whole record or none."""

    def __init__(self, directory: int) -> None:
        self.directory = directory
        self._kept: dict[str, Ended] = {}
        """Ends that the current daemon knows, not written yet."""

    def adopt(self, id: str, directory: int, name: str) -> None:
        """Make `name`, a directory in `directory`, that of a new sandbox. Raises OSError ENOTEMPTY if it has one."""
        os.rename(name, id, src_dir_fd=directory, dst_dir_fd=self.directory)

    def retire(self, id: str, directory: int, name: str) -> None:
        """Move what `adopt` made to `name` in `directory`, for later removal; do nothing if there is none."""
        with contextlib.suppress(FileNotFoundError):
            os.rename(id, name, src_dir_fd=self.directory, dst_dir_fd=directory)

    def publish(self, record: Record, directory: int, name: str) -> None:
        """Write the record of a new sandbox into `name`, a directory in `directory`, and make that the sandbox's own.
        Raises OSError ENOTEMPTY if it has one."""
        with closing(
            os.open(f"{name}/{STATE}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
        ) as fd:
            write_all(fd, json.dumps(record.to_message()).encode())
        self.adopt(record.id, directory, name)

    def write(self, record: Record) -> None:
        self._replace(f"{record.id}/{STATE}", record.to_message())

    def write_ended(self, id: str, ended: Ended) -> None:
        """Write how it ended, unless it was a waiting one: no daemon asks for its end, and so none would forget it."""
        if not ended.kind.endswith(WAITING):
            self._replace(f"{id}{ENDED}", ended._asdict())

    def keep_ended(self, id: str, ended: Ended) -> None:
        """Keep how it ended. `write_kept` writes it to disk, unless it is forgotten before."""
        self._kept[id] = ended

    def write_kept(self) -> None:
        """Write the ends that are only kept in memory. On OSError the rest stay kept."""
        for id in list(self._kept):
            self.write_ended(id, self._kept[id])
            del self._kept[id]

    def read(self, id: str) -> Record | None:
        """Read a record. Return None if it is missing or incomplete."""
        try:
            return Record(**self._load(f"{id}/{STATE}"))
        except (OSError, ValueError, TypeError):
            return None

    def ended(self) -> dict[str, Ended]:
        found: dict[str, Ended] = {}
        for name in os.listdir(self.directory):
            if name.endswith(ENDED):
                try:
                    found[name.removesuffix(ENDED)] = Ended(**self._load(name))
                except (OSError, ValueError, TypeError):
                    found[name.removesuffix(ENDED)] = Ended(limit=None, reason="its record is damaged", kind="")
        return found | {id: ended for id, ended in self._kept.items() if not ended.kind.endswith(WAITING)}

    def living(self) -> list[str]:
        return [name for name in os.listdir(self.directory) if is_name(name)]

    def put_back(self) -> None:
        """Complete or undo the claims of a supervisor that died: each directory gets the name in its record."""
        for name in self.living():
            record = self.read(name)
            if record is not None and record.id != name:
                self.adopt(record.id, self.directory, name)

    def clear(self) -> None:
        """Remove temporary files that a killed supervisor left."""
        for name in os.listdir(self.directory):
            if name.endswith(f"{ENDED}.new"):
                os.unlink(name, dir_fd=self.directory)

    def remove(self, id: str) -> None:
        """Remove the directory and its sockets; do nothing if there is none."""
        remove_directory(self.directory, id)

    def forget(self, id: str) -> None:
        self._kept.pop(id, None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{id}{ENDED}", dir_fd=self.directory)

    def _replace(self, name: str, value: dict[str, Any]) -> None:
        write_whole(self.directory, name, json.dumps(value).encode())

    def _load(self, name: str) -> dict[str, Any]:
        with closing(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.directory)) as fd:
            return cast("dict[str, Any]", json.loads(os.read(fd, _LARGEST)))


def remove_directory(parent: int, name: str) -> None:
    """Remove a directory of files; do nothing if there is none."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with contextlib.suppress(FileNotFoundError), closing(os.open(name, flags, dir_fd=parent)) as directory:
        for file in os.listdir(directory):
            os.unlink(file, dir_fd=directory)
        os.rmdir(name, dir_fd=parent)
