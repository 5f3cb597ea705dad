"""The context that all parts of a service share, and the base class that gives it to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from paddock.audit import AuditLog
from paddock.model import Action, Principal
from paddock.model.config import Config
from paddock.storage._base import Pool

from ._clock import Clock
from ._lane import Lanes
from ._needs import Needs
from ._providers import Backends
from ._store import Store
from ._tasks import Tasks

if TYPE_CHECKING:
    from paddock.storage import Templates
    from paddock.storage.images import Images

    from ._repositories import CredentialSource

Perform: TypeAlias = Callable[[Action[Any], Principal], Awaitable[Any]]


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """`perform` asks the service itself, as any caller does."""

    state_dir: Path
    store: Store
    audit: AuditLog
    backends: Backends
    tasks: Tasks
    pool: Callable[[], Pool]
    templates: Callable[[], Templates]
    perform: Perform
    needs: Needs
    images: Callable[[], Images] | None = None
    credentials: CredentialSource | None = None
    config: Config = Config()
    clock: Clock = Clock()
    lanes: Lanes = msgspec.field(default_factory=Lanes)


class Component:
    """A part of a service. Its constructor takes the context, then the components that it calls."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._state_dir, self._config, self._clock = context.state_dir, context.config, context.clock
        self._store, self._audit, self._tasks = context.store, context.audit, context.tasks
        self._lanes, self._needs = context.lanes, context.needs
        self._backends, self._pool, self._templates = context.backends, context.pool, context.templates
        self._images, self._credentials, self._perform = context.images, context.credentials, context.perform
