from __future__ import annotations

import os
from pathlib import Path

import pytest

from paddock.linux import _cgroup_layout as layout
from paddock.linux import cgroups, mountinfo
from paddock.linux.cgroups import Base, GroupLimits, Tree

V2 = b"31 23 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = b"""33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd"""
UNIFIED = b"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"


def parse(mounts: bytes, membership: bytes) -> dict[str, tuple[int, set[str]]]:
    found = layout.parse([mountinfo.parse(line) for line in mounts.splitlines()], membership)
    return {h.own: (h.version, set(h.controllers)) for h in found}


def test_version_2_alone_is_one_tree() -> None:
    own = b"0::/user.slice/user-1000.slice/a b.scope\n"
    assert parse(V2, own) == {"/sys/fs/cgroup/user.slice/user-1000.slice/a b.scope": (2, set())}


def test_version_1_has_a_place_per_mount_and_shared_mounts_one() -> None:
    own = b"4:memory:/jobs/7\n2:cpu,cpuacct:/\n5:devices:/x\n1:name=systemd:/\n"
    assert parse(V1, own) == {
        "/sys/fs/cgroup/cpu,cpuacct": (1, {"cpu", "cpuacct"}),
        "/sys/fs/cgroup/memory/jobs/7": (1, {"memory"}),
    }


def test_both_versions_side_by_side() -> None:
    found = parse(V1 + b"\n" + UNIFIED, b"4:memory:/jobs/7\n2:cpu,cpuacct:/\n0::/jobs\n")
    assert found["/sys/fs/cgroup/unified/jobs"] == (2, set())
    assert len(found) == 3


def test_a_mount_that_shows_a_part_of_the_tree_is_followed_or_left_out() -> None:
    part = V2.replace(b" / /sys", b" /docker/abc /sys")
    assert parse(part, b"0::/docker/abc\n") == {"/sys/fs/cgroup": (2, set())}
    assert parse(part, b"0::/docker/abc/x\n") == {"/sys/fs/cgroup/x": (2, set())}
    assert parse(part, b"0::/docker/abcd\n") == {}
    assert parse(part, b"0::/../other\n") == {}


def test_a_machine_without_cgroups_has_none() -> None:
    assert parse(b"22 27 0:21 / /proc rw - proc proc rw", b"") == {}


LIMITS = GroupLimits(memory_bytes=64 << 20, swap_bytes=1 << 20, pids=32, cpus=1.5)


def written(place: Path, version: int, limits: GroupLimits, *, absent: str = "") -> dict[str, bytes]:
    """Set limits in a directory that looks like a group, and return what its files have then."""
    group = place / "group"
    group.mkdir()
    for files in cgroups._FILES.values():
        if files[version - 1] and files[version - 1] != absent:
            (group / files[version - 1]).touch()
    fd = os.open(place, os.O_RDONLY)
    base = Base([Tree(version, fd, str(place), frozenset({"memory", "pids", "cpu"}))], {})
    try:
        base.group("group").limit(limits)
    finally:
        base.close()
    return {file.name: text for file in group.iterdir() if (text := file.read_bytes())}


def test_limits_of_version_1(tmp_path: Path) -> None:
    assert written(tmp_path, 1, LIMITS) == {
        "memory.limit_in_bytes": b"67108864",
        "memory.memsw.limit_in_bytes": b"68157440",
        "pids.max": b"32",
        "cpu.cfs_quota_us": b"150000",
    }


@pytest.mark.parametrize(("version", "files"), [(1, {"memory.kmem.tcp.limit_in_bytes": b"1048576"}), (2, {})])
def test_what_sockets_hold_has_a_limit_of_its_own_in_version_1_only(
    tmp_path: Path, version: int, files: dict[str, bytes]
) -> None:
    assert written(tmp_path, version, GroupLimits(socket_bytes=1 << 20)) == files


def test_limits_of_version_2(tmp_path: Path) -> None:
    assert written(tmp_path, 2, LIMITS) == {
        "memory.max": b"67108864",
        "memory.swap.max": b"1048576",
        "pids.max": b"32",
        "cpu.max": b"150000",
    }


@pytest.mark.parametrize(("version", "file"), [(1, "cpu.cfs_quota_us"), (2, "cpu.max")])
def test_a_tiny_limit_is_the_kernels_least(tmp_path: Path, version: int, file: str) -> None:
    assert written(tmp_path, version, GroupLimits(cpus=0.001)) == {file: b"1000"}


@pytest.mark.parametrize("version", [1, 2])
def test_no_limit_writes_nothing(tmp_path: Path, version: int) -> None:
    assert written(tmp_path, version, GroupLimits()) == {}


def test_swap_is_left_alone_where_it_is_not_accounted(tmp_path: Path) -> None:
    assert written(tmp_path, 2, LIMITS, absent="memory.swap.max")["memory.max"] == b"67108864"
    fd = os.open(tmp_path / "group", os.O_RDONLY)
    base = Base([Tree(2, fd, str(tmp_path / "group"), frozenset({"memory"}))], {})
    assert base.enforced == {"memory"}
    base.close()


def test_a_limit_without_its_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        written(tmp_path, 2, LIMITS, absent="pids.max")
