"""Where the time of a warm exec goes, and what the streams carry. `python -m bench.guest_exec [rounds]`.

Over the process backend: everything but the walls.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path

from paddock.backends.base import SandboxPlan
from paddock.backends.guest import PING
from paddock.backends.guest.instance import GuestInstance
from paddock.backends.process import ProcessBackend
from paddock.model import (
    ExecId,
    ExecSpec,
    IdPrefix,
    ReadFile,
    SandboxId,
    SandboxSpec,
    StatFile,
    Template,
    User,
    WriteFile,
    mint,
)
from paddock.model.streams import ByteReader
from paddock.wire.guest import PingReply

TEMPLATE = Template(
    name="host",
    digest="d",
    layers=(),
    host_usr=True,
    users=(User(name="user", uid=1000, gid=1000, home="/home/user"),),
    default_user="user",
)


def line(name: str, samples: list[float]) -> None:
    ordered = sorted(samples)
    p95 = ordered[int(len(ordered) * 0.95)]
    print(f"{name:<44} {statistics.median(samples):7.3f} / {p95:7.3f} ms")


async def one(box: GuestInstance, argv: tuple[str, ...] = ("true",)) -> list[float]:
    marks = [time.perf_counter()]
    handle = await box.start(ExecSpec(argv=argv), id=ExecId(mint(IdPrefix.EXEC)), background=False)
    marks.append(time.perf_counter())
    status = await handle.wait()
    marks.append(time.perf_counter())
    for stream in (handle.stdout, handle.stderr):
        await drain(stream)
    await handle.aclose()
    marks.append(time.perf_counter())
    steps = [1e3 * (later - earlier) for earlier, later in itertools.pairwise(marks)]
    return [*steps, 1e3 * (marks[-1] - marks[0]), 1e3 * status.duration_seconds]


async def drain(reader: ByteReader | None, size: int = 1 << 20) -> int:
    total = 0
    while reader is not None and (data := await reader.read(size)):
        total += len(data)
    return total


async def rate(name: str, making: Awaitable[int]) -> None:
    started = time.perf_counter()
    total = await making
    seconds = time.perf_counter() - started
    print(f"{name:<44} {total / seconds / 1e6:7.0f} MB/s")


async def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        backend = ProcessBackend(Path(directory))
        deadline = time.clock_gettime(time.CLOCK_BOOTTIME) + 600
        plan = SandboxPlan(
            id=SandboxId("sb_bench"), hostname="b", spec=SandboxSpec(), template=TEMPLATE, tree="x", deadline=deadline
        )
        box = await backend.create(plan)
        try:
            for _ in range(20):
                await one(box)
            samples: list[list[float]] = []
            floor: list[float] = []
            pings: list[float] = []
            stats: list[float] = []
            connection = await box.connection("user")
            for _ in range(rounds):
                samples.append(await one(box))
                started = time.perf_counter()
                subprocess.run(["true"], check=True, capture_output=True)  # noqa: ASYNC221 - it is what is compared with
                floor.append(1e3 * (time.perf_counter() - started))
                started = time.perf_counter()
                await connection.open(PING).call(PingReply)
                pings.append(1e3 * (time.perf_counter() - started))
                started = time.perf_counter()
                await box.file(StatFile(sandbox="", path="/"))
                stats.append(1e3 * (time.perf_counter() - started))
            columns = list(zip(*samples, strict=True))
            print("p50 / p95")
            names = (
                "start: request until it runs",
                "wait: until its death is known",
                "drain and close",
                "exec true, warm",
            )
            for name, column in zip((*names, "  as the guest counts, vfork to reaping"), columns, strict=True):
                line(name, list(column))
            line("subprocess.run(true), for comparison", floor)
            line("ping: one round trip", pings)
            line("stat of a file", stats)

            spec = ExecSpec(argv=("head", "-c", "2000000000", "/dev/zero"))
            handle = await box.start(spec, id=ExecId("ex_out"), background=False)
            await rate("stdout of 2 GB, pipes", drain(handle.stdout))
            await handle.aclose()
            connection.descriptors = False
            handle = await box.start(spec, id=ExecId("ex_frames"), background=False)
            await rate("stdout of 2 GB, frames", drain(handle.stdout))
            await handle.aclose()
            connection.descriptors = True

            async def write() -> int:
                writer = await box.file(WriteFile(sandbox="", path="big"))
                piece = bytes(1 << 20)
                for _ in range(500):
                    await writer.write(piece)
                info = await writer.aclose()
                return info.size_bytes if info is not None else 0

            await rate("write of a file of 500 MB", write())
            await rate("read of it", drain(await box.file(ReadFile(sandbox="", path="big"))))
        finally:
            await box.kill()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
