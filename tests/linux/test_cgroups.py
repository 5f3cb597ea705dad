from __future__ import annotations

import errno
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest

from paddock.linux import _cgroup_layout as layout
from paddock.linux import namespaces, prctl, proc
from paddock.linux.cgroups import Base, Group, GroupLimits

from .child import run_in_child

pytestmark = pytest.mark.root

MIB = 1 << 20
NAME = f"paddock-test-{os.getpid()}-base"


@pytest.fixture
def base() -> Iterator[Base]:
    base = Base.open(NAME)
    yield base
    base.close()
    base = Base.open(NAME)  # as it was before a test changed it
    for name in base.children():
        base.group(name).kill()
        base.group(name).remove(timeout_seconds=20)
    base.remove()


def need(base: Base, *abilities: str) -> None:
    missing = set(abilities) - base.enforced
    if missing:
        pytest.skip(f"needs {missing}: {base.missing()}")


def start(group: Group, body: Callable[[], object]) -> int:
    """A process that is in the group, in every hierarchy, before `body` begins; exit status 9 if that raises."""
    joined, says = os.pipe()
    with group.joining() as joining:
        pid = os.fork()
        if pid == 0:
            status = 9
            try:
                prctl.set_parent_death_signal(signal.SIGKILL)
                *tasks, last = joining
                for fd in tasks if group.base.unified else joining:
                    os.write(fd, b"0")
                if group.base.unified:
                    with open(os.open("cgroup.procs", os.O_WRONLY, dir_fd=last), "wb") as file:
                        file.write(b"0")
                os.close(says)
                body()
                status = 0
            finally:
                os._exit(status)
        os.close(says)
        os.read(joined, 1)
        os.close(joined)
        return pid


def expect(condition: bool) -> None:
    assert condition


def forever() -> None:
    while True:
        signal.pause()


