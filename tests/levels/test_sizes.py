"""What programs take themselves to have: what their sandbox has, not what the machine has."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import math
import os
import re
import shutil
import struct
from pathlib import Path

import pytest

from paddock import Limits, Mount
from paddock.linux import masks
from paddock.model import MountMode
from tests.conftest import SandboxFactory
from tests.levels.conftest import LEVELS

pytestmark = [pytest.mark.both, pytest.mark.timeout(900)]  # a machine that is emulated, and the first is baked
MEMORY_MIB, MIB = 512, 1 << 20
LIMITS = Limits(memory_mib=MEMORY_MIB, cpus=1)
PYTHON = """
import json, os
rows = dict(line.split(":") for line in open("/proc/meminfo"))
kib = {name: int(row.split()[0]) for name, row in rows.items()}
print(json.dumps({
    "cpus": {os.cpu_count(), len(os.sched_getaffinity(0))} == {1},
    "listed": [open("/proc/cpuinfo").read().count("processor\\t"), open("/proc/stat").read().count("\\ncpu")],
    "online": int(open("/sys/devices/system/cpu/online").read()) in os.sched_getaffinity(0),
    "memory": [kib["MemTotal"], kib["MemAvailable"] <= kib["MemTotal"], kib["SwapTotal"]],
    "load": open("/proc/loadavg").read().split()[:3],
}))
"""
NODE = "console.log(JSON.stringify([os.totalmem(), os.cpus().length, os.availableParallelism()]))"
HEAP = "console.log(Math.ceil(require('v8').getHeapStatistics().heap_size_limit / 2**20))"
JAVA = "java -XX:+PrintFlagsFinal -version 2>/dev/null | awk '$2 == \"MaxHeapSize\" {print $4}'"
PSUTIL = ("linux", "system", "process", "process_all", "posix", "misc", "contracts", "connections", "unicode")
TOLD_BY = (
    "cmdline",
    "diskstats",
    "locks",
    "partitions",
    "swaps",
    *(f"pressure/{name}" for name in ("cpu", "io", "memory")),
)
TELLS = """
import json, os, sys

def read(name):
    try:
        return open("/proc/" + name).read()
    except OSError:
        return ""

def listed(name):
    try:
        return sorted(os.listdir(name))
    except OSError:
        return []

