"""A VMM keeps every promise of a backend; its parts die together; a guest that lies hurts nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import signal
from collections.abc import Awaitable, Callable, Generator

import pytest

from paddock.backends.base import Ending, SandboxPlan
from paddock.backends.guest import PING
from paddock.backends.jail import JailBackend
from paddock.backends.vmm import VmmInstance
from paddock.errors import PaddockError, SandboxDiedError, SandboxError
from paddock.linux import proc
from paddock.model import ExecId, ExecSpec, IdPrefix, Limits, SandboxSpec, mint
from paddock.wire import pack
from paddock.wire.guest import VERSION, GuestHello, Kind, Op, PingReply, Renew
from paddock.wire.guest import PartFlags as Part
from tests.backends.vmms import PlainVmm, VmmHarness, processes, vmms
from tests.conformance import (
    BackendConformance,
    StreamConformance,
    _host,
    eventually,
)


@pytest.fixture(scope="module")
def harness() -> Generator[VmmHarness]:
    with vmms() as found:
        yield found


class TestVmm(StreamConformance):
    """Streams over one connection. tests/backends/test_gvisor.py proves how a VMM lives, ends and is adopted."""

    @pytest.fixture
    def harness(self, harness: VmmHarness) -> VmmHarness:
        return harness


@pytest.mark.slow
class TestEveryChapter(BackendConformance):
    @pytest.fixture
    def harness(self, harness: VmmHarness) -> VmmHarness:
        return harness


Body = Callable[[PlainVmm, VmmInstance], Awaitable[None]]


def in_vmm(
    harness: VmmHarness,
    body: Body,
    *,
    idle_seconds: float | None = None,
    env: dict[str, str] = {},  # noqa: B006 (nobody changes it)
    **fields: object,
) -> None:
    """One of its own, for `body`."""

    async def main() -> None:
        plan = await harness.plan(SandboxSpec(limits=Limits(disk_mib=256), idle_seconds=idle_seconds, env=env))
        backend = harness.backend()
        for name, value in fields.items():
            setattr(backend, name, value)
        try:
            instance = await backend.create(plan)
            try:
                await body(backend, instance)
            finally:
                await instance.kill()
                await instance.aclose()
        finally:
            await backend.aclose()
            await harness.cleanup(plan)

    asyncio.run(main())


async def output(instance: VmmInstance, *argv: str) -> bytes:
    handle = await instance.start(ExecSpec(argv=argv), id=ExecId(mint(IdPrefix.EXEC)), background=False)
    assert handle.stdout is not None
    parts: list[bytes] = []
    while part := await handle.stdout.read():
        parts.append(part)
    await handle.wait()
    await handle.aclose()
    return b"".join(parts)


@pytest.mark.parametrize("victim", ["controller", "child"])
def test_whatever_of_it_is_killed_all_of_it_ends_and_waiters_are_told(harness: VmmHarness, victim: str) -> None:
    async def body(backend: PlainVmm, instance: VmmInstance) -> None:
        waiting = asyncio.ensure_future(instance.wait_ended())
        running = asyncio.ensure_future(output(instance, "sleep", "1000"))
        assert await output(instance, "echo", "here") == b"here\n"
        os.kill(processes(instance.id)[victim], signal.SIGKILL)
        async with asyncio.timeout(60):
            ending = await waiting
            with pytest.raises(SandboxDiedError):
                await running
        assert ending.limit is None
        assert ending.reason == ("its plain ended" if victim == "controller" else "its plain was ended by signal 9")
        with pytest.raises(SandboxDiedError):
            await output(instance, "true")

    in_vmm(harness, body)


def test_it_ends_with_its_controller_while_no_service_lives(harness: VmmHarness) -> None:
    async def body(backend: PlainVmm, instance: VmmInstance) -> None:
        pids = processes(instance.id)
        watched = [os.pidfd_open(pid) for pid in pids.values()]
        await instance.aclose()
        await backend.aclose()
        os.kill(pids["controller"], signal.SIGKILL)
        for fd in watched:
            await readable(fd)
            os.close(fd)
        later = harness.backend()

        async def ended() -> Ending | None:
            return (await later.state()).living[instance.id]

        assert (await eventually("the supervisor knows that it has ended", ended)).reason == "its plain ended"
        assert await later.adopt(instance.id) is None
        await later.aclose()

    in_vmm(harness, body)


async def readable(fd: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, ready.set)
    async with asyncio.timeout(60):
        await ready.wait()
    loop.remove_reader(fd)


def test_it_is_paused_as_a_whole_and_goes_on(harness: VmmHarness) -> None:
    async def body(backend: PlainVmm, instance: VmmInstance) -> None:
        jail = JailBackend(harness.state_dir, supervisor=harness.supervisor)
        try:
            await instance.pause()
            assert instance.id in (await backend.state()).paused
            assert instance.id not in (await jail.state()).paused
            await instance.resume()
            assert await output(instance, "echo", "awake") == b"awake\n"
        finally:
            await jail.aclose()

    in_vmm(harness, body)


def test_what_stands_still_goes_on_for_what_its_controller_has_to_do_and_no_longer(harness: VmmHarness) -> None:
    async def body(backend: PlainVmm, instance: VmmInstance) -> None:
        await instance.pause()
        async with instance.roused():
            assert (await (await instance.control()).call("ping", dict))["children"]
        assert instance.id in (await backend.state()).paused
        await instance.resume()
        async with instance.roused():
            assert await output(instance, "echo", "awake") == b"awake\n"
        assert instance.id not in (await backend.state()).paused

    in_vmm(harness, body)


def test_what_is_resumed_while_its_controller_has_to_do_something_stays_so(harness: VmmHarness) -> None:
    async def body(backend: PlainVmm, instance: VmmInstance) -> None:
        await instance.pause()
        async with instance.roused():
            await instance.resume()
        assert instance.id not in (await backend.state()).paused
        await instance.pause()
        async with instance.roused():
            let_go = await instance.stay_awake()
        assert instance.id not in (await backend.state()).paused
        let_go()
        await instance.pause()
        async with instance.roused():
            pass
        assert instance.id in (await backend.state()).paused
        await instance.resume()

    in_vmm(harness, body)


def test_it_is_not_idle_while_it_is_made(harness: VmmHarness) -> None:
    async def body(backend: PlainVmm, instance: VmmInstance) -> None:
        async def asleep() -> bool:
            return instance.id in (await backend.state()).paused

        await eventually("nobody uses it", asleep)
        let_go = await instance.stay_awake()
        assert await output(instance, "echo", "awake") == b"awake\n"
        let_go()

    in_vmm(harness, body, idle_seconds=0.001)


def test_each_backend_has_its_own(harness: VmmHarness) -> None:
    async def body(backend: PlainVmm, instance: VmmInstance) -> None:
        jail = JailBackend(harness.state_dir, supervisor=harness.supervisor)
        try:
            assert instance.id not in (await jail.state()).living
            assert await jail.adopt(instance.id) is None
            assert (await backend.state()).living[instance.id] is None
            await instance.kill()
            assert instance.id not in (await jail.state()).living
        finally:
            await jail.aclose()

    in_vmm(harness, body)


def test_a_wall_that_ends_at_once_is_an_error_with_its_last_words_and_leaves_nothing(harness: VmmHarness) -> None:
    async def never(backend: PlainVmm, instance: VmmInstance) -> None:
        raise AssertionError

    argv = ("/bin/sh", "-c", "echo no such\x1b[31m luck >&2; exit 7")
    with pytest.raises(
        SandboxDiedError, match=r"its plain ended with code 7; the last that it said: no such \[31m luck"
    ):
        in_vmm(harness, never, argv=argv)
    for seconds in (1.0, 8.0, 60.0):  # its controller has to start in them, and then the wall
        with pytest.raises(SandboxError, match=rf"the guest of \S+ did not answer within {seconds:g} s") as caught:
            in_vmm(harness, never, argv=("/bin/sh", "-c", "echo wait >&2; exec sleep 1000"), greeting_seconds=seconds)
        if "the last that it said" in caught.value.message:
            break
    assert caught.value.message.endswith("; the last that it said: wait")


def test_one_whose_controller_is_killed_while_it_is_made_is_told_what_the_supervisor_knows(harness: VmmHarness) -> None:
    async def never(backend: PlainVmm, instance: VmmInstance) -> None:
        raise AssertionError

    with pytest.raises(SandboxDiedError, match="has died: its plain ended"):
        in_vmm(harness, never, argv=("/bin/sh", "-c", "kill -9 $PPID; exec sleep 1000"))


def test_whose_time_is_over_while_it_is_made_is_told_so(harness: VmmHarness) -> None:
    """And not that a connection was lost: what is made for the first time can take longer than a sandbox is to live."""

    async def never(backend: PlainVmm, instance: VmmInstance) -> None:
        raise AssertionError

    async def ready(plan: SandboxPlan, instance: VmmInstance) -> None:
        with contextlib.suppress(SandboxDiedError):
            await instance.set_deadline(proc.boottime())
        await instance.wait_ended()
        await instance.tell(Renew(parts=Part.HOSTS))

    with pytest.raises(SandboxDiedError, match=r"the time of .* was over before it was there"):
        in_vmm(harness, never, ready=ready)


def test_what_a_sandbox_has_in_its_environment_stands_on_no_command_line(harness: VmmHarness) -> None:
    token = secrets.token_hex(8)

    async def body(backend: PlainVmm, instance: VmmInstance) -> None:
        assert (await output(instance, "printenv", "TOKEN")).decode().strip() == token
        assert _host.processes(token) == []

    in_vmm(harness, body, env={"TOKEN": token})


# An honest pid 1, and an agent of `user` that answers as one does, with some bytes changed.
LIAR = """
import os, random, struct, sys
choose, hello, pong, empty = random.Random(int(sys.argv[1])), *map(bytes.fromhex, sys.argv[2:])
line, frame = struct.Struct("<IHHI"), struct.Struct("<IHHIBBH")
names, heard, buffer = {}, {}, b""
def say(kind, number, body=b""):
    os.write(1, line.pack(len(body), kind, 0, number) + body)
