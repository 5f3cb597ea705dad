from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from paddock.linux import namespaces, pidfd, proc
from paddock.linux.namespaces import IdMap

from .child import descriptors, run_in_child

WHOLE = (IdMap(0, 0x6000_0000, 65536),)


@pytest.mark.root
def test_new_namespaces_are_those_that_were_named_and_no_others() -> None:
    ours = proc.namespaces()

    def body() -> None:
        theirs = proc.namespaces()
        assert {name for name in ours if ours[name] != theirs[name]} >= {"user", "uts"}
        assert ours["mnt"] == theirs["mnt"]

    run_in_child(body, namespaces.NEWUSER | namespaces.NEWUTS)


@pytest.mark.root
def test_id_maps_translate_and_are_written_once() -> None:
    (hold, release), (told, tell) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(release)
            namespaces.unshare(namespaces.NEWUSER)
            os.write(tell, b"x")
            os.read(hold, 1)
            status = 0 if (os.getuid(), os.getgid()) == (5, 7) else 2
        finally:
            os._exit(status)
    os.close(hold)
    os.close(tell)
    try:
        assert os.read(told, 1)
        namespaces.write_id_maps(pid, (IdMap(5, 0, 1),), (IdMap(7, 0, 1), IdMap(100, 0x6000_0000, 10)))
        with pytest.raises(PermissionError) as caught:
            namespaces.write_id_maps(pid, WHOLE, WHOLE)
        assert "uid_map" in str(caught.value.filename)
        with open(f"/proc/{pid}/gid_map") as file:
            assert [tuple(map(int, line.split())) for line in file] == [(7, 0, 1), (100, 0x6000_0000, 10)]
    finally:
        os.close(release)
        os.close(told)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.root
def test_a_namespace_for_id_maps_leaves_no_process_and_no_signal() -> None:
    def body() -> None:  # in a process in which nothing else happens
        seen: list[int] = []
        signal.signal(signal.SIGCHLD, lambda number, frame: seen.append(number))
        before, children = descriptors(), _children()
        fd = namespaces.id_mapping_namespace(WHOLE, WHOLE)
        assert os.readlink(f"/proc/self/fd/{fd}").startswith("user:[")
        assert not os.get_inheritable(fd)
        os.close(fd)
        assert seen == []
        assert descriptors() == before
        assert _children() == children  # a zombie would be one

    run_in_child(body)


def _children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


@pytest.mark.root
def test_an_impossible_map_raises_and_leaves_nothing() -> None:
    def body() -> None:
        before = descriptors()
        with pytest.raises(OSError):
            namespaces.id_mapping_namespace((IdMap(0, 0, 0),), WHOLE)
        assert descriptors() == before

    run_in_child(body)


@pytest.mark.root
def test_a_host_name_is_that_of_the_namespace_only() -> None:
    before = os.uname().nodename

    def body() -> None:
        namespaces.unshare(namespaces.NEWUTS)
        namespaces.set_hostname(b"sandbox")
        assert os.uname().nodename == "sandbox"

    run_in_child(body)
    assert os.uname().nodename == before


@pytest.mark.root
def test_setns_enters_the_namespace_of_a_descriptor() -> None:
    fd = namespaces.id_mapping_namespace(WHOLE, WHOLE)
    wanted = os.fstat(fd).st_ino

    def body() -> None:
        namespaces.setns(fd, namespaces.NEWUSER)
        assert proc.namespaces()["user"] == wanted

    try:
        run_in_child(body)
    finally:
        os.close(fd)


def test_a_pidfd_tells_when_its_process_ends_and_how() -> None:
    hold, release = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(release)
        os.read(hold, 1)
        os._exit(3)
    os.close(hold)
    fd = pidfd.open(pid)
    try:
        assert not pidfd.wait(fd, 0)
        os.close(release)
        assert pidfd.wait(fd, 10)
        assert _reap(fd) == 3
        with pytest.raises(ProcessLookupError):
            pidfd.send_signal(fd, signal.SIGKILL)
    finally:
        os.close(fd)


def test_a_process_ended_by_a_signal_is_told_from_one_that_exited() -> None:
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    fd = pidfd.open(pid)
    try:
        pidfd.send_signal(fd, signal.SIGKILL)
        assert _reap(fd) == signal.SIGKILL
    finally:
        os.close(fd)


def _reap(fd: int) -> int:
    ended = os.waitid(os.P_PIDFD, fd, os.WEXITED)
    assert ended is not None
    return ended.si_status


def test_start_time_tells_a_process_from_another_even_with_a_hostile_name() -> None:
    def body() -> None:
        from pathlib import Path

        before = proc.start_time(os.getpid())
        Path("/proc/self/comm").write_text("a) R 1 1 1 (x")
        assert proc.start_time(os.getpid()) == before

    run_in_child(body)


def test_status_and_boot_id_are_those_of_the_kernel() -> None:
    def body() -> None:
        fields = proc.status()
        assert int(fields["Pid"]) == os.getpid()
        assert fields["NoNewPrivs"] in ("0", "1")
        assert len(proc.boot_id()) == 36

    run_in_child(body)
