from __future__ import annotations

import ctypes
import errno
import mmap
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paddock.linux import prctl, seccomp, seccomp_profile, syscall_names
from paddock.linux.seccomp import ALLOW, AUDIT_ARCH, KILL_PROCESS, Cases, Compare, fail_with
from paddock.linux.syscall import MACHINE

from . import bpf
from .child import run_in_child

I386 = 0x4000_0003
MACHINES = ("x86_64", "aarch64")
EPERM, ENOSYS = fail_with(errno.EPERM), fail_with(errno.ENOSYS)


def verdict(name: str, *arguments: int, machine: str = "x86_64", foreign_targets: bool = True) -> int:
    program = seccomp_profile.build(machine, foreign_targets=foreign_targets)
    return bpf.run(program, AUDIT_ARCH[machine], syscall_names.numbers(machine)[name], arguments)


@pytest.mark.parametrize("machine", MACHINES)
def test_owners_of_files_stay_where_the_profile_is_told_so(machine: str) -> None:
    known = syscall_names.numbers(machine)
    for name in {"chown", "fchown", "lchown", "fchownat"} & set(known):
        for owners, expected in ((True, ALLOW), (False, EPERM)):
            program = seccomp_profile.build(machine, owners=owners)
            assert bpf.run(program, AUDIT_ARCH[machine], known[name], (0, 0, 0, 0, 0)) == expected


# ---- the table


def test_no_name_is_misspelt_or_in_two_lists() -> None:
    known = set(syscall_names.numbers("x86_64")) | set(syscall_names.numbers("aarch64"))
    assert known >= seccomp_profile.ALLOWED | seccomp_profile.REFUSED
    assert not seccomp_profile.ALLOWED & seccomp_profile.REFUSED


def test_every_call_of_the_kernels_tables_is_judged_on_purpose() -> None:
    # Those without a verdict: removed from the kernel, or too new for programs to rely on.
    unjudged = set[str]()
    for machine in MACHINES:
        unjudged |= set(syscall_names.numbers(machine)) - set(seccomp_profile.verdicts(machine))
    assert unjudged == {
        *("_sysctl", "afs_syscall", "create_module", "epoll_ctl_old", "epoll_wait_old", "get_kernel_syms", "getpmsg"),
        *("nfsservctl", "putpmsg", "query_module", "security", "sysfs", "tuxcall", "uselib", "ustat", "vserver"),
        *("file_getattr", "file_setattr", "rseq_slice_yield"),
    }


@pytest.mark.parametrize("machine", MACHINES)
def test_unknown_numbers_are_enosys_and_other_architectures_die(machine: str) -> None:
    program = seccomp_profile.build(machine)
    arch = AUDIT_ARCH[machine]
    for number in (472, 600, 0x4000_0000, 0x4000_0000 | 59, 2**31, 2**32 - 1):
        assert bpf.run(program, arch, number) == ENOSYS
    for other in {I386, 0x4000_0028, *AUDIT_ARCH.values()} - {arch}:
        assert bpf.run(program, other, 0) == KILL_PROCESS


@pytest.mark.parametrize("machine", MACHINES)
def test_namespaces_cannot_be_made(machine: str) -> None:
    assert verdict("clone", 17, machine=machine) == ALLOW
    assert verdict("clone", 0x003D_0F00, machine=machine) == ALLOW  # a thread of glibc
    assert verdict("clone3", machine=machine) == ENOSYS
    for flag in (0x80, 0x20000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000):
        assert verdict("clone", 17 | flag, machine=machine) == EPERM
        assert verdict("clone", 17 | flag | 1 << 40, machine=machine) == EPERM
    for name in (
        "unshare",
        "setns",
        "mount",
        "fsopen",
        "open_tree",
        "move_mount",
        "mount_setattr",
        "pivot_root",
        "chroot",
    ):
        assert verdict(name, machine=machine) == EPERM


def test_high_bits_do_not_hide_a_terminal_ioctl() -> None:
    for request in (0x5412, 0x541C, 0x5423):
        assert verdict("ioctl", 0, request) == EPERM
        assert verdict("ioctl", 0, request | 1 << 32) == EPERM
    assert verdict("ioctl", 0, 0x5401) == ALLOW


