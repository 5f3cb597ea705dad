"""Attacks of the kinds that were published against container runtimes and kernels, each named after "
"one of its cases."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from attacking import REFUSALS, Attacker, host_mounts, status_on_host

from paddock import Sandbox
from paddock.errors import PaddockError

if platform.machine() != "x86_64":
    pytest.skip("the numbers of system calls here are those of x86_64", allow_module_level=True)


def test_no_descriptor_leads_a_working_directory_out(attacker: Attacker) -> None:
    """CVE-2024-21626: a descriptor of a directory of the host, left open in whoever enters."""
    answers = attacker.probe(
        "found = []\n"
        "for pid in ['self', *filter(str.isdigit, os.listdir('/proc'))]:\n"
        "    for n in range(300):\n"
        "        road = f'/proc/{pid}/fd/{n}'\n"
        "        try: os.chdir(road)\n"
        "        except OSError: continue\n"
        "        found.append([road, os.getcwd()])\n"
        "answer(found)"
    )
    assert answers == []
    for number in (*range(16), 100, 1000):
        with pytest.raises(PaddockError):
            attacker.sandbox.exec(("true",), cwd=f"/proc/self/fd/{number}", user=attacker.user)


def test_a_program_that_enters_is_not_overwritten_while_it_does(attacker: Attacker) -> None:
    """CVE-2019-5736: `#!/proc/self/exe`, and the file behind /proc/<pid>/exe opened for writing at the "
    "right moment."""
    ours = [Path(os.path.realpath(sys.executable)), Path("/usr/bin/python3"), Path("/usr/bin/env")]
    before = [_digest(path) for path in ours]
    loop = (
        "while True:\n"
        "    for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "        try: fd = os.open(f'/proc/{pid}/exe', os.O_RDONLY)\n"
        "        except OSError: continue\n"
        "        for road in (f'/proc/self/fd/{fd}', f'/proc/{pid}/exe'):\n"
        "            for flags in (os.O_WRONLY, os.O_RDWR | os.O_TRUNC):\n"
        "                try: os.write(os.open(road, flags), b'#!/tmp/evil\\n'); open('/tmp/won', 'w')\n"
        "                except OSError: pass\n"
        "        os.close(fd)\n"
    )
    attacker.sh("printf '#!/proc/self/exe\\n' >/tmp/entry; chmod 755 /tmp/entry")
    with attacker.sandbox.start(("python3", "-I", "-S", "-c", "import os\n" + loop), user=attacker.user) as process:
        for _ in range(20):
            attacker.sh("/tmp/entry; /usr/bin/env true")
        process.kill()
    assert attacker.sh("ls /tmp/won").exit_code != 0
    assert [_digest(path) for path in ours] == before


def test_no_control_group_has_an_agent_to_release(attacker: Attacker) -> None:
    """CVE-2022-0492: release_agent of a cgroup that a process of a new namespace mounts."""
    before = host_mounts()
    answers = attacker.probe(
        "m = lambda kind: 'allowed' if libc.mount(b'x', b'/tmp', kind, 0, b'memory') == 0 else "
        "name(ctypes.get_errno())\n"
        "answer([m(b'cgroup'), m(b'cgroup2'), call(272, 0x2000000), call(272, 0x10000000 | 0x2000000)])"
    )
    assert set(answers) <= {"EPERM"}
    found = attacker.sh(
        "find / -xdev \\( -name release_agent -o -name 'cgroup.*' -o -name notify_on_release \\) 2>/dev/null"
    )
    assert [line for line in found.stdout.splitlines() if not line.startswith("/usr/")] == []
    assert host_mounts() == before


