"""The host's ends of pipes whose other ends are an attacker's."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.backends.guest.pipes import PipeReader, PipeWriter
from paddock.backends.pump import Journal


def test_output_that_somebody_inside_steals_is_not_waited_for() -> None:
    async def main() -> None:
        near, far = os.pipe()
        os.write(far, b"x" * 100)
        reader = PipeReader(near)
        reader.finish()
        thief = os.open(f"/proc/self/fd/{far}", os.O_RDONLY)
        assert len(os.read(thief, 60)) == 60
        async with asyncio.timeout(60):
            assert len(await reader.read()) == 40
            assert await reader.read() == b""
        os.close(thief)
        os.close(far)

    asyncio.run(main())


def test_packets_that_are_larger_than_what_is_read_are_not_waited_for() -> None:
    """pipe(2), O_DIRECT: what a read leaves of a packet is thrown away. Whoever holds the far end can ask for that."""

    async def main() -> None:
        near, far = os.pipe2(os.O_DIRECT)
        os.write(far, b"x" * 100)
        reader = PipeReader(near)
        reader.finish()
        async with asyncio.timeout(60):
            assert len(await reader.read(10)) == 10
            assert await reader.read(10) == b""
        os.close(far)

    asyncio.run(main())


@pytest.mark.parametrize("kind", [PipeReader, PipeWriter])
def test_who_waits_is_woken_when_the_pipe_is_closed(kind: type[PipeReader | PipeWriter]) -> None:
    async def main() -> None:
        ends = os.pipe()
        if kind is PipeReader:
            pipe = PipeReader(ends[0])
            waiting = asyncio.ensure_future(pipe.read())
        else:
            pipe = PipeWriter(ends[1])
            waiting = asyncio.ensure_future(pipe.write(b"x" * 10_000_000))
        for _ in range(3):
            await asyncio.sleep(0)
        assert pipe._waiter is not None
        pipe.close()
        async with asyncio.timeout(60):
            outcome = (await asyncio.gather(waiting, return_exceptions=True))[0]
        assert outcome == b"" or isinstance(outcome, BrokenPipeError)
        os.close(ends[1] if kind is PipeReader else ends[0])

    asyncio.run(main())


@given(st.lists(st.one_of(st.binary(min_size=1, max_size=200), st.integers(1, 100), st.none()), max_size=40))
def test_whoever_holds_a_pipe_and_its_journal_has_all_of_the_stream(steps: list[bytes | int | None]) -> None:
    """Bytes are written, so many are read, or (None) the reader dies and another one begins from the start."""
    near, far = os.pipe2(os.O_NONBLOCK)
    file = os.memfd_create("journal")
    written = read = b""
    journal = Journal(os.dup(file))
    try:
        for step in steps:
            if isinstance(step, bytes):
                written += step[: os.write(far, step)]
            elif step is None:
                journal.close()
                journal, read = Journal(os.dup(file)), b""
            else:
                try:
                    read += journal.read(near, step)
                except BlockingIOError:
                    assert read == written
            assert written.startswith(read)
        os.close(far)
        far = -1
        while part := journal.read(near, 64):
            read += part
        assert read == written
    finally:
        journal.close()
        for fd in (near, far, file):
            if fd >= 0:
                os.close(fd)


def test_a_journal_takes_no_room_for_what_nobody_asks_for_again(tmp_path: Path) -> None:
    near, far = os.pipe2(os.O_NONBLOCK)
    file = os.open(tmp_path, os.O_TMPFILE | os.O_RDWR, 0o600)
    journal = Journal(os.dup(file))
    part = bytes(range(256)) * 128
    try:
        for number in range(300):
            os.write(far, part)
            assert journal.read(near, len(part)) == part
            journal.done = number * len(part)
        assert os.fstat(file).st_blocks * 512 < 3 << 20
        assert Journal.is_whole(file)
        journal.close()
        journal = Journal(os.dup(file))
        journal.skip(299 * len(part) + 1)
        assert journal.again(len(part)) == part[1:]
    finally:
        journal.close()
        for fd in (near, far, file):
            os.close(fd)


@pytest.mark.parametrize("first", [b"", b"one"])
def test_a_stream_goes_on_without_its_journal_when_that_has_no_room(first: bytes) -> None:
    near, far = os.pipe2(os.O_NONBLOCK)
    file = os.memfd_create("journal", os.MFD_ALLOW_SEALING)
    journal = Journal(os.dup(file))
    try:
        if first:
            os.write(far, first)
            assert journal.read(near, 10) == first
        assert Journal.is_whole(file)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        os.write(far, b"two")
        assert journal.read(near, 10) == b"two"
        assert not Journal.is_whole(file), "nobody can take it up"
    finally:
        journal.close()
        for fd in (near, far, file):
            os.close(fd)
