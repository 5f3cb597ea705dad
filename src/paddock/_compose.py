"""The composition root: the one module that names concrete classes, and the one embedded service per process.

Whoever resolves `paddock.Sandbox` loads it, and it makes itself the default way from a client to paddock.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paddock.client import AsyncLocalTransport, Door, Home, LocalTransport, LoopThread, install
from paddock.client import AsyncSandbox as AsyncSandbox
from paddock.client import Sandbox as Sandbox
from paddock.errors import NotConfigured
from paddock.model import Principal

if TYPE_CHECKING:
    from paddock.backends.jail import JailBackend
    from paddock.storage import Pool, PoolConfig


class Embedded(Door, Protocol):
    """A service, as far as this process owns it."""

    async def aclose(self) -> None: ...


Opener = Callable[[Path], Coroutine[Any, Any, Embedded]]

CLOSE_SECONDS = 10.0
"""A program does not take longer to end because of us."""


def default_state_dir() -> Path:
    """PADDOCK_STATE_DIR; else the system's for root, the user's own for everybody else."""
    if given := os.environ.get("PADDOCK_STATE_DIR"):
        return Path(given).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/paddock")
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state") / "paddock"


class LocalConnector:
    """Services in this process, one per state directory; a forked child makes its own."""

    def __init__(self, open_service: Opener) -> None:
        self._open_service = open_service
        self._lock = threading.Lock()
        self._homes: dict[Path, tuple[Home, Embedded]] = {}
        self._watching = False

    def connect(self, state_dir: str | os.PathLike[str] | None = None) -> LocalTransport:
        path = _state_dir(state_dir)
        return LocalTransport(lambda: self.home(path))

    def connect_async(self, state_dir: str | os.PathLike[str] | None = None) -> AsyncLocalTransport:
        path = _state_dir(state_dir)
        return AsyncLocalTransport(lambda: self.home(path))

    def home(self, path: Path) -> Home:
        found = self._homes.get(path)
        if found is not None:
            return found[0]
        with self._lock:
            if path not in self._homes:
                self._watch_process()
                self._homes[path] = self._open(path)
            return self._homes[path][0]

    def close(self) -> None:
        """Ends the services; what is not persistent dies. Idempotent."""
        with self._lock:
            homes, self._homes = self._homes, {}
        for home, service in homes.values():
            try:
                home.loop.run(asyncio.wait_for(service.aclose(), CLOSE_SECONDS))
            except TimeoutError:
                pass  # the keeper holds every deadline
            finally:
                home.loop.stop()

    def _open(self, path: Path) -> tuple[Home, Embedded]:
        loop = LoopThread("paddock")
        try:
            service = loop.run(self._open_service(path))
        except BaseException:
            loop.stop()
            raise
        return Home(loop=loop, door=service, principal=Principal(f"local:{os.getuid()}")), service

    def _watch_process(self) -> None:
        if not self._watching:
            self._watching = True
            os.register_at_fork(after_in_child=self._forget)
            # Not `atexit`: that comes after the executors of `asyncio.to_thread` have been shut down.
            threading._register_atexit(self.close)  # type: ignore[attr-defined] # pyright: ignore

    def _forget(self) -> None:
        """In a forked child the parent's threads do not exist, and its lock may be held by one of them."""
        self._lock = threading.Lock()
        self._homes = {}


async def open_service(state_dir: Path) -> Embedded:
    """The service of this machine, on the loop where it will live. Imports what it needs, which is most of paddock."""
    from paddock.backends.jail import JailBackend
    from paddock.policy import local_policy
    from paddock.service import Service
    from paddock.storage import Templates, prepare

    config = await asyncio.to_thread(prepare, state_dir, driver=os.environ.get("PADDOCK_POOL_DRIVER"))
    jail = JailBackend(state_dir)
    pool = await _open_pool(state_dir, config, jail)
    service = Service(
        state_dir,
        backends=[jail],
        pool=lambda: pool,
        templates=Templates(pool, state_dir),
        policy=local_policy(os.geteuid()),
    )
    return await service.__aenter__()


async def _open_pool(state_dir: Path, config: PoolConfig, jail: JailBackend) -> Pool:
    """From the keeper, which has it mounted; where no keeper can be, such as without user namespaces, by itself."""
    from paddock.storage import open_pool

    if config.image is None and jail.probe() is not None:
        return open_pool(state_dir, config)
    return open_pool(state_dir, config, os.dup(await jail.pool()))


def local(state_dir: str | os.PathLike[str] | None = None) -> LocalTransport:
    """The service in this process, for `Sandbox.create(transport=...)`."""
    return connector.connect(state_dir)


def local_async(state_dir: str | os.PathLike[str] | None = None) -> AsyncLocalTransport:
    """The same for `AsyncSandbox.create(transport=...)`."""
    return connector.connect_async(state_dir)


def _state_dir(given: str | os.PathLike[str] | None) -> Path:
    if given is not None:
        return Path(given).absolute()
    if os.environ.get("PADDOCK_URL"):
        raise NotConfigured(
            "PADDOCK_URL is set, and this paddock cannot use a server yet: servers come with a later chapter",
            hint="unset PADDOCK_URL",
        )
    return default_state_dir()


connector = LocalConnector(open_service)
install(connector)
