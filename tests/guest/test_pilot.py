"""The pilot: several services on one guest, and what becomes of all when one of them dies."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys

import pytest
from test_exec import alive, collect, start, until

from paddock.errors import GuestProtocolError, SandboxDied
from paddock.guest._frames import VERSION, Kind, pack
from paddock.guest._mark import MARK_BYTES, MarkFinder, new_mark
from tests.guest.pilots import PilotProcess


@pytest.fixture
def pilot(tmp_path):
    pilot = PilotProcess(tmp_path)
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
        assert (await pilot.ask("root", op="ping"))["pid"] != (await pilot.ask("user", op="ping"))["pid"]
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
        broken.sendall(pack(Kind.HELLO, 0, {"version": VERSION}) + b"\0\0\1\0\2")
        broken.close()
        assert (await pilot.ask("user", op="ping"))["pid"]

    asyncio.run(main())


def test_a_service_that_reads_nothing_is_let_go_and_the_others_are_served(pilot):
    async def main():
        deaf = pilot.hand("user")
        deaf.sendall(pack(Kind.HELLO, 0, {"version": VERSION}))
        for number in range(1, 9):  # each has a window of its own
            request = {"op": "exec", "id": f"ex_{number}", "argv": ["head", "-c", "1000000", "/dev/zero"]}
            deaf.sendall(pack(Kind.OPEN, number, request))
        hung_up = select.poll()
        hung_up.register(deaf.fileno(), select.POLLRDHUP)
        assert await asyncio.to_thread(hung_up.poll, 60_000)
        assert (await pilot.ask("user", op="ping"))["pid"]
        deaf.close()

    asyncio.run(main())


def test_a_killed_agent_is_there_again_and_what_it_did_is_told(pilot):
    async def main():
        connection = pilot.dial("user")
        handle = await start(connection, "sh", "-c", "while :; do echo 0123456789; done")
        first = connection.peer_pid
        os.kill(first, signal.SIGKILL)
        with pytest.raises(SandboxDied):  # nobody explains here: the connection is lost
            await handle.wait()
        answer = await pilot.ask("init", op="lost", agent="user", pid=first)
        assert answer == {"alive": False, "signal": 9}
        assert (await pilot.ask("user", op="ping"))["pid"] != first
        assert not alive(handle.pid)
        assert (await pilot.ask("root", op="ping"))["pid"]

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
            assert (await pilot.ask("user", op="ping"))["pid"] != connection.peer_pid
            connection.close()

    asyncio.run(main())


def test_when_the_child_ends_the_pilot_says_how_and_ends(tmp_path):
    pilot = PilotProcess(tmp_path, ["/bin/sh", "-c", "echo last words >&2; read line <&4; exit 3"])

    async def main():
        control = pilot.dial("control")
        channel = control.open({"op": "end"})
        assert await channel.reply(dict) == {}
        user = pilot.dial("user")
        while (await pilot.ask("control", op="log"))["log"] != "last words\n":
            pass
        os.kill((await pilot.ask("control", op="ping"))["children"][0], signal.SIGTERM)
        answer = await channel.result(dict)
        assert (answer["signal"], answer["log"]) == (15, "last words\n")
        with pytest.raises(SandboxDied):
            await user.open({"op": "ping"}).call(dict)
        control.close()

    asyncio.run(main())
    assert pilot.process.wait(60) == 0


def test_the_child_dies_with_the_pilot(pilot):
    (child,) = asyncio.run(pilot.ask("control", op="ping"))["children"]
    pilot.stop()
    until(lambda: not alive(child))


def test_of_a_flood_of_words_the_last_are_kept(tmp_path):
    script = "i=0; while [ $i -lt 30000 ]; do echo $i; i=$((i+1)); done; exec sleep 1000"
    pilot = PilotProcess(tmp_path, ["/bin/sh", "-c", script])

    async def main():
        log = ""
        while not log.endswith("29999\n"):
            log = (await pilot.ask("control", op="log"))["log"]
        assert len(log) <= 16 * 1024

    asyncio.run(main())
    pilot.stop()


def test_a_guest_that_never_greets_is_served_to_nobody(tmp_path):
    pilot = PilotProcess(tmp_path, ["/bin/sleep", "1000"])
    with pilot.hand("user") as ours:
        ours.sendall(pack(Kind.HELLO, 0, {"version": VERSION}))
        assert asyncio.run(pilot.ask("control", op="marks")) == {"marks": {}}
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            ours.recv(1)
    pilot.stop()


def test_a_guest_that_lies_is_told_to_services_and_others_live(tmp_path):
    lie = r"""
import os, socket, sys
def greet(fd, mark=b""):
    body = b'{"version":%d,"pid":1,"features":[],"mark":"%s"}' % (VERSION, (b"m" * 16).hex().encode())
    os.write(fd, mark + len(body).to_bytes(4, "big") + b"\1" + bytes(4) + body)
for fd in (3, 4, 5): greet(fd)
seen = b""
while b"ping" not in seen: seen += os.read(4, 4096)
os.write(4, bytes(100))
seen = b""
while b"m" * 16 not in seen: seen += os.read(4, 4096)
greet(4, b"m" * 16)
os.read(0, 1)
while True: os.read(4, 4096)
"""
    pilot = PilotProcess(tmp_path, [sys.executable, "-I", "-S", "-c", f"VERSION = {VERSION}\n{lie}"])

    async def main():
        root, user = pilot.dial("root"), pilot.dial("user")
        with pytest.raises(GuestProtocolError):
            await user.open({"op": "ping"}).call(dict)
        with pilot.hand("user") as again:  # it has begun anew
            assert (await asyncio.to_thread(again.recv, 1 << 16))[4] == Kind.HELLO
        assert not root.closed
        root.close()
        user.close()

    asyncio.run(main())
    pilot.stop()


def test_a_socket_for_nobody_is_closed(pilot):
    for say in ("nobody", "userx"):
        with pilot.hand(say) as ours:
            assert ours.recv(1) == b""


def test_a_mark_is_found_wherever_it_was_cut():
    mark = new_mark()
    wire = b"before" * 10 + mark + b"after"
    for cut in range(len(wire) + 1):
        for second in (cut, cut + 1, cut + 5):
            finder, rest = MarkFinder(mark), None
            for piece in (wire[:cut], wire[cut:second], wire[second:]):
                found = finder.after(piece)
                rest = found if found is not None else rest if rest is None else rest + piece
            assert rest == b"after"
    finder = MarkFinder(mark)
    assert all(finder.after(bytes([byte])) is None for byte in wire[: 60 + MARK_BYTES - 1])
    assert finder.after(wire[60 + MARK_BYTES - 1 : 60 + MARK_BYTES]) == b""