masks, told_by = json.loads(sys.argv[1])
print(json.dumps({
    "lines": [line for name in told_by for line in read(name).splitlines()],
    "boot": read("sys/kernel/random/boot_id"),
    "unmasked": [name for name in masks if listed("/proc/" + name) or read(name)],
    "load": read("loadavg").split()[3],
    "groups": sorted({row.split()[2] for row in read("cgroups").splitlines()[1:]}),
    "sys": [name for place in ("", "/class", "/class/net", "/fs", "/block") for name in listed("/sys" + place)],
}))
"""


@pytest.fixture(params=["jail", "container"])
def level(request: pytest.FixtureRequest) -> str:
    return request.param


def has(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"no {program} on this machine, and so in its template `host`")


def test_python_sees_the_limits(create: SandboxFactory) -> None:
    said = json.loads(create(limits=LIMITS).exec(["python3", "-c", PYTHON], check=True).stdout)
    memory = [MEMORY_MIB * 1024, True, 0]
    assert said == {"cpus": True, "listed": [1, 1], "online": True, "memory": memory, "load": ["0.00"] * 3}


def test_the_tools_of_a_system_see_the_limits(create: SandboxFactory) -> None:
    box = create(limits=LIMITS)
    said = box.exec(
        "nproc; free -m | awk '/Mem/ {print $2}'; printf 'a b:;@echo $$MAKEFLAGS\\n' | make -f- -j$(nproc) a"
    )
    assert said.stdout.split()[:2] == ["1", str(MEMORY_MIB)]
    assert "-j1" in said.stdout, said.stderr


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_shows_the_default_size(create: SandboxFactory, level: str) -> None:
    limits = Limits()
    processors, kib = create().exec("nproc; awk '/MemTotal/ {print $2}' /proc/meminfo").stdout.split()
    assert int(processors) == min(math.ceil(limits.cpus), len(os.sched_getaffinity(0)))
    assert 0.85 * limits.memory_mib < int(kib) / 1024 <= limits.memory_mib, "a machine's kernel keeps some"


def test_half_a_processor_is_one_to_programs(create: SandboxFactory) -> None:
    assert create(limits=Limits(cpus=0.5)).exec("nproc").stdout == "1\n"


def test_node_sees_the_limits_and_collects_before_it_is_killed(create: SandboxFactory) -> None:
    has("node")
    box = create(limits=LIMITS)
    assert json.loads(box.exec(["node", "-e", NODE], check=True).stdout) == [MEMORY_MIB * MIB, 1, 1]
    assert 384 <= int(box.exec(["node", "-e", HEAP], check=True).stdout) <= MEMORY_MIB
    kept = create(limits=LIMITS, env={"NODE_OPTIONS": "--max-old-space-size=100"})
    assert int(kept.exec(["node", "-e", HEAP], check=True).stdout) < 200, "the caller's own word counts"


def test_go_sees_the_limits(create: SandboxFactory) -> None:
    program = next(filter(shutil.which, ("runc", "runsc", "podman", "go")), None)
    if program is None:
        pytest.skip("no program of Go's on this machine, and so in its template `host`")
    env = {"GODEBUG": "gctrace=1", "GOGC": "1"}  # the first collection comes before main, and tells its processors
    assert ", 1 P" in create(limits=LIMITS).exec([program, "--version"], env=env).stderr


def test_java_sizes_its_heap_by_the_limit(create: SandboxFactory, level: str) -> None:
    has("java")
    # Debian's java reads its settings there.
    places = [
        Mount(source=str(path), target=str(path), mode=MountMode.READ_ONLY) for path in Path("/etc").glob("java-*")
    ]
    if level == "container" and os.getuid():
        pytest.skip("a container of an ordinary user's has no mounts, and so no settings of Debian's java")
    heap = int(create(limits=LIMITS, mounts=places).exec(JAVA, check=True).stdout)
    assert heap <= MEMORY_MIB * MIB // 2


@pytest.mark.slow
@pytest.mark.parametrize("level", ["jail"])
def test_the_suite_of_psutil_fails_where_the_page_says(create: SandboxFactory) -> None:
    page = Path(__file__).parents[2].joinpath("docs/levels.md").read_text()
    told = page[page.index("psutil 6.1.1 passes") : page.index("[The design](design/levels.md)")]
    package = importlib.util.find_spec("psutil")
    assert package is not None
    assert package.submodule_search_locations
    box = create(limits=Limits(memory_mib=1024))
    box.files.upload(package.submodule_search_locations[0], "/workspace/psutil")
    names = [f"psutil.tests.test_{name}" for name in PSUTIL]
    done = box.exec(
        ["python3", "-m", "unittest", "-q", *names], cwd="/workspace", env={"PYTHONPATH": "/workspace"}, timeout=500
    )
    assert "\nRan 4" in done.stderr, "all of it"
    failed = set(re.findall(r"^(?:FAIL|ERROR): (\S+) \(\S+\.(\S+)\.", done.stderr, re.MULTILINE))
    explained = set(re.findall("`([^`]+)`", told))
    assert [names for names in failed if explained.isdisjoint(names)] == []


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_is_told_of_the_machine_or_of_neighbours(create: SandboxFactory, level: str, tmp_path: Path) -> None:
    own_kernel = level in ("gvisor", "microvm")  # which says of itself what it likes
    bare = [name for name, instead in masks.MASKS.items() if instead in (masks.EMPTY, masks.NOTHING)]
    asked = json.dumps([[] if own_kernel else [*bare, *masks.OF_ROOT], TOLD_BY])
    # Such a lock belongs to no process: the kernel lists it in every pid namespace.
    with open(tmp_path / "locked", "w") as file:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
        ours = {line for name in TOLD_BY for line in _read(name).splitlines() if any(map(str.isdigit, line))}
        ours = {line for line in ours if not line.endswith("total=0")}  # a pressure that is nobody's
        box = create()  # a machine of the size that is baked for the others
        for user in (None, "root") if os.getuid() == 0 else (None,):
            said = json.loads(box.exec(["python3", "-c", TELLS, asked], user=user, check=True).stdout)
            assert not ours.intersection(said["lines"])
            assert said["boot"].strip() not in ("", _read("sys/kernel/random/boot_id").strip())
            if own_kernel:
                continue
            assert said["load"] == "1/1"
            assert said["groups"] == ["1"]
            assert said["sys"] == ["class", "devices", "fs", "net", "power_supply", "lo", "cgroup"]
            assert said["unmasked"] == []


def _read(name: str) -> str:
    try:
        return Path("/proc", name).read_text()
    except OSError:
        return ""


@pytest.mark.parametrize("level", ["jail"])
def test_sandboxes_side_by_side_have_processors_of_their_own(create: SandboxFactory) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor")
    show = ["python3", "-c", "import os; print(*os.sched_getaffinity(0))"]
    assert len({create(limits=LIMITS).exec(show, check=True).stdout for _ in range(2)}) == 2


@pytest.mark.root
@pytest.mark.parametrize("level", ["jail"])
def test_what_is_used_of_the_memory_is_the_kernels_own_word(create: SandboxFactory) -> None:
    box = create(limits=LIMITS)
    found = box.exec("cat /sys/fs/cgroup/memory.current /sys/fs/cgroup/memory/memory.usage_in_bytes 2>/dev/null")
    assert 0 < int(found.stdout) < MEMORY_MIB * MIB
    assert box.exec(
        "echo 1 > /sys/fs/cgroup/cgroup.procs || echo 1 > /sys/fs/cgroup/memory/tasks", user="root"
    ).exit_code


@pytest.mark.parametrize("level", LEVELS)
def test_a_user_may_serve_on_any_port(create: SandboxFactory) -> None:
    serve = "import socket; print(socket.create_server(('127.0.0.1', 80)).getsockname()[1])"
    assert create().exec(["python3", "-c", serve], check=True).stdout == "80\n"


@pytest.mark.root
@pytest.mark.parametrize("level", ["jail", "gvisor", "microvm"])
def test_a_sparse_file_may_be_larger_than_the_disk_limit_and_what_is_written_is_held_to_it(
    create: SandboxFactory, level: str
) -> None:
    box = create() if level == "microvm" else create(limits=Limits(disk_mib=64))
    if level == "microvm":  # of the size that is baked for other tests
        box.exec('fallocate -l "$(($(df --output=avail -B1 . | tail -n 1) - (50 << 20)))" others', check=True)
    assert box.exec("truncate -s 20G sparse && stat -c %s sparse").stdout == f"{20 << 30}\n"
    assert box.exec("head -c 100M /dev/urandom > sparse").limit == "disk"
