"""Attacks on the kernel's surface. What is refused must be refused with an errno, so that programs can go on."""

from __future__ import annotations

import os
import platform

import pytest
from attacking import REFUSALS, Attacker, host_mounts

if platform.machine() != "x86_64":
    pytest.skip("the numbers of system calls here are those of x86_64", allow_module_level=True)

# arch/x86/entry/syscalls/syscall_64.tbl
CALLS = {
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "open_tree": 428, "move_mount": 429, "fsopen": 430,
    "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442, "swapon": 167, "swapoff": 168, "acct": 163,
    "quotactl": 179, "quotactl_fd": 443, "sethostname": 170, "setdomainname": 171, "unshare": 272, "setns": 308,
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "bpf": 321, "userfaultfd": 323,
    "perf_event_open": 298, "memfd_secret": 447, "pidfd_getfd": 438, "add_key": 248, "request_key": 249, "keyctl": 250,
    "lookup_dcookie": 212, "open_by_handle_at": 304, "fanotify_init": 300, "fanotify_mark": 301, "kcmp": 312,
    "init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320,
    "reboot": 169, "syslog": 103, "vhangup": 153, "iopl": 172, "ioperm": 173, "modify_ldt": 154, "settimeofday": 164,
    "clock_settime": 227, "move_pages": 279, "migrate_pages": 256, "mbind": 237, "set_mempolicy": 238, "_sysctl": 156,
    "nfsservctl": 180, "clone3": 435,
}  # fmt: skip

NAMESPACES = {
    "NEWNS": 0x20000, "NEWCGROUP": 0x2000000, "NEWUTS": 0x4000000, "NEWIPC": 0x8000000, "NEWUSER": 0x10000000,
    "NEWPID": 0x20000000, "NEWNET": 0x40000000, "NEWTIME": 0x80,
}  # fmt: skip

SOCKETS = {
    "AF_VSOCK": (40, 1, 0), "AF_ALG": (38, 5, 0), "AF_PACKET raw": (17, 3, 0x0300), "AF_PACKET": (17, 2, 0x0300),
    "AF_INET raw": (2, 3, 1), "AF_INET6 raw": (10, 3, 58), "AF_KEY": (15, 3, 2), "AF_XDP": (44, 3, 0),
    "AF_BLUETOOTH": (31, 3, 0), "AF_TIPC": (30, 5, 0), "AF_CAN": (29, 3, 1), "AF_RDS": (21, 5, 0), "AF_KCM": (41, 5, 0),
    "AF_QIPCRTR": (42, 2, 0), "AF_SMC": (43, 1, 0), "AF_NETLINK netfilter": (16, 3, 12), "AF_NETLINK audit": (16, 3, 9),
    "AF_NETLINK generic": (16, 3, 16), "AF_NETLINK xfrm": (16, 3, 6), "AF_INET sctp": (2, 1, 132),
    "AF_INET mptcp": (2, 1, 262), "AF_INET dccp": (2, 6, 33),
}  # fmt: skip


def test_calls_that_no_program_needs_are_refused(attacker: Attacker) -> None:
    answers = attacker.probe(
        "answer({n: call(c, 0, 0, 0, 0, 0) for n, c in json.loads(sys.argv[1]).items()})", _json(CALLS)
    )
    assert {call: got for call, got in answers.items() if got not in ("EPERM", "ENOSYS")} == {}


def test_calls_that_the_kernel_will_have_some_day_do_not_exist_yet(attacker: Attacker) -> None:
    answers = attacker.probe(
        "answer({str(n): call(n, 0, 0, 0, 0, 0) for n in [*range(480, 560), 1000, 5000, 0x3fffffff]})"
    )
    assert {number: got for number, got in answers.items() if got != "ENOSYS"} == {}


def test_no_new_namespace_can_be_made(attacker: Attacker) -> None:
    answers = attacker.probe(
        "answer({n: [call(272, f), call(56, f | 17, 0, 0, 0, 0)] for n, f in json.loads(sys.argv[1]).items()})",
        _json(NAMESPACES),
    )
    assert {kind: got for kind, got in answers.items() if not set(got) <= {"EPERM", "ENOSYS"}} == {}


