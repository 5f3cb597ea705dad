"""Many at once, limits, and what is counted."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from paddock.errors import SandboxDiedError, SandboxError
from paddock.model import Limit, Limits

from ._box import finish
from ._lab import Bench, Lab, eventually, guarantee

MIB = 1 << 20


class LoadConformance(Bench):
    """Concurrency and usage."""

    @guarantee()
    async def test_fifty_commands_at_once_do_not_mix(self, lab: Lab) -> None:
        box = await lab.box()
        finished = await asyncio.gather(*(box.run("cat", input=b"%d" % n * 10_000) for n in range(50)))
        assert [one.out for one in finished] == [b"%d" % n * 10_000 for n in range(50)]
        assert {one.status.code for one in finished} == {0}

    @guarantee()
    async def test_twenty_sandboxes_at_once(self, lab: Lab) -> None:
        boxes = await asyncio.gather(*(lab.box() for _ in range(20)))
        await asyncio.gather(*(box.write("file", box.id.encode()) for box in boxes))
        assert await asyncio.gather(*(box.read("file") for box in boxes)) == [box.id.encode() for box in boxes]
        await asyncio.gather(*(box.instance.kill() for box in boxes))
        living = (await lab.backend.state()).living
        assert not [box.id for box in boxes if living.get(box.plan.id, "absent") is None]

    @guarantee()
    async def test_commands_files_and_kills_at_once(self, lab: Lab) -> None:
        box = await lab.box()

        async def work(n: int) -> bytes:
            await box.write(f"f{n}", b"%d" % n)
            victim = await box.start("sleep", "600")
            out = (await box.run("cat", f"f{n}")).out
            await victim.kill()
            await victim.wait()
            await victim.aclose()
            return out + await box.read(f"f{n}")

        assert await asyncio.gather(*map(work, range(20))) == [b"%d%d" % (n, n) for n in range(20)]

    @guarantee()
    async def test_two_hundred_commands_leave_no_descriptor_here(self, lab: Lab) -> None:
        box = await lab.box()
        await box.run("true")
        before = _descriptors()
        for _ in range(20):
            await asyncio.gather(*(box.run("true") for _ in range(10)))
        handle = await box.start("true")
        await finish(handle)
        await _none_lost(before)

    @guarantee()
    async def test_commands_that_were_never_read_leave_no_descriptor_here(self, lab: Lab) -> None:
        box = await lab.box()
        await box.run("true")
        before = _descriptors()
        for _ in range(10):
            handle = await box.start("sleep", "600", stdin=True)
            await handle.kill()
            await handle.wait()
            await handle.aclose()
            await (await box.start("sh", "-c", "echo x; sleep 600")).aclose()
        await _none_lost(before)

    @guarantee()
    async def test_usage_is_plausible(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await box.start_python(
            "x = bytearray(b'x' * 50_000_000)\nprint('ready', flush=True)\ninput()", stdin=True
        )
        assert handle.stdout is not None
        await handle.stdout.read()
        usage = await box.instance.usage()
        assert usage.memory_bytes is None or usage.memory_bytes > 40_000_000
        assert usage.memory_peak_bytes is None or usage.memory_peak_bytes >= (usage.memory_bytes or 0)
        assert usage.processes is None or 1 <= usage.processes < 100
        assert usage.cpu_seconds is None or 0 <= usage.cpu_seconds < 60
        assert usage.disk_bytes is None or usage.disk_bytes >= 0
        assert not any(usage.strikes.values())
        await handle.aclose()

    @guarantee()
    async def test_processor_time_is_counted(self, lab: Lab) -> None:
        box = await lab.box()
        before = (await box.instance.usage()).cpu_seconds
        if before is None:
            return
        # Not by what it counts itself: for another kernel it also runs while it only waits for a processor outside.
        busy = await box.start_python("while True: pass")

        async def counted() -> bool:
            after = (await box.instance.usage()).cpu_seconds
            return after is not None and after - before >= 0.4

        await eventually("what it uses is counted", counted)
        await busy.kill()


class LimitConformance(Bench):
    """Limits that the backend claims to enforce. Each holds, is counted where the kernel counts, and leaves the
    sandbox usable. The service makes of it what `ExitStatus.limit` says."""

    @guarantee(Limit.MEMORY)
    async def test_memory_ends_the_command_or_the_sandbox_and_is_named(self, lab: Lab) -> None:
        box = await lab.box(limits=Limits(memory_mib=128, tmp_mib=32))
        try:
            status = (await box.python("x = bytearray(b'x' * 600_000_000)")).status
            assert status.code != 0
            assert (await box.run("echo", "alive")).text == "alive"
            assert (await box.instance.usage()).strikes.get(Limit.MEMORY, 0) >= 1
        except* SandboxDiedError:  # where the machine's kernel sees one process that has the memory of all
            assert (await box.instance.wait_ended()).limit == Limit.MEMORY

    @guarantee(Limit.PROCESSES)
    async def test_processes_are_refused_above_the_limit_and_it_is_named(self, lab: Lab) -> None:
        box = await lab.box(limits=Limits(processes=40))
        finished = await box.python(
            "import os, time\nn = 0\ntry:\n    while True:\n        if not os.fork(): time.sleep(600)\n        n += 1\n"
            "except OSError as error: print(n, error.errno)\n    \nraise SystemExit(3)"
        )
        count, number = map(int, finished.text.split())
        assert count < 40
        assert number == 11
        assert (await box.instance.usage()).strikes.get(Limit.PROCESSES, 0) >= 1

    @guarantee(Limit.PROCESSES)
    async def test_a_command_for_which_there_is_no_process_names_the_limit(self, lab: Lab) -> None:
        box = await lab.box(limits=Limits(processes=40))
        full = await box.start_python(
            "import os, time\ntry:\n    while os.fork(): pass\n"
            "except OSError: print('full', flush=True)\ntime.sleep(600)"
        )
        assert full.stdout is not None
        async with asyncio.timeout(60):
            assert await full.stdout.read(16) == b"full\n"
        with pytest.raises(SandboxError) as refused:
            await box.run("true")
        assert refused.value.details["limit"] == Limit.PROCESSES
        await full.kill()
        assert (await box.run("true")).status.code == 0

    @guarantee(Limit.PROCESSES)
    async def test_a_fork_bomb_is_killed_and_the_sandbox_answers(self, lab: Lab) -> None:
        box = await lab.box(limits=Limits(processes=64))
        bomb = await box.start_python("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")
        await asyncio.sleep(0.5)
        async with asyncio.timeout(60):
            await bomb.kill()
            await bomb.wait()
        await bomb.aclose()
        assert (await box.run("echo", "alive")).text == "alive"

    @guarantee(Limit.DISK)
    async def test_a_full_disk_is_refused_and_named(self, lab: Lab) -> None:
        box = await lab.box(limits=Limits(disk_mib=64))
        finished = await box.python(_FILL_DISK)
        assert finished.text in {"28", "122"}, "ENOSPC or EDQUOT"
        assert (await box.run("rm", "fill")).status.code == 0
        assert (await box.sh("echo x >again && cat again")).text == "x"

    @guarantee(Limit.INODES)
    async def test_too_many_files_are_refused_or_end_the_sandbox_and_it_is_named(self, lab: Lab) -> None:
        box = await lab.box(limits=Limits(inodes=2000))
        handle = await box.start_python(
            "import os\nn = 0\ntry:\n    while True:\n        os.close(os.open(f'{n}', os.O_CREAT)); n += 1\n"
            "except OSError as error: raise SystemExit(error.errno)"
        )
        try:
            async with asyncio.timeout(60):
                status = (await finish(handle)).status
            assert status.code == errno.ENOSPC
        except* SandboxDiedError:
            assert (await box.instance.wait_ended()).limit == Limit.INODES

    @guarantee(Limit.OPEN_FILES)
    async def test_descriptors_are_refused_above_the_limit_and_it_is_named(self, lab: Lab) -> None:
        box = await lab.box(limits=Limits(open_files=100))
        finished = await box.python("import os\nfor n in range(1000): os.open('/dev/null', os.O_RDONLY)")
        assert b"Too many open files" in finished.err
        finished = await box.python(
            "from resource import *\ntry: setrlimit(RLIMIT_NOFILE, (9999, 9999))\n"
            "except (OSError, ValueError): print('refused')"
        )
        assert finished.text == "refused"

    @guarantee("isolation")
    async def test_the_small_disk_is_full_before_the_memory_is(self, lab: Lab) -> None:
        box = await lab.box(limits=Limits(memory_mib=256, tmp_mib=16))
        finished = await box.sh("head -c 40000000 /dev/zero >/tmp/fill")
        assert finished.status.code != 0
        assert b"No space left" in finished.err
        assert (await box.stat("/tmp/fill")).size_bytes <= 16 * MIB

    @guarantee("isolation")
    async def test_no_core_is_dumped(self, lab: Lab) -> None:
        box = await lab.box()
        finished = await box.sh("ulimit -c; kill -SEGV $$")
        assert (finished.text, finished.status.signal) == ("0", 11)
        assert await box.names() == []


_FILL_DISK = """
import os, sys
file = os.open('fill', os.O_WRONLY | os.O_CREAT)
try:
    while True:
        os.write(file, os.urandom(1 << 20)); os.fsync(file)
except OSError as error:
    print(error.errno)
    raise SystemExit(1)
"""


async def _none_lost(before: int) -> None:
    async def few() -> bool:
        return _descriptors() <= before + 2

    await eventually("no descriptor is left open here", few)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