def outcome(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_what_is_missing_is_said_and_what_is_not_missing_is_enforced(base: Base) -> None:
    said = {line.split(":")[0] for line in base.missing()}
    assert {"memory", "pids", "cpu", "swap"} - said == base.enforced
    assert ("kill" not in said) == base.kills_at_once


def test_groups_lie_below_the_callers_own_group(base: Base) -> None:
    """In version 2, below one above it, if its own holds other processes or is not delegated."""
    paths = layout.paths(Path("/proc/self/cgroup").read_bytes())
    for tree in base.trees:
        own = PurePosixPath(paths["" if tree.version == 2 else min(tree.controllers)])
        above = PurePosixPath(tree.name).parent
        assert own == above or (tree.version == 2 and own.is_relative_to(above))
        assert tree.path.endswith(tree.name)
        assert above / NAME == PurePosixPath(tree.name)


def test_a_process_is_a_member_from_its_first_moment_in_every_tree(base: Base) -> None:
    group = base.create("one", GroupLimits())
    pid = start(group, forever)
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    if not any(tree.version == 1 for tree in base.trees):
        assert f"/{NAME}/one" in lines[0]
    wait_until(lambda: Path(f"/proc/{pid}/cgroup").read_text().count(f"/{NAME}/one") == len(base.trees))
    assert group.processes() == {pid}
    group.kill()
    assert outcome(pid) == -signal.SIGKILL
    group.remove()
    assert base.children() == frozenset()


def test_a_second_group_of_a_name_is_refused_and_the_first_stays(base: Base) -> None:
    base.create("twice", GroupLimits())
    with pytest.raises(FileExistsError):
        base.create("twice", GroupLimits())
    assert base.children() == {"twice"}


def test_a_group_whose_limits_are_refused_is_not_left(base: Base) -> None:
    need(base, "pids")
    with pytest.raises(OSError, match=r"Invalid argument.*pids.max"):
        base.create("bad", GroupLimits(pids=-7))
    assert base.children() == frozenset()


def test_groups_that_are_left_in_one_tree_only_are_seen_and_removed(base: Base) -> None:
    for tree in base.trees:
        os.mkdir("half", dir_fd=tree.fd)
        assert base.children() == {"half"}
        base.group("half").kill()
        base.group("half").stats()
        base.group("half").remove()
        assert base.children() == frozenset()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/"])
def test_a_name_cannot_lead_elsewhere(base: Base, name: str) -> None:
    with pytest.raises(ValueError):
        base.create(name, GroupLimits())


def test_memory_beyond_the_limit_kills_and_is_counted(base: Base) -> None:
    need(base, "memory")
    group = base.create("fat", GroupLimits(memory_bytes=32 * MIB, swap_bytes=0))
    assert group.stats().oom_kills == 0

    def eat() -> None:
        mapping = mmap.mmap(-1, 96 * MIB)
        for offset in range(0, 96 * MIB, 4096):
            mapping[offset] = 1

    assert outcome(start(group, eat)) == -signal.SIGKILL
    stats = group.stats()
    assert stats.oom_kills == 1
    assert stats.memory_peak_bytes is not None
    assert 16 * MIB < stats.memory_peak_bytes <= 32 * MIB


def test_processes_beyond_the_limit_are_refused_and_counted(base: Base) -> None:
    need(base, "pids")
    group = base.create("many", GroupLimits(pids=4))

    def multiply() -> None:
        try:
            for _ in range(10):
                if os.fork() == 0:
                    forever()
        except BlockingIOError:
            os._exit(42)

    assert outcome(start(group, multiply)) == 42
    stats = group.stats()
    assert stats.processes == 3
    assert stats.processes_refused == 1


def test_a_share_of_a_processor_is_kept_and_told(base: Base) -> None:
    need(base, "cpu")
    tree = base.by_controller["cpu"]
    group = base.create("busy", GroupLimits(cpus=0.1))

    def spin() -> None:
        while True:
            pass

    pid = start(group, spin)

    def throttled() -> bool:
        counted = dict(line.split() for line in Path(tree.path, "busy", "cpu.stat").read_text().splitlines())
        return int(counted["nr_throttled"]) > 0 and bool(group.stats().cpu_seconds)

    wait_until(throttled)
    group.kill()
    assert outcome(pid) == -signal.SIGKILL


def test_a_frozen_group_makes_no_step_until_it_is_thawed(base: Base) -> None:
    group = base.create("cold", GroupLimits())
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)

    def write() -> None:
        while True:
            os.write(write_end, b"x" * 512)

    pid = start(group, write)
    wait_until(lambda: _drain(read_end) > 0)
    group.freeze()
    _drain(read_end)
    assert _drain(read_end) == 0  # it was emptied, and nobody filled it again
    group.thaw()
    wait_until(lambda: _drain(read_end) > 0)
    group.freeze()
    group.kill()
    assert outcome(pid) == -signal.SIGKILL
    os.close(read_end)
    os.close(write_end)


@pytest.fixture
def version_2(base: Base) -> Base:
    """Groups of the unified tree alone, which has to freeze them."""
    if base.unified is None:
        pytest.skip("needs a unified tree")
    alone = Base([base.unified], {})
    if not alone.freezes:
        pytest.skip("this kernel's unified tree freezes nothing")
    return alone


