"""Attacks with memory that the kernel keeps for a process: it is charged to the sandbox, refused, or ends it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator

import pytest
from attacking import PREAMBLE, Attacker, needs

from paddock import Sandbox
from paddock.errors import PaddockError, SandboxDiedError
from paddock.model import Limit

MIB = 1 << 20
LIMIT_MIB = 96

# Each takes as much as it gets, then says "full" and holds it. The comment says what would be the machine's.
HOARDS = {
    # 64 KiB and more for each pipe, beside the sizes that fcntl(F_SETPIPE_SZ) gives
    "pipes": """
import fcntl
held = []
while True:
    r, w = os.pipe(); os.set_blocking(w, False); held += [r, w]
    try:
        fcntl.fcntl(w, 1031, 1 << 20)
    except OSError: pass
    try:
        while True: os.write(w, bytes(65536))
    except BlockingIOError: pass
""",
    # messages that wait in sockets, and sockets that wait in messages
    "unix sockets": """
held = []
while True:
    a, b = socket.socketpair(); held += [a, b]
    for one in (a, b):
        one.setblocking(False)
        try:
            while True: one.send(bytes(65536))
        except BlockingIOError: pass
""",
    "descriptors under way": """
import array
held = []
while True:
    a, b = socket.socketpair(); held += [a, b]; a.setblocking(False)
    try:
        while True: a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0] * 200))])
    except OSError: pass
""",
    # names that do not exist are remembered
    "names of files": """
for n in range(600_000):
    try: os.stat(f'/tmp/{n}' + 'x' * 200)
    except OSError: pass
""",
    "watches of epoll": """
import select
fds = [os.dup(0) for _ in range(100)]
held = []
while True:
    poll = select.epoll(); held.append(poll)
    for fd in fds: libc.epoll_ctl(poll.fileno(), 1, fd, ctypes.create_string_buffer(struct.pack('IQ', 1, 0)))
""",
    "timers": """
event = ctypes.create_string_buffer(struct.pack('QiiI', 0, 0, 1, 0) + bytes(64)); timer = ctypes.c_void_p()
while libc.syscall(222, 1, event, ctypes.byref(timer)) == 0: pass
""",
    "queued signals": """
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
while libc.sigqueue(os.getpid(), 40, None) == 0: pass
""",
    "SysV shared memory": """
libc.shmat.restype = ctypes.c_void_p
while (id := libc.shmget(0, 8 << 20, 0o1600)) >= 0:
    at = libc.shmat(id, None, 0)
    if at in (None, 2 ** 64 - 1): break
    ctypes.memset(at, 1, 8 << 20)
""",
    "SysV messages": """
message = ctypes.create_string_buffer(8008); message[0] = 1
while (queue := libc.msgget(0, 0o1600)) >= 0:
    while libc.msgsnd(queue, message, 8000, 0o4000) == 0: pass
""",
    "SysV semaphores": "while libc.semget(0, 32000, 0o1600) >= 0: pass",
    "POSIX queues": """
librt = ctypes.CDLL('librt.so.1')
n = 0
while (q := librt.mq_open(b'/q%d' % n, 0o102 | 0o4000, 0o600, None)) >= 0:
    n += 1
    while librt.mq_send(q, bytes(8192), 8192, 0) == 0: pass
""",
    "POSIX shared memory": """
n = 0
while True:
    with open(f'/dev/shm/{n}', 'wb', 0) as file: n += 1; file.write(bytes(1 << 20))
""",
    "anonymous files": """
held = []
while True:
    fd = os.memfd_create('x'); held.append(fd); os.write(fd, bytes(1 << 20))
""",
    "tables of pages": """
import mmap
held = []
while True:
    m = mmap.mmap(-1, 64 << 30, flags=0x4022, prot=3); held.append(m)
    for at in range(0, 64 << 30, 1 << 21): m[at]
""",
    "areas of memory": """
libc.mmap.restype = ctypes.c_void_p
for _ in range(64):
    if os.fork() == 0:
        n = 0
        while libc.mmap(None, 4096, 1 + 2 * (n % 2), 0x22, -1, 0) not in (None, 2 ** 64 - 1): n += 1
        signal.pause()
""",
    "attributes of temporary files": """
n = 0
while True:
    name = f'/tmp/{n}'; n += 1; open(name, 'w').close()
    for k in range(100): os.setxattr(name, f'user.{k}', bytes(60000))
""",
    "deep directories": """
os.chdir('/tmp')
while True:
    os.mkdir('d' * 200); os.chdir('d' * 200)
""",
    "filters": """
code = ctypes.create_string_buffer(struct.pack('HBBI', 0, 0, 0, 1) * 4000 + struct.pack('HBBI', 6, 0, 0, 0x7fff0000))
program = struct.pack('HxxxxxxQ', 4001, ctypes.addressof(code))
for _ in range(40):
    if os.fork() == 0:
        while libc.syscall(317, 1, 0, program) == 0: pass
        signal.pause()
""",
    "locked memory": """
libc.mmap.restype = ctypes.c_void_p
libc.mlockall(3)
while (at := libc.mmap(None, 1 << 20, 3, 0x2022, -1, 0)) not in (None, 2 ** 64 - 1): ctypes.memset(at, 1, 1 << 20)
""",
    "watches of files": """
fd = libc.inotify_init1(0)
n = 0
while True:
    name = b'/tmp/w%d' % n; n += 1; os.close(os.open(name, os.O_CREAT))
    if libc.inotify_add_watch(fd, name, 0xfff) < 0: break
