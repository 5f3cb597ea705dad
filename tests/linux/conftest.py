from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paddock.linux import mountinfo, namespaces


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The marker `root` is a condition here, printed when it does not hold."""
    if os.getuid() != 0:
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(pytest.mark.skip(reason="needs uid 0"))


def what_the_machine_holds() -> dict[str, object]:
    loops = Path("/sys/block")
    return {
        "mounts": sorted((m.mount_point, m.fstype) for m in mountinfo.read()),
        "loop devices": sorted(p.parent.parent.name for p in loops.glob("loop*/loop/backing_file")),
        "cgroups": sorted(str(p) for p in Path("/sys/fs/cgroup").glob("**/paddock-test-*")),
        "children": sorted(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
    }


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left_behind() -> Iterator[None]:
    """No mount, loop device, cgroup or process outlives the tests of a file."""
    before = what_the_machine_holds()
    yield
    after = what_the_machine_holds()
    # Loop devices are shared with other programs of this machine: only those whose file is gone are ours for sure.
    loops = {
        p.parent.parent.name for p in Path("/sys/block").glob("loop*/loop/backing_file") if "pytest" in p.read_text()
    }
    before["loop devices"] = after["loop devices"] = None
    assert after == before
    assert not loops


Run = Callable[[Callable[[], None]], None]


@pytest.fixture
def in_child() -> Run:
    """Runs a function in a child process, optionally in new namespaces; its failure is the test's failure."""
    return run_in_child


def run_in_child(body: Callable[[], None], flags: int = 0) -> None:
    read_end, write_end = os.pipe()
    pid = namespaces.clone(flags)
    if pid == 0:
        status = 1
        try:
            os.close(read_end)
            body()
            status = 0
        except BaseException:
            os.write(write_end, traceback.format_exc().encode()[-8000:])
        finally:
            sys.stdout.flush()
            os._exit(status)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    if status:
        pytest.fail(f"the child ended with {os.waitstatus_to_exitcode(status)}\n{text}", pytrace=False)