@pytest.fixture
def kernel_thread(version_2: Base) -> Iterator[int]:
    """A kernel thread that any control group takes. It returns to the root's afterwards."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and proc.is_kernel_thread(int(name))]
    pid = next((pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() in _MOVABLE), None)
    if pid is None:
        pytest.skip(f"this kernel runs none of {', '.join(_MOVABLE)}")
    (top,) = [hierarchy.top for hierarchy in layout.detect() if hierarchy.version == 2]
    yield pid
    Path(top, "cgroup.procs").write_text(str(pid))


_MOVABLE = ("ksmd", "khugepaged", "oom_reaper")


def test_a_group_with_a_kernel_thread_is_frozen_without_it(version_2: Base, kernel_thread: int) -> None:
    """KVM puts one beside each machine before Linux 6.13. Version 2 never says `frozen 1` while one is there."""
    assert version_2.unified is not None
    group = version_2.create("machine", GroupLimits())
    pid = start(group, forever)
    Path(version_2.unified.path, "machine/cgroup.procs").write_text(str(kernel_thread))
    assert group.processes() == {pid, kernel_thread}
    group.freeze()
    assert group.is_frozen()
    assert group.processes() == {pid}
    group.kill()
    assert outcome(pid) == -signal.SIGKILL


def test_a_group_with_a_kernel_thread_that_stays_goes_on(version_2: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    kthreadd = 2  # which the kernel moves nowhere
    if not proc.is_kernel_thread(kthreadd):
        pytest.skip("kernel threads aren't seen from here")
    group = version_2.create("held", GroupLimits())
    pid = start(group, forever)
    monkeypatch.setattr(Group, "is_frozen", lambda self: False)
    monkeypatch.setattr(Group, "processes", lambda self: {kthreadd})
    with pytest.raises(OSError, match="Invalid argument"):
        group.freeze()
    monkeypatch.undo()
    assert version_2.unified is not None
    assert Path(version_2.unified.path, "held/cgroup.freeze").read_text() == "0\n"
    group.kill()
    assert outcome(pid) == -signal.SIGKILL


def test_a_process_that_is_not_seen_from_here_is_none_to_kill(base: Base) -> None:
    """Version 2 shows its pid as 0, which is the caller's own process group to kill(2)."""
    group = base.create("hidden", GroupLimits())
    pid = start(group, forever)
    wait_until(lambda: group.processes() == {pid})

    def body() -> None:
        namespaces.unshare(namespaces.NEWPID)
        run_in_child(lambda: expect(group.processes() == frozenset()))

    run_in_child(body)
    group.kill()
    assert outcome(pid) == -signal.SIGKILL


def _drain(fd: int) -> int:
    total = 0
    try:
        while data := os.read(fd, 65536):
            total += len(data)
    except BlockingIOError:
        pass
    return total


def test_kill_spares_nobody_of_a_family_that_keeps_forking(base: Base) -> None:
    need(base, "pids")
    group = base.create("bomb", GroupLimits(pids=24, cpus=0.5))

    def bomb() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            try:
                if os.fork() == 0:
                    os.setsid()
            except BlockingIOError:
                time.sleep(0.001)

    pid = start(group, bomb)
    wait_until(lambda: (group.stats().processes_refused or 0) > 0)
    group.kill()
    assert outcome(pid) == -signal.SIGKILL
    group.remove(timeout_seconds=20)
    assert base.children() == frozenset()


def test_one_by_one_kills_a_forking_family_too_where_nothing_better_is_there(base: Base) -> None:
    need(base, "pids")
    base.kills_at_once = False
    group = base.create("slow", GroupLimits(pids=24, cpus=0.5))

    def chain() -> None:  # each lives long enough to be the parent of the next
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        for _ in range(10):
            if os.fork() == 0:
                forever()
        forever()

    pid = start(group, chain)
    wait_until(lambda: len(group.processes()) == 11)
    group.kill()
    assert outcome(pid) == -signal.SIGKILL
    group.remove(timeout_seconds=20)


def test_a_group_with_a_living_process_is_not_removed(base: Base) -> None:
    group = base.create("alive", GroupLimits())
    pid = start(group, forever)
    wait_until(lambda: group.processes() == {pid})
    with pytest.raises(OSError, match=str(pid)) as caught:
        group.remove(timeout_seconds=0.05)
    assert caught.value.errno == errno.EBUSY
    group.kill()
    outcome(pid)


def test_removing_twice_is_nothing(base: Base) -> None:
    group = base.create("gone", GroupLimits())
    group.remove()
    group.kill()
    group.remove()
    assert group.processes() == frozenset()


def test_a_base_is_found_again_with_its_groups(base: Base) -> None:
    base.create("kept", GroupLimits())
    again = Base.open(NAME)
    assert again.children() == {"kept"}
    again.close()


