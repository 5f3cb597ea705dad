"""What files of a sandbox's size say, on machines that this one isn't."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from paddock.linux import masks, sizes
from paddock.linux.cgroups import ShownHierarchy

MIB = 1 << 20


def test_sandboxes_take_turns_at_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    def available(pid: int) -> set[int]:
        return {0, 1, 2, 5, 7}

    monkeypatch.setattr(os, "sched_getaffinity", available)
    processors = sizes.Processors()
    chosen = [processors.choose(1.5) for _ in range(5)]
    assert chosen == [((0, 1), False), ((2, 5), False), ((0, 7), False), ((1, 2), False), ((5, 7), False)]
    assert processors.choose(0.1) == ((0,), False)
    assert processors.choose(8) == ((0, 1, 2, 5, 7), True), "no more than there are"


@pytest.mark.parametrize("numbers", [(0,), (0, 1, 2), (1, 3, 4, 5, 9)])
def test_processors_are_listed_as_the_kernel_lists_them(numbers: tuple[int, ...]) -> None:
    assert tuple(sizes.numbers(sizes.listed(numbers))) == numbers
    assert sizes.listed((1, 3, 4, 5, 9)) == "1,3-5,9\n"


def test_no_sandbox_is_told_more_memory_than_the_machine_has() -> None:
    rows = dict(row.split(":") for row in sizes.meminfo(1 << 60, 1 << 60).splitlines())
    with open("/proc/meminfo") as machine:
        assert f"MemTotal:{rows['MemTotal']}" == machine.readline().rstrip("\n")


def test_a_group_of_either_version_says_the_limits_that_are_kept_without_one() -> None:
    def said(version: int, *controllers: str) -> dict[str, str]:
        shown = ShownHierarchy(version, "", frozenset(controllers), "/", False)
        return sizes.group(shown, memory=512 * MIB, swap=MIB, cpus=1.5, pids=9, runs_on=(4, 5))

    assert said(2)["memory.max"] == f"{512 * MIB}\n"
    assert said(2)["cpu.max"] == "150000 100000\n"
    assert said(1, "memory")["memory.memsw.limit_in_bytes"] == f"{513 * MIB}\n"
    assert int(said(1, "memory")["memory.soft_limit_in_bytes"]) > 1 << 62, "without it Node sees no limit"
    assert said(1, "cpu", "cpuacct") == {"cpu.cfs_period_us": "100000\n", "cpu.cfs_quota_us": "150000\n"}
    assert said(1, "cpuset")["cpuset.cpus"] == "4-5\n"


def test_the_docs_name_every_mask() -> None:
    page = Path(__file__).parents[2].joinpath("docs/levels.md").read_text()
    told = page[page.index("find nothing about the machine") : page.index("These stay the machine's")]
    assert {f"`{name}`" for name in (*masks.MASKS, *masks.OF_ROOT)} <= set(re.findall(r"`[^`]+`", told))


def test_processors_that_share_a_core_or_a_socket_say_so() -> None:
    row = "processor\t: {}\nphysical id\t: {}\ncore id\t\t: {}\nflags\t\t: fpu"
    cpuinfo = "\n\n".join(row.format(*numbers) for numbers in ((0, 0, 0), (1, 0, 0), (2, 0, 1), (3, 1, 0)))
    files = sizes.topology(cpuinfo, (0, 1, 3))
    place = "sys/devices/system/cpu/cpu{}/topology/{}"
    assert files[place.format(1, "thread_siblings_list")] == files[place.format(0, "core_siblings_list")] == "0-1\n"
    assert files[place.format(3, "thread_siblings")] == "8\n"
    assert files[place.format(3, "physical_package_id")] == "1\n"
    assert not sizes.topology("processor\t: 0\nBogoMIPS\t: 50.00\n", (0,)), "an arm64 kernel says nothing of cores"
