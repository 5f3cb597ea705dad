"""Which system calls a sandbox's programs may make: an allow-list by name, for processes without capabilities.

On the model of moby's default profile of 2026, with less: no namespaces, no mounts, no devices, no kernel interfaces
that ordinary programs have no use for, and few kinds of sockets.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from paddock.linux import syscall_names as names
from paddock.linux.seccomp import ALLOW, AUDIT_ARCH, Case, Cases, Compare, Verdict, compile, fail_with

_ALLOWED = """
read readv pread64 preadv preadv2 write writev pwrite64 pwritev pwritev2 lseek sendfile copy_file_range
splice tee vmsplice readahead fadvise64 cachestat syncfs fsync fdatasync sync_file_range fallocate

open openat openat2 creat close close_range dup dup2 dup3 fcntl flock pipe pipe2
stat fstat lstat newfstatat statx statfs fstatfs access faccessat faccessat2 name_to_handle_at
mkdir mkdirat rmdir rename renameat renameat2 link linkat unlink unlinkat symlink symlinkat readlink readlinkat
chdir fchdir getcwd getdents getdents64 umask truncate ftruncate utime utimes futimesat utimensat
chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat statmount listmount
getxattr lgetxattr fgetxattr getxattrat setxattr lsetxattr fsetxattr setxattrat listxattr llistxattr flistxattr
listxattrat removexattr lremovexattr fremovexattr removexattrat
inotify_init inotify_init1 inotify_add_watch inotify_rm_watch

poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime

accept accept4 bind connect listen shutdown getsockname getpeername getsockopt
sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg

mprotect munmap mremap msync mincore madvise mlock mlock2 mlockall munlock munlockall brk
remap_file_pages mseal map_shadow_stack pkey_alloc pkey_free pkey_mprotect membarrier
shmat shmctl shmdt semget semop semtimedop semctl msgget msgsnd msgrcv msgctl
mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr

fork vfork execve execveat exit exit_group wait4 waitid set_tid_address arch_prctl set_thread_area get_thread_area
futex futex_wait futex_wake futex_waitv futex_requeue set_robust_list get_robust_list rseq uprobe uretprobe
kill tkill tgkill pidfd_open pidfd_send_signal process_mrelease pause alarm
rt_sigaction rt_sigprocmask rt_sigpending rt_sigqueueinfo rt_tgsigqueueinfo rt_sigreturn rt_sigsuspend
rt_sigtimedwait sigaltstack restart_syscall
ptrace process_vm_readv process_vm_writev seccomp prctl
landlock_create_ruleset landlock_add_rule landlock_restrict_self

getpid getppid gettid getpgid getpgrp setpgid getsid setsid getuid geteuid getgid getegid getresuid getresgid
getgroups setuid setgid setreuid setregid setresuid setresgid setgroups setfsuid setfsgid capget capset
getrlimit setrlimit getrusage getpriority ioprio_get sched_yield sched_getaffinity sched_getattr sched_getparam
sched_getscheduler sched_get_priority_max sched_get_priority_min sched_rr_get_interval getcpu

time times gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep adjtimex clock_adjtime
getitimer setitimer timer_create timer_settime timer_gettime timer_getoverrun timer_delete
getrandom uname sysinfo
"""

_REFUSED = """
unshare setns mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick
mount_setattr swapon swapoff acct quotactl quotactl_fd sethostname setdomainname

io_uring_setup io_uring_enter io_uring_register bpf userfaultfd perf_event_open memfd_secret pidfd_getfd
add_key request_key keyctl lookup_dcookie open_by_handle_at fanotify_init fanotify_mark kcmp
lsm_get_self_attr lsm_set_self_attr lsm_list_modules listns

init_module finit_module delete_module kexec_load kexec_file_load reboot syslog vhangup iopl ioperm modify_ldt
settimeofday clock_settime

get_mempolicy set_mempolicy set_mempolicy_home_node mbind migrate_pages move_pages process_madvise
"""

ALLOWED = frozenset(_ALLOWED.split())
REFUSED = frozenset(_REFUSED.split())
"""Calls with EPERM. Calls that aren't here, allowed, or in `_CONDITIONAL` get ENOSYS, as on a kernel without them."""

_EPERM = fail_with(errno.EPERM)
_ENOSYS = fail_with(errno.ENOSYS)