_PAGES = """
import mmap, threading
path = sys.argv[1]
fd = os.open(path, os.O_RDONLY)
size = min(4096, os.fstat(fd).st_size)
libc.mmap.restype = ctypes.c_void_p
at = libc.mmap(None, 4096, 1, 2, fd, 0)
stop = []
def drop():
    while not stop: libc.madvise(ctypes.c_void_p(at), 4096, 4)
def poke():
    mem = os.open('/proc/self/mem', os.O_RDWR) if os.access('/proc/self/mem', os.W_OK) else None
    while not stop:
        if mem is not None:
            try: os.pwrite(mem, b'EVIL', at)
            except OSError: pass
        remote = (ctypes.c_void_p * 2)(at, 4); local = ctypes.create_string_buffer(b'EVIL')
        vector = (ctypes.c_void_p * 2)(ctypes.addressof(local), 4)
        libc.syscall(311, os.getpid(), vector, 1, remote, 1, 0)
threads = [threading.Thread(target=f) for f in (drop, poke)]
for t in threads: t.start()
import time; time.sleep(0.7); stop.append(1)
for t in threads: t.join()
# Dirty Pipe: a pipe whose buffers were all used once, then a page of the file in it, then a write that would be merged
r, w = os.pipe()
for _ in range(16): os.write(w, bytes(4096))
for _ in range(16): os.read(r, 4096)
if hasattr(os, 'splice'): os.splice(fd, w, 1, offset_src=0); os.write(w, b'EVIL')
shared = attempt(lambda: mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_WRITE))
readable = ctypes.c_void_p(libc.mmap(None, 4096, 1, 1, fd, 0))
protect = 'allowed' if libc.mprotect(readable, 4096, 3) == 0 else name(ctypes.get_errno())
answer([str(shared), protect, os.pread(os.open(path, os.O_RDONLY), 16, 0).hex()])
"""


@pytest.mark.parametrize("path", ["/usr/bin/env", "/usr/bin/python3"])
def test_pages_that_are_shared_with_the_machine_are_not_written(
    path: str, attacker: Attacker, bystander: Sandbox
) -> None:
    """CVE-2016-5195 and CVE-2022-0847: the page cache of a file that may only be read is everybody's."""
    before, head = _digest(Path(path)), Path(path).read_bytes()[:16]
    shared, protect, seen = attacker.probe(_PAGES, path)
    assert shared in ("EACCES", "EPERM", "EROFS")
    assert protect == "EACCES"
    assert bytes.fromhex(seen) == head
    assert _digest(Path(path)) == before
    assert bystander.exec(("sha256sum", path)).stdout.split()[0] == before


def test_pages_of_the_template_are_not_written(attacker: Attacker, bystander: Sandbox) -> None:
    """The same for the layer below all sandboxes: what one changes is copied first."""
    path = "/etc/passwd"
    look = f"sha256sum {path}; stat -c '%a %u' {path}"
    before = bystander.exec(look).stdout
    attacker.run(_PAGES, path)
    attacker.sh(f"echo 'evil:x:0:0::/:/bin/sh' >>{path}; chmod 4777 {path}; chown 1000 {path}")
    assert bystander.exec(look).stdout == before


def test_what_is_copied_up_gains_nothing(attacker: Attacker) -> None:
    """CVE-2023-0386: a file with the set-user-id bit, or capabilities, that an overlay takes from a lower layer."""
    attacker.sh(
        "cp /bin/sh /workspace/sh; chmod 6777 /workspace/sh; ln /workspace/sh /workspace/other; touch /workspace/other"
    )
    attacker.run(
        "for way in ('/usr/bin/su', '/usr/bin/passwd', '/usr/bin/newuidmap', '/usr/bin/ping'):\n"
        "    attempt(os.rename, way, '/tmp/x'); attempt(os.link, way, '/workspace/linked'); "
        "attempt(os.chmod, way, 0o6777)\n"
    )
    result = Attacker(attacker.sandbox, None).sh("/workspace/other -pc 'id -u; grep -h Cap /proc/self/status'")
    assert result.stdout.split()[0] == Attacker(attacker.sandbox, None).sh("id -u").stdout.strip()
    assert set(result.stdout.split()[2::2]) <= {"0" * 16, *_bounding(result.stdout)}