""",
}


@pytest.mark.parametrize("kind", HOARDS)
def test_a_hoard_in_the_kernel_is_the_sandboxs_own(
    kind: str, strongest: Callable[..., Attacker], bystander: Sandbox
) -> None:
    needs("memory")
    attacker = strongest(memory_mib=LIMIT_MIB, tmp_mib=48, processes=100, open_files=4096)
    hold = f"try:\n{_indented(HOARDS[kind])}\nexcept (OSError, MemoryError): pass\nprint('full', flush=True); input()\n"
    argv = ("python3", "-I", "-S", "-c", PREAMBLE + hold)
    try:
        with _hoarding(attacker, argv):
            used = attacker.sandbox.usage().memory_bytes
            assert used is not None
            assert used <= (LIMIT_MIB + 1) * MIB
            assert bystander.exec("echo alive").stdout == "alive\n"
    except SandboxDiedError:
        assert _struck_by_memory(attacker.sandbox)
    assert bystander.exec(("python3", "-c", "print('alive')")).stdout == "alive\n"


# What is bounded only if it is charged: a known amount is taken, and the sandbox's account has to show it.
KNOWN = {
    "pipes": (16, "held = []\nfor _ in range(256):\n r, w = os.pipe(); held += [r, w]; os.write(w, bytes(65536))\n"),
    "unix sockets": (
        16,
        "held = []\nfor _ in range(160):\n a, b = socket.socketpair(); held += [a, b]; a.send(bytes(102400))\n",
    ),
    "anonymous files": (16, "os.write(os.memfd_create('x'), bytes(16 << 20))\n"),
    "SysV messages": (
        16,
        "m = ctypes.create_string_buffer(8008); m[0] = 1\n"
        "for _ in range(1050):\n q = libc.msgget(0, 0o1600); libc.msgsnd(q, m, 8000, 0); libc.msgsnd(q, m, 8000, 0)\n",
    ),
    "tables of pages": (
        8,
        "import mmap\nm = mmap.mmap(-1, 8 << 30, flags=0x4022, prot=3)\nfor at in range(0, 8 << 30, 1 << 21): m[at]\n",
    ),
    "attributes": (
        4,
        "for n in range(80):\n open(f'/tmp/{n}', 'w').close(); os.setxattr(f'/tmp/{n}', 'user.x', bytes(60000))\n",
    ),
}


@pytest.mark.parametrize("kind", KNOWN)
def test_what_the_kernel_keeps_is_charged(kind: str, strongest: Callable[..., Attacker]) -> None:
    needs("memory")
    attacker = strongest(memory_mib=256, tmp_mib=48, open_files=4096)
    least_mib, take = KNOWN[kind]
    argv = (
        "python3",
        "-I",
        "-S",
        "-c",
        PREAMBLE + f"print('up', flush=True); input()\n{take}print('held', flush=True); input()",
    )
    with attacker.sandbox.start(argv, stdin=True, user=attacker.user) as process:
        assert process.stdout.read(100) == b"up\n"
        before = attacker.sandbox.usage().memory_bytes or 0
        process.stdin.write(b"\n")
        assert process.stdout.read(100) == b"held\n"
        # The account is kept in batches of 64 pages for each processor: of much less than `least_mib` it says nothing.
        assert (attacker.sandbox.usage().memory_bytes or 0) - before >= least_mib * MIB * 0.7
        process.stdin.write(b"\n")


def test_nothing_is_locked_in_memory_beyond_a_little(attacker: Attacker) -> None:
    answers = attacker.probe(
        "import resource\n"
        "libc.mmap.restype = ctypes.c_void_p\n"
        "at = libc.mmap(None, 64 << 20, 3, 0x22, -1, 0)\n"
        "def lock(): return call(149, ctypes.c_void_p(at), 64 << 20)\n"
        "answer([lock(), call(151, 1), attempt(resource.setrlimit, resource.RLIMIT_MEMLOCK, (1 << 30, 1 << 30))])"
    )
    assert answers[0] in ("ENOMEM", "EPERM", "EAGAIN")
    assert answers[2] == "EPERM"


def test_nobody_is_spared_when_memory_runs_out(attacker: Attacker) -> None:
    """Lowering the score, of oneself or of pid 1's child, is how a hog would have the agent killed in its place."""
    answers = attacker.probe(
        "def set(path, text):\n"
        "    with open(path, 'w') as file: file.write(text)\n"
        "answer([attempt(set, f'/proc/{p}/{f}', v) for p in ('self', '1', os.getppid())\n"
        "        for f, v in (('oom_score_adj', '-1000'), ('oom_score_adj', '0'), ('oom_adj', '-17'))])"
    )
    assert set(answers) <= {"EACCES", "EPERM", "EROFS", "ENOENT"}


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.strip("\n").splitlines())


@contextlib.contextmanager
def _hoarding(attacker: Attacker, argv: tuple[str, ...]) -> Generator[None]:
    """From when it has all it gets, or the kernel has ended it; one that takes long is as good after a while."""
    with attacker.sandbox.start(argv, stdin=True, user=attacker.user) as process:
        said = threading.Thread(target=process.stdout.read, args=(5,))
        said.start()
        end = time.monotonic() + 8
        try:
            while said.is_alive() and time.monotonic() < end:
                try:
                    attacker.sandbox.usage()
                except PaddockError:
                    raise SandboxDiedError("it was ended") from None
                said.join(0.2)
            yield
        finally:
            with contextlib.suppress(PaddockError):
                process.kill()
            said.join()  # before what it reads is closed


def _struck_by_memory(sandbox: Sandbox) -> bool:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if sandbox.refresh().limit == Limit.MEMORY:
            return True
        time.sleep(0.05)
    return False