# include/uapi/linux/sched.h: NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, and NEWTIME, a bit of no signal
_NEW_NAMESPACES = 0x7E02_0000 | 0x80
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_STREAM, _DATAGRAM, _TYPE_MASK = 1, 2, 0xF
_S_IFMT, _S_IFCHR, _S_IFBLK = 0o170000, 0o020000, 0o060000
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
# include/uapi/linux/btrfs.h and fs.h: the type is bits 8 to 15 of a request
_BTRFS_TYPE, _TYPE_OF_REQUEST = 0x9400, 0xFF00
_FICLONE, _FICLONERANGE = 0x4004_9409, 0x4020_940D
# include/uapi/linux/{mman,memfd,shm}.h and asm-generic/socket.h
_MAP_HUGETLB, _MFD_HUGETLB, _SHM_HUGETLB = 0x4_0000, 0x4, 0o4000
_EVERY_FLAG = 0xFFFF_FFFF
_SOL_SOCKET = 1
_ATTACHING = (26, 50, 51, 52)  # SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF and _EBPF
_PERSONALITIES = (0, 0x0008, 0x2_0000, 0x2_0008, 0xFFFF_FFFF)  # Linux, 32 bits, "2.6", both, and the question


def _when(argument: int, values: tuple[int, ...], action: int, mask: int = 0xFFFF_FFFF) -> tuple[Case, ...]:
    return tuple(Case((Compare(argument, value, mask),), action) for value in values)


def _socket() -> Cases:
    """Allow unix, netlink's routing part, TCP, UDP and ping.

    Other sockets are kernel code that sandboxes don't need.
    """
    internet = tuple(
        Case((Compare(0, family), Compare(1, kind, _TYPE_MASK), Compare(2, protocol)), ALLOW)
        for family in (_AF_INET, _AF_INET6)
        for kind, protocols in ((_STREAM, (0, 6)), (_DATAGRAM, (0, 17, 1 if family == _AF_INET else 58)))
        for protocol in protocols
    )
    refused = fail_with(errno.EPROTONOSUPPORT)
    return Cases(
        (
            Case((Compare(0, _AF_UNIX),), ALLOW),
            *internet,
            *_when(0, (_AF_INET, _AF_INET6), refused),
            Case((Compare(0, _AF_NETLINK), Compare(2, 0)), ALLOW),
            Case((Compare(0, _AF_NETLINK),), refused),
        ),
        fail_with(errno.EAFNOSUPPORT),
    )


def _make_node(mode: int) -> Cases:
    """Allow mknod for files, fifos and sockets only. `mode` is the index of the argument with the kind."""
    return Cases(_when(mode, (_S_IFCHR, _S_IFBLK), _EPERM, _S_IFMT), ALLOW)


def _unless(argument: int, flag: int, action: int) -> Cases:
    return Cases(_when(argument, (flag,), action, flag), ALLOW)


_ENOMEM = fail_with(errno.ENOMEM)

_CONDITIONAL: dict[str, Verdict] = {
    # The machine has one number of asynchronous requests for all (fs.aio-max-nr): one sandbox could take them all from
    # the databases outside. Programs go on with threads, as on a kernel without them.
    **dict.fromkeys(("io_setup", "io_destroy", "io_submit", "io_cancel", "io_getevents", "io_pgetevents"), _ENOSYS),
    # It flushes all file systems of the machine, and no sandbox needs that. The call knows no failure.
    "sync": fail_with(0),
    # Huge pages are the machine's reserve, which no control group for memory counts.
    "mmap": _unless(3, _MAP_HUGETLB, _ENOMEM),
    # With all bits set it is a query for its existence, and Chromium dies of any other answer than the kernel's.
    "memfd_create": Cases(
        (*_when(1, (_EVERY_FLAG,), fail_with(errno.EINVAL)), *_when(1, (_MFD_HUGETLB,), _ENOMEM, _MFD_HUGETLB)), ALLOW
    ),
    "shmget": _unless(2, _SHM_HUGETLB, _ENOMEM),
    # Programs for sockets use up the room for compiled ones, which the machine has once (net.core.bpf_jit_limit).
    "setsockopt": Cases(
        tuple(Case((Compare(1, _SOL_SOCKET), Compare(2, option)), _EPERM) for option in _ATTACHING), ALLOW
    ),
    # Its arguments lie in memory, where no filter sees them. Libraries fall back to clone.
    "clone3": _ENOSYS,
    "clone": Cases(_when(0, (0,), ALLOW, _NEW_NAMESPACES), _EPERM),
    "socket": _socket(),
    "socketpair": Cases(_when(0, (_AF_UNIX,), ALLOW), fail_with(errno.EAFNOSUPPORT)),
    # Typing into, pasting into, and changing the line discipline of a terminal. Btrfs lets the owner of a directory
    # make subvolumes in it, which no quota of the tree counts, and tells anyone about its device: programs get the
    # answer of any other file system. The two requests of `cp --reflink` have the same type.
    "ioctl": Cases(
        (
            *_when(1, (_FICLONE, _FICLONERANGE), ALLOW),
            *_when(1, (_BTRFS_TYPE,), fail_with(errno.ENOTTY), _TYPE_OF_REQUEST),
            *_when(1, (_TIOCSTI, _TIOCLINUX, _TIOCSETD), _EPERM),
        ),
        ALLOW,
    ),
    "personality": Cases(_when(0, _PERSONALITIES, ALLOW), _EPERM),
    "mknod": _make_node(1),
    "mknodat": _make_node(2),
}

