"""The composition root: the one module that names concrete classes, and the one embedded service per process.

Whoever resolves `paddock.Sandbox` loads it, and it makes itself the default way from a client to paddock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from copy import copy
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paddock.client import AsyncLocalTransport, Door, Home, LocalTransport, LoopThread, install
from paddock.client import AsyncSandbox as AsyncSandbox
from paddock.client import AsyncWorkspace as AsyncWorkspace
from paddock.client import Sandbox as Sandbox
from paddock.client import Workspace as Workspace
from paddock.errors import NotConfigured, PaddockError, ResourceExhausted, exhaustion
from paddock.keeper import layout
from paddock.keeper.layout import default_state_dir as default_state_dir
from paddock.model import Principal, Template, is_image

if TYPE_CHECKING:
    from paddock.backends._base import Backend
    from paddock.backends.jail import JailBackend
    from paddock.storage import Pool, Templates
    from paddock.storage.images import Images
    from paddock.storage.repositories import Proof, Remote


Opener = Callable[[Path, AsyncExitStack], Coroutine[Any, Any, Door]]
"""Makes a service on the loop where it will live; what has to be ended goes onto the stack."""

_log = logging.getLogger("paddock")
"""What takes long says so here, at the level of information."""

CLOSE_SECONDS = 10.0
"""A program does not take longer to end because of us."""


class LocalConnector:
    """Services in this process, one per state directory; a forked child makes its own."""

    def __init__(self, open_service: Opener) -> None:
        self._open_service = open_service
        self._lock = threading.Lock()
        self._homes: dict[Path, tuple[Home, AsyncExitStack]] = {}
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
                try:
                    self._homes[path] = self._open(path)
                except (OSError, RuntimeError) as error:
                    exhausted = exhaustion(error)
                    if exhausted is None:
                        raise
                    raise exhausted from error
            return self._homes[path][0]

    def close(self) -> None:
        """Ends the services; what is not persistent dies. Idempotent. One that fails does not keep the others."""
        with self._lock:
            homes, self._homes = self._homes, {}
        with contextlib.ExitStack() as closing:
            for home, stack in homes.values():
                closing.callback(_close, home, stack)

    def _open(self, path: Path) -> tuple[Home, AsyncExitStack]:
        loop, stack = LoopThread("paddock"), AsyncExitStack()
        try:
            door = loop.run(self._open_service, path, stack)
        except BaseException:
            with contextlib.suppress(PaddockError):
                loop.run(stack.aclose)
            loop.stop()
            raise
        return Home(loop=loop, door=door, principal=Principal(f"local:{os.getuid()}")), stack

    def _watch_process(self) -> None:
        if not self._watching:
            self._watching = True
            os.register_at_fork(after_in_child=self._forget)
            # Not `atexit`: that comes after the executors of `asyncio.to_thread` have been shut down. Of those that
            # register here the last is called first: they, who do at their import, have to come before us.
            import_module("concurrent.futures.thread")
            threading._register_atexit(self.close)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

    def _forget(self) -> None:
        """In a forked child the parent's threads do not exist, and its lock may be held by one of them."""
        self._lock = threading.Lock()
        self._homes = {}


async def open_service(state_dir: Path, stack: AsyncExitStack) -> Door:
    """The service of this machine. Imports what it needs, which is most of paddock."""
    from paddock.backends.jail import JailBackend
    from paddock.policy import local_policy
    from paddock.service import Service, forget_figures, read_config

    config = read_config(state_dir)
    if told := forget_figures(state_dir, config):
        _log.warning(told)
    jail = JailBackend(state_dir)
    stack.push_async_callback(jail.aclose)
    storage = _Storage(state_dir)
    stack.callback(storage.close)
    await storage.open(jail)
    service = Service(
        state_dir,
        backends=lambda: chain((jail,), _other_backends(state_dir)),
        pool=storage.pool,
        templates=storage,
        images=storage.images,
        policy=local_policy(os.getuid()),
        config=config,
        credentials=_own_credential,
        gateway=True,
    )
    return await stack.enter_async_context(service)


async def _own_credential(principal: Principal, remote: Remote) -> Proof | None:
    """Whoever uses the service in this process is the one whose git this machine has been told about."""
    from paddock.storage.repositories import ambient

    return await ambient(remote)


def _other_backends(state_dir: Path) -> Iterator[Backend]:
    """What is installed beside the jail: ours and other people's alike."""
    from paddock.backends import load, names

    for name in names():
        if name != "jail":
            try:
                yield load(name)(state_dir)
            except (ImportError, AttributeError) as error:  # somebody's backend must not take the others down
                warnings.warn(f"backend {name!r} cannot be loaded: {error}", RuntimeWarning, stacklevel=2)


class _Storage:
    """The pool and its templates. Where they cannot be opened, who needs them is told why, and `doctor` works."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._pool: Pool | None = None
        self._templates: Templates | None = None
        self._images: Images | None = None
        self._problem: PaddockError = NotConfigured("the pool is not open")

    async def open(self, jail: JailBackend) -> None:
        from paddock.storage import Templates, open_pool, prepare

        if not (self._state_dir / layout.KEEPER_CONFIG).exists():
            _log.info("making the pool of this state directory")

        try:
            forced = os.environ.get("PADDOCK_POOL_DRIVER")
            config = await asyncio.to_thread(prepare, self._state_dir, driver=forced)  # the first time: makes an image
            # Where the pool is an image, only the keeper has it mounted.
            self._pool = open_pool(self._state_dir, config, os.dup(await jail.pool()))
        except ResourceExhausted:
            raise  # that will pass: the next call opens everything anew
        except PaddockError as error:
            self._problem = error
        else:
            self._templates = Templates(self._pool, self._state_dir)

    def pool(self) -> Pool:
        if self._pool is None:
            raise copy(self._problem)
        return self._pool

    def get(self, name: str) -> Template:
        if is_image(name):
            return self.images().get(name, _log.info).template
        self.pool()
        assert self._templates is not None
        return self._templates.get(name, progress=_log.info)

    def images(self) -> Images:
        if self._images is None:
            from paddock.storage.images import Images  # most sandboxes need none

            self._images = Images(self.pool(), self._state_dir)
        return self._images

    def names(self) -> tuple[str, ...]:
        return self._templates.names() if self._templates else ()

    def versions(self) -> frozenset[str]:
        return self._templates.versions() if self._templates else frozenset()

    def is_version(self, tree: str) -> bool:
        return self._templates is not None and self._templates.is_version(tree)

    def discard(self, tree: str) -> bool:
        return self._templates is not None and self._templates.discard(tree)

    def close(self) -> None:
        if self._images is not None:
            self._images.close()
        if self._templates is not None:
            self._templates.close()
        if self._pool is not None:
            self._pool.close()


def _close(home: Home, stack: AsyncExitStack) -> None:
    try:
        home.loop.run(_closing, stack)
    except TimeoutError:
        pass  # the keeper holds every deadline
    finally:
        home.loop.stop()


async def _closing(stack: AsyncExitStack) -> None:
    await asyncio.wait_for(stack.aclose(), CLOSE_SECONDS)


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
