"""Calls of the asynchronous client whose result can be awaited, and entered by `async with` as well."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import wraps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType
    from typing import Any, ParamSpec, Protocol, Self, TypeVar

    class Block(Protocol):
        async def __aenter__(self) -> Self: ...
        async def __aexit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> object: ...

    P = ParamSpec("P")
    T = TypeVar("T", bound=Block)
else:
    Any = T = None  # of what is a coroutine only to a type checker


class Opening(Coroutine[Any, Any, T]):
    """A call that has not begun. `await` it, or make it the head of an `async with` block."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._made: T | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> T:
        self._made = made = await self._coroutine
        return await made.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._made is not None
        await self._made.__aexit__(kind, error, trace)

    # Of a coroutine, so that `asyncio.create_task` takes it.
    def send(self, value: Any, /) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()


def aopens(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Opening[T]]:
    """Return the same function, with a result that `async with` takes without `await`."""

    @wraps(function)
    def opening(*args: P.args, **kwargs: P.kwargs) -> Opening[T]:
        return Opening(function(*args, **kwargs))

    return opening
