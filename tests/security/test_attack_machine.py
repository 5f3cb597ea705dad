"""Attacks on what the machine has once for all, and on what the kernel would tell or count for nobody."""

from __future__ import annotations

import fcntl
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attacking import Attacker, needs, status_on_host

from paddock import Sandbox

SPREAD = """
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
for _ in range(4):
    if os.fork() == 0:
        try: flood()
        except OSError: pass
        signal.pause()
signal.pause()
"""


def test_asynchronous_requests_are_left_to_the_machine(attacker: Attacker) -> None:
    before = Path("/proc/sys/fs/aio-nr").read_text()
    answer = attacker.probe(
        "context = ctypes.c_ulong(0)\nanswer([call(206, n, ctypes.byref(context)) for n in (65536, 1024, 1)])"
    )
    assert set(answer) == {"ENOSYS"}
    assert Path("/proc/sys/fs/aio-nr").read_text() == before


def test_huge_pages_are_left_to_the_machine(attacker: Attacker) -> None:
    """Where no control group counts memory, memfd_create and shmget may be no system calls at all."""
    answers = attacker.probe(
        "libc.mmap.restype = ctypes.c_void_p\n"
        "def mapped(flags):\n"
        "    ctypes.set_errno(0); at = libc.mmap(None, 2 << 20, 3, 0x22 | flags, -1, 0)\n"
        "    return name(ctypes.get_errno()) if at in (None, 2 ** 64 - 1) else 'allowed'\n"
        "answer([mapped(0x40000), mapped(0x40000 | 21 << 26), call(319, b'x', 4), call(319, b'x', 4 | 2 << 26),\n"
        "        call(29, 0, 2 << 20, 0o5600), mapped(0)])"
    )
    assert (answers[:2], answers[5]) == (["ENOMEM"] * 2, "allowed")
    assert set(answers[2:5]) <= {"ENOMEM", "ENOSYS"}


def test_the_file_systems_of_the_machine_are_not_flushed(attacker: Attacker, tmp_path: Path) -> None:
    """Written data of the host that has no place on its disk yet has none after a `sync` inside."""
    file = tmp_path / "dirty"
    for _ in range(5):  # the kernel's own flusher may come between
        file.write_bytes(os.urandom(1 << 16))
        if not _is_delayed(file):
            pytest.skip("this machine's file system gives data its place at once")
        attacker.probe(
            "answer([call(162), *[call(306, os.open(p, os.O_RDONLY)) for p in ('/usr/bin/env', '/proc', '/dev')]])"
        )
        if _is_delayed(file):
            return
        file.unlink()
    pytest.fail("each sync inside wrote out what the host had not")


def test_pid_1_keeps_its_priority_when_all_of_its_id_are_named(attacker: Attacker) -> None:
    with attacker.marked() as pid:
        first = int(status_on_host(int(status_on_host(pid)["PPid"]))["PPid"])
        assert status_on_host(first)["NSpid"].split()[-1] == "1"
        before = _nice(first)
        answers = attacker.probe(
            "answer([call(141, 2, 0, 19), call(141, 2, os.getuid(), 19), call(251, 3, 0, 3 << 13),\n"
            "        call(251, 3, os.getuid(), 3 << 13), call(141, 0, 1, 19), call(141, 1, 1, 19)])"
        )
        assert set(answers) <= {"EPERM", "ESRCH"}
        assert _nice(first) == before == 0


def test_nothing_is_learnt_of_what_the_machine_runs(attacker: Attacker, bystander: Sandbox) -> None:
    """inotify on the shared /usr: the host's own inodes would tell of each program that anybody starts."""
    code = (
        "import ctypes, os, sys\n"
        "libc = ctypes.CDLL(None)\n"
        "fd = libc.inotify_init1(os.O_NONBLOCK)\n"
        "for p in (b'/usr', b'/usr/bin', b'/usr/bin/uname', b'/usr/lib'): libc.inotify_add_watch(fd, p, 0xfff)\n"
        "print('armed', flush=True); sys.stdin.readline()\n"
        "try: print(os.read(fd, 65536))\n"
        "except BlockingIOError: print('nothing')\n"
    )
    argv = ("python3", "-I", "-S", "-c", code)
    needs("activity")
    with attacker.sandbox.start(argv, stdin=True, user=attacker.user) as process:
        assert process.stdout.read(100) == b"armed\n"
        subprocess.run(["/usr/bin/uname"], stdout=subprocess.DEVNULL, check=True)
        bystander.exec(("/usr/bin/uname",), check=True)
        process.stdin.write(b"\n")
        assert process.stdout.read(100) == b"nothing\n"


def test_a_lock_on_a_shared_file_holds_up_nobody_outside(attacker: Attacker, bystander: Sandbox) -> None:
    take = "import fcntl\nfile = open('/usr/bin/env')\nfcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    argv = ("python3", "-I", "-S", "-c", take + "print('held', flush=True); input()")
    with attacker.sandbox.start(argv, stdin=True, user=attacker.user) as process:
        assert process.stdout.read(100) == b"held\n"
        with open("/usr/bin/env") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert bystander.exec(("python3", "-I", "-S", "-c", take)).exit_code == 0


