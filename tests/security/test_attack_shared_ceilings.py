"""Attacks on what the kernel counts for a whole machine or for an owner: the neighbours and the host keep theirs."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from attacking import PREAMBLE, Attacker, needs

from paddock import Sandbox

_libc = ctypes.CDLL(None, use_errno=True)
_HOLD = "print('held', flush=True); input()"


def test_inotify_instances_run_out_inside_only(attacker: Attacker, bystander: Sandbox) -> None:
    needs("tables")
    most = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    if most > 2000:
        pytest.skip(f"{most} inotify instances are too many to use up")
    take = f"for _ in range({most}): libc.inotify_init1(0)\n"
    _while_held(attacker, take, lambda: (_takes_an_inotify_instance(), _answers(bystander, "libc.inotify_init1(0)")))


def test_queued_signals_run_out_inside_only(attacker: Attacker, bystander: Sandbox) -> None:
    needs("tables")
    take = (
        "import resource\nsignal.pthread_sigmask(signal.SIG_BLOCK, [40])\n"
        "most = min(resource.getrlimit(resource.RLIMIT_SIGPENDING)[0], 150_000)\n"
        "for _ in range(most):\n    if libc.sigqueue(os.getpid(), 40, None): break\n"
    )
    ask = "-abs(libc.sigqueue(os.getpid(), 40, None))"
    _while_held(attacker, take, lambda: (_queues_a_signal(), _answers(bystander, ask)))


def test_terminals_are_left_to_the_neighbours(attacker: Attacker, bystander: Sandbox) -> None:
    take = (
        "import resource\nhard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\n"
        "held = []\ntry:\n    while len(held) < 3900: held.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY))\n"
        "except OSError: pass\n"
    )
    _while_held(attacker, take, lambda: (True, _answers(bystander, "os.openpty()[0]")))


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


def _while_held(attacker: Attacker, take: str, look: Callable[[], tuple[bool, bool]]) -> None:
    """`look` tells whether the host and a neighbour still get what the attacker holds all of."""
    argv = ("python3", "-I", "-S", "-c", PREAMBLE + take + _HOLD)
    with attacker.sandbox.start(argv, stdin=True, user=attacker.user) as process:
        assert b"held" in process.stdout.read()
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


def _queues_a_signal() -> bool:
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, [40])
        os._exit(0 if _libc.sigqueue(os.getpid(), 40, None) == 0 else 1)
    return os.waitpid(pid, 0)[1] == 0
