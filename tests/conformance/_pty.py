"""Terminals."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any

import pytest

from paddock.errors import RequestError
from paddock.model import ExecHandle, PtySize

from ._box import Box, finish, read_until
from ._lab import Bench, Lab, guarantee

SIZE = PtySize(rows=31, columns=97)


class PtyConformance(Bench):
    """Commands with a pseudo-terminal."""

    @guarantee("pty")
    async def test_all_three_streams_are_one_terminal(self, lab: Lab) -> None:
        handle = await _python(
            await lab.box(),
            "import os; print(*(os.isatty(n) for n in range(3)), len({os.ttyname(n) for n in range(3)}))",
        )
        assert handle.stderr is None
        assert (await finish(handle)).text == "True True True 1"

    @guarantee("pty")
    async def test_it_is_the_controlling_terminal(self, lab: Lab) -> None:
        handle = await _python(
            await lab.box(),
            "import os; fd = os.open('/dev/tty', os.O_RDWR); print(os.tcgetpgrp(fd) == os.getpgrp())",
        )
        assert (await finish(handle)).text == "True"

    @guarantee("pty")
    async def test_it_has_the_size_that_was_asked_for(self, lab: Lab) -> None:
        handle = await _python(await lab.box(), "import os; print(*os.get_terminal_size())")
        assert (await finish(handle)).text == "97 31"

    @guarantee("pty")
    async def test_a_resize_is_delivered_as_a_signal_with_the_new_size(self, lab: Lab) -> None:
        handle = await _python(
            await lab.box(),
            "import os, signal\n"
            "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})\n"
            "print('ready', flush=True)\n"
            "signal.sigwait({signal.SIGWINCH})\n"
            "print('now', *os.get_terminal_size())\n",
        )
        assert handle.stdout is not None
        await read_until(handle.stdout, b"ready")
        await handle.resize(PtySize(rows=50, columns=132))
        assert b"now 132 50" in (await finish(handle)).out

    @guarantee("pty")
    async def test_a_storm_of_resizes_ends_with_the_last_size(self, lab: Lab) -> None:
        handle = await _python(await lab.box(), "import os; input(); print('now', *os.get_terminal_size())")
        for rows in range(1, 201):
            await handle.resize(PtySize(rows=rows, columns=80))
        assert b"now 80 200" in (await _type(handle, b"\r")).out

    @guarantee("pty")
    async def test_what_is_typed_is_echoed_and_read(self, lab: Lab) -> None:
        handle = await _start(await lab.box(), "sh", "-c", "read line; echo got:$line")
        out = (await _type(handle, b"hello\r")).out
        assert b"hello\r\n" in out
        assert b"got:hello\r\n" in out

    @guarantee("pty")
    async def test_control_c_interrupts(self, lab: Lab) -> None:
        handle = await _start(await lab.box(), "sh", "-c", "echo ready; exec sleep 600")
        assert handle.stdout is not None
        await read_until(handle.stdout, b"ready")
        assert (await _type(handle, b"\x03")).status.signal == signal.SIGINT

    @guarantee("pty")
    async def test_control_d_is_the_end_of_input(self, lab: Lab) -> None:
        handle = await _start(await lab.box(), "cat")
        finished = await _type(handle, b"line\r\x04")
        assert finished.status.code == 0

    @guarantee("pty")
    async def test_the_end_of_the_command_is_the_end_of_the_stream_and_loses_nothing(self, lab: Lab) -> None:
        box = await lab.box()
        for _ in range(10):
            handle = await _python(box, "print('x' * 50_000)")
            finished = await finish(handle)
            assert finished.out.count(b"x") == 50_000
            assert finished.status.code == 0

    @guarantee("pty")
    async def test_letting_go_hangs_up(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await _start(
            box, "sh", "-c", "trap 'echo hup >proof; exit' HUP; echo ready; while :; do sleep 0.05; done"
        )
        assert handle.stdout is not None
        await read_until(handle.stdout, b"ready")
        await handle.aclose()
        async with asyncio.timeout(60):
            while f"{handle.pid}" in (await box.sh("ls /proc")).text.split():
                await asyncio.sleep(0.02)

    @guarantee("pty")
    async def test_bytes_are_raw_when_the_terminal_is(self, lab: Lab) -> None:
        handle = await _python(
            await lab.box(),
            "import os, tty\n"
            "tty.setraw(0); os.write(1, b'ready')\n"
            "seen = b''\n"
            "while len(seen) < 256: seen += os.read(0, 256)\n"
            "os.write(1, seen)\n",
        )
        assert handle.stdout is not None
        everything = bytes(range(256))
        first = await read_until(handle.stdout, b"ready")
        assert first + (await _type(handle, everything)).out == b"ready" + everything

    @guarantee("pty")
    async def test_a_terminal_of_a_killed_command_ends(self, lab: Lab) -> None:
        handle = await _start(await lab.box(), "sleep", "600")
        await handle.kill()
        assert (await finish(handle)).status.signal == signal.SIGKILL

    @guarantee("pty")
    async def test_two_terminals_do_not_mix(self, lab: Lab) -> None:
        box = await lab.box()
        handles = [await _start(box, "sh", "-c", f"tty; echo number {n}; read _") for n in range(4)]
        finished = await asyncio.gather(*(_type(handle, b"\r") for handle in handles))
        outs = [one.out for one in finished]
        assert [f"number {n}".encode() in out for n, out in enumerate(outs)] == [True] * 4
        assert len({out.split()[0] for out in outs}) == 4

    @guarantee("pty")
    async def test_a_size_that_is_none_does_no_harm(self, lab: Lab) -> None:
        handle = await _start(await lab.box(), "cat")
        for size in (PtySize(rows=-1, columns=80), PtySize(rows=24, columns=1 << 20)):
            with contextlib.suppress(RequestError):
                await handle.resize(size)
        assert (await _type(handle, b"alive\r\x04")).status.code == 0

    @guarantee()
    async def test_a_command_without_a_terminal_has_no_size(self, lab: Lab) -> None:
        handle = await (await lab.box()).start("sleep", "600")
        with pytest.raises(RequestError):
            await handle.resize(SIZE)
        await handle.aclose()

    @guarantee()
    async def test_a_command_without_a_terminal_has_none_to_open(self, lab: Lab) -> None:
        finished = await (await lab.box()).sh("(: </dev/tty) 2>/dev/null && echo open || echo none")
        assert finished.text == "none"


async def _start(box: Box, *argv: str, **spec: Any) -> ExecHandle:
    return await box.start(*argv, pty=SIZE, stdin=True, **spec)


async def _python(box: Box, code: str) -> ExecHandle:
    return await box.start_python(code, pty=SIZE, stdin=True)


async def _type(handle: ExecHandle, keys: bytes) -> Any:
    assert handle.stdin is not None
    await handle.stdin.write(keys)
    return await finish(handle)
