"""What programs take themselves to have, at a level that shows them the host's processors and memory."""

from __future__ import annotations

import shutil

import pytest

from paddock import Limits
from tests.conftest import SandboxFactory

HEAP = "console.log(Math.ceil(require('v8').getHeapStatistics().heap_size_limit / 2**20))"


@pytest.fixture(params=["jail", "container"])
def level(request: pytest.FixtureRequest) -> str:
    return request.param


def test_programs_take_the_processors_that_the_limit_leaves_them(create: SandboxFactory) -> None:
    box = create(limits=Limits(cpus=0.5))
    assert box.exec("nproc").stdout == "1\n"
    # `os.process_cpu_count` and `os.cpu_count` of Python 3.13 read it.
    assert box.exec("echo $PYTHON_CPU_COUNT $GOMAXPROCS").stdout == "1 1\n"
    assert box.exec("nproc", env={"OMP_NUM_THREADS": ""}).stdout != "", "the caller's own word counts"


def test_node_collects_before_it_is_killed(create: SandboxFactory) -> None:
    if shutil.which("node") is None:
        pytest.skip("no node on this machine, and so in its template `host`")
    box = create(limits=Limits(memory_mib=512))
    assert 384 <= int(box.exec(["node", "-e", HEAP], check=True).stdout) <= 512
    kept = create(limits=Limits(memory_mib=512), env={"NODE_OPTIONS": "--max-old-space-size=100"})
    assert int(kept.exec(["node", "-e", HEAP], check=True).stdout) < 200
