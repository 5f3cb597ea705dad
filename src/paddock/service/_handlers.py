"""`@handles`: the method that carries out an action says so itself. See docs/design/handlers.md."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

from paddock.errors import InternalError
from paddock.model import Action
from paddock.model.any_action import BY_TAG

from ._gate import Entry

S = TypeVar("S")
A = TypeVar("A", bound=Action[Any])
R = TypeVar("R")
Method: TypeAlias = Callable[[S, A, Entry], Coroutine[Any, Any, R]]
Handler: TypeAlias = Callable[[Action[Any], Entry], Coroutine[Any, Any, object]]


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