def test_no_program_is_attached_to_a_socket(attacker: Attacker) -> None:
    answers = attacker.probe(
        "code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 1))\n"
        "program = struct.pack('HxxxxxxQ', 1, ctypes.addressof(code))\n"
        "answer([attempt(socket.socket().setsockopt, 1, o, program) for o in (26, 50, 51, 52)])"
    )
    assert answers == ["EPERM"] * 4


FLOODS = {
    "answers of netlink": """
def flood():
    held = []
    while True:
        s = socket.socket(16, 3, 0); s.bind((0, 0)); s.setblocking(False); held.append(s)
        try:
            for _ in range(200): s.send(struct.pack('IHHII', 32, 18, 0x301, 1, 0) + bytes(16))
        except OSError: pass
""",
    "TCP": """
def flood():
    server = socket.create_server(('127.0.0.1', 0), backlog=4000); held = []
    while True:
        a = socket.create_connection(server.getsockname()); b, _ = server.accept(); held += [a, b]
        for one in (a, b):
            one.setblocking(False)
            try:
                while True: one.send(bytes(65536))
            except BlockingIOError: pass
""",
    "UDP": """
def flood():
    held = []
    while True:
        s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0)); s.setblocking(False); held.append(s)
        for _ in range(8): s.sendto(bytes(60000), s.getsockname())
""",
}


@pytest.mark.parametrize("kind", FLOODS)
def test_what_sockets_hold_stays_within_a_few_hundred_mebibytes(
    kind: str, limited: Callable[..., Attacker], bystander: Sandbox
) -> None:
    """The kernel charges it to nobody, or only where asked (version 1): without a limit it is all memory there is."""
    needs("sockets")
    attacker = limited(memory_mib=256, processes=32, open_files=4096)
    with attacker.marked() as pid:
        argv = ("python3", "-I", "-S", "-c", "import os, signal, socket, struct\n" + FLOODS[kind] + SPREAD)
        attacker.sandbox.start(argv, user=attacker.user, background=True)
        worst, end = 0, time.monotonic() + 6
        try:
            while time.monotonic() < end and Path(f"/proc/{pid}").exists():
                worst = max(worst, _held(pid))
                time.sleep(0.1)
        finally:
            attacker.sandbox.kill()
    # The watch looks every two seconds, and a busy machine lets the flood go on for longer.
    assert worst < 2048 << 20
    assert bystander.exec("echo alive").stdout == "alive\n"


def test_a_supervisor_is_not_kept_busy_by_ten_thousand_netlink_sockets(limited: Callable[..., Attacker]) -> None:
    needs("sockets")
    attacker = limited(memory_mib=256, open_files=4096)
    many = (
        "import resource, signal, socket, os\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0: held = [socket.socket(16, 3, 0) for _ in range(4000)]; [s.bind((0, 0)) for s in held]; "
        "signal.pause()\n"
        "signal.pause()"
    )
    attacker.sandbox.start(("python3", "-I", "-S", "-c", many), user=attacker.user, background=True)
    end = time.monotonic() + 60
    while attacker.sandbox.refresh().state != "killed":
        assert time.monotonic() < end, "nobody counted them"
        time.sleep(0.1)
    assert attacker.sandbox.refresh().limit == "memory"


@pytest.mark.root
def test_the_variables_of_one_sandbox_are_in_no_process_of_another(create: Callable[..., Sandbox]) -> None:
    """What a sandbox is cloned from must never have seen them: whoever takes over an agent reads its memory."""
    canary = secrets.token_hex(16)
    create(env={"TOKEN": canary}).exec("true")
    for _ in range(2):  # what is kept ready may be older than the first
        other = Attacker(create(), None)
        with other.marked() as pid:
            assert [found for found in other.pids_with(pid) if canary.encode() in b"".join(_memory(found))] == []


def _held(pid: int) -> int:
    """Bytes in the queues of the network namespace of `pid`, by what the kernel tells of each socket."""
    total = 0
    for table, columns in (("netlink", (4,)), ("tcp", (4,)), ("udp", (4,))):
        try:
            lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        except OSError:
            return 0
        for line in lines:
            for column in columns:
                field = line.split()[column]
                total += sum(int(half, 16) for half in field.split(":")) if ":" in field else int(field)
    return total


def _nice(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[16])


def _memory(pid: int) -> Iterator[bytes]:
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            where, rights = line.split()[:2]
            start, end = (int(number, 16) for number in where.split("-"))
            if "r" in rights and "[v" not in line:
                memory.seek(start)
                try:
                    yield memory.read(end - start)
                except OSError:
                    continue


def _is_delayed(file: Path) -> bool:
    """FS_IOC_FIEMAP: whether the first extent is FIEMAP_EXTENT_DELALLOC (include/uapi/linux/fiemap.h)."""
    import struct

    request = bytearray(struct.pack("=QQIIII", 0, 1 << 62, 0, 0, 1, 0) + bytes(56))
    with file.open("rb") as opened:
        try:
            fcntl.ioctl(opened, 0xC020660B, request)
        except OSError:
            return False
    flags = struct.unpack_from("=I", request, 32 + 40)[0]
    return bool(flags & 0x4)