def test_btrfs_is_any_other_file_system_but_for_copies_by_reference() -> None:
    no_such = fail_with(errno.ENOTTY)
    for request in (0x4004_9409, 0x4020_940D, 0x9309, 0x9509, 0x5_0000_5401):
        assert verdict("ioctl", 3, request) == ALLOW
    for number in range(256):
        for size in (0, 0x5000_0000, 0xC400_0000, 1 << 32):
            assert verdict("ioctl", 3, size | 0x9400 | number) == no_such


def test_only_ordinary_sockets_can_be_made() -> None:
    tcp, udp, ping, ping6 = (1, 0), (2, 0), (2, 1), (2, 58)
    allowed = {(1, 1, 0), (1, 2, 0), (1, 5, 0), (2, *tcp), (10, *tcp), (2, *udp), (10, *udp), (2, *ping), (10, *ping6)}
    allowed |= {(2, 1, 6), (2, 2, 17), (16, 3, 0), (16, 2, 0)}
    for family, kind, protocol in allowed:
        assert verdict("socket", family, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, protocol) == ALLOW
    no_family, no_protocol = fail_with(errno.EAFNOSUPPORT), fail_with(errno.EPROTONOSUPPORT)
    for family in (0, 3, 17, 29, 38, 40, 44, 0xFFFF_FFFF):
        assert verdict("socket", family, 1, 0) == no_family
    for family, kind, protocol in (
        (2, 3, 255),
        (2, 1, 132),
        (2, 1, 262),
        (2, 5, 0),
        (2, 6, 33),
        (10, 2, 1),
        (16, 3, 9),
    ):
        assert verdict("socket", family, kind, protocol) == no_protocol
    assert verdict("socketpair", 1, 1, 0) == ALLOW
    assert verdict("socketpair", 30, 5, 0) == no_family


def test_device_nodes_cannot_be_made() -> None:
    for name, at in (("mknod", 1), ("mknodat", 2)):
        for mode, wanted in (
            (0o010644, ALLOW),
            (0o100644, ALLOW),
            (0o644, ALLOW),
            (0o020666, EPERM),
            (0o060666, EPERM),
        ):
            arguments = [0, 0, 0]
            arguments[at] = mode
            assert verdict(name, *arguments) == wanted


def test_personalities_are_the_harmless_ones() -> None:
    for value in (0, 8, 0x20000, 0x20008, 0xFFFF_FFFF):
        assert verdict("personality", value) == ALLOW
    assert verdict("personality", 0x0040_0000) == EPERM  # ADDR_NO_RANDOMIZE


@pytest.mark.parametrize("name", sorted(seccomp_profile._TARGETED))
def test_other_processes_can_be_left_out_of_reach(name: str) -> None:
    position = seccomp_profile._TARGETED[name]
    own, first, other = ([1 if position else 0, *[0] * 5] for _ in range(3))  # kind 1: a group, or a process
    first[position], other[position] = 1, 2
    assert verdict(name, *other) == ALLOW
    assert verdict(name, *first) == EPERM  # pid 1
    assert verdict(name, *own, foreign_targets=False) == ALLOW
    assert verdict(name, *other, foreign_targets=False) == EPERM


@pytest.mark.parametrize(("name", "whole_id"), [("setpriority", 2), ("ioprio_set", 3)])
@pytest.mark.parametrize("foreign_targets", [True, False])
def test_no_priority_is_set_for_all_processes_of_an_id(name: str, whole_id: int, foreign_targets: bool) -> None:
    for who in (0, 1000):
        assert verdict(name, whole_id, who, foreign_targets=foreign_targets) == EPERM
        assert verdict(name, whole_id | 1 << 32, who, foreign_targets=foreign_targets) == EPERM


