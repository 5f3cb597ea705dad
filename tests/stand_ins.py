"""What the worlds of tests have in common: one template, a pool without a disk, and what a command says of itself.

`tests/service/service_world.py` puts host processes behind a service, `tests/simulation/world.py` puts numbers.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Protocol

from paddock.errors import NotFoundError
from paddock.linux.btrfs import Quota
from paddock.model import Check, ExecId, ExecInfo, ExecSpec, ExitStatus, PoolSpace, Template, User
from paddock.storage.pool.config import PoolConfig

USER = User(name="user", uid=1000, gid=1000, home="/home/user")
HOST = Template(
    name="host", digest="d" * 8, layers=("tp_host",), host_usr=True, users=(USER,), default_user="user", workdir="/"
)


class OneTemplate:
    def get(self, name: str, progress: object = None) -> Template:
        if name != "host":
            raise NotFoundError(f"no template {name!r}")
        return HOST

    def names(self) -> tuple[str, ...]:
        return ("host",)

    def versions(self) -> frozenset[str]:
        return frozenset(HOST.layers)

    def is_version(self, tree: str) -> bool:
        return False

    def discard(self, tree: str) -> bool:
        return False


class WithoutDisk:
    """The half of a `Pool` that measures and cleans up: nothing there."""

    config = PoolConfig(driver="copy")
    used_bytes = 0

    def working(self) -> nullcontext[None]:
        return nullcontext()

    @property
    def in_use(self) -> set[str]:
        return self.__dict__.setdefault("_in_use", set())

    def usage(self, name: str) -> Quota:
        return Quota(self.used_bytes, None)

    def measure(self, name: str) -> int:
        return self.used_bytes

    def space(self) -> PoolSpace:
        return PoolSpace(used_bytes=self.used_bytes, available_bytes=1 << 30)

    def checks(self) -> tuple[Check, ...]:
        return ()

    def examine(self, *, scrub: bool | None = None) -> tuple[Check, ...]:
        return ()

    def unfinished(self) -> tuple[str, ...]:
        return ()

    def sweep(self) -> dict[str, str]:
        return {}

    def fit(self) -> int:
        return 0

    def trim(self) -> int | None:
        return None

    def flush(self, name: str) -> None: ...
    def settle(self) -> None: ...
    def allow(self, name: str, limit_bytes: int) -> None: ...
    def close(self) -> None: ...


class Told(Protocol):
    id: ExecId
    spec: ExecSpec
    background: bool
    started_at: float
    status: ExitStatus | None

    @property
    def pid(self) -> int: ...


def info_of(command: Told) -> ExecInfo:
    return ExecInfo(
        id=command.id,
        argv=command.spec.argv,
        pid=command.pid,
        started_at=command.started_at,
        background=command.background,
        status=command.status,
    )
