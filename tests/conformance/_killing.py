"""Ending commands: nothing that a command started outlives its kill.

Timeouts are kept by the service, which counts the time and kills: they are no promise of a backend.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any

import pytest

from paddock.errors import RequestError, SandboxError
from paddock.model import ExecHandle

from ._box import Box, finish, read_until
from ._host import processes
from ._lab import Bench, Lab, eventually, guarantee

# Nine processes in every disguise: a child, a grandchild in its own session, double-forked daemons, one that ignores
# whatever can be ignored, one that is stopped. Where the first leaves, that one has its own session: else a kernel may
# hang up all who are left with it. All carry the marker; none holds the streams but the first.
_TREE = """
import os, signal, sys, time
# One after another: gVisor hangs up a group of which one is stopped when another ends or leaves it.
settled, settles = os.pipe()
def become(disguise):
    if pid := os.fork():
        os.read(settled, 1)
        if disguise == ['daemon']: os.waitpid(pid, 0)
        return
    if 'session' in disguise: os.setsid()
    if 'daemon' in disguise and os.fork(): os._exit(0)
    if 'deaf' in disguise:
        for n in range(1, 32):
            try: signal.signal(n, signal.SIG_IGN)
            except (OSError, ValueError): pass
    if 'silent' in disguise:
        for n in (0, 1, 2): os.close(n)
    os.write(settles, b'.')
    os.closerange(settled, settles + 1)
    if 'stopped' in disguise: os.kill(os.getpid(), signal.SIGSTOP)
    while True: time.sleep(600)
for disguise in ('', 'deaf', 'session', 'session deaf', 'session daemon', 'session daemon deaf silent',
                 'daemon', 'session stopped' if 'leave' in sys.argv else 'stopped'):
    become(disguise.split())
if 'deaf' in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('ready', flush=True)
if 'leave' not in sys.argv:
    while True: time.sleep(600)
"""

# Never the same pid for long: each generation forks the next and ends. By itself, too, if the test run was killed.
_RUNNER = """
import os, sys, time
os.setsid() if os.getpid() != os.getpgid(0) else None
print('ready', flush=True)
end = time.monotonic() + 120
while time.monotonic() < end:
    if os.fork(): os._exit(0)
    time.sleep(0.001)
