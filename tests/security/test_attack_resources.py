"""Attempts to use up the machine. The limit holds, is named, and neither the host nor a neighbour notices."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from attacking import Attacker, allocated, needs

from paddock import Sandbox
from paddock.errors import SandboxDiedError
from paddock.model import Limit

MIB = 1 << 20
Limited = Callable[..., Attacker]


def test_a_fork_bomb_is_held_while_a_neighbour_works(limited: Limited, bystander: Sandbox) -> None:
    attacker = limited(processes=100)
    needs("processes")
    bomb = ("python3", "-I", "-S", "-c", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")
    with attacker.sandbox.start(bomb, user=attacker.user) as process:
        _until(lambda: (attacker.sandbox.usage().processes or 0) >= 90, "the bomb has filled its limit")
        for n in range(10):
            assert bystander.exec(("echo", str(n))).stdout == f"{n}\n"
        assert (attacker.sandbox.usage().processes or 0) <= 110
        process.kill()
    assert attacker.sh("echo alive").stdout == "alive\n"


def test_a_fork_bomb_ends_with_its_sandbox(limited: Limited) -> None:
    attacker = limited(processes=200)
    script = ":(){ :|:& };:"
    attacker.sandbox.start(("bash", "-c", f"{script}; sleep 600"), user=attacker.user, background=True)
    attacker.sandbox.kill()
    with pytest.raises(SandboxDiedError):
        attacker.sh("true")


def test_threads_count_as_processes(limited: Limited) -> None:
    attacker = limited(processes=60)
    count = attacker.probe(
        "import threading\nevent = threading.Event(); threads = []\n"
        "try:\n"
        "    for _ in range(500): t = threading.Thread(target=event.wait, daemon=True); t.start(); threads.append(t)\n"
        "except RuntimeError: pass\n"
        "answer(len(threads)); sys.stdout.flush(); os._exit(0)"
    )
    assert count < 60


HOGS = {
    "heap": "x = bytearray(b'x') * (600 << 20)",
    "mmap": "import mmap\nm = mmap.mmap(-1, 600 << 20)\nfor n in range(0, 600 << 20, 4096): m[n] = 1",
    "children": "for _ in range(6):\n    if os.fork() == 0: x = bytearray(b'x') * (100 << 20); signal.pause()\n"
    "os.wait(); raise SystemExit(1)",
}


@pytest.mark.parametrize("kind", HOGS)
def test_a_hog_of_memory_is_ended_and_named(kind: str, limited: Limited, bystander: Sandbox) -> None:
    needs("memory")
    attacker = limited(memory_mib=128, tmp_mib=16)
    result = attacker.run(HOGS[kind])
    assert result.exit_code != 0
    assert result.limit == "memory"
    assert attacker.sh("echo alive").stdout == "alive\n"
    assert bystander.exec("echo alive").stdout == "alive\n"
    assert attacker.sandbox.usage().strikes.get("memory", 0) >= 1


# Each takes what it gets, up to 600 MiB, and counts it in `total`.
OF_NO_PROCESS = {
    "memfd": "f = os.memfd_create('x')\nwhile total < 600 << 20: total += os.write(f, bytes(1 << 20))",
    "memfd under way": """
a, b = socket.socketpair(); held = [a, b]
while total < 600 << 20:
    f = os.memfd_create('x'); total += os.write(f, bytes(32 << 20)); socket.send_fds(a, [b'x'], [f]); os.close(f)
""",
    "System V shared memory": """
libc.shmat.restype = ctypes.c_void_p; libc.shmdt.argtypes = (ctypes.c_void_p,)
while total < 600 << 20 and (id := libc.shmget(0, 8 << 20, 0o1600)) >= 0:
    at = libc.shmat(id, None, 0); ctypes.memset(at, 1, 8 << 20); libc.shmdt(at); total += 8 << 20
""",
    "System V messages": """
message = ctypes.create_string_buffer(8008); message[0] = 1
while total < 400 << 20 and (queue := libc.msgget(0, 0o1600)) >= 0:
    while libc.msgsnd(queue, message, 8000, 0o4000) == 0: total += 8000
""",
    "System V semaphores": """
while total < 600 << 20 and libc.semget(0, 32000, 0o1600) >= 0: total += 32000 * 64
""",
    "messages of unix sockets": """
held = []
while total < 600 << 20:
    a, b = socket.socketpair(); held += [a, b]
    for one in (a, b):
        one.setblocking(False)
        try:
            while True: total += one.send(bytes(65536))
        except BlockingIOError: pass
""",
    "messages of unix sockets that are gone": """
