"""The /proc entries of a process, and the clock of deadlines."""

from __future__ import annotations

import os
import re
import time

from paddock.linux import kernel_files

_PAGE = os.sysconf("SC_PAGE_SIZE")
_FIELD = re.compile(r"^([^:\n]+):\t[ \t]*(.*\S|)", re.MULTILINE)  # of proc_pid_status(5)
_PF_KTHREAD = 0x00200000  # include/linux/sched.h


def stat(process: int | str) -> list[bytes]:
    """Return the fields of proc_pid_stat(5): number 1 there is at 0. The name, in brackets, may hold some itself."""
    line = kernel_files.read(f"/proc/{process}/stat")
    start, end = line.index(b"("), line.rindex(b")")
    return [line[: start - 1], line[start + 1 : end], *line[end + 2 :].split()]


def start_time(pid: int) -> int:
    """Return the start time of `pid` in clock ticks since boot.

    With `boot_id` it distinguishes a process from a later one.
    """
    return int(stat(pid)[21])


def is_kernel_thread(pid: int) -> bool:
    """Tell whether it is a kernel thread. False if the process has ended."""
    try:
        return bool(int(stat(pid)[8]) & _PF_KTHREAD)
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_same(pid: int, start: int, boot: str) -> bool:
    """Tell whether `pid` is still the process with that start time, in that boot. A zombie is."""
    try:
        return boot == boot_id() and start_time(pid) == start
    except (OSError, ValueError):
        return False


def is_running(process: str) -> bool:
    """Return whether a process runs, named by its pid and `start_time` with a space between. A zombie doesn't."""
    pid, _, start = process.partition(" ")
    try:
        fields = stat(int(pid))
    except (OSError, ValueError):
        return False
    return fields[2] not in (b"Z", b"X") and fields[21].decode() == start


def parent(pid: int) -> int:
    """Return its parent, or 0 if that isn't visible from here."""
    return int(stat(pid)[3])


def shows_children() -> bool:
    """Tell whether this kernel reports children (CONFIG_PROC_CHILDREN)."""
    return os.path.exists("/proc/thread-self/children")


def resident_bytes(pid: int) -> tuple[int, int]:
    """Return the resident memory of `pid`, and the part in file pages or shared ones (proc_pid_statm(5))."""
    fields = kernel_files.read(b"/proc/%d/statm" % pid).split()
    return int(fields[1]) * _PAGE, int(fields[2]) * _PAGE


def proportional_bytes(pid: int) -> int:
    """Return the memory of `pid`, with each page divided by its users (Pss and SwapPss of proc_pid_smaps(5)).

    It takes long: the kernel walks all its pages. Raises OSError EACCES without power over the process.
    """
    lines = kernel_files.read(b"/proc/%d/smaps_rollup" % pid).splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith((b"Pss:", b"SwapPss:")))


def meminfo() -> dict[str, int]:
    """Return the machine's memory in bytes, by the names of proc_meminfo(5)."""
    lines = (line.split() for line in kernel_files.read(b"/proc/meminfo").decode().splitlines())
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines}


def boot_id() -> str:
    """Return a random id of this boot (random(4))."""
    return kernel_files.read(b"/proc/sys/kernel/random/boot_id").decode().strip()


def boottime() -> float:
    """Seconds since boot, suspend included: CLOCK_BOOTTIME, which no clock change moves (clock_gettime(2))."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def state(pid: int) -> str:
    """Return the state as one letter, "X" if the process doesn't exist."""
    try:
        return stat(pid)[2].decode()
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def stands(pid: int) -> bool:
    """Tell whether all threads of a process are stopped, traced or dead. The first may be dead, and others not."""
    try:
        states = [stat(f"{pid}/task/{thread}")[2] for thread in os.listdir(f"/proc/{pid}/task")]
    except (FileNotFoundError, ProcessLookupError):
        return state(pid) == "X"
    return all(state in b"TtZX" for state in states)


def descendants(pid: int) -> list[int]:
    """Return all processes below `pid`, by the child lists of its threads and theirs (proc_tid_children(5))."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        try:
            for task in os.listdir(f"/proc/{parent}/task"):
                children = kernel_files.read(f"/proc/{parent}/task/{task}/children").split()
                waiting += map(int, children)
                found += map(int, children)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def status(pid: int | str = "self") -> dict[str, str]:
    """Return the fields of proc_pid_status(5) as text: `CapEff`, `Seccomp`, `NoNewPrivs`, `Uid`, `NSpid` and others.

    A newline in the name appears as an escape.
    """
    return dict(_FIELD.findall(kernel_files.read(f"/proc/{pid}/status").decode(errors="surrogateescape")))


def inner_uid(pid: int, uid: int) -> int | None:
    """Return the number of `uid` in the user namespace of `pid` (user_namespaces(7)), or None if it has none there."""
    for line in kernel_files.read(f"/proc/{pid}/uid_map").splitlines():
        inner, outer, count = map(int, line.split())
        if outer <= uid < outer + count:
            return inner + uid - outer
    return None


def namespaces(pid: int | str = "self") -> dict[str, int]:
    """Inode number by name of namespace (namespaces(7)): equal numbers are the same namespace."""
    directory = f"/proc/{pid}/ns"
    return {name: os.stat(f"{directory}/{name}").st_ino for name in os.listdir(directory)}


_LONGEST_TABLE = 1 << 20
_ENDLESS = 1 << 62


def netlink_bytes(pid: int) -> int:
    """Return the unread bytes in netlink sockets of the network namespace of `pid` (`Rmem` of /proc/net/netlink).

    The kernel charges them to no process. No program needs ten thousand sockets or more. Those count as endlessly many
    bytes, and this stops reading their table. The result is 0 if the process has ended. To list one namespace's
    sockets, the kernel walks through all namespaces' sockets, of which it has about eight in each itself. It knows at
    once whether there are any.
    """
    try:
        protocols = (line.split() for line in kernel_files.read(f"/proc/{pid}/net/protocols").splitlines())
        if any(line[0] == b"NETLINK" and line[2] == b"0" for line in protocols):
            return 0
        fd = os.open(b"/proc/%d/net/netlink" % pid, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    table = bytearray()
    try:
        while piece := os.read(fd, 65536):
            table += piece
            if len(table) > _LONGEST_TABLE:
                return _ENDLESS
    except OSError:
        return 0  # it has died meanwhile
    finally:
        os.close(fd)
    return sum(int(line.split()[4]) for line in table.splitlines()[1:])
