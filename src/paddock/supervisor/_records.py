"""`run/<sandbox>/`: what a supervisor writes so that the next one, and any service, finds what lives."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from typing import Any, NamedTuple, cast

from paddock.linux.descriptors import closing
from paddock.supervisor._plan import JAIL, WAITING, is_name
from paddock.supervisor.layout import RETENTION_SECONDS

STATE = "state.json"
ENDED = ".ended"
_NEW = ".new"
_LARGEST = 1 << 20


@dataclasses.dataclass(slots=True, kw_only=True)
class Record:
    """A live sandbox: enough to find it again after the supervisor's death, and to know that it is not another.

    `start` is the start time of its pid 1 in ticks since boot, `deadline` in seconds of CLOCK_BOOTTIME.
    It ends when the sandbox `parent` does, if there is one.
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
    """The others that it writes, and their limits in bytes."""
    incarnation: int = 0
    parent: str = ""
    exits: bool = False
    late: bool = False
    """They were made while it ran."""
    paused: bool = False
    """It is to stand still until it is resumed, whichever supervisor there is."""
    idle_seconds: float = 0.0
    """For how long nobody may use it before it is paused; 0: for ever."""
    retention_seconds: float = RETENTION_SECONDS
    left_seconds: float | None = None
    """What is left of its TTL, which stands still while it is paused: `deadline` is that of its retention then."""
    kind: str = JAIL
    devices: list[str] = dataclasses.field(default_factory=list[str])
    """Those of the host's that it has beside what all have."""
    env: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    """What its commands have in their environment: whoever adopts it tells the agents, who know nothing of it."""

    def to_message(self) -> dict[str, Any]:
        """Its fields, to be read and not changed: `dataclasses.asdict` copies all that is in them."""
        return {name: getattr(self, name) for name in self.__slots__}


class Ended(NamedTuple):
    """How a sandbox ended: the limit that did it, if one did, and words. Its kind; empty if that is not known."""

    limit: str | None
    reason: str
    kind: str = JAIL


class Records:
    """The directory `run`, by descriptor. Writes are by rename: a reader sees a whole record or none."""

    def __init__(self, directory: int) -> None:
        self.directory = directory
        self._kept: dict[str, Ended] = {}
        """Ends that the daemon of this moment knows, not written yet."""

    def adopt(self, id: str, directory: int, name: str) -> None:
        """Make `name`, a directory in `directory`, that of a new sandbox. OSError ENOTEMPTY if it has one."""
        os.rename(name, id, src_dir_fd=directory, dst_dir_fd=self.directory)

    def retire(self, id: str, directory: int, name: str) -> None:
        """Move what `adopt` made to `name` in `directory`, for somebody to remove; nothing if there is none."""
        with contextlib.suppress(FileNotFoundError):
            os.rename(id, name, src_dir_fd=self.directory, dst_dir_fd=directory)

    def publish(self, record: Record, directory: int, name: str) -> None:
        """Write the record of a new sandbox into `name`, a directory in `directory`, and make that the sandbox's own.
        OSError ENOTEMPTY if it has one."""
        with closing(
            os.open(f"{name}/{STATE}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
        ) as fd:
            os.write(fd, json.dumps(record.to_message()).encode())
        self.adopt(record.id, directory, name)

    def write(self, record: Record) -> None:
        self._replace(f"{record.id}/{STATE}", record.to_message())

    def write_ended(self, id: str, ended: Ended) -> None:
        """But of what was nobody's sandbox: nobody asks for that, and so nobody would forget it."""
        if not ended.kind.endswith(WAITING):
            self._replace(f"{id}{ENDED}", ended._asdict())

    def keep_ended(self, id: str, ended: Ended) -> None:
        """As `write_ended`, but on disk only when `write_kept` is called, unless it was forgotten by then."""
        self._kept[id] = ended

    def write_kept(self) -> None:
        """Write what was only kept. OSError: the rest is kept still."""
        for id in list(self._kept):
            self.write_ended(id, self._kept[id])
            del self._kept[id]

    def read(self, id: str) -> Record | None:
        """None if it is missing or was never finished."""
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
        """Put back what was half claimed when a supervisor died: its directory is called as its record says."""
        for name in self.living():
            record = self.read(name)
            if record is not None and record.id != name:
                self.adopt(record.id, self.directory, name)

    def clear(self) -> None:
        """Take away what a supervisor that was killed had written and not yet put in its place."""
        for name in os.listdir(self.directory):
            if name.endswith(ENDED + _NEW):
                os.unlink(name, dir_fd=self.directory)

    def remove(self, id: str) -> None:
        """Take away the directory and its sockets; nothing if there is none."""
        remove_directory(self.directory, id)

    def forget(self, id: str) -> None:
        self._kept.pop(id, None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{id}{ENDED}", dir_fd=self.directory)

    def _replace(self, name: str, value: dict[str, Any]) -> None:
        temporary = name + _NEW
        with closing(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=self.directory)
        ) as fd:
            os.write(fd, json.dumps(value).encode())
        os.rename(temporary, name, src_dir_fd=self.directory, dst_dir_fd=self.directory)

    def _load(self, name: str) -> dict[str, Any]:
        with closing(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.directory)) as fd:
            return cast("dict[str, Any]", json.loads(os.read(fd, _LARGEST)))


def remove_directory(parent: int, name: str) -> None:
    """Remove a directory of files; nothing if there is none."""
    try:
        directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
    except FileNotFoundError:
        return
    with closing(directory):
        for file in os.listdir(directory):
            os.unlink(file, dir_fd=directory)
    os.rmdir(name, dir_fd=parent)