@pytest.fixture
def own_group(base: Base) -> Iterator[tuple[Path, str]]:
    """A group of version 2 with a controller to hand down, to be the caller's own; and that controller."""
    if base.unified is None:
        pytest.skip("needs a unified tree")
    parent = Path(base.unified.path)
    root = parent.parent / "cgroup.subtree_control"
    available = (parent.parent / "cgroup.controllers").read_text().split()
    if not available:
        pytest.skip("the unified tree has no controller to hand down")
    controller = available[0]
    enabled = controller in root.read_text().split()
    root.write_text(f"+{controller}")
    (parent / "cgroup.subtree_control").write_text(f"+{controller}")
    own = parent / "own"
    own.mkdir()
    yield own, controller
    for directory in ("p.self", "p", ""):
        if (own / directory).exists():
            (own / directory).rmdir()
    (parent / "cgroup.subtree_control").write_text(f"-{controller}")
    if not enabled:
        root.write_text(f"-{controller}")


def test_handing_controllers_down_moves_the_caller_aside(own_group: tuple[Path, str]) -> None:
    own, controller = own_group

    def body() -> None:
        (own / "cgroup.procs").write_text("0")
        missing: dict[str, str] = {}
        assert layout.delegated(str(own), str(own), "p", frozenset({controller, "absent"}), missing) == (
            f"{own}/p",
            {controller},
        )
        assert missing == {}
        assert (own / "p/cgroup.subtree_control").read_text().split() == [controller]
        assert Path("/proc/self/cgroup").read_text().rstrip().endswith("/own/p.self")
        # From the leaf, once more: the same place.
        assert layout.delegated(str(own), str(own), "p", frozenset({controller}), missing)[1] == {controller}

    run_in_child(body)


def test_others_in_the_callers_group_are_a_reason_that_is_told(own_group: tuple[Path, str]) -> None:
    own, controller = own_group

    def body() -> None:
        (own / "cgroup.procs").write_text("0")
        other = os.fork()
        if other == 0:
            forever()
        missing: dict[str, str] = {}
        try:
            assert layout.delegated(str(own), str(own), "p", frozenset({controller}), missing)[1] == frozenset()
            assert "Delegate=yes" in missing[controller]
        finally:
            os.kill(other, signal.SIGKILL)
            os.waitpid(other, 0)

    run_in_child(body)


def test_an_error_of_a_control_file_names_file_and_value(base: Base) -> None:
    need(base, "pids")
    base.create("x", GroupLimits())
    with pytest.raises(OSError) as caught:
        base.group("x").limit(GroupLimits(pids=-1))
    assert caught.value.filename == "write x/pids.max -1"


def test_where_others_run_beside_the_caller_groups_go_to_the_delegated_one_above(own_group: tuple[Path, str]) -> None:
    own, controller = own_group
    leaf = own / "leaf"
    leaf.mkdir()

    def body() -> None:
        (leaf / "cgroup.procs").write_text("0")
        other = os.fork()
        if other == 0:
            forever()
        missing: dict[str, str] = {}
        try:
            place = layout.delegated(str(leaf), str(own), "p", frozenset({controller}), missing)
            assert place == (f"{own}/p", {controller})
            assert missing == {}
            assert Path("/proc/self/cgroup").read_text().rstrip().endswith("/leaf"), "nobody was moved"
        finally:
            os.kill(other, signal.SIGKILL)
            os.waitpid(other, 0)

    try:
        run_in_child(body)
    finally:
        leaf.rmdir()


def test_a_group_that_another_base_holds_is_found_by_its_process(base: Base) -> None:
    group = base.create("x", GroupLimits())
    pid = start(group, forever)
    wait_until(lambda: Path(f"/proc/{pid}/cgroup").read_text().count(f"/{NAME}/x\n") == len(base.trees))
    other = Base.open(f"{NAME}-other")
    try:
        held = other.of_process(pid, "x")
        assert held is not other
        assert {tree.path for tree in held.trees} == {tree.path for tree in base.trees}
        assert held.enforced == base.enforced
        assert held.group("x").processes() == {pid}
        held.group("x").kill()
        assert outcome(pid) == -signal.SIGKILL
        held.group("x").remove(timeout_seconds=20)
        held.close()
    finally:
        other.remove()