def test_no_namespace_can_be_entered(attacker: Attacker) -> None:
    answers = attacker.probe(
        "found = {}\n"
        "for pid in ('1', 'self'):\n"
        "    for kind in ('user', 'mnt', 'net', 'pid', 'ipc', 'uts', 'cgroup'):\n"
        "        try: fd = os.open(f'/proc/{pid}/ns/{kind}', os.O_RDONLY)\n"
        "        except OSError as error: found[pid + kind] = name(error.errno); continue\n"
        "        found[pid + kind] = call(308, fd, 0)\n"
        "answer(found)"
    )
    assert {where: got for where, got in answers.items() if got not in REFUSALS} == {}


def test_nothing_can_be_mounted_and_the_host_has_the_mounts_that_it_had(attacker: Attacker) -> None:
    before = host_mounts()
    answers = attacker.probe(
        "os.makedirs('/tmp/m', exist_ok=True)\n"
        "m = lambda *a: 'allowed' if libc.mount(*a) == 0 else name(ctypes.get_errno())\n"
        "answer([m(b'none', b'/tmp/m', b'tmpfs', 0, None), m(b'/', b'/tmp/m', None, 4096, None),\n"
        "        m(b'proc', b'/tmp/m', b'proc', 0, None), m(b'none', b'/usr', None, 32 | 4096, None),\n"
        "        m(b'sysfs', b'/tmp/m', b'sysfs', 0, None), m(None, b'/', None, 1 << 20, None),\n"
        "        'allowed' if libc.umount2(b'/proc', 2) == 0 else name(ctypes.get_errno())])"
    )
    assert set(answers) <= {"EPERM", "ENOSYS"}
    assert host_mounts() == before


def test_only_ordinary_sockets_can_be_made(attacker: Attacker) -> None:
    answers = attacker.probe(
        "answer({n: attempt(lambda: socket.socket(*a).close()) for n, a in json.loads(sys.argv[1]).items()})",
        _json(SOCKETS),
    )
    assert {kind: got for kind, got in answers.items() if got not in REFUSALS} == {}


def test_calls_of_the_32_bit_kind_are_refused_or_fatal(attacker: Attacker) -> None:
    # mov eax, 20 (getpid); int 0x80; ret
    result = attacker.run(
        "import mmap\n"
        "page = mmap.mmap(-1, 4096, prot=7)\n"
        "page.write(b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3')\n"
        "address = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
        "print('returned', ctypes.CFUNCTYPE(ctypes.c_int)(address)())"
    )
    assert result.signal is not None or result.stdout.strip() in ("returned -38", "returned -1")


def test_calls_of_the_x32_kind_are_refused_or_fatal(attacker: Attacker) -> None:
    result = attacker.run("answer(call(0x40000000 | 39))")
    assert result.signal is not None or result.stdout.strip().strip('"') in ("ENOSYS", "EPERM")


def test_nothing_can_be_typed_into_a_terminal(attacker: Attacker) -> None:
    answers = attacker.probe(
        "import pty, fcntl\n"
        "leader, follower = pty.openpty()\n"
        "if os.fork() == 0:\n"
        "    os.setsid(); fcntl.ioctl(follower, 0x540E, 0)\n"
        "    got = [call(16, follower, n, ctypes.c_char_p(b'x')) for n in (0x5412, 0x5412 | 1 << 32, 0x541C, 0x5423)]\n"
        "    answer(got); sys.stdout.flush(); os._exit(0)\n"
        "os.wait()"
    )
    assert set(answers) <= {"EPERM", "ENOTTY"}
    assert answers[:2] == ["EPERM", "EPERM"]


def test_no_device_can_be_made(attacker: Attacker) -> None:
    answers = attacker.probe(
        "answer([attempt(os.mknod, f'/tmp/{n}', k | 0o666, os.makedev(*d)) for n, (k, d) in enumerate([\n"
        "    (0o020000, (1, 1)), (0o020000, (1, 3)), (0o060000, (8, 0)), (0o060000, (254, 0)), (0o020000, (10, "
        "200))])])"
    )
    assert set(answers) <= {"EPERM"}