def test_a_tracer_changes_no_call_behind_the_filter(attacker: Attacker) -> None:
    """A traced process whose call is replaced between the filter's look and the kernel's (CVE-2019-2054)."""
    result = attacker.run(
        "import ctypes\n"
        "class Regs(ctypes.Structure): _fields_ = [(n, ctypes.c_ulonglong) for n in 'r15 r14 r13 r12 bp bx "
        "r11 r10 r9 r8 "
        "ax cx dx si di orig_ax ip cs flags sp ss fs_base gs_base ds es fs gs'.split()]\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    libc.ptrace(0, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    for _ in range(50): libc.syscall(39)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0); regs = Regs(); refused = 0; done = 0\n"
        "libc.ptrace(24, pid, 0, 0)\n"
        "while True:\n"
        "    _, status = os.waitpid(pid, 0)\n"
        "    if not os.WIFSTOPPED(status): break\n"
        "    libc.ptrace(12, pid, 0, ctypes.byref(regs))\n"
        "    if regs.orig_ax == 39:\n"
        "        regs.orig_ax = 425; regs.di = 8; regs.si = 0; libc.ptrace(13, pid, 0, ctypes.byref(regs)); "
        "done += 1\n"
        "    elif regs.orig_ax == 425: refused += regs.ax == 2 ** 64 - 1\n"
        "    libc.ptrace(24, pid, 0, 0)\n"
        "answer([done, refused, call(101, 0x4200, 1, 0, 1 << 21), call(101, 0x420c, 1, 0, 0)])"
    )
    done, refused, *seized = eval(result.stdout.rpartition("\n")[2])
    assert done > 10
    assert refused == done, "each replaced call has met the filter again"
    assert set(seized) <= {"EPERM", "ESRCH", "EIO", "EACCES"}


def test_the_agents_are_neither_traced_nor_read(attacker: Attacker) -> None:
    answers = attacker.probe(
        "agents = [p for p in map(int, filter(str.isdigit, os.listdir('/proc'))) if p < os.getppid() + 1 and "
        "p != os.getpid()]\n"
        "buffer = ctypes.create_string_buffer(16)\n"
        "vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 16); remote = (ctypes.c_void_p * 2)(0x400000, 16)\n"
        "found = []\n"
        "for p in {os.getppid(), *agents}:\n"
        "    found += [call(101, 16, p, 0, 0), call(101, 0x4206, p, 0, 0), call(310, p, vector, 1, remote, 1, 0),\n"
        "              call(311, p, vector, 1, remote, 1, 0), call(448, call and 0, 0)]\n"
        "    for leaf in ('mem', 'environ', 'maps', 'auxv'):\n"
        "        try: found.append('empty' if not os.read(os.open(f'/proc/{p}/{leaf}', os.O_RDONLY), 1) else "
        "'allowed')\n"
        "        except OSError as error: found.append(name(error.errno))\n"
        "answer(found)"
    )
    assert set(answers) <= REFUSALS | {"ESRCH", "EIO", "EFAULT", "EBADF", "EINVAL", "empty"}


def test_a_process_may_not_put_on_anothers_face(attacker: Attacker) -> None:
    """PR_SET_MM: the program, arguments and environment that the host reads of a process."""
    answers = attacker.probe(
        "fd = os.open('/usr/bin/env', os.O_RDONLY)\n"
        "answer([call(157, 35, 13, fd, 0, 0), call(157, 35, 14, ctypes.create_string_buffer(104), 104, 0),\n"
        "        call(157, 35, 8, 0x1000, 0, 0), call(157, 57, 1, 0, 0, 0)])"
    )
    assert set(answers) <= {"EPERM", "EINVAL"}


def test_no_handle_or_number_leads_to_a_mount_of_the_host(attacker: Attacker, shared_state: Path) -> None:
    """CVE-2015-3627 (open_by_handle_at), and the calls that list mounts by number."""
    answers = attacker.probe(
        "handle = ctypes.create_string_buffer(struct.pack('II', 120, 0) + bytes(120)); mount = ctypes.c_int()\n"
        "got = call(303, -100, b'/usr/bin/env', handle, ctypes.byref(mount), 0)\n"
        "opened = call(304, -100, handle, 0)\n"
        "words = set()\n"
        "for number in range(1, 3000):\n"
        "    request = ctypes.create_string_buffer(struct.pack('IIQQQ', 32, 0, number, 0x1ff, 0))\n"
        "    buffer = ctypes.create_string_buffer(8192)\n"
        "    if libc.syscall(457, request, buffer, 8192, 0) == 0: words.add(bytes(buffer).decode('latin1'))\n"
        "answer([opened, ''.join(words)])"
    )
    assert answers[0] in ("EPERM", "ENOSYS")
    assert str(shared_state) not in answers[1]


