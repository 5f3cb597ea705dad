"""A process that leaves behind what its first caller gave it: session, signals, umask, limits, priority."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

from paddock.linux import caps, children, namespaces
from paddock.supervisor.layout import ORDINARY_ID


def detach() -> list[str]:
    """Detach from the parent, in a new session. Return names of mounts that the kernel didn't release."""
    children.detach(umask=0o022)  # the state directory is 0700; files written outside it get the usual modes
    os.setsid()
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    kept = _raise_limits()
    _reset("nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, 0), os.getpriority(os.PRIO_PROCESS, 0) > 0, kept)
    _reset(
        "scheduler",
        lambda: os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0)),
        os.sched_getscheduler(0) != 0,
        kept,
    )
    _reset("processors", lambda: os.sched_setaffinity(0, range(os.cpu_count() or 1)), True, kept)
    score = Path("/proc/self/oom_score_adj")
    _reset("memory score", lambda: score.write_text("0"), score.read_text() != "0\n", kept)
    return kept


def leave_root() -> None:
    """Go on as an ordinary user, if this process is root and has no CAP_SYS_ADMIN: as in most containers.

    It enters a user namespace in which its uid is another one (user_namespaces(7)). Outside it is still root, so it
    owns the state directory, and its clients are root. Without a user namespace it stays root, and the level refuses
    with the reason. The caller has one thread.
    """
    if os.getuid() != 0 or caps.get().effective >> caps.SYS_ADMIN & 1:
        return
    try:
        namespaces.unshare(namespaces.NEWUSER)
    except PermissionError:
        return
    itself = (namespaces.IdMap(ORDINARY_ID, 0, 1),)
    namespaces.write_id_maps(os.getpid(), itself, itself, deny_setgroups=True)
    caps.drop_all()


def control_group() -> str:
    """Return the control group of this process and its first caller; "" if that is the whole machine's.

    The end of the group (systemd ends a service, a runner its job) ends the daemon too (cgroups(7)).
    """
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    paths = [
        path for _, controllers, path in (line.split(":", 2) for line in lines) if controllers in ("", "name=systemd")
    ]
    return next((path for path in paths if path != "/"), "")


def _raise_limits() -> list[str]:
    kept: list[str] = []
    for name in ("AS", "CPU", "DATA", "FSIZE"):
        limit = getattr(resource, f"RLIMIT_{name}")
        try:
            resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        except (OSError, ValueError):  # without privilege the hard limit can't be raised
            hard = resource.getrlimit(limit)[1]
            resource.setrlimit(limit, (hard, hard))
            kept.append(f"RLIMIT_{name}")
    return kept


def _reset(name: str, change: Callable[[], object], needed: bool, kept: list[str]) -> None:
    if not needed:
        return
    try:
        change()
    except OSError:
        kept.append(name)
