"""The context that all parts of a service share, the base class that gives it to them, and the table of handlers.

The method that carries out an action says so itself. See docs/design/handlers.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from paddock.audit import AuditLog
from paddock.errors import InternalError
from paddock.model import Action, Principal
from paddock.model.any_action import BY_TAG
from paddock.model.config import Config
from paddock.storage._base import Pool

from ._clock import Clock
from ._gate import Entry
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
S = TypeVar("S")
A = TypeVar("A", bound=Action[Any])
R = TypeVar("R")
Method: TypeAlias = Callable[[S, A, Entry], Coroutine[Any, Any, R]]
Handler: TypeAlias = Callable[[Action[Any], Entry], Coroutine[Any, Any, object]]


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


def handles(*actions: type[A]) -> Callable[[Method[S, A, R]], Method[S, A, R]]:
    """Register the decorated method as the handler of these actions."""

    def register(method: Method[S, A, R]) -> Method[S, A, R]:
        vars(method)["actions"] = actions
        return method

    return register


def table(components: Iterable[object]) -> Mapping[type[Action[Any]], Handler]:
    """Return the handler of every action. InternalError: an action has none, or two."""
    found: dict[type[Action[Any]], Handler] = {}
    for component in components:
        for name, method in vars(type(component)).items():
            for action in getattr(method, "actions", ()):
                if action in found:
                    raise InternalError(f"{action.TAG!r} has two handlers: {name} of {type(component).__name__} is one")
                found[action] = getattr(component, name)
    if missing := [tag for tag, action in BY_TAG.items() if action not in found]:
        raise InternalError(f"there is no handler for {', '.join(missing)}")
    return found
