"""Streams between a sandbox's side, which is an attacker's, and a client's pipe."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest

from paddock.backends import pump
from paddock.backends.guest.pipes import PipeReader, PipeWriter
from paddock.backends.pump import Flow, Meter, Pump, draw, pour
from paddock.gateway.rules.redaction import Redaction

_DATA = os.urandom(1 << 16) * 100
_SECONDS = 60


class Ends:
    """A pipe of the sandbox's side and one of the client's, and the flow between them."""

    def __init__(self, *, into: bool, flags: int = 0) -> None:
        self.inner = os.pipe2(os.O_CLOEXEC | flags)
        self.outer = os.pipe2(os.O_CLOEXEC)
        near = self.outer[0] if into else self.outer[1]
        os.set_blocking(near, False)
        self.flow = Flow(Pump(), near)

        self._open = {*self.inner, *self.outer}

    def given(self, descriptor: int) -> int:
        """Another closes it from now on."""
        self._open.remove(descriptor)
        return descriptor

    def close(self, *which: int) -> None:
        for descriptor in which or tuple(self._open):
            os.close(self.given(descriptor))


@contextlib.contextmanager
def ends(*, into: bool = False, flags: int = 0) -> Generator[Ends]:
    made = Ends(into=into, flags=flags)
    try:
        yield made
    finally:
        made.close()


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(_SECONDS):
            await scenario()

    asyncio.run(bounded())


def read_all(descriptor: int) -> bytes:
    parts: list[bytes] = []
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.close(descriptor)


@pytest.mark.parametrize("digests", [True, False], ids=["read", "spliced"])
def test_bytes_come_out_as_they_went_in_and_are_counted(digests: bool) -> None:
    async def main() -> None:
        with ends() as at:
            at.flow.meter = meter = Meter(digests=digests)
            reader = PipeReader(at.given(at.inner[0]))
            feeding = asyncio.ensure_future(asyncio.to_thread(write_all, at.given(at.inner[1]), _DATA))
            reading = asyncio.ensure_future(asyncio.to_thread(read_all, at.outer[0]))
            await pour(reader, at.flow)
            at.close(at.outer[1])
            assert await reading == _DATA
            await feeding
            assert meter.length == len(_DATA)
            if digests:
                assert meter.content() == {"sha256": hashlib.sha256(_DATA).hexdigest(), "length": len(_DATA)}

    run(main)


def test_a_digest_says_how_far_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump, "DIGESTED_BYTES", 100_000)

    async def main() -> None:
        with ends(into=True) as at:
            writer = PipeWriter(at.given(at.inner[1]))
            feeding = asyncio.ensure_future(asyncio.to_thread(write_all, at.given(at.outer[1]), _DATA))
            reading = asyncio.ensure_future(asyncio.to_thread(read_all, at.inner[0]))
            await draw(writer, at.flow)
            writer.close()
            assert await reading == _DATA
            await feeding
            first = hashlib.sha256(_DATA[:100_000]).hexdigest()
            assert at.flow.meter.content() == {"sha256": first, "length": len(_DATA), "of_first": 100_000}

    run(main)


def test_a_value_that_comes_in_two_pieces_is_taken_out() -> None:
    async def main() -> None:
        with ends() as at:
            at.flow.meter = Meter(filter=Redaction({b"top-secret-value": b"<gone>"}).stream(escapes=False))
            pouring = asyncio.ensure_future(pour(PipeReader(at.given(at.inner[0])), at.flow))
            os.write(at.inner[1], b"a top-sec")
            assert await asyncio.to_thread(os.read, at.outer[0], 100) == b"a "
            os.write(at.inner[1], b"ret-value b top-s")
            at.close(at.inner[1])
            await pouring
            at.close(at.outer[1])
            assert read_all(at.outer[0]) == b"<gone> b top-s"

    run(main)


def test_nothing_passes_while_a_meter_is_blocked() -> None:
    async def main() -> None:
        is_open = False
        asked = asyncio.Event()
        goes_on = asyncio.Event()

        async def unblock() -> None:
            nonlocal is_open
            asked.set()
            await goes_on.wait()
            is_open = True

        with ends(into=True) as at:
            at.flow.meter = Meter(blocked=lambda: not is_open, unblock=unblock)
            writer = PipeWriter(at.given(at.inner[1]))
            drawing = asyncio.ensure_future(draw(writer, at.flow))
            os.write(at.outer[1], b"wake")
            await asked.wait()
            os.set_blocking(at.inner[0], False)
            with pytest.raises(BlockingIOError):
                os.read(at.inner[0], 10)
            goes_on.set()
            at.flow.cut()
            await drawing
            writer.close()
            assert os.read(at.inner[0], 10) == b"wake"

    run(main)


def test_a_client_that_closes_its_end_ends_the_stream() -> None:
    async def main() -> None:
        with ends() as at:
            at.close(at.outer[0])
            os.write(at.inner[1], b"x")
            with pytest.raises(BrokenPipeError):
                await pour(PipeReader(at.given(at.inner[0])), at.flow)

    run(main)


def test_a_sandbox_that_closes_its_end_is_told_to_the_writer() -> None:
    async def main() -> None:
        with ends(into=True) as at:
            at.close(at.inner[0])
            os.write(at.outer[1], b"x")
            writer = PipeWriter(at.given(at.inner[1]))
            with pytest.raises(BrokenPipeError):
                await draw(writer, at.flow)
            writer.close()

    run(main)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("flags", [0, os.O_DIRECT], ids=["", "packets"])
def test_a_stream_ends_at_what_the_pipe_held_when_its_command_ended(early: bool, flags: int) -> None:
    """Whoever else inside holds its other side, and whatever he takes of it."""

    async def main() -> None:
        with ends(flags=flags) as at:
            reader = PipeReader(at.given(at.inner[0]))
            pouring = None if early else asyncio.ensure_future(pour(reader, at.flow))
            await asyncio.sleep(0)
            os.write(at.inner[1], b"x" * 100)
            reader.finish()
            await (pour(reader, at.flow) if pouring is None else pouring)
            at.close(at.outer[1])
            assert read_all(at.outer[0]) == b"x" * 100

    run(main)


def test_a_stream_that_its_client_ends_before_it_is_moved_is_moved_whole() -> None:
    async def main() -> None:
        with ends(into=True) as at:
            writer = PipeWriter(at.given(at.inner[1]))
            os.write(at.outer[1], b"x" * 100)
            at.flow.cut()
            await draw(writer, at.flow)
            writer.close()
            assert read_all(at.inner[0]) == b"x" * 100

    run(main)


def test_a_stream_of_a_limited_length_waits_for_what_is_not_there_yet() -> None:
    async def main() -> None:
        with ends() as at:
            source = at.given(at.inner[1])
            at.flow.most = 6
            os.set_blocking(at.inner[0], False)
            pouring = asyncio.ensure_future(at.flow.pour(at.inner[0]))
            for part in (b"few", b"more and too many"):
                await at.flow.caught_up()
                assert not pouring.done()
                os.write(source, part)
            await pouring
            os.close(source)
            at.close(at.outer[1])
            assert read_all(at.outer[0]) == b"fewmor"

    run(main)


def test_what_somebody_inside_steals_is_not_waited_for() -> None:
    async def main() -> None:
        with ends() as at:
            os.write(at.inner[1], b"x" * 100)
            thief = os.open(f"/proc/self/fd/{at.inner[1]}", os.O_RDONLY)
            reader = PipeReader(at.given(at.inner[0]))
            reader.finish()
            assert len(os.read(thief, 60)) == 60
            os.close(thief)
            await pour(reader, at.flow)
            at.close(at.outer[1])
            assert read_all(at.outer[0]) == b"x" * 40

    run(main)


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_stream_that_is_closed_does_not_use_its_descriptors_any_more(cancelled: bool) -> None:
    async def main() -> None:
        with ends() as at:
            descriptor = at.given(at.inner[0])
            reader = PipeReader(descriptor)
            pouring = asyncio.ensure_future(pour(reader, at.flow))
            os.write(at.inner[1], b"x")
            assert await asyncio.to_thread(os.read, at.outer[0], 10) == b"x"
            if cancelled:
                pouring.cancel()
            else:
                reader.close()
            await asyncio.wait((pouring,))
            assert pouring.cancelled() is cancelled
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)
            with pytest.raises(BrokenPipeError):  # nobody holds the other side
                os.write(at.inner[1], b"y")

    run(main)


def test_frames_go_through_the_same_pump_and_their_errors_are_told() -> None:
    class Frames:
        def __init__(self) -> None:
            self.left = [b"one", b"two"]

        async def read(self, size: int = 65536) -> bytes:
            if not self.left:
                raise ConnectionResetError("the guest has gone")
            return self.left.pop(0)

        async def aclose(self) -> None: ...

    async def main() -> None:
        with ends() as at:
            with pytest.raises(ConnectionResetError, match="the guest has gone"):
                await pour(Frames(), at.flow)
            at.close(at.outer[1])
            assert read_all(at.outer[0]) == b"onetwo"

    run(main)


def test_frames_that_have_come_are_moved_when_the_pump_has_caught_up() -> None:
    async def main() -> None:
        with ends() as at:
            held = [b"one ", b"two ", b"three"]

            async def read(size: int) -> bytes:
                return held.pop(0) if held else await asyncio.Future[bytes]()

            at.flow.meter = Meter(keeps_end=True)
            pouring = asyncio.ensure_future(at.flow.pour(read))
            await asyncio.sleep(0)
            await at.flow.caught_up()
            assert at.flow.meter.ending == b"one two three"
            pouring.cancel()
            await asyncio.wait((pouring,))

    run(main)


def test_many_streams_share_one_thread_which_ends_with_them() -> None:
    async def main() -> None:
        pump = Pump()
        made = [Ends(into=False) for _ in range(20)]
        flows = [Flow(pump, at.outer[1]) for at in made]
        pouring = [
            asyncio.ensure_future(pour(PipeReader(at.given(at.inner[0])), flow))
            for at, flow in zip(made, flows, strict=True)
        ]
        for at in made:
            os.write(at.inner[1], b"x")
        for at in made:
            assert await asyncio.to_thread(os.read, at.outer[0], 10) == b"x"
            at.close(at.inner[1])
        thread = pump.thread
        assert thread is not None
        await asyncio.gather(*pouring)
        await asyncio.to_thread(thread.join, _SECONDS)
        assert not thread.is_alive()
        for at in made:
            at.close()

    run(main)
