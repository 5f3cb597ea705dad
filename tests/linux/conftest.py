from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paddock.linux import mountinfo, proc


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The marker `root` is a condition here, printed when it does not hold."""
    if os.getuid() != 0:
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(pytest.mark.skip(reason="needs uid 0"))


def what_is_ours() -> dict[str, object]:
    """The machine is shared: only what this process can have made."""
    return {
        "mounts": sorted((mount.mount_point, mount.fstype) for mount in mountinfo.read()),
        "loop devices": sorted(
            path.read_text()
            for path in Path("/sys/block").glob("loop*/loop/backing_file")
            if "pytest-of" in path.read_text()
        ),
        "cgroups": sorted(str(path) for path in Path("/sys/fs/cgroup").glob(f"**/paddock-test-{os.getpid()}*")),
        "children": sorted(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
        "descriptors": sorted(proc.descriptors()),
    }


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No mount, loop device, cgroup, process or descriptor outlives a test."""
    before = what_is_ours()
    yield
    assert what_is_ours() == before
