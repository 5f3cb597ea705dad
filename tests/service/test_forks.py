"""Snapshot, fork, rollback, on real sandboxes: what is of one instant, what is shared, what a failure leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddock import Limits, Mount, Sandbox
from paddock.errors import AlreadyExistsError, InvalidArgumentError, InvalidStateError, NotFoundError, SandboxDiedError
from tests.conftest import SandboxFactory, live_sandboxes

WRITER = "n=0; while :; do n=$((n + 1)); echo $n > a.new; mv a.new a; echo $n > b.new; mv b.new b; done"


def end(*boxes: Sandbox) -> None:
    for box in boxes:
        box.kill()


def test_a_child_has_the_files_and_nothing_else(sandbox: SandboxFactory) -> None:
    parent = sandbox(env={"WHO": "both"})
    parent.exec("mkdir -p d; echo kept > d/file; chmod 640 d/file; ln -s d/file link; echo x > /tmp/memory", check=True)
    parent.start(["sleep", "600"], background=True)
    child = parent.fork()
    try:
        assert child.exec("cat link; stat -c %a d/file; echo $WHO; ls /tmp", check=True).stdout == "kept\n640\nboth\n"
        assert child.processes() == ()
        assert child.exec("cat /proc/sys/kernel/hostname").stdout != parent.exec("cat /proc/sys/kernel/hostname").stdout
        assert child.info.origin == parent.id
        assert [p.argv for p in parent.processes()] == [("sleep", "600")]
    finally:
        end(child)


def test_what_one_writes_no_other_sees(sandbox: SandboxFactory) -> None:
    parent = sandbox()
    parent.filesystem.write("file", "before")
    children = parent.fork(3)
    try:
        for number, box in enumerate((parent, *children)):
            box.filesystem.write("file", str(number))
            box.exec(f"touch only-{number}", check=True)
        for number, box in enumerate((parent, *children)):
            assert box.exec("cat file; ls only-*", check=True).stdout == f"{number}only-{number}\n"
    finally:
        end(*children)


def test_all_children_are_of_one_instant_of_a_busy_parent(sandbox: SandboxFactory) -> None:
    parent = sandbox()
    parent.exec("echo 0 > a; echo 0 > b", check=True)
    parent.start(["sh", "-c", WRITER], background=True)
    for _ in range(3):
        children = parent.fork(3)
        try:
            seen = [tuple(map(int, child.exec("cat a b", check=True).stdout.split())) for child in children]
        finally:
            end(*children)
        assert len(set(seen)) == 1
        a, b = seen[0]
        assert a - b in (0, 1), "b was written after a: no instant had these two"


def test_the_parent_goes_on(sandbox: SandboxFactory) -> None:
    parent = sandbox()
    with parent.start(["sh", "-c", "while read line; do echo $line; done"], stdin=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for word in (b"one\n", b"two\n"):
            end(parent.fork())
            process.stdin.write(word)
            assert process.stdout.read(100) == word


def test_a_child_of_a_child(sandbox: SandboxFactory) -> None:
    generations = [sandbox()]
    try:
        for number in range(4):
            generations[-1].exec(f"touch {number}", check=True)
            generations.append(generations[-1].fork())
        assert generations[-1].exec("ls", check=True).stdout.split() == ["0", "1", "2", "3"]
    finally:
        end(*generations)


def test_a_childs_ttl_is_its_own(sandbox: SandboxFactory) -> None:
    parent = sandbox(ttl_seconds=1000)
    children = [parent.fork(), parent.fork(ttl_seconds=700)]
    end(*children)
    assert [c.info.expires_at - c.info.created_at for c in children] == pytest.approx([1000, 700])


def test_a_snapshot_outlives_its_sandbox(sandbox: SandboxFactory) -> None:
    first = sandbox(env={"WHO": "first"})
    first.filesystem.write("file", "kept")
    snapshot = first.snapshot("kept")
    assert first.snapshots() == (snapshot,)
    first.kill()
    second = sandbox(snapshot="kept")
    assert second.exec("cat file; echo $WHO", check=True).stdout == "keptfirst\n"
    assert second.info.origin == snapshot.id
    with pytest.raises(AlreadyExistsError, match="kept"):
        second.snapshot("kept")
    with pytest.raises(InvalidArgumentError, match="cannot be laid over"):
        sandbox(template="code-interpreter", snapshot=snapshot)
    second.delete_snapshot(snapshot)
    for reference in ("kept", snapshot.id):
        with pytest.raises(NotFoundError):
            sandbox(snapshot=reference)


def test_rollback_takes_the_files_back_and_ends_the_processes(sandbox: SandboxFactory) -> None:
    box = sandbox(ttl_seconds=200)
    box.exec("echo good > file", check=True)
    snapshot = box.snapshot()
    expires_at = box.info.expires_at
    box.exec("echo bad > file; touch new; echo x > /tmp/memory", check=True)
    box.start(["sleep", "600"], background=True)
    box.rollback(snapshot)
    assert box.exec("cat file; ls; ls /tmp", check=True).stdout == "good\nfile\n"
    assert box.processes() == ()
    assert box.refresh().expires_at == expires_at
    box.rollback(snapshot)  # a snapshot is not used up
    assert box.exec("cat file", check=True).stdout == "good\n"
    box.delete_snapshot(snapshot)


def test_what_cannot_be_rolled_back_is_left_as_it_is(sandbox: SandboxFactory, tmp_path: Path) -> None:
    box = sandbox()
    box.filesystem.write("file", "mine")
    other = sandbox(mounts=[Mount(source=str(tmp_path))])
    snapshot = other.snapshot()
    with pytest.raises(InvalidStateError, match="other mounts"):
        box.rollback(snapshot)
    with pytest.raises(NotFoundError):
        box.rollback("sn_nothing")
    assert box.filesystem.read_text("file") == "mine"
    other.delete_snapshot(snapshot)


def test_what_was_written_to_a_mount_goes_along(sandbox: SandboxFactory, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("host")
    parent = sandbox(mounts=[Mount(source=str(tmp_path))])
    parent.exec("echo inside > file; echo new > new", check=True)
    snapshot = parent.snapshot()
    parent.exec("rm file new", check=True)
    child = sandbox(snapshot=snapshot)
    assert child.exec("cat file new", check=True).stdout == "inside\nnew\n"
    parent.rollback(snapshot)
    assert parent.exec("cat file new", check=True).stdout == "inside\nnew\n"
    grandchild = child.fork()
    assert grandchild.exec("cat file new", check=True).stdout == "inside\nnew\n"
    end(grandchild)
    parent.delete_snapshot(snapshot)
    assert (tmp_path / "file").read_text() == "host"


def test_a_fork_that_fails_leaves_nothing_and_the_parent_unharmed(sandbox: SandboxFactory, shared_state: Path) -> None:
    parent = sandbox()
    before = live_sandboxes(shared_state)
    for arguments in ({"count": 0}, {"count": 1001}, {"ttl_seconds": 0.0}):
        with pytest.raises(InvalidArgumentError):
            parent.fork(**arguments)
    assert live_sandboxes(shared_state) == before
    assert parent.exec("echo fine", check=True).stdout == "fine\n"
    parent.kill()
    with pytest.raises(SandboxDiedError):
        parent.fork()


@pytest.mark.root
def test_a_child_has_the_limits_of_its_parent(sandbox: SandboxFactory) -> None:
    parent = sandbox(limits=Limits(disk_mib=32, memory_mib=64))
    child = parent.fork()
    try:
        assert child.exec("head -c 64M /dev/zero > big").limit == "disk"
        assert parent.exec("head -c 8M /dev/zero > small").ok
        assert child.exec(["python3", "-c", "bytearray(200 << 20)"]).limit == "memory"
    finally:
        end(child)


def test_a_hundred_children_need_no_more_than_their_parent_wrote(sandbox: SandboxFactory) -> None:
    parent = sandbox()
    parent.exec("head -c 1M /dev/urandom > data; sha256sum data > sum", check=True)
    children = parent.fork(20)
    try:
        assert all(child.exec("sha256sum -c sum").ok for child in children)
    finally:
        end(*children)