IOCTLS = {
    "FIFREEZE": 0xC0045877, "FITRIM": 0xC0185879, "FS_IOC_SETFLAGS +i": 0x40086602, "FS_IOC_FSSETXATTR": 0x401C5820,
    "EXT4_IOC_GROUP_EXTEND": 0x40086607, "EXT4_IOC_SWAP_BOOT": 0x6611, "EXT4_IOC_SHUTDOWN": 0x8004587D,
    "FIBMAP": 0x1, "FS_IOC_ENABLE_VERITY": 0x40806685, "BLKROSET": 0x125D, "BLKDISCARD": 0x1277,
    "BTRFS_SUBVOL_CREATE": 0x5000940E, "BTRFS_SUBVOL_CREATE_V2": 0x50009418, "BTRFS_SNAP_CREATE": 0x50009401,
    "BTRFS_SNAP_CREATE_V2": 0x50009417, "BTRFS_SNAP_DESTROY": 0x5000940F, "BTRFS_QUOTA_CTL": 0xC0109428,
    "BTRFS_QGROUP_LIMIT": 0x8030942B, "BTRFS_QGROUP_ASSIGN": 0x40189429, "BTRFS_TREE_SEARCH": 0xD0009411,
    "BTRFS_TREE_SEARCH_V2": 0xC0709411, "BTRFS_INO_LOOKUP": 0xD0009412, "BTRFS_SUBVOL_SETFLAGS": 0x4008941A,
    "BTRFS_DEFAULT_SUBVOL": 0x40089413, "BTRFS_ADD_DEV": 0x5000940A, "BTRFS_RESIZE": 0x50009403,
    "BTRFS_SET_RECEIVED": 0xC0C09425, "BTRFS_BALANCE": 0x5000940C, "BTRFS_SCRUB": 0xC400941B, "BTRFS_SEND": 0x40489426,
    "BTRFS_ENCODED_WRITE": 0x40809440, "RNDADDTOENTCNT": 0x40045201, "RNDADDENTROPY": 0x40085203,
    "RNDCLEARPOOL": 0x5206,
    "RNDRESEEDCRNG": 0x5207, "RNDZAPENTCNT": 0x5204, "TIOCCONS": 0x541D, "TIOCSETD": 0x5423, "TIOCSTI": 0x5412,
    "TIOCLINUX": 0x541C, "SIOCSIFADDR": 0x8916, "SIOCADDRT": 0x890B, "SIOCSIFFLAGS": 0x8914, "SIOCBRADDBR": 0x89A0,
    "SIOCGSKNS": 0x894C, "NS_GET_USERNS": 0xB701, "NS_GET_PARENT": 0xB702, "PIDFD_GET_MNT_NAMESPACE": 0xFF03,
    "PIDFD_GET_USER_NAMESPACE": 0xFF09, "LOOP_SET_FD": 0x4C00, "KVM_CREATE_VM": 0xAE01, "UFFDIO_API": 0xC018AA3F,
}  # fmt: skip


def test_no_family_of_ioctl_reaches_what_is_the_hosts(attacker: Attacker) -> None:
    answers = attacker.probe(
        "names = ['/usr/bin/env', '/usr', '/workspace', '/etc', '/', '/tmp', '/dev/null', '/dev/urandom', "
        "'/proc/self/ns/user', "
        "'/proc/self/ns/pid', '/proc/self/ns/net', '/proc/1']\n"
        "fds = {p: os.open(p, os.O_RDONLY) for p in names if os.path.exists(p)} | {'socket': "
        "socket.socket().detach(), "
        "'unix': socket.socket(1).detach(), 'pid 1': os.pidfd_open(1)}\n"
        "found = []\n"
        "for which, number in json.loads(sys.argv[1]).items():\n"
        "    for where, fd in fds.items():\n"
        "        if call(16, fd, number, ctypes.create_string_buffer(struct.pack('Q', 16) + bytes(8192))) == "
        "'allowed': "
        "found.append([which, where])\n"
        "answer(found)",
        _json(IOCTLS),
    )
    # With no flags set, FS_IOC_SETFLAGS changes nothing; who owns a namespace that is one's own, one may know.
    harmless = {"FS_IOC_SETFLAGS +i", "FS_IOC_FSSETXATTR", "NS_GET_USERNS"}
    assert [pair for pair in answers if pair[0] not in harmless] == []
    assert [pair for pair in answers if pair[1].startswith("/usr")] == []