def test_the_devices_are_a_handful_of_harmless_ones(attacker: Attacker) -> None:
    names = attacker.probe(
        "import stat\n"
        "found = []\n"
        "for top, directories, files in os.walk('/dev'):\n"
        "    for one in files:\n"
        "        mode = os.lstat(f'{top}/{one}').st_mode\n"
        "        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode): found.append(f'{top}/{one}')\n"
        "answer(found)"
    )
    allowed = {
        f"/dev/{one}" for one in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "console", "pts/ptmx")
    }
    assert {one for one in names if not one.startswith("/dev/pts/") or one == "/dev/pts/ptmx"} <= allowed


def test_a_device_cannot_be_replaced(attacker: Attacker) -> None:
    answers = attacker.probe(
        "answer([attempt(os.unlink, '/dev/null'), attempt(os.rename, '/dev/null', '/dev/gone'),\n"
        "        attempt(os.open, '/dev/evil', os.O_CREAT | os.O_WRONLY), attempt(os.chmod, '/dev/null', 0)])"
    )
    assert set(answers) <= REFUSALS
    assert os.access("/dev/null", os.W_OK)


def test_nothing_of_proc_and_sys_can_be_written_but_the_own_processes(attacker: Attacker) -> None:
    opened = attacker.probe(
        "found = []\n"
        "for root in ('/proc', '/sys'):\n"
        "    for top, directories, files in os.walk(root):\n"
        "        if top == '/proc': directories[:] = [d for d in directories if not d.isdigit()]\n"
        "        directories[:] = [d for d in directories if d not in ('self', 'thread-self')]\n"
        "        for one in files:\n"
        "            try: os.close(os.open(f'{top}/{one}', os.O_WRONLY | os.O_NONBLOCK)); "
        "found.append(f'{top}/{one}')\n"
        "            except OSError: pass\n"
        "import stat\n"
        "answer([f for f in found if not stat.S_ISCHR(os.stat(f).st_mode)])"
    )
    assert opened == []


def test_the_secrets_of_proc_are_masked(attacker: Attacker) -> None:
    answers = attacker.probe(
        "def peek(path):\n"
        "    try:\n"
        "        with open(path, 'rb') as file: return len(file.read(64))\n"
        "    except OSError as error: return name(error.errno)\n"
        "answer({p: peek('/proc/' + p) for p in ('kcore', 'keys', 'key-users', 'timer_list', 'sched_debug', "
        "'kallsyms',\n"
        "    'kmsg', 'config.gz', 'sysrq-trigger', 'kpagecount', 'kpageflags', 'vmallocinfo', 'slabinfo', 'iomem',\n"
        "    'interrupts', 'latency_stats', '1/environ', '1/mem', '1/maps')})"
    )
    assert {path: got for path, got in answers.items() if got not in REFUSALS and got != 0} == {}


def test_the_command_line_of_the_host_is_not_shown(attacker: Attacker) -> None:
    with open("/proc/cmdline") as file:
        host = file.read().strip()
    assert attacker.sh("cat /proc/cmdline").stdout.strip() != host


def test_the_layout_of_memory_stays_random(attacker: Attacker) -> None:
    answers = attacker.probe("answer([call(135, 0x0040000), call(135, 0x0400000), call(135, 0x0100000)])")
    assert set(answers) <= {"EPERM", "EINVAL"}


def test_a_crash_dumps_no_core(attacker: Attacker) -> None:
    result = attacker.sh(
        "ulimit -c unlimited; cd /tmp && sh -c 'kill -SEGV $$'; ls -A /tmp; cat /proc/self/limits | grep core"
    )
    assert "core\n" not in result.stdout.replace("core file size", "")
    assert result.stdout.split()[-3:-1] == ["0", "0"]


def test_file_systems_in_user_space_and_virtual_machines_have_no_door(attacker: Attacker) -> None:
    paths = [
        "fuse",
        "kvm",
        "net/tun",
        "vsock",
        "vhost-net",
        "mem",
        "kmsg",
        "port",
        "loop0",
        "loop-control",
        "vda",
        "sda",
        "userfaultfd",
        "uinput",
        "ppp",
        "rtc0",
        "mapper/control",
        "cuse",
        "vfio/vfio",
    ]
    answers = attacker.probe(
        "answer({p: attempt(os.open, f'/dev/{p}', os.O_RDONLY) for p in json.loads(sys.argv[1])})", _json(paths)
    )
    assert set(answers.values()) == {"ENOENT"}


def _json(value: object) -> str:
    import json

    return json.dumps(value)