held = []
while total < 600 << 20:
    a, b = socket.socketpair(); held.append(b); a.setblocking(False)
    try:
        while True: total += a.send(bytes(65536))
    except BlockingIOError: a.close()
""",
}


@pytest.mark.parametrize("kind", OF_NO_PROCESS)
def test_memory_that_belongs_to_no_process_is_refused_or_its_end_is_named(
    kind: str, limited: Limited, bystander: Sandbox
) -> None:
    """It counts for the sandbox but for no process of it: the kernel may choose the agent, or pid 1, instead.

    Where no control group counts it, it is refused, or the supervisor sees it.
    """
    attacker = limited(memory_mib=128, tmp_mib=16, open_files=4096)
    code = f"total = 0\ntry:\n{_indented(OF_NO_PROCESS[kind])}\nexcept (OSError, MemoryError): pass\n"
    code += "print(total, flush=True)\nif total > 128 << 20: signal.pause()"
    try:
        result = attacker.run(code)
        limit, total = result.limit, int(result.stdout or 0)
    except SandboxDiedError:
        _until(
            lambda: attacker.sandbox.refresh().limit == "memory" or _struck(attacker.sandbox, "memory"), "it is named"
        )
        limit, total = "memory", 0
    assert limit == "memory" or (limit is None and total <= 128 * MIB)
    assert bystander.exec("echo alive").stdout == "alive\n"


def test_memory_in_temporary_files_is_bounded_by_their_own_limit(limited: Limited) -> None:
    attacker = limited(memory_mib=256, tmp_mib=16)
    for place in ("/tmp", "/dev/shm"):
        result = attacker.sh(
            f"head -c 100000000 /dev/zero >{place}/fill; echo $?; stat -c %s {place}/fill; rm {place}/fill"
        )
        code, size = result.stdout.split()
        assert code == "1"
        assert int(size) <= 16 * MIB
        assert "No space left" in result.stderr


def test_the_number_of_temporary_files_is_bounded(limited: Limited) -> None:
    attacker = limited(inodes=2000)
    made = attacker.probe(
        "n = 0\n"
        "try:\n"
        "    while n < 10_000: os.close(os.open(f'/tmp/{n}', os.O_CREAT)); n += 1\n"
        "except OSError as error: assert error.errno == errno.ENOSPC\n"
        "answer(n)"
    )
    assert made <= 2000


def test_a_full_disk_is_refused_named_and_costs_the_host_no_more(limited: Limited, shared_state: Path) -> None:
    attacker = limited(disk_mib=64)
    needs("disk")
    before = allocated(shared_state)
    result = attacker.run(
        "f = os.open('/workspace/fill', os.O_CREAT | os.O_WRONLY)\n"
        "try:\n"
        "    for _ in range(400): os.write(f, os.urandom(1 << 20)); os.fsync(f)\n"
        "except OSError as error: print(name(error.errno)); raise SystemExit(1)"
    )
    assert result.stdout.strip() in ("ENOSPC", "EDQUOT")
    assert result.limit == "disk"
    assert allocated(shared_state) - before < 200 * MIB
    assert attacker.sh("rm /workspace/fill && echo x >/workspace/x && cat /workspace/x").stdout == "x\n"


def test_a_disk_that_was_full_is_put_down_to_no_later_command(limited: Limited) -> None:
    attacker = limited(disk_mib=64)
    needs("disk")
    fill = "head -c 100M /dev/urandom >/workspace/fill"
    assert attacker.sh(f"{fill}; rm /workspace/fill").limit is None
    assert attacker.sh("false").limit is None
    assert attacker.sh(fill).limit == "disk"
    assert attacker.sh("rm /workspace/fill; false").limit is None


def test_a_deleted_file_that_is_still_open_counts(limited: Limited) -> None:
    attacker = limited(disk_mib=64)
    needs("disk")
    answer = attacker.probe(
        "held, total = [], 0\n"
        "try:\n"
        "    for n in range(40):\n"
        "        f = os.open('/workspace/gone', os.O_CREAT | os.O_WRONLY | os.O_TRUNC); "
        "os.unlink('/workspace/gone'); held.append(f)\n"
        "        for _ in range(10): total += os.write(f, os.urandom(1 << 20))\n"
        "        os.fsync(f)\n"
        "except OSError as error: answer([name(error.errno), total])\n"
        "else: answer(['never', total])"
    )
    assert answer[0] in ("ENOSPC", "EDQUOT")
    assert answer[1] <= 80 * MIB


def test_a_file_with_a_hole_is_no_larger_than_what_is_in_it(limited: Limited) -> None:
    attacker = limited(disk_mib=64)
    answer = attacker.probe(
        "f = os.open('/workspace/hole', os.O_CREAT | os.O_RDWR)\n"
        "def grow(): os.ftruncate(f, 1 << 50)\n"
        "try: got = attempt(grow)\n"
        "except Exception as error: got = repr(error)\n"
        "answer(got)",
    )
    assert answer in ("allowed", "EFBIG", "EINVAL") or "SIGXFSZ" in str(answer)
    assert attacker.sh("echo alive").stdout == "alive\n"


def test_too_many_files_end_or_are_refused_and_are_named(limited: Limited, bystander: Sandbox) -> None:
    attacker = limited(inodes=3000)
    needs("inodes")
    try:
        result = attacker.run(
            "n = 0\n"
            "os.makedirs('/workspace/many', exist_ok=True)\n"
            "try:\n"
            "    while True: os.close(os.open(f'/workspace/many/{n}', os.O_CREAT)); n += 1\n"
            "except OSError: raise SystemExit(1)",
            timeout_seconds=60,
        )
        assert result.limit == "inodes"
    except SandboxDiedError:
        _until(lambda: attacker.sandbox.refresh().limit == "inodes", "the limit is named")
    assert bystander.exec("echo alive").stdout == "alive\n"


@pytest.mark.parametrize("stream", ["", " >&2"])
def test_a_flood_of_output_is_ended_named_and_not_stored(stream: str, limited: Limited) -> None:
    attacker = limited(output_mib=8)
    before = _resident()
    result = attacker.sh(f"yes paddock{stream}", timeout_seconds=60)
    assert result.limit == "output"
    assert result.out.total_bytes + result.err.total_bytes < 64 * MIB
    assert len(result.out.head + result.out.tail + result.err.head + result.err.tail) <= 2 * MIB
    assert _resident() - before < 64 * MIB
    assert attacker.sh("echo alive").stdout == "alive\n"


def test_open_files_are_bounded_for_all_processes_and_the_host_keeps_its_own(limited: Limited) -> None:
    attacker = limited(open_files=64, processes=64)
    answer = attacker.probe(
        "held = []\n"
        "try:\n"
        "    while len(held) < 5000: held.append(os.open('/dev/null', os.O_RDONLY))\n"
        "except OSError as error: answer([len(held), name(error.errno)])\n"
        "else: answer([len(held), 'never'])"
    )
    assert answer[0] < 64
    assert answer[1] == "EMFILE"
    os.close(os.open("/dev/null", os.O_RDONLY))


def test_processor_time_is_shared_out(limited: Limited) -> None:
    needs("cpus")
    attacker = limited(cpus=0.25)
    used, passed = attacker.probe(
        "import time\n"
        "children = []\n"
        "start = time.monotonic()\n"
        "for _ in range(4):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        while time.monotonic() - start < 2: pass\n"
        "        os._exit(0)\n"
        "    children.append(pid)\n"
        "used = sum(os.wait4(pid, 0)[2].ru_utime + 0 for pid in children)\n"
        "answer([used, time.monotonic() - start])"
    )
    assert used / passed < 0.5, "four spinners got more than twice their share"


def test_terminals_run_out_inside_only(attacker: Attacker) -> None:
    attacker.run(
        "held = []\ntry:\n    while len(held) < 4000: held.append(os.open('/dev/ptmx', os.O_RDWR | "
        "os.O_NOCTTY))\nexcept OSError: pass"
    )
    leader, follower = os.openpty()
    os.close(leader)
    os.close(follower)


def test_ten_thousand_hostile_names_are_listed_without_harm(attacker: Attacker) -> None:
    attacker.run(
        "os.chdir('/tmp'); os.mkdir('d'); os.chdir('d')\nfor n in range(10_000): "
        "os.close(os.open(b'\\x1b[2J\\n\\xff%d' % n, os.O_CREAT))"
    )
    assert len(attacker.sandbox.filesystem.list("/tmp/d")) == 10_000


def test_a_sandbox_under_pressure_of_memory_is_killed_like_any_other(limited: Limited) -> None:
    attacker = limited(memory_mib=96, processes=100)
    hog = "import os\nfor _ in range(20): os.fork() or 0\nwhile True: x = bytearray(b'x') * (50 << 20)"
    attacker.sandbox.start(("python3", "-I", "-S", "-c", hog), user=attacker.user, background=True)
    attacker.sandbox.kill()
    assert attacker.sandbox.state == "killed"


def _struck(sandbox: Sandbox, limit: str) -> bool:
    try:
        return sandbox.usage().strikes.get(Limit(limit), 0) >= 1
    except SandboxDiedError:
        return False


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.05)


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.strip("\n").splitlines())