def test_what_the_machine_has_once_for_all_is_left_to_it() -> None:
    no_memory = fail_with(errno.ENOMEM)
    for name, at, flag in (("mmap", 3, 0x40000), ("memfd_create", 1, 4), ("shmget", 2, 0o4000)):
        arguments = [0] * 6
        assert verdict(name, *arguments) == ALLOW
        arguments[at] = flag | 2 | 1 << 40
        assert verdict(name, *arguments) == no_memory
    assert verdict("memfd_create", 0, 0xFFFF_FFFF) == fail_with(errno.EINVAL), "Chromium asks so whether it is there"
    assert verdict("io_setup", 1) == ENOSYS
    assert verdict("sync") == fail_with(0)
    for option in (26, 50, 51, 52):
        assert verdict("setsockopt", 3, 1, option) == EPERM
        assert verdict("setsockopt", 3, 1 | 1 << 32, option | 1 << 32) == EPERM
        assert verdict("setsockopt", 3, 6, option) == ALLOW
    assert verdict("setsockopt", 3, 1, 7) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_a_second_filter_refuses_what_no_process_is_charged_for_and_nothing_else(machine: str) -> None:
    numbers = syscall_names.numbers(machine)
    for system_v, refused in ((True, {"memfd_create"}), (False, {"memfd_create", "shmget", "msgget", "semget"})):
        program = seccomp_profile.build_uncounted(machine, system_v=system_v)
        answers = {name: bpf.run(program, AUDIT_ARCH[machine], number) for name, number in numbers.items()}
        assert answers == dict.fromkeys(numbers, ALLOW) | dict.fromkeys(refused, ENOSYS)


# ---- against libseccomp


class _Comparison(ctypes.Structure):
    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


class LibSeccomp:
    MASKED_EQUAL = 7

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libseccomp.so.2")
        self.lib.seccomp_init.restype = ctypes.c_void_p

    def number(self, machine: str, name: str) -> int:
        return self.lib.seccomp_syscall_resolve_name_arch(AUDIT_ARCH[machine], name.encode())

    def program(self, default: int, rules: list[tuple[int, int, tuple[Compare, ...]]]) -> bytes:
        context = ctypes.c_void_p(self.lib.seccomp_init(ctypes.c_uint32(default)))
        try:
            for action, number, compares in rules:
                array = (_Comparison * max(1, len(compares)))(
                    *(_Comparison(c.argument, self.MASKED_EQUAL, c.mask, c.value) for c in compares)
                )
                assert not self.lib.seccomp_rule_add_array(
                    context, ctypes.c_uint32(action), number, len(compares), array
                )
            with tempfile.TemporaryFile() as file:
                assert not self.lib.seccomp_export_bpf(context, file.fileno())
                file.seek(0)
                return file.read()
        finally:
            self.lib.seccomp_release(context)


@pytest.fixture(scope="module")
def lib() -> Iterator[LibSeccomp]:
    try:
        yield LibSeccomp()
    except OSError:
        pytest.skip("needs libseccomp.so.2")


@pytest.mark.parametrize("machine", MACHINES)
def test_our_numbers_are_those_of_libseccomp(lib: LibSeccomp, machine: str) -> None:
    compared = 0
    for name, number in syscall_names.numbers(machine).items():
        theirs = lib.number(machine, name)
        if theirs == -1:  # newer than this libseccomp
            assert number >= 451 or name in ("uretprobe", "uprobe")
            continue
        assert theirs == number, name
        compared += 1
    assert compared > 300


@pytest.mark.skipif(MACHINE != "x86_64", reason="libseccomp translates rules to the native architecture")
def test_verdicts_without_conditions_are_those_of_a_filter_made_by_libseccomp(lib: LibSeccomp) -> None:
    numbers = syscall_names.numbers("x86_64")
    plain = {numbers[n]: v for n, v in seccomp_profile.verdicts("x86_64").items() if isinstance(v, int) and v != ENOSYS}
    theirs = lib.program(ENOSYS, [(v, number, ()) for number, v in plain.items()])
    ours = seccomp_profile.build("x86_64")
    conditional = {numbers[n] for n, v in seccomp_profile.verdicts("x86_64").items() if not isinstance(v, int)}
    for number in set(range(600)) - conditional:
        assert bpf.run(ours, AUDIT_ARCH["x86_64"], number) == bpf.run(theirs, AUDIT_ARCH["x86_64"], number)


