"""Attacks on the beginning and the end: outliving the kill, being in its way, being taken for somebody else."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from attacking import PREAMBLE, Attacker, host_mounts

from paddock import Sandbox
from paddock.errors import GuestLostError
from paddock.linux import proc
from paddock.supervisor import layout
from tests.conftest import live_sandboxes

# Each leaves processes that do what they can not to die, then says so.
SURVIVORS = {
    "storm of sessions": """
def storm():
    while True:
        try:
            if os.fork() == 0: os.setsid()
        except OSError: pass
for _ in range(4):
    try:
        if os.fork() == 0: storm()
    except OSError: break
""",
    "stopped by a tracer": """
pid = os.fork()
if pid == 0: libc.ptrace(0, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP); signal.pause()
os.waitpid(pid, 0); libc.ptrace(0x4200, pid, 0, 1 << 20)
""",
    "stopped, and deaf": """
for n in range(1, 65):
    try: signal.signal(n, signal.SIG_IGN)
    except (OSError, ValueError): pass
if os.fork() == 0: os.setsid(); os.kill(os.getpid(), signal.SIGSTOP)
""",
    "parent of a vfork": """
if os.fork() == 0: libc.vfork() or libc.pause()
""",
    "holding every mount": """
held = [os.open(p, os.O_RDONLY) for p in ('/', '/usr', '/proc', '/dev', '/tmp', '/dev/shm', '/workspace', '/dev/pts')]
import mmap
for p in ('/workspace/m', '/tmp/m', '/dev/shm/m'):
    f = os.open(p, os.O_CREAT | os.O_RDWR); os.ftruncate(f, 1 << 20); held.append(mmap.mmap(f, 1 << 20))
os.chdir('/workspace')
if os.fork() == 0: signal.pause()
""",
    "descriptors in circles": """
import array
for _ in range(200):
    a, b = socket.socketpair()
    for one in (a, b):
        one.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [a.fileno(), b.fileno()]))])
if os.fork() == 0: signal.pause()
""",
    "in the middle of writing": """
if os.fork() == 0:
    f = os.open('/workspace/w', os.O_CREAT | os.O_WRONLY)
    while True:
        try: os.pwrite(f, bytes(1 << 22), 0); os.fsync(f)
        except OSError: pass
""",
    "threads that end one another": """
import threading
if os.fork() == 0:
    def spawn():
        while True:
            try: threading.Thread(target=lambda: os.execv('/proc/self/exe', ['python3', '-c', 'input()'])).start()
            except RuntimeError: pass
    spawn()
