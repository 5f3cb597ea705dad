"""Do blocking work in a sync and an async version: the script that generates `_sync/` from `_async/` only renames."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import BinaryIO, Literal, ParamSpec, TypeAlias, TypeVar, cast

from paddock.client._command import kind_of

P = ParamSpec("P")
R = TypeVar("R")

CHUNK_BYTES = 1 << 20

Content: TypeAlias = str | bytes | bytearray | memoryview | BinaryIO | Iterable[bytes]
"""Content to write: text becomes UTF-8, and a file begins at its position."""
AsyncContent: TypeAlias = Content | AsyncIterable[bytes]


def run_blocking(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    return function(*args, **kwargs)


async def arun_blocking(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    import asyncio

    return await asyncio.to_thread(function, *args, **kwargs)


async def arun_whole(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function like `arun_blocking`.

    A cancelled caller waits until it has ended, because it uses the caller's resources.
    """
    import asyncio

    running = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise


def together(end: Callable[[], object], *works: Callable[[], object]) -> None:
    """Run all at the same time, each but the last on a thread. The first that raises has `end` end the others."""
    import threading

    problems: list[BaseException] = []

    def work(one: Callable[[], object]) -> None:
        try:
            one()
        except BaseException as error:
            problems.append(error)
            if len(problems) == 1:
                end()

    threads = [threading.Thread(target=work, args=(one,), daemon=True) for one in works[:-1]]
    for thread in threads:
        thread.start()
    work(works[-1])
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


async def atogether(end: Callable[[], Awaitable[object]], *works: Callable[[], Awaitable[object]]) -> None:
    """Run the works as tasks, as `together` runs them on threads."""
    import asyncio

    tasks = [asyncio.ensure_future(one()) for one in works]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        await end()
        await asyncio.wait(tasks)
        raise


def open_local(path: str | os.PathLike[str], mode: Literal["rb", "wb"]) -> BinaryIO:
    return open(path, mode)


def chunks(content: Content) -> Iterator[bytes]:
    """Divide content into pieces, of at most CHUNK_BYTES unless the caller's iterable decides."""
    if isinstance(content, str):
        content = content.encode()
    if isinstance(content, bytes | bytearray | memoryview):
        view = memoryview(content).cast("B")
        for start in range(0, len(view), CHUNK_BYTES):
            yield bytes(view[start : start + CHUNK_BYTES])
    elif hasattr(content, "read"):
        file = cast("BinaryIO", content)
        while data := file.read(CHUNK_BYTES):
            yield data
    elif hasattr(content, "__iter__") and not isinstance(content, Mapping):
        yield from cast("Iterable[bytes]", content)
    else:
        raise TypeError(
            f"data is {kind_of(cast('object', content))}: write a text, bytes, a file or an iterable of bytes"
        )


async def achunks(content: AsyncContent) -> AsyncIterator[bytes]:
    """Yield the chunks. A file or an iterator may block: each step of it runs on a thread."""
    if isinstance(content, AsyncIterable):
        async for data in content:
            yield data
        return
    iterator = chunks(content)
    if isinstance(content, str | bytes | bytearray | memoryview):
        for data in iterator:
            yield data
        return
    import asyncio

    while (data := await asyncio.to_thread(next, iterator, None)) is not None:
        yield data