@pytest.mark.skipif(MACHINE != "x86_64", reason="libseccomp translates rules to the native architecture")
def test_what_conditions_allow_is_what_libseccomp_allows(lib: LibSeccomp) -> None:
    numbers = syscall_names.numbers("x86_64")
    ours = seccomp_profile.build("x86_64", foreign_targets=False)
    choose = random.Random(1)
    for name, cases in seccomp_profile.verdicts("x86_64", foreign_targets=False).items():
        if not isinstance(cases, Cases):
            continue
        other = EPERM if cases.otherwise == ALLOW else ALLOW
        differing = [c for c in cases.cases if (c.action == ALLOW) != (cases.otherwise == ALLOW)]
        theirs = lib.program(ALLOW if other == EPERM else EPERM, [(other, numbers[name], c.when) for c in differing])
        # Exceptions from refusals come first here; libseccomp has no order.
        exceptions = [c for c in cases.cases if c.action == ALLOW == cases.otherwise]
        excepted = lib.program(EPERM, [(ALLOW, numbers[name], c.when) for c in exceptions])
        values = sorted({c.value for case in cases.cases for c in case.when} | {0, 1, 2, 3, 17, 1 << 31})
        for _ in range(2000):
            arguments = [choose.choice(values) | choose.choice((0, 0, 1 << 32, 1 << 20)) for _ in range(6)]
            left = bpf.run(ours, AUDIT_ARCH["x86_64"], numbers[name], arguments)
            right = bpf.run(theirs, AUDIT_ARCH["x86_64"], numbers[name], arguments)
            exception = bpf.run(excepted, AUDIT_ARCH["x86_64"], numbers[name], arguments)
            assert (left == ALLOW) == (ALLOW in (right, exception)), (name, arguments)


# ---- in the real kernel


def under_the_profile(body: Callable[[], object]) -> None:
    program = seccomp.Filter(seccomp_profile.build(MACHINE))

    def child() -> None:
        prctl.set_no_new_privileges()
        program.install()
        body()

    run_in_child(child)


def test_the_kernel_refuses_every_call_that_the_profile_refuses() -> None:
    numbers = syscall_names.numbers(MACHINE)
    refused = {n: v for n, v in seccomp_profile.verdicts(MACHINE).items() if v in (EPERM, ENOSYS)}
    program = seccomp_profile.build(MACHINE)
    raw = ctypes.CDLL(None, use_errno=True).syscall
    raw.argtypes = (ctypes.c_long, *(ctypes.c_ulong,) * 6)
    nonsense = (2**64 - 1,) * 6  # arguments with which no call could do anything, were it let through

    def body() -> None:
        for name, action in refused.items():
            assert bpf.run(program, AUDIT_ARCH[MACHINE], numbers[name], nonsense) == action
            assert raw(numbers[name], *nonsense) == -1
            assert ctypes.get_errno() == action & 0xFFFF, name

    under_the_profile(body)


@pytest.mark.both
def test_ordinary_programs_run_under_the_profile(tmp_path: Path) -> None:
    script = """
import asyncio, concurrent.futures, multiprocessing, os, socket, sqlite3, subprocess, tempfile, threading, time
with concurrent.futures.ThreadPoolExecutor(3) as pool:
    assert sorted(pool.map(abs, [-1, -2])) == [1, 2]
assert subprocess.check_output(["sh", "-c", "echo hi | cat"]) == b"hi\\n"
a, b = socket.socketpair(); a.send(b"x"); assert b.recv(1) == b"x"
process = multiprocessing.Process(target=os.getpid); process.start(); process.join(); assert process.exitcode == 0
asyncio.run(asyncio.sleep(0)); sqlite3.connect(":memory:").execute("select 1")
server = socket.create_server(("127.0.0.1", 0)); socket.create_connection(server.getsockname()).close()
os.mkfifo("fifo"); open("f", "w").close(); os.link("f", "g"); os.rename("g", "h"); os.chmod("h", 0o600)
print("all is well")
"""

    def body() -> None:
        result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
        assert result.stdout == "all is well\n", result.stderr

    under_the_profile(body)


@pytest.mark.skipif(MACHINE != "x86_64", reason="int 0x80 is the door to i386 of x86_64")
def test_a_call_by_the_door_of_32_bit_programs_kills() -> None:
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\x53\xb8\x14\x00\x00\x00\xcd\x80\x5b\xc3")  # push rbx; mov eax, 20 (getpid); int 0x80; pop rbx; ret
    getpid = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    run_in_child(getpid)
    with pytest.raises(pytest.fail.Exception, match="-31"):  # SIGSYS
        under_the_profile(getpid)
