"""The composition root: the one module that names concrete classes."""

from __future__ import annotations

import asyncio
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import AsyncExitStack
from copy import copy
from functools import cached_property
from importlib import import_module
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from paddock.errors import NotConfiguredError, PaddockError, ResourceExhaustedError
from paddock.model import Action, Principal
from paddock.supervisor import layout

if TYPE_CHECKING:
    from paddock.backends.base import Backend
    from paddock.backends.jail import SupervisorClient
    from paddock.storage import Templates
    from paddock.storage.git import Proof, Remote
    from paddock.storage.templates.images import Images

    from .service import Service

R = TypeVar("R")
_log = logging.getLogger("paddock")
"""Reports what takes long, at level INFO."""


class Node:
    """Hold the service of a state directory and its parts. `open` it, `start` it, `aclose` it.

    If the pool can't be opened, requests that need it raise the reason, and `doctor` works. The next request tries
    again: the obstacle may be gone.
    """

    def __init__(self, state_dir: Path) -> None:
        from paddock.backends.jail import JailBackend
        from paddock.model.config import read_config

        from ._older import forget_figures

        self.config = read_config(state_dir)
        notice = forget_figures(state_dir, self.config)
        self.notices = [notice] if notice else []
        """Messages for the first client."""
        self._state_dir, self._jail = state_dir, JailBackend(state_dir)
        self._opening, self._importing = asyncio.Lock(), Lock()
        self._opened: Templates | None = None
        self._images: Images | None = None
        self._problem: PaddockError = NotConfiguredError("the pool is not open")

    @cached_property
    def service(self) -> Service:
        from paddock.policy import local_policy

        from .service import Service

        state_dir, jail = self._state_dir, self._jail
        return Service(
            state_dir,
            backends=lambda: chain((jail,), _other_backends(state_dir, jail.supervisor)),
            pool=lambda: self.templates().pool,
            templates=self.templates,
            images=self.images,
            policy=local_policy(os.getuid()),
            config=self.config,
            credentials=_own_credential,
        )

    async def open(self) -> None:
        """Open the pool. Raises ResourceExhaustedError; requests that need the pool report any other failure.

        The supervisor starts while the service is imported: both take as long.
        """
        importing = asyncio.to_thread(import_module, "paddock.daemon.main.service")
        await asyncio.gather(self._open_pool(), importing)

    async def perform(self, action: Action[R], principal: Principal) -> R:
        if self._opened is None:
            async with self._opening:
                if self._opened is None:
                    await self.open()
        return await self.service.perform(action, principal)

    async def _open_pool(self) -> None:
        if not (self._state_dir / layout.SUPERVISOR_CONFIG).exists():
            _log.info("making the pool of this state directory")
        try:
            self._opened = await self._jail.supervisor.templates()
        except ResourceExhaustedError:
            raise  # that will pass: the next call opens everything anew
        except PaddockError as error:
            self._problem = error

    def templates(self) -> Templates:
        if self._opened is None:
            raise copy(self._problem)
        return self._opened

    def images(self) -> Images:
        with self._importing:
            if self._images is None:
                from paddock.storage.templates.images import Images  # most sandboxes need none

                self._images = Images(self.templates().pool, self._state_dir)
        return self._images

    async def aclose(self) -> None:
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._jail.aclose)
            if "service" in vars(self):
                await self.service.aclose()


async def _own_credential(principal: Principal, remote: Remote) -> Proof | None:
    """Use the git credentials of the user who runs the daemon."""
    from paddock.storage.git import ambient

    return await ambient(remote)


def _other_backends(state_dir: Path, supervisor: SupervisorClient) -> Iterator[Backend]:
    """Yield the installed backends beside the jail, those of plugins too. They share one client of the supervisor."""
    from paddock.backends import OVER_THE_SUPERVISOR, load, names

    for name in names():
        if name != "jail":
            try:
                yield load(name)(state_dir, **({"supervisor": supervisor} if name in OVER_THE_SUPERVISOR else {}))
            except (ImportError, AttributeError) as error:  # one broken plug-in must not take the other backends down
                warnings.warn(f"backend {name!r} cannot be loaded: {error}", RuntimeWarning, stacklevel=2)
