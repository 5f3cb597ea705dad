"""What the package gives to a user without privileges: every test runs as one, also when started as root."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paddock.linux import cgroups, landlock, mounts, namespaces, netlink, prctl, proc, seccomp, seccomp_profile
from paddock.linux.cgroups import GroupLimits
from paddock.linux.namespaces import IdMap
from paddock.linux.syscall import MACHINE

from .child import run_in_child
from .landlocked import restrict

NOBODY = 65534


def user_namespaces() -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            become_ordinary()
            namespaces.unshare(namespaces.NEWUSER)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def become_ordinary() -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        prctl.set_dumpable(True)  # as in a process that was that user from its exec on


@pytest.fixture(scope="module")
def allowed() -> None:
    if not user_namespaces():
        pytest.skip("needs user namespaces for ordinary users")


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="paddock-test-"))
    if os.getuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    yield path
    for work in path.glob("work/*"):
        work.chmod(0o700)  # the kernel left it with no rights at all
    shutil.rmtree(path)


def as_user(body: Callable[[], object], flags: int = 0) -> None:
    """Runs it with one uid, which is 1000 in the user namespace that is made if `flags` name any."""

    def child() -> None:
        become_ordinary()
        if flags:
            uid, gid = os.getuid(), os.getgid()
            namespaces.unshare(namespaces.NEWUSER | flags)
            one = (IdMap(1000, uid, 1),), (IdMap(1000, gid, 1),)
            namespaces.write_id_maps(os.getpid(), *one, deny_setgroups=True)
            assert (os.getuid(), os.getgid()) == (1000, 1000)
        body()

    run_in_child(child)


@pytest.mark.usefixtures("allowed")
def test_a_single_id_is_mapped_and_more_are_refused() -> None:
    def body() -> None:
        with pytest.raises(PermissionError) as caught:
            namespaces.id_mapping_namespace((IdMap(0, 0, 65536),), (IdMap(0, 0, 65536),))
        assert "uid_map" in str(caught.value.filename)

    as_user(body)
    as_user(lambda: None, namespaces.NEWUTS)


@pytest.mark.usefixtures("allowed")
def test_an_overlay_of_ones_own_directories_can_be_the_root(directory: Path) -> None:
    def body() -> None:
        for name in ("lower", "up", "work", "root"):
            (directory / name).mkdir()
        (directory / "lower/file").write_text("below")
        mounts.make_all_private()
        opened = {name: os.open(directory / name, os.O_PATH) for name in ("lower", "up", "work")}
        options: list[mounts.Option] = [
            ("lowerdir+", opened["lower"]),
            ("upperdir", opened["up"]),
            ("workdir", opened["work"]),
            ("userxattr", None),
        ]
        overlay = mounts.fs_mount("overlay", options, mounts.NODEV | mounts.NOSUID)
        root = os.open(directory / "root", os.O_PATH)
        mounts.move_mount(overlay, root)
        os.fchdir(os.open(directory / "root", os.O_PATH))
        mounts.pivot()
        mounts.detach_old_root()
        Path("/file").write_text("above")
        assert os.listdir("/") == ["file"]

    as_user(body, namespaces.NEWNS)
    assert (directory / "lower/file").read_text() == "below"
    assert (directory / "up/file").read_text() == "above"


@pytest.mark.usefixtures("allowed")
def test_lo_of_ones_own_network_namespace_comes_up() -> None:
    def body() -> None:
        netlink.set_loopback_up()
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname()).close()

    as_user(body, namespaces.NEWNET)


def test_without_rights_no_limit_is_claimed_and_reasons_are_told() -> None:
    def body() -> None:
        base = cgroups.Base.open(f"paddock-test-{os.getpid()}")
        if base.enforced:
            os._exit(0)  # this user was given a part of the tree
        missing = base.missing()
        assert {line.split(":")[0] for line in missing} >= {"memory", "pids", "cpu", "swap", "kill"}
        assert not [line for line in missing if "/sys/fs" in line], "a path says nothing to this user"
        group = base.create("x", GroupLimits(memory_bytes=1))
        with group.joining() as joining:
            assert joining == []
        assert group.stats() == (None,) * 6
        assert group.processes() == frozenset()
        group.kill()
        group.remove()
        with pytest.raises(OSError, match="not supported"):
            group.freeze()

    as_user(body)


def test_landlock_and_seccomp_need_no_rights() -> None:
    def body() -> None:
        prctl.set_no_new_privileges()
        if (abi := landlock.kernel_abi()) >= 2:
            restrict(abi)
        seccomp.Filter(seccomp_profile.build(MACHINE, foreign_targets=False)).install()
        assert proc.status()["Seccomp"] == "2"
        os.setpriority(os.PRIO_PROCESS, 0, 5)
        with pytest.raises(PermissionError):
            os.setpriority(os.PRIO_PROCESS, os.getpid(), 6)
        with pytest.raises(PermissionError):
            namespaces.unshare(namespaces.NEWUSER)

    as_user(body)
