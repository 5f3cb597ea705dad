"""Check from outside that a new sandbox is as planned, before its caller gets it.

All comes from /proc of the supervisor, so nothing inside can fake it.
"""

from __future__ import annotations

import os

from paddock.linux import proc

_NONE = "0000000000000000"
_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapAmb")
_OWN_NAMESPACES = ("mnt", "pid", "net", "ipc", "uts", "user")


class PostureError(Exception):
    """The sandbox is not as planned. The message says in what."""


def check_init(pid: int, *, base: int, root: os.stat_result, own: dict[str, int] | None) -> None:
    """Compare pid 1 with the plan. Raises PostureError. Once it sleeps it changes no more.

    `base` is the host's uid of pid 1, and `root` the root directory. `own` has the supervisor's namespaces, or None if
    it can't compare: the kernel hides those of a non-dumpable process from ordinary users.
    """
    status = proc.status(pid)
    wrong = _powers("pid 1", status)
    if status["Uid"].split()[0] != str(base):
        wrong.append(f"pid 1 runs as uid {status['Uid'].split()[0]}, not {base}")
    if own is not None:
        shared = (name for name in _OWN_NAMESPACES if _inode(pid, name) == own[name])
        wrong += [f"pid 1 shares the {name} namespace with the host" for name in shared]
        wrong += _root("pid 1", pid, root)
    _refuse(wrong)


def check_agent(pid: int, init: int, *, root: os.stat_result, own: dict[str, int] | None) -> None:
    """Check the first agent of the pid 1 `init` in the same way."""
    status = proc.status(pid)
    wrong = _powers("the agent", status)
    if status["Seccomp"] != "2":
        wrong.append("the agent runs without its system call filter")
    if own is not None:
        if _inode(pid, "user") in (_inode(init, "user"), own["user"]):
            wrong.append("the agent shares the user namespace with pid 1")
        wrong += _root("the agent", pid, root)
    _refuse(wrong)


def _powers(who: str, status: dict[str, str]) -> list[str]:
    wrong = [f"{who} has {name} {status[name]}" for name in _CAPABILITIES if status[name] != _NONE]
    if status["NoNewPrivs"] != "1":
        wrong.append(f"{who} may gain privileges by exec")
    return wrong


def _root(who: str, pid: int, root: os.stat_result) -> list[str]:
    same = os.path.samestat(root, os.stat(f"/proc/{pid}/root"))
    return [] if same else [f"{who} has another root directory"]


def _refuse(wrong: list[str]) -> None:
    if wrong:
        raise PostureError("; ".join(wrong))


def _inode(pid: int, name: str) -> int:
    return os.stat(f"/proc/{pid}/ns/{name}").st_ino
