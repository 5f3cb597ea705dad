"""A look from outside, after a sandbox was built and before anyone gets it: is it as planned?

Everything here is read from /proc of the keeper, so nothing inside can lie about it.
"""

from __future__ import annotations

import os

from paddock.linux import proc

_NONE = "0000000000000000"
_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapAmb")
_OWN_NAMESPACES = ("mnt", "pid", "net", "ipc", "uts", "user")


class PostureError(Exception):
    """The sandbox is not as planned; the message says in what."""


def check(pid: int, agent_pid: int, *, base: int, root: os.stat_result, own: dict[str, int] | None) -> None:
    """Holds pid 1 and the first agent against what they must be. PostureError.

    `base` is the host's uid of pid 1, `root` their root directory; `own` the keeper's namespaces, None where it may
    not look at others'.
    """
    wrong: list[str] = []
    init, agent = proc.status(pid), proc.status(agent_pid)
    for who, status in (("pid 1", init), ("the agent", agent)):
        wrong += [f"{who} has {name} {status[name]}" for name in _CAPABILITIES if status[name] != _NONE]
        if status["NoNewPrivs"] != "1":
            wrong.append(f"{who} may gain privileges by exec")
    if agent["Seccomp"] != "2":
        wrong.append("the agent runs without its system call filter")
    if init["Uid"].split()[0] != str(base):
        wrong.append(f"pid 1 runs as uid {init['Uid'].split()[0]}, not {base}")
    if own is not None:
        wrong += _namespaces(pid, agent_pid, own)
        for who, number in (("pid 1", pid), ("the agent", agent_pid)):
            if not os.path.samestat(root, os.stat(f"/proc/{number}/root")):
                wrong.append(f"{who} has another root directory")
    if wrong:
        raise PostureError("; ".join(wrong))


def _namespaces(pid: int, agent_pid: int, own: dict[str, int]) -> list[str]:
    """As an ordinary user the keeper can't look: the kernel hides the links of a process that is not dumpable."""
    wrong = [
        f"pid 1 shares the {name} namespace with the host" for name in _OWN_NAMESPACES if _inode(pid, name) == own[name]
    ]
    if _inode(agent_pid, "user") in (_inode(pid, "user"), own["user"]):
        wrong.append("the agent shares the user namespace with pid 1")
    return wrong


def _inode(pid: int, name: str) -> int:
    return os.stat(f"/proc/{pid}/ns/{name}").st_ino