""",
}


@pytest.mark.parametrize("kind", SURVIVORS)
def test_nothing_outlives_the_kill(kind: str, limited: Callable[..., Attacker], shared_state: Path) -> None:
    attacker = limited(processes=120)
    mounts = host_mounts()
    with contextlib.ExitStack() as held:
        with attacker.marked() as pid:
            space = held.enter_context(_namespace_of(pid)) if os.getuid() == 0 else None
            code = PREAMBLE + SURVIVORS[kind] + "\nprint('up', flush=True)\nsignal.pause()"
            argv = ("python3", "-I", "-S", "-c", code)
            with attacker.sandbox.start(argv, user=attacker.user) as process:
                assert process.stdout.read(100) == b"up\n"
                attacker.sandbox.kill()
            assert not Path(f"/proc/{pid}").exists() or _state(pid) == "Z"
        if space is not None:
            assert [other for other in _pids() if _namespace(other) == space] == []
    assert attacker.sandbox.id not in live_sandboxes(shared_state)
    assert host_mounts() == mounts


def test_a_busy_sandbox_dies_by_its_deadline(create: Callable[..., Sandbox]) -> None:
    """Hundreds of spinners take all the processor time that pid 1 could have: the deadline is not its alone."""
    for user in [None, *(["root"] if os.getuid() == 0 else [])]:
        sandbox = create(ttl_seconds=600)
        spin = "import os\nfor _ in range(100):\n    if os.fork() == 0:\n        while True: pass\nwhile True: pass"
        sandbox.start(("python3", "-I", "-S", "-c", spin), user=user, background=True)
        sandbox.extend(3)
        end = time.monotonic() + 60
        while sandbox.refresh().state != "killed":
            assert time.monotonic() < end, "it is still alive"
            time.sleep(0.05)
        assert sandbox.refresh().limit == "ttl"


@pytest.mark.parametrize("lie", ["another start", "another boot", "nobody"])
def test_a_process_that_has_the_number_of_a_sandbox_is_not_taken_for_it(lie: str, state_dir: Path) -> None:
    """A sandbox died with its supervisor, and its number was given to a process of the host since."""
    code = "from paddock import Sandbox\nwith Sandbox.create(level='jail') as s: s.exec('true', check=True)"
    environment = {**os.environ, "PADDOCK_STATE_DIR": str(state_dir)}
    first = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if "LevelUnavailableError" in first.stderr:
        pytest.skip(first.stderr.splitlines()[-1])
    with subprocess.Popen(["sleep", "600"]) as victim:
        try:
            _end_supervisor(state_dir)
            forged = state_dir / layout.RUN / "sb_forged0123456789"
            forged.mkdir(mode=0o700)
            start = 1 if lie == "another start" else proc.start_time(victim.pid)
            record = {
                "id": forged.name, "pid": 2**22 + 1 if lie == "nobody" else victim.pid, "start": start,
                "boot": "x" if lie == "another boot" else proc.boot_id(), "slot": None, "group": None,
                "deadline": proc.boottime() - 1, "tree": forged.name, "template": "{}",
                "limits": {"disk_bytes": 1, "inodes": 1, "memory_bytes": 1},
            }  # fmt: skip
            (forged / "state.json").write_text(json.dumps(record))
            again = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
            assert again.returncode == 0, again.stderr
            assert not forged.exists()
            assert victim.poll() is None, "a process of the host was killed in place of a sandbox"
        finally:
            victim.kill()


def test_the_clock_that_deadlines_go_by_cannot_be_set(attacker: Attacker) -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    answers = attacker.probe(
        "now = ctypes.create_string_buffer(struct.pack('qq', 1, 0))\n"
        "timex = ctypes.create_string_buffer(struct.pack('I', 0x0100) + bytes(300))\n"
        "answer([call(227, 0, now), call(164, now, 0), call(159, timex), call(305, 0, timex), call(227, 7, now)])"
    )
    assert set(answers) <= {"EPERM", "EINVAL"}
    assert time.clock_gettime(time.CLOCK_BOOTTIME) >= before


def test_a_sandbox_that_kills_its_agents_for_ever_is_killed_at_once(attacker: Attacker) -> None:
    loop = "import os, signal\nos.setsid()\nif os.fork(): os._exit(0)\nwhile True:\n"
    loop += (
        "    for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "        if int(pid) not in (1, os.getpid()):\n"
        "            try: os.kill(int(pid), signal.SIGKILL)\n"
        "            except OSError: pass\n"
    )
    with contextlib.suppress(GuestLostError):  # the agent may be killed before it has said that this was started
        attacker.sandbox.start(("python3", "-I", "-S", "-c", loop), user=attacker.user, background=True)
    attacker.sandbox.kill()
    assert attacker.sandbox.state == "killed"


def _end_supervisor(state: Path) -> None:
    from tests.conftest import stop_supervisor

    stop_supervisor(state)


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


@contextlib.contextmanager
def _namespace_of(pid: int) -> Generator[str]:
    """Held open: the kernel gives the number of one that is gone to the next, which may be a neighbour's."""
    with open(f"/proc/{pid}/ns/pid", "rb") as file:
        yield os.readlink(f"/proc/self/fd/{file.fileno()}")


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