def answers(data):
    while len(data) >= frame.size:
        length, kind, code, channel, *_ = frame.unpack_from(data)
        if len(data) < frame.size + length:
            break
        data = data[frame.size + length:]
        if kind == OPEN:
            body = pong if code == PING else empty
            yield frame.pack(len(body), REPLY, 0, channel, 0, 0, 0) + body + frame.pack(0, CLOSE, 0, channel, 0, 0, 0)
    return data
while data := os.read(0, 1 << 16):
    buffer += data
    while len(buffer) >= line.size and len(buffer) >= line.size + line.unpack_from(buffer)[0]:
        length, kind, _, number = line.unpack_from(buffer)
        body, buffer = buffer[line.size:line.size + length], buffer[line.size + length:]
        if kind == 1:
            say(1, 0, body)
        elif kind == 2:
            names[number], heard[number] = body, b""
            say(3, number, hello)
        elif kind == 3:
            said = bytearray()
            rest = answers(heard[number] + body)
            while True:
                try:
                    said += next(rest)
                except StopIteration as end:
                    heard[number] = end.value
                    break
            if names[number] == b"user" and said:
                for _ in range(choose.randrange(1, 9)):
                    said[choose.randrange(len(said))] = choose.randrange(256)
            if said:
                say(3, number, bytes(said))
        elif kind == 5:
            say(5, number)
