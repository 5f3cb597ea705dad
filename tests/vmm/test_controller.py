"""The controller: several services on one guest, and what becomes of all when one of them dies."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from paddock.backends.guest import PING, orders
from paddock.backends.vmm import Control
from paddock.errors import SandboxDiedError
from paddock.wire.guest import PingReply
from tests.vmm.controllers import HELLO, ControllerProcess, alive, collect, start, until


@pytest.fixture
def controller(tmp_path):
    controller = ControllerProcess(tmp_path)
    asyncio.run(controller.begin())
    yield controller
    controller.stop()


def test_two_services_are_served_at_once_each_with_its_own_channels(controller):
    async def main():
        one, other = controller.dial("user"), controller.dial("user")
        first = await start(one, "sh", "-c", "read line; echo one $line", stdin=True)
        second = await start(other, "sh", "-c", "read line; echo other $line", stdin=True)
        await second.stdin.write(b"2\n")
        assert (await collect(second))[1] == b"other 2\n"
        await first.stdin.write(b"1\n")
        assert (await collect(first))[1] == b"one 1\n"
        assert await controller.ping("root") != await controller.ping("user")
        one.close()
        other.close()

    asyncio.run(main())


def test_a_large_output_comes_whole_while_others_are_served(controller):
    async def main():
        one, other = controller.dial("user"), controller.dial("user")
        large = asyncio.ensure_future(collect(await start(one, "head", "-c", "30000000", "/dev/zero")))
        for _ in range(20):
            assert (await collect(await start(other, "echo", "here")))[1] == b"here\n"
        _, out, _ = await large
        assert len(out) == 30_000_000
        one.close()
        other.close()

    asyncio.run(main())


def test_the_foreground_commands_of_a_service_that_goes_end_and_those_of_others_live(controller):
    async def main():
        one, other = controller.dial("user"), controller.dial("user")
        mine = await start(one, "sleep", "1000")
        theirs = await start(other, "sleep", "1000")
        one.close()
        await asyncio.to_thread(until, lambda: not alive(mine.pid))
        assert alive(theirs.pid)
        await theirs.kill()
        other.close()

    asyncio.run(main())


def test_a_service_that_dies_within_a_frame_disturbs_nobody(controller):
    async def main():
        broken = controller.hand("user")
        broken.sendall(HELLO + b"\0\0\1\0\2")
        broken.close()
        assert await controller.ping("user")

    asyncio.run(main())


def test_a_killed_agent_is_there_again_and_what_it_did_is_told(controller):
    async def main():
        connection = controller.dial("user")
        handle = await start(connection, "sh", "-c", "while :; do echo 0123456789; done")
        first = connection.peer_pid
        os.kill(first, signal.SIGKILL)
        with pytest.raises(SandboxDiedError):  # nobody explains here: the connection is lost
            await handle.wait()
        init = controller.dial("init")
        assert await orders.verdict(init, "user", first) == (False, 9)
        init.close()
        assert await controller.ping("user") != first
        assert not alive(handle.pid)
        assert await controller.ping("root")

    asyncio.run(main())


def test_the_agent_finds_its_way_after_it_was_killed_within_frames_again_and_again(controller):
    async def main():
        for _ in range(3):
            connection = controller.dial("user")
            flood = [await start(connection, "sh", "-c", "cat", stdin=True) for _ in range(2)]
            writing = [asyncio.ensure_future(handle.stdin.write(bytes(900_000))) for handle in flood]
            await flood[0].stdout.read()
            os.kill(connection.peer_pid, signal.SIGKILL)
            await asyncio.gather(*writing, *(handle.wait() for handle in flood), return_exceptions=True)
            assert await controller.ping("user") != connection.peer_pid
            connection.close()

    asyncio.run(main())


def test_when_the_child_ends_the_controller_says_how_and_ends(tmp_path):
    controller = ControllerProcess(tmp_path, ["/bin/sh", "-c", "echo last words >&2; exec sleep 1000"])

    async def main():
        control = Control(controller.hand("control"))
        end = asyncio.ensure_future(control.call("end", dict))
        user = controller.dial("user")
        while (await controller.control("log"))["log"] != "last words\n":
            pass
        os.kill((await controller.control("ping"))["children"][0], signal.SIGTERM)
        answer = await end
        assert (answer["signal"], answer["log"]) == (15, "last words\n")
        with pytest.raises(SandboxDiedError):
            await user.open(PING).reply(PingReply)
        control.close()

    asyncio.run(main())
    assert controller.process.wait(60) == 0


def test_the_child_dies_with_the_controller(controller):
    (child,) = asyncio.run(controller.control("ping"))["children"]
    controller.stop()
    until(lambda: not alive(child))


def test_of_a_flood_of_words_the_last_are_kept(tmp_path):
    script = "i=0; while [ $i -lt 30000 ]; do echo $i >&2; i=$((i+1)); done; exec sleep 1000"
    controller = ControllerProcess(tmp_path, ["/bin/sh", "-c", script])

    async def main():
        log = ""
        while not log.endswith("29999\n"):
            log = (await controller.control("log"))["log"]
        assert len(log) <= 16 * 1024

    asyncio.run(main())
    controller.stop()


def test_a_guest_that_never_greets_is_served_to_nobody(tmp_path):
    controller = ControllerProcess(tmp_path, ["/bin/sleep", "1000"])
    with controller.hand("user") as ours:
        ours.sendall(HELLO)
        assert not asyncio.run(controller.control("ping"))["restored"]
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            ours.recv(1)
    controller.stop()


def test_a_guest_that_breaks_the_rules_of_the_port_ends_with_its_wall(tmp_path):
    controller = ControllerProcess(tmp_path, ["/bin/sh", "-c", "echo a word of a command; exec sleep 1000"])

    async def main():
        assert "violated the protocol" in (await controller.control("end"))["words"]

    asyncio.run(main())
    assert controller.process.wait(60) == 0


def test_a_socket_for_nobody_is_closed(controller):
    for say in ("nobody", "userx"):
        with controller.hand(say) as ours:
            assert ours.recv(1) == b""
