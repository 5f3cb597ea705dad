from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paddock.linux import _cgroup_layout, mountinfo, proc


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The marker `root` is a condition here, printed when it does not hold."""
    if os.getuid() != 0:
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(pytest.mark.skip(reason="needs uid 0"))


def what_is_ours(temporary: str) -> dict[str, list[str]]:
    """The machine is shared and moves meanwhile: only what this process can have made."""
    return {
        "mounts": sorted(
            mount.mount_point for mount in mountinfo.read() if os.fsencode(temporary) in mount.mount_point
        ),
        "loop devices": sorted(file for file in map(backing_file, os.listdir("/sys/block")) if temporary in file),
        "cgroups": sorted(
            f"{hierarchy.own}/{name}"
            for hierarchy in _cgroup_layout.detect()
            for name in os.listdir(hierarchy.own)
            if name.startswith(f"paddock-test-{os.getpid()}-")
        ),
        "children": sorted(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
        "descriptors": sorted(f"{number}: {target}" for number, target in proc.descriptors().items()),
    }


def backing_file(device: str) -> str:
    try:
        return Path(f"/sys/block/{device}/loop/backing_file").read_text()
    except OSError:  # no loop device, or just now no more
        return ""


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No mount, loop device, cgroup, process or descriptor outlives a test."""
    temporary = str(tmp_path_factory.getbasetemp())
    before = what_is_ours(temporary)
    yield
    # What an earlier test left to the kernel may go meanwhile: only what is new counts.
    left = {kind: sorted(set(names) - set(before[kind])) for kind, names in what_is_ours(temporary).items()}
    assert not any(left.values()), left