"""


class KillConformance(Bench):
    """kill, signal, aclose."""

    @guarantee()
    async def test_kill_ends_everything_that_the_command_started(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await _start_tree(box, lab.marker)
        await handle.kill()
        assert (await handle.wait()).signal == signal.SIGKILL
        await _gone(lab)
        await handle.aclose()

    @guarantee()
    async def test_kill_ends_what_a_command_left_behind_that_has_ended_itself(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await _start_tree(box, lab.marker, "leave")
        assert (await handle.wait()).code == 0
        await handle.kill()
        await _gone(lab)
        await handle.aclose()

    @guarantee()
    async def test_kill_catches_a_process_that_forks_faster_than_it_is_listed(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await box.start_python(_RUNNER, lab.marker)
        assert handle.stdout is not None
        await read_until(handle.stdout, b"ready")
        await handle.kill()
        await _gone(lab)
        await handle.aclose()

    @guarantee()
    async def test_letting_go_of_a_foreground_command_kills_it(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await _start_tree(box, lab.marker)
        await handle.aclose()
        await _gone(lab)

    @guarantee()
    async def test_kill_of_one_command_leaves_the_others_alone(self, lab: Lab) -> None:
        box = await lab.box()
        bystander = await box.start("cat", stdin=True)
        victim = await box.start("sleep", "600")
        await victim.kill()
        assert (await victim.wait()).signal == signal.SIGKILL
        await victim.aclose()
        assert (await finish(bystander, input=b"alive")).out == b"alive"

    @guarantee()
    async def test_killing_again_and_after_the_end_is_not_an_error(self, lab: Lab) -> None:
        handle = await (await lab.box()).start("sleep", "600")
        await handle.kill()
        await handle.kill()
        status = await handle.wait()
        await handle.kill()
        assert await handle.wait() == status
        await handle.aclose()
        await handle.aclose()

    @guarantee()
    async def test_a_kill_does_not_change_how_an_ended_command_ended(self, lab: Lab) -> None:
        handle = await (await lab.box()).start("sh", "-c", "exit 4")
        await handle.wait()
        await handle.kill()
        assert (await handle.wait()).code == 4
        await handle.aclose()

    @guarantee()
    async def test_a_signal_reaches_the_command(self, lab: Lab) -> None:
        handle = await (await lab.box()).start(
            "sh", "-c", "trap 'echo caught; exit 9' USR1; echo ready; while :; do sleep 0.05; done"
        )
        assert handle.stdout is not None
        await read_until(handle.stdout, b"ready")
        await handle.signal(signal.SIGUSR1)
        finished = await finish(handle)
        assert finished.status.code == 9
        assert b"caught" in finished.out

    @guarantee()
    async def test_a_signal_reaches_the_process_group_of_the_command(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await box.start(
            "sh", "-c", f"sleep 600 {lab.marker} 2>/dev/null || sh -c 'echo ready; sleep 600; :' {lab.marker}; :"
        )
        assert handle.stdout is not None
        await read_until(handle.stdout, b"ready")
        await handle.signal(signal.SIGTERM)
        assert (await handle.wait()).signal == signal.SIGTERM
        await _gone(lab)
        await handle.aclose()

    @guarantee()
    async def test_a_stopped_command_can_be_continued(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await box.start("cat", stdin=True)

        async def state() -> str:
            return (await box.sh(f"cut -d ')' -f 2 /proc/{handle.pid}/stat | cut -c 2")).text

        await handle.signal(signal.SIGSTOP)

        async def stopped() -> bool:
            return await state() == "T"

        await eventually("the command is stopped", stopped)
        await handle.signal(signal.SIGCONT)
        assert (await finish(handle, input=b"on")).out == b"on"

    @guarantee()
    async def test_a_signal_to_an_ended_command_is_harmless(self, lab: Lab) -> None:
        handle = await (await lab.box()).start("true")
        await handle.wait()
        with contextlib.suppress(RequestError):  # saying that it has ended is as good
            await handle.signal(signal.SIGTERM)
        assert (await handle.wait()).code == 0
        await handle.aclose()

    @guarantee()
    async def test_numbers_that_are_no_signals_are_refused(self, lab: Lab) -> None:
        handle = await (await lab.box()).start("sleep", "600")
        for number in (-1, 65, 100_000):
            with pytest.raises(RequestError):
                await handle.signal(number)
        await handle.aclose()

    @guarantee()
    async def test_orphans_are_reaped(self, lab: Lab) -> None:
        box = await lab.box()
        await box.sh("for i in 1 2 3 4 5 6 7 8 9 10; do (sh -c 'exit 0' & ) ; done")

        async def none_defunct() -> bool:
            finished = await box.python(_COUNT_DEFUNCT_OF_MINE)
            return finished.text == "0"

        await eventually("no zombie is left inside", none_defunct)

    @guarantee()
    async def test_many_kills_at_once_end_everything(self, lab: Lab) -> None:
        box = await lab.box()
        handles = await asyncio.gather(*(box.start("sh", "-c", f"sleep 600; : {lab.marker}") for _ in range(10)))
        await asyncio.gather(*(handle.kill() for handle in handles))
        statuses = await asyncio.gather(*(handle.wait() for handle in handles))
        assert {status.signal for status in statuses} == {signal.SIGKILL}
        await asyncio.gather(*(handle.aclose() for handle in handles))
        await _gone(lab)


# In a process backend the whole machine is visible: only children of the own parent's tree count there.
_COUNT_DEFUNCT_OF_MINE = """
import os
def stat(pid):
    with open(f'/proc/{pid}/stat') as file:
        words = file.read().rpartition(')')[2].split()
    return words[0], int(words[1])
mine, pid = set(), os.getppid()
mine.add(pid)
count = 0
for name in filter(str.isdigit, os.listdir('/proc')):
    try: state, parent = stat(name)
    except OSError: continue
    count += state == 'Z' and parent in mine
print(count)
"""


async def _start_tree(box: Box, marker: str, *arguments: str, **spec: Any) -> ExecHandle:
    handle = await box.start_python(_TREE, *arguments, marker, **spec)
    assert handle.stdout is not None
    await read_until(handle.stdout, b"ready")

    async def all_up() -> bool:
        return len(await box.matching(marker)) >= 8

    await eventually("the tree of processes stands", all_up)
    return handle


async def _gone(lab: Lab) -> None:
    async def none() -> bool:
        # Behind a wall with a kernel of its own the machine shows none of them, and those inside do.
        return not processes(lab.marker) and not any([await _inside(box, lab.marker) for box in lab.boxes])

    await eventually("no process with the marker is left on the machine", none)


async def _inside(box: Box, marker: str) -> list[int]:
    try:
        return await box.matching(marker)
    except SandboxError:
        return []  # it has ended
