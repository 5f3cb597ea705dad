from __future__ import annotations

import os
from pathlib import Path

import pytest

from paddock.linux import _cgroup_layout as layout
from paddock.linux import _files, cgroups, mountinfo
from paddock.linux.cgroups import GroupLimits, Tree

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


def test_limits_of_version_1() -> None:
    assert list(cgroups._writes("memory", 1, LIMITS)) == [
        (b"/memory.limit_in_bytes", b"67108864"),
        (b"/memory.memsw.limit_in_bytes", b"68157440"),
    ]
    assert list(cgroups._writes("cpu", 1, LIMITS)) == [(b"/cpu.cfs_quota_us", b"150000")]


def test_what_sockets_hold_has_a_ceiling_of_its_own_in_version_1_only() -> None:
    limits = GroupLimits(socket_bytes=1 << 20)
    assert list(cgroups._writes("memory", 1, limits)) == [(b"/memory.kmem.tcp.limit_in_bytes", b"1048576")]
    assert list(cgroups._writes("memory", 2, limits)) == []


def test_limits_of_version_2() -> None:
    assert list(cgroups._writes("memory", 2, LIMITS)) == [
        (b"/memory.max", b"67108864"),
        (b"/memory.swap.max", b"1048576"),
    ]
    assert list(cgroups._writes("pids", 2, LIMITS)) == [(b"/pids.max", b"32")]
    assert list(cgroups._writes("cpu", 2, LIMITS)) == [(b"/cpu.max", b"150000 100000")]


@pytest.mark.parametrize("version", [1, 2])
def test_no_limit_writes_nothing_and_a_tiny_one_is_the_kernels_least(version: int) -> None:
    for controller in ("memory", "pids", "cpu"):
        assert list(cgroups._writes(controller, version, GroupLimits())) == []
    [(_, value)] = cgroups._writes("cpu", version, GroupLimits(cpus=0.001))
    assert value.split()[0] == b"1000"


def test_swap_is_left_alone_where_it_is_not_accounted(tmp_path: Path) -> None:
    (tmp_path / "group").mkdir()
    (tmp_path / "group/memory.max").touch()
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        tree = Tree(2, fd, str(tmp_path), frozenset({"memory"}))
        cgroups._apply(tree, b"group", "memory", LIMITS)
        assert _files.read(b"group/memory.max", fd) == b"67108864"
        assert not cgroups._limits_swap(tree._replace(path=str(tmp_path / "group")))
        with pytest.raises(FileNotFoundError):
            cgroups._apply(tree, b"group", "pids", LIMITS)
    finally:
        os.close(fd)
