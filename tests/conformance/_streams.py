"""Bytes of commands: exact, separate, flowing both ways, held back while nobody reads."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from paddock.model import ExecHandle

from ._box import Box, finish, read_until
from ._host import PeakMemory
from ._lab import Bench, Lab, eventually, guarantee

MIB = 1 << 20
FLOOD_MIB = 64
"""Enough to show that nothing is stored on the way; raise it for a soak."""

_FLOOD = """
import os, sys
block = b'x' * 65536
written = 0
count = os.open('written', os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
while written < int(sys.argv[1]):
    written += os.write(1, block)
    os.pwrite(count, b'%020d' % written, 0)
"""


class StreamConformance(Bench):
    """stdin, stdout and stderr of commands without a terminal."""

    @guarantee()
    async def test_stdout_and_stderr_are_separate(self, lab: Lab) -> None:
        finished = await (await lab.box()).sh("echo out; echo err >&2; echo more")
        assert (finished.out, finished.err) == (b"out\nmore\n", b"err\n")

    @guarantee()
    async def test_a_command_opens_its_streams_by_path(self, lab: Lab) -> None:
        await _opens_its_streams(await lab.box(), user=None)

    @guarantee("root_user")
    async def test_root_opens_its_streams_by_path(self, lab: Lab) -> None:
        await _opens_its_streams(await lab.box(), user="root")

    @guarantee()
    async def test_output_is_byte_exact(self, lab: Lab) -> None:
        everything = bytes(range(256)) + b"\xff\xfe\x80\r\n\0\x1b[31m" + "ü€".encode()
        finished = await (await lab.box()).run("cat", input=everything)
        assert finished.out == everything

    @guarantee()
    async def test_no_output_is_an_empty_stream_with_an_end(self, lab: Lab) -> None:
        finished = await (await lab.box()).run("true")
        assert (finished.out, finished.err) == (b"", b"")

    @guarantee()
    async def test_ten_megabytes_on_one_line_arrive_whole(self, lab: Lab) -> None:
        finished = await (await lab.box()).python("import sys; sys.stdout.write('z' * 10_000_000)")
        assert len(finished.out) == 10_000_000
        assert finished.out.count(b"z") == 10_000_000

    @guarantee()
    async def test_both_streams_can_be_flooded_at_once(self, lab: Lab) -> None:
        finished = await (await lab.box()).python(
            "import os\nfor _ in range(100):\n    os.write(1, b'o' * 20_000); os.write(2, b'e' * 20_000)\n"
        )
        assert (finished.out, finished.err) == (b"o" * 2_000_000, b"e" * 2_000_000)

    @guarantee()
    async def test_without_stdin_a_command_reads_the_end_at_once(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await box.start("cat")
        assert handle.stdin is None
        assert (await finish(handle)).status.code == 0
        assert (await box.sh("test -c /dev/stdin && echo device")).text == "device"

    @guarantee()
    async def test_stdin_is_fed_and_ended(self, lab: Lab) -> None:
        data = hashlib.sha256(b"seed").digest() * 100_000
        finished = await (await lab.box()).python(
            "import sys, hashlib; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())", input=data
        )
        assert finished.text == hashlib.sha256(data).hexdigest()

    @guarantee()
    async def test_a_round_trip_larger_than_every_buffer_does_not_deadlock(self, lab: Lab) -> None:
        data = bytes(8 * MIB)
        assert (await (await lab.box()).run("cat", input=data)).out == data

    @guarantee()
    async def test_a_conversation_needs_no_end_of_input(self, lab: Lab) -> None:
        handle = await (await lab.box()).start("sh", "-c", 'while read line; do echo "got $line"; done', stdin=True)
        assert handle.stdin is not None
        assert handle.stdout is not None
        for word in (b"one", b"two", b"three"):
            await handle.stdin.write(word + b"\n")
            assert b"got " + word in await read_until(handle.stdout, b"\n")
        await handle.stdin.aclose()
        assert (await finish(handle)).status.code == 0

    @guarantee()
    async def test_bytes_are_delivered_before_the_command_ends(self, lab: Lab) -> None:
        handle = await (await lab.box()).start("sh", "-c", "printf first; read _; printf second", stdin=True)
        assert handle.stdin is not None
        assert handle.stdout is not None
        assert await read_until(handle.stdout, b"first") == b"first"
        await handle.stdin.write(b"\n")
        assert (await finish(handle)).out == b"second"

    @guarantee()
    async def test_a_read_gives_no_more_than_was_asked_for(self, lab: Lab) -> None:
        handle = await (await lab.box()).start("sh", "-c", "printf 0123456789")
        assert handle.stdout is not None
        seen = b""
        while part := await handle.stdout.read(3):
            assert len(part) <= 3
            seen += part
        assert seen == b"0123456789"
        assert await handle.stdout.read() == b"", "the end stays the end"
        await handle.aclose()

    @guarantee()
    async def test_writing_to_a_command_that_closed_its_stdin_is_a_broken_pipe(self, lab: Lab) -> None:
        handle = await (await lab.box()).start("sh", "-c", "exec <&-; echo closed; sleep 600", stdin=True)
        assert handle.stdin is not None
        assert handle.stdout is not None
        await read_until(handle.stdout, b"closed")
        with pytest.raises(BrokenPipeError):
            for _ in range(64):
                await handle.stdin.write(bytes(65536))
        await handle.aclose()

    @guarantee()
    async def test_a_command_whose_reader_left_gets_sigpipe(self, lab: Lab) -> None:
        handle = await (await lab.box()).start("yes")
        assert handle.stdout is not None
        await handle.stdout.read()
        await handle.stdout.aclose()
        assert (await handle.wait()).signal == 13
        await handle.aclose()

    @guarantee()
    async def test_a_writer_is_held_back_while_nobody_reads(self, lab: Lab) -> None:
        box = await lab.box()
        total = FLOOD_MIB * MIB
        handle = await box.start_python(_FLOOD, str(total))
        written = await _written_when_blocked(box, handle)
        assert 0 < written <= 8 * MIB, "the bytes that nobody read went somewhere"
        await handle.kill()
        await handle.aclose()

    @guarantee()
    async def test_streaming_needs_constant_memory_here(self, lab: Lab) -> None:
        total = FLOOD_MIB * MIB
        handle = await (await lab.box()).start_python(_FLOOD, str(total))
        assert handle.stdout is not None
        peak, seen = PeakMemory(), 0
        while part := await handle.stdout.read():
            seen += len(part)
        assert seen == total
        assert peak.growth_bytes() < 24 * MIB
        assert (await finish(handle)).status.code == 0

    @guarantee()
    async def test_a_command_that_closes_its_streams_and_lives_on_is_waited_for(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await box.start("sh", "-c", "exec >&- 2>&-; read _; exit 7", stdin=True)
        assert handle.stdin is not None
        assert handle.stdout is not None
        assert await handle.stdout.read() == b""
        waiting = asyncio.ensure_future(handle.wait())
        done, _ = await asyncio.wait({waiting}, timeout=0.2)
        assert not done, "wait() returned with the end of the streams, not with the end of the command"
        await handle.stdin.write(b"\n")
        assert (await waiting).code == 7
        await handle.aclose()

    @guarantee()
    async def test_a_daemon_that_holds_the_streams_does_not_hold_up_wait(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await box.start("sh", "-c", "sleep 600 & echo $!; exit 5")
        async with asyncio.timeout(60):
            assert (await handle.wait()).code == 5
        await handle.kill()
        assert (await finish(handle)).out.strip().isdigit(), "what was printed before is still there"


async def _written_when_blocked(box: Box, handle: ExecHandle) -> int:
    """What the flood counted once it sleeps in write() and its count stands still."""
    last = -1

    async def blocked() -> int:
        nonlocal last
        state = await box.sh(f"cut -d ')' -f 2 /proc/{handle.pid}/stat | cut -c 2; cat written")
        words = state.text.split()
        if len(words) == 2 and words[0] == "S" and int(words[1]) == last:
            return last
        last = int(words[1]) if len(words) == 2 else -1
        return 0

    return await eventually("the writer is blocked", blocked)


async def _opens_its_streams(box: Box, *, user: str | None) -> None:
    script = (
        "cat /dev/stdin && echo out >/dev/stdout && echo err >/dev/stderr &&"
        " echo 1 >/proc/self/fd/1 && echo 2 >/proc/self/fd/2 && echo both | tee /dev/stderr"
    )
    finished = await box.sh(script, input=b"in\n", user=user)
    assert (finished.out, finished.err) == (b"in\nout\n1\nboth\n", b"err\n2\nboth\n")
    assert (await box.sh("cat /proc/self/fd/0", input=b"in\n", user=user)).out == b"in\n"
