"""The pilot: several services on one guest, and what becomes of all when one of them dies."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from paddock.backends.guest import PING, orders
from paddock.backends.vmm import Control
from paddock.errors import SandboxDied
from paddock.wire.guest import PingReply
from tests.vmm.controllers import HELLO, PilotProcess, alive, collect, start, until


@pytest.fixture
def pilot(tmp_path):
    pilot = PilotProcess(tmp_path)
    asyncio.run(pilot.begin())
    yield pilot
    pilot.stop()


def test_two_services_are_served_at_once_each_with_its_own_channels(pilot):
    async def main():
        one, other = pilot.dial("user"), pilot.dial("user")
        first = await start(one, "sh", "-c", "read line; echo one $line", stdin=True)
        second = await start(other, "sh", "-c", "read line; echo other $line", stdin=True)
        await second.stdin.write(b"2\n")
        assert (await collect(second))[1] == b"other 2\n"
        await first.stdin.write(b"1\n")
        assert (await collect(first))[1] == b"one 1\n"
        assert await pilot.ping("root") != await pilot.ping("user")
        one.close()
        other.close()

    asyncio.run(main())


def test_a_large_output_comes_whole_while_others_are_served(pilot):
    async def main():
        one, other = pilot.dial("user"), pilot.dial("user")
        large = asyncio.ensure_future(collect(await start(one, "head", "-c", "30000000", "/dev/zero")))
        for _ in range(20):
            assert (await collect(await start(other, "echo", "here")))[1] == b"here\n"
        _, out, _ = await large
        assert len(out) == 30_000_000
        one.close()
        other.close()

    asyncio.run(main())


def test_the_foreground_commands_of_a_service_that_goes_end_and_those_of_others_live(pilot):
    async def main():
        one, other = pilot.dial("user"), pilot.dial("user")
        mine = await start(one, "sleep", "1000")
        theirs = await start(other, "sleep", "1000")
        one.close()
        await asyncio.to_thread(until, lambda: not alive(mine.pid))
        assert alive(theirs.pid)
        await theirs.kill()
        other.close()

    asyncio.run(main())


def test_a_service_that_dies_within_a_frame_disturbs_nobody(pilot):
    async def main():
        broken = pilot.hand("user")
        broken.sendall(HELLO + b"\0\0\1\0\2")
        broken.close()
        assert await pilot.ping("user")

    asyncio.run(main())


def test_a_killed_agent_is_there_again_and_what_it_did_is_told(pilot):
    async def main():
        connection = pilot.dial("user")
        handle = await start(connection, "sh", "-c", "while :; do echo 0123456789; done")
        first = connection.peer_pid
        os.kill(first, signal.SIGKILL)
        with pytest.raises(SandboxDied):  # nobody explains here: the connection is lost
            await handle.wait()
        init = pilot.dial("init")
        assert await orders.verdict(init, "user", first) == (False, 9)
        init.close()
        assert await pilot.ping("user") != first
        assert not alive(handle.pid)
        assert await pilot.ping("root")

    asyncio.run(main())


def test_the_agent_finds_its_way_after_it_was_killed_within_frames_again_and_again(pilot):
    async def main():
        for _ in range(3):
            connection = pilot.dial("user")
            flood = [await start(connection, "sh", "-c", "cat", stdin=True) for _ in range(2)]
            writing = [asyncio.ensure_future(handle.stdin.write(bytes(900_000))) for handle in flood]
            await flood[0].stdout.read()
            os.kill(connection.peer_pid, signal.SIGKILL)
            await asyncio.gather(*writing, *(handle.wait() for handle in flood), return_exceptions=True)
            assert await pilot.ping("user") != connection.peer_pid
            connection.close()

    asyncio.run(main())


def test_when_the_child_ends_the_pilot_says_how_and_ends(tmp_path):
    pilot = PilotProcess(tmp_path, ["/bin/sh", "-c", "echo last words >&2; exec sleep 1000"])

    async def main():
        control = Control(pilot.hand("control"))
        end = asyncio.ensure_future(control.ask("end", dict))
        user = pilot.dial("user")
        while (await pilot.control("log"))["log"] != "last words\n":
            pass
        os.kill((await pilot.control("ping"))["children"][0], signal.SIGTERM)
        answer = await end
        assert (answer["signal"], answer["log"]) == (15, "last words\n")
        with pytest.raises(SandboxDied):
            await user.open(PING).reply(PingReply)
        control.close()

    asyncio.run(main())
    assert pilot.process.wait(60) == 0


def test_the_child_dies_with_the_pilot(pilot):
    (child,) = asyncio.run(pilot.control("ping"))["children"]
    pilot.stop()
    until(lambda: not alive(child))


def test_of_a_flood_of_words_the_last_are_kept(tmp_path):
    script = "i=0; while [ $i -lt 30000 ]; do echo $i >&2; i=$((i+1)); done; exec sleep 1000"
    pilot = PilotProcess(tmp_path, ["/bin/sh", "-c", script])

    async def main():
        log = ""
        while not log.endswith("29999\n"):
            log = (await pilot.control("log"))["log"]
        assert len(log) <= 16 * 1024

    asyncio.run(main())
    pilot.stop()


def test_a_guest_that_never_greets_is_served_to_nobody(tmp_path):
    pilot = PilotProcess(tmp_path, ["/bin/sleep", "1000"])
    with pilot.hand("user") as ours:
        ours.sendall(HELLO)
        assert not asyncio.run(pilot.control("ping"))["restored"]
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            ours.recv(1)
    pilot.stop()


def test_a_guest_that_breaks_the_rules_of_the_line_ends_with_its_wall(tmp_path):
    pilot = PilotProcess(tmp_path, ["/bin/sh", "-c", "echo a word of a command; exec sleep 1000"])

    async def main():
        assert "none of ours says" in (await pilot.control("end"))["words"]

    asyncio.run(main())
    assert pilot.process.wait(60) == 0


def test_a_socket_for_nobody_is_closed(pilot):
    for say in ("nobody", "userx"):
        with pilot.hand(say) as ours:
            assert ours.recv(1) == b""