"""


def test_a_guest_that_lies_makes_errors_of_ours_and_the_controller_serves_on(harness: VmmHarness) -> None:
    async def body(backend: PlainVmm, instance: VmmInstance) -> None:
        for _ in range(40):
            try:
                connection = await instance.connection("user")
                connection.patience_seconds = 0.5  # it may be silent as well
                await connection.open(PING).call(PingReply)
            except PaddockError:
                instance.close_connections()
        with pytest.raises(PaddockError):  # an answer with nothing in it
            await instance.tell(Renew(parts=Part.HOSTNAME, hostname=b"honest"))
        assert (await (await instance.control()).call("ping", dict))["children"]

    async def ready(plan: SandboxPlan, instance: VmmInstance) -> None:
        """It would lie to that."""

    seed = random.Random("liar").randrange(1 << 16)
    hello = pack(Kind.HELLO, 0, GuestHello(version=VERSION, pid=3, build=b"lies").pack())
    code = f"PING, OPEN, REPLY, CLOSE = {int(Op.PING)}, {int(Kind.OPEN)}, {int(Kind.REPLY)}, {int(Kind.CLOSE)}\n{LIAR}"
    said = (hello, PingReply(pid=1).pack(), b"")
    argv = ("/usr/bin/python3", "-I", "-S", "-c", code, str(seed), *(bytes(body).hex() for body in said))
    in_vmm(harness, body, argv=argv, ready=ready)
