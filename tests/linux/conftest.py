from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paddock.linux import _cgroup_layout, mountinfo
from tests import orphans

from .child import descriptors


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
        "descriptors": sorted(
            f"{number}: {target}" for number, target in descriptors().items() if not of_the_shared_service(target)
        ),
    }


def of_the_shared_service(target: str) -> bool:
    """The service that a session's tests share lives in this process, and opens its files when it likes."""
    state = os.environ.get("PADDOCK_STATE_DIR")
    return state is not None and target.startswith(f"{state}/")


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
    # What an earlier test left to the kernel may go meanwhile: only what is new counts, and stays.
    assert orphans.wait_until(lambda: not any(what_is_new(temporary, before).values())), what_is_new(temporary, before)


def what_is_new(temporary: str, before: dict[str, list[str]]) -> dict[str, list[str]]:
    return {kind: sorted(set(names) - set(before[kind])) for kind, names in what_is_ours(temporary).items()}