def test_no_file_of_the_own_processes_in_proc_can_be_written(attacker: Attacker) -> None:
    """Id maps, loginuid, attr/exec, oom_score_adj, timerslack, comm of others: what is not needed is not there."""
    opened = attacker.probe(
        "found = []\n"
        "for pid in ('self', '1', 'thread-self'):\n"
        "    for leaf in os.listdir(f'/proc/{pid}'):\n"
        "        try: os.close(os.open(f'/proc/{pid}/{leaf}', os.O_WRONLY | os.O_NONBLOCK)); "
        "found.append(f'{pid}/{leaf}')\n"
        "        except OSError: pass\n"
        "answer(found)"
    )
    assert opened == []


def test_no_handler_of_binaries_can_be_registered(attacker: Attacker) -> None:
    """CVE-2025-31133 and others end there: binfmt_misc and core_pattern run programs of the host's root."""
    before = Path("/proc/sys/kernel/core_pattern").read_text()
    answers = attacker.probe(
        "def write(path):\n"
        "    with open(path, 'w') as file: file.write('|/tmp/evil')\n"
        "answer([attempt(write, '/proc/sys/' + p) for p in ('kernel/core_pattern', 'kernel/modprobe', "
        "'kernel/hotplug',\n"
        "        'fs/binfmt_misc/register', 'kernel/poweroff_cmd', 'kernel/usermodehelper/bset', "
        "'vm/overcommit_memory',\n"
        "        'kernel/ns_last_pid', 'net/core/somaxconn', 'kernel/random/uuid')])"
    )
    assert set(answers) <= {"EROFS", "ENOENT", "EACCES", "EPERM"}
    assert Path("/proc/sys/kernel/core_pattern").read_text() == before


def test_no_lease_holds_up_a_reader_outside(attacker: Attacker) -> None:
    answer = attacker.probe(
        "import fcntl\nanswer([attempt(fcntl.fcntl, os.open(p, os.O_RDONLY), fcntl.F_SETLEASE, k) for p in "
        "('/usr/bin/env', "
        "'/usr/lib/os-release') for k in (fcntl.F_RDLCK, fcntl.F_WRLCK)])"
    )
    assert set(answer) <= {"EACCES", "EPERM", "EAGAIN", "EINVAL"}
    assert Path("/usr/lib/os-release").read_bytes()


def test_queues_of_messages_have_no_name_in_common(attacker: Attacker, create: Callable[..., Sandbox]) -> None:
    code = "answer(ctypes.CDLL('librt.so.1').mq_open(b'/paddock-test', int(sys.argv[1]), 0o666, None))"
    made = attacker.probe(code, str(0o102))
    assert made >= 0
    assert Attacker(create(), attacker.user).probe(code, "2") == -1
    assert not Path("/dev/mqueue/paddock-test").exists()


def test_no_scheduler_that_comes_first_can_be_had(attacker: Attacker) -> None:
    answers = attacker.probe(
        "def attributes(policy, nice=0, priority=0, runtime=0):\n"
        "    return ctypes.create_string_buffer(struct.pack('IIQiIQQQ', 48, policy, 0, nice, priority, "
        "runtime, runtime, runtime))\n"
        "answer([call(314, 0, attributes(1, priority=1), 0), call(314, 0, attributes(2, priority=99), 0),\n"
        "        call(314, 0, attributes(6, runtime=10 ** 7), 0), call(314, 0, attributes(0, nice=-5), 0),\n"
        "        call(251, 1, 0, 1 << 13), call(141, 0, 0, -5)])"
    )
    assert set(answers) <= {"EPERM", "EACCES", "EINVAL"}
    with attacker.marked() as pid:
        assert int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[16]) >= 0
        assert status_on_host(pid)["Seccomp"] == "2"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _bounding(status: str) -> set[str]:
    words = status.split()
    return {words[at + 1] for at, word in enumerate(words) if word == "CapBnd:"}


def _json(value: object) -> str:
    import json

    return json.dumps(value)