# Calls that change another process of the same uid, and the argument that names it: 0 is the caller.
_TARGETED = {
    "prlimit64": 0,
    "setpriority": 1,
    "ioprio_set": 1,
    "sched_setaffinity": 0,
    "sched_setattr": 0,
    "sched_setparam": 0,
    "sched_setscheduler": 0,
}
# First: values of the first argument for which the second names a process or a group.
# Second: the value for all processes of an id, pid 1 included.
_KINDS_OF_TARGET = {"setpriority": ((0, 1), 2), "ioprio_set": ((1, 2), 3)}


def _any_but_pid_1(name: str, argument: int) -> Cases:
    # Pid 1 has the id of root inside, for which the kernel would otherwise allow it.
    _, whole_id = _KINDS_OF_TARGET.get(name, ((), None))
    refused = () if whole_id is None else _when(0, (whole_id,), _EPERM)
    return Cases((*refused, *_when(argument, (1,), _EPERM)), ALLOW)


def _only_itself(name: str, argument: int) -> Cases:
    own = Compare(argument, 0)
    kinds, _ = _KINDS_OF_TARGET.get(name, ((), None))
    cases = [Case((Compare(0, kind), own), ALLOW) for kind in kinds] or [Case((own,), ALLOW)]
    return Cases(tuple(cases), _EPERM)


def verdicts(machine: str, *, foreign_targets: bool = True) -> dict[str, Verdict]:
    """Return the verdict on each system call that `machine` has and the profile knows, by name."""
    known = names.numbers(machine)
    table: dict[str, Verdict] = dict.fromkeys(ALLOWED, ALLOW) | dict.fromkeys(REFUSED, _EPERM) | _CONDITIONAL
    for name, argument in _TARGETED.items():
        table[name] = _any_but_pid_1(name, argument) if foreign_targets else _only_itself(name, argument)
    return {name: verdict for name, verdict in table.items() if name in known}


_OWNERS = ("chown", "fchown", "lchown", "fchownat")


def build(machine: str, *, foreign_targets: bool = True, owners: bool = True) -> bytes:
    """Return the program for `machine` ("x86_64" or "aarch64").

    It protects limits, priorities and schedulers of pid 1. `foreign_targets=False` protects those of all processes but
    the caller. That is for the mode in which the supervising processes have the uid of the sandbox's programs.
    `owners=False` refuses changes of files' owners. On an id-mapped mount, chown(2) by a caller with CAP_CHOWN in the
    machine's first user namespace takes any file with an unmapped owner. It kills programs of other architectures (32
    bits). Unknown numbers, such as those of x32, get ENOSYS.
    """
    known = names.numbers(machine)
    table = verdicts(machine, foreign_targets=foreign_targets)
    if not owners:
        table |= {name: _EPERM for name in _OWNERS if name in table}
    return compile(AUDIT_ARCH[machine], {known[name]: verdict for name, verdict in table.items()}, _ENOSYS)


_SYSTEM_V = ("shmget", "msgget", "semget")


def build_uncounted(machine: str, *, system_v: bool) -> bytes:
    """Return a second filter for systems without a memory control group: it refuses calls for memory that belongs to no
    process.

    A process can hide such memory (a memfd in a message of a socket), so a count over processes would miss it. These
    calls get ENOSYS. Libraries fall back to a file in /dev/shm, which has a size limit, as on kernels before 3.17.
    `system_v` allows System V IPC, which has separate limits.
    """
    known = names.numbers(machine)
    refused = ("memfd_create",) if system_v else ("memfd_create", *_SYSTEM_V)
    return compile(AUDIT_ARCH[machine], dict.fromkeys([known[name] for name in refused], _ENOSYS), ALLOW)


def build_only(machine: str, calls: Iterable[str], *, free: Iterable[str] = ()) -> bytes:
    """Return the part of the profile for these calls, for a process with one task.

    All others get EPERM. `free` calls may have any arguments.
    """
    known, table = names.numbers(machine), verdicts(machine, foreign_targets=False)
    allowed = {name: table[name] for name in calls if name in table}
    allowed |= {name: ALLOW for name in free if name in known}
    return compile(AUDIT_ARCH[machine], {known[name]: verdict for name, verdict in allowed.items()}, _EPERM)
