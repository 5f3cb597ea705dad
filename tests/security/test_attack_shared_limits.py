"""Attacks on what the kernel counts for a whole machine or for an owner: the neighbours and the host keep theirs."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from attacking import PREAMBLE, Attacker

from paddock import Sandbox

_libc = ctypes.CDLL(None, use_errno=True)
_HOLD = "print('held', flush=True); input()"


def test_inotify_instances_run_out_inside_only(attacker: Attacker, second: Attacker, bystander: Sandbox) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    if most > 2000:
        pytest.skip(f"{most} inotify instances are too many to use up")
    take = f"for _ in range({most}): libc.inotify_init1(0)\n"
    ask = "libc.inotify_init1(0)"
    _while_held((attacker, second), take, lambda: (_takes_an_inotify_instance(), _answers(bystander, ask)))


def test_inotify_watches_run_out_inside_only(attacker: Attacker, second: Attacker, bystander: Sandbox) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_user_watches").read_text())
    if most > 500_000:
        pytest.skip(f"{most} inotify watches are too many to use up")
    take = (
        "fd = libc.inotify_init1(0)\nos.makedirs('/tmp/w')\n"
        f"for n in range({most}):\n"
        "    path = b'/tmp/w/%d' % n\n"
        "    os.mkdir(path)\n"
        "    if libc.inotify_add_watch(fd, path, 2) < 0: break\n"
    )
    ask = "libc.inotify_add_watch(libc.inotify_init1(0), b'/tmp', 2)"
    _while_held((attacker, second), take, lambda: (_watches_a_directory(), _answers(bystander, ask)))


def test_queued_signals_run_out_inside_only(attacker: Attacker, second: Attacker, bystander: Sandbox) -> None:
    take = (
        "import resource\nsignal.pthread_sigmask(signal.SIG_BLOCK, [40])\n"
        "most = min(resource.getrlimit(resource.RLIMIT_SIGPENDING)[0], 150_000)\n"
        "for _ in range(most):\n    if libc.sigqueue(os.getpid(), 40, None): break\n"
    )
    ask = "-abs(libc.sigqueue(os.getpid(), 40, None))"
    _while_held((attacker, second), take, lambda: (_queues_a_signal(), _answers(bystander, ask)))


def test_message_queues_run_out_inside_only(attacker: Attacker, second: Attacker, bystander: Sandbox) -> None:
    take = "for n in range(1000):\n    if libc.mq_open(b'/q%d' % n, os.O_CREAT | os.O_RDWR, 0o600, None) < 0: break\n"
    ask = "libc.mq_open(b'/mine', os.O_CREAT | os.O_RDWR, 0o600, None)"
    _while_held((attacker, second), take, lambda: (_opens_a_message_queue(), _answers(bystander, ask)))


def test_descriptors_under_way_hold_up_no_command_of_a_neighbour(
    attacker: Attacker, bystander: Sandbox, create: Callable[[], Sandbox]
) -> None:
    """unix(7): a user has at most RLIMIT_NOFILE of the sender under way, and a sandbox's may be more than ours."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 5000:
        pytest.skip(f"the hard limit of descriptors is {hard} here: no more than a sandbox may have")
    bystander.exec("true")
    take = (
        "fds = [os.open('/dev/null', os.O_RDONLY) for _ in range(250)]\n"
        "held = []\ntry:\n"
        "    while True:\n"
        "        held.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))\n"
        "        for _ in range(5): socket.send_fds(held[-1][0], [b'x'], fds)\n"
        "except OSError as error: assert error.errno == errno.ETOOMANYREFS, error\n"
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        _while_held((attacker,), take, lambda: (create().exec("true").ok, _answers(bystander, "0")))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_terminals_are_left_to_the_neighbours(attacker: Attacker, bystander: Sandbox) -> None:
    take = (
        "import resource\nhard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\n"
        "held = []\ntry:\n    while len(held) < 3900: held.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY))\n"
        "except OSError: pass\n"
    )
    _while_held((attacker,), take, lambda: (True, _answers(bystander, "os.openpty()[0]")))


def test_pid_1_keeps_its_limits_and_its_scheduler(attacker: Attacker) -> None:
    answers = attacker.probe(
        "import resource\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "answer({\n"
        "    'limit': attempt(resource.prlimit, 1, resource.RLIMIT_NOFILE, (soft, hard)),\n"
        "    'scheduler': attempt(os.sched_setscheduler, 1, os.SCHED_BATCH, os.sched_param(0)),\n"
        "    'affinity': attempt(os.sched_setaffinity, 1, os.sched_getaffinity(0)),\n"
        "    'priority': attempt(os.setpriority, os.PRIO_PROCESS, 1, 5),\n"
        "})"
    )
    assert set(answers.values()) <= {"EPERM", "EACCES"}, answers


def _while_held(attackers: tuple[Attacker, ...], take: str, look: Callable[[], tuple[bool, bool]]) -> None:
    """`look` tells whether the host and a neighbour still get what the attackers hold all of that they can have."""
    argv = ("python3", "-I", "-S", "-c", PREAMBLE + take + _HOLD)
    with ExitStack() as stack:
        for attacker in attackers:
            process = stack.enter_context(attacker.sandbox.start(argv, stdin=True, user=attacker.user))
            assert b"held" in process.stdout.read(100), process.stderr.read()
        host, neighbour = look()
    assert host, "the host has none left"
    assert neighbour, "a neighbour has none left"


def _answers(sandbox: Sandbox, question: str) -> bool:
    code = PREAMBLE + "signal.pthread_sigmask(signal.SIG_BLOCK, [40])\n"
    code += f"try: answer({question} >= 0)\nexcept OSError: answer(False)\n"
    return sandbox.exec(("python3", "-I", "-S", "-c", code)).stdout.strip() == "true"


def _takes_an_inotify_instance() -> bool:
    fd = _libc.inotify_init1(os.O_CLOEXEC)
    if fd >= 0:
        os.close(fd)
    return fd >= 0


def _watches_a_directory() -> bool:
    fd = _libc.inotify_init1(os.O_CLOEXEC)
    try:
        return bool(_libc.inotify_add_watch(fd, b"/tmp", 2) >= 0)
    finally:
        os.close(fd)


def _opens_a_message_queue() -> bool:
    name = f"/paddock-test-{os.getpid()}".encode()
    fd = _libc.mq_open(name, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600, None)
    if fd >= 0:
        os.close(fd)
        _libc.mq_unlink(name)
    return bool(fd >= 0)


def _queues_a_signal() -> bool:
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, [40])
        os._exit(0 if _libc.sigqueue(os.getpid(), 40, None) == 0 else 1)
    return os.waitpid(pid, 0)[1] == 0
