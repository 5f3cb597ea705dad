"""One command in a workshop, from its first byte to its last. What it says is an attacker's, as is how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from paddock.backends._base import Instance
from paddock.errors import ErrandFailed
from paddock.model import ByteReader, ByteWriter, ExecId, ExecSpec, Noun, mint

TIMEOUT_SECONDS = 1800.0
_CHUNK = 1 << 18
_WORDS_BYTES = 4096


async def errand(
    instance: Instance,
    argv: tuple[str, ...],
    *,
    user: str | None = None,
    input: Iterable[bytes] | None = None,
    sink: Callable[[bytes], None] | None = None,
    most_bytes: int = 1 << 20,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> bytes:
    """What it printed on stdout, at most `most_bytes`, or nothing if `sink` has taken it. ErrandFailed."""
    spec = ExecSpec(argv=argv, user=user, stdin=input is not None)
    handle = await instance.start(spec, id=ExecId(mint(Noun.EXEC)), background=False)
    out, words = bytearray(), bytearray()

    def take(data: bytes) -> None:
        if len(out) + len(data) > most_bytes:
            raise ErrandFailed(f"{argv[0]} printed more than {most_bytes} bytes")
        out.extend(data)

    try:
        async with asyncio.timeout(timeout_seconds), asyncio.TaskGroup() as group:
            assert handle.stdout is not None
            assert handle.stderr is not None
            group.create_task(_pump(handle.stdout, sink or take))
            group.create_task(_pump(handle.stderr, lambda data: _keep_end(words, data)))
            if input is not None:
                assert handle.stdin is not None
                group.create_task(_feed(handle.stdin, input))
            status = await handle.wait()
    except TimeoutError:
        raise ErrandFailed(f"{argv[0]} did not end in {timeout_seconds:.0f} s") from None
    except ExceptionGroup as several:
        raise several.exceptions[0] from None
    finally:
        await handle.aclose()
    if status.exit_code:
        said = bytes(words).decode(errors="replace").strip() or "no words"
        raise ErrandFailed(f"{argv[0]} ended with {status.exit_code}: {said}"[:_WORDS_BYTES])
    return bytes(out)


async def _pump(reader: ByteReader, take: Callable[[bytes], None]) -> None:
    while data := await reader.read(_CHUNK):
        take(data)


async def _feed(writer: ByteWriter, chunks: Iterable[bytes]) -> None:
    each = iter(chunks)
    try:
        while (data := await asyncio.to_thread(next, each, b"")) != b"":
            await writer.write(data)
    except (BrokenPipeError, ConnectionError):
        return  # it need not read what it is given; how it ends says what became of it
    await writer.aclose()


def _keep_end(words: bytearray, data: bytes) -> None:
    words += data
    del words[:-_WORDS_BYTES]
