"""Programs of others that judge a sandbox: stress-ng, a load that attacks; CPython's own tests, what must still work.

LTP, whose groups "containers" and "syscalls" would fit, is in no registry that this could be installed from: Debian has
no package of it, and `posixtestsuite`, its ancestor there, is a report without programs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from attacking import Attacker, host_mounts, needs

from paddock import Sandbox
from paddock.errors import PaddockError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
Limited = Callable[..., Attacker]

# Kernel interfaces that stress-ng knows, class by class; those that need what a jail has not are skipped by itself.
STRESSORS = {
    "processes": """
        fork vfork clone exec kill zombie pthread sigsegv sigq context switch wait spawn
    """,
    "memory": """
        vm mmap bigheap brk mremap madvise mlock shm shm-sysv memfd malloc stack numa userfaultfd
    """,
    "files": """
        hdd dentry dir dirdeep fallocate fiemap rename link symlink chmod chown xattr flock locka open utime
    """,
    "pipes and queues": """
        pipe fifo sendfile splice vm-splice tee mq msg sem sem-sysv eventfd epoll poll
    """,
    "sockets": """
        sock sockpair sockabuse sockmany sockfd udp udp-flood netlink-proc netlink-task netdev rawsock
    """,
    "kernel": """
        af-alg aio aiol bad-ioctl bind-mount chroot bpf io-uring key keyring landlock loop memhotplug mknod module
        netdev nice prctl proc ptrace quota ramfs rseq sched seccomp set sysbadaddr sysfs sysinfo sysinval tun uprobe
        unshare usersyscall vforkmany x86syscall
    """,
}


@pytest.mark.parametrize("kind", STRESSORS)
def test_a_load_of_stress_ng_is_held_while_a_neighbour_works(kind: str, limited: Limited, bystander: Sandbox) -> None:
    if shutil.which("stress-ng", path="/usr/bin") is None:
        pytest.skip("no /usr/bin/stress-ng here: apt-get install stress-ng")
    needs("memory")
    attacker = limited(memory_mib=256, processes=150, disk_mib=128, tmp_mib=64, inodes=50_000, cpus=1.0)
    mounts, taint = host_mounts(), Path("/proc/sys/kernel/tainted").read_text()
    known = subprocess.run(["stress-ng", "--stressors"], capture_output=True, text=True, check=True).stdout.split()
    worked = 0
    for name in [name for name in STRESSORS[kind].split() if name in known]:
        argv = ("stress-ng", "--temp-path", "/tmp", "--timeout", "2", f"--{name}", "2", "--oomable")
        try:
            with attacker.sandbox.start(argv, user=attacker.user, timeout_seconds=20) as process:
                worked += bystander.exec(("echo", name)).stdout == f"{name}\n"
                used = attacker.sandbox.usage()
                assert (used.memory_bytes or 0) <= 258 << 20
                assert (used.processes or 0) <= 160
                process.wait()
        except PaddockError:
            if attacker.sandbox.refresh().state == "killed":  # by a limit, which is as good
                assert attacker.sandbox.refresh().limit is not None
                attacker = limited(memory_mib=256, processes=150, disk_mib=128, tmp_mib=64, inodes=50_000, cpus=1.0)
    assert worked >= 5
    assert host_mounts() == mounts
    assert Path("/proc/sys/kernel/tainted").read_text() == taint


MODULES = """
test_fork1 test_io test_json test_mmap test_os test_pathlib test_posix test_pty test_resource
test_sched test_select test_selectors test_shutil test_signal test_socket test_sqlite3 test_stat
test_subprocess test_tempfile test_threading test_time test_wait3 test_zipfile
"""

# Words in the names of tests that a jail fails for what it is, and why. Another one that fails only here is our fault.
EXPECTED = {
    "test_resource": {"test_fsize_ismax": "each file has a limit: that of the disk, as RLIMIT_FSIZE"},
    "test_socket": {"UDPLITE": "a kind of socket that no program needs and the profile refuses"},
}


def test_the_tests_of_cpython_pass_inside_as_outside(create: Callable[..., Sandbox]) -> None:
    """A compatibility check: what ordinary programs ask of the kernel is there, though so much else is refused."""
    probe = "import os, test; print(os.path.dirname(test.__file__))"
    found = subprocess.run(["/usr/bin/python3", "-c", probe], capture_output=True, text=True, check=False)
    place = found.stdout.strip()
    if not place or not Path(place, "test_os.py").exists():
        pytest.skip("the tests of Python are not here: apt-get install libpython3.11-testsuite")
    sandbox = create(ttl_seconds=900)
    modules = [name for name in MODULES.split() if Path(place, f"{name}.py").exists() or Path(place, name).is_dir()]
    assert len(modules) >= 20
    bad: dict[str, list[str]] = {}
    end = time.monotonic() + 800
    for module in modules:
        argv = ("python3", "-m", "test", "-v", "--timeout", "120", module)
        done = sandbox.exec(argv, cwd="/tmp", timeout_seconds=180)
        assert time.monotonic() < end
        if done.exit_code:
            lines = (done.stdout + done.stderr).splitlines()
            failed = [line for line in lines if line.startswith(("FAIL:", "ERROR:"))]
            unexpected = [line for line in failed if not any(word in line for word in EXPECTED.get(module, {}))]
            if unexpected or not failed:
                bad[module] = unexpected or lines[-5:]
    outside = {module: _fails_outside(module) for module in bad}
    left = {module: [line for line in lines if line not in outside[module]] for module, lines in bad.items()}
    assert {module: lines for module, lines in left.items() if lines} == {}


def _fails_outside(module: str) -> set[str]:
    argv = ["/usr/bin/python3", "-m", "test", "-v", "--timeout", "120", module]
    done = subprocess.run(
        argv, capture_output=True, text=True, cwd="/tmp", check=False, env={"PATH": os.environ["PATH"]}
    )
    return {line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("FAIL:", "ERROR:"))}
