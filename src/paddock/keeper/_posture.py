"""A look from outside, after a sandbox was built and before anyone gets it: is it as planned?

Everything here is read from /proc of the keeper, so nothing inside can lie about it.
"""

from __future__ import annotations

from paddock.linux import proc

_NONE = "0000000000000000"
_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapAmb")
_OWN_NAMESPACES = ("mnt", "pid", "net", "ipc", "uts", "user")


class PostureError(Exception):
    """The sandbox is not as planned; the message says in what."""


def check(pid: int, agent_pid: int, *, root_mode: bool, base: int) -> None:
    """Holds pid 1 and the first agent against what they must be. `base` is the host's uid of pid 1. PostureError."""
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
    if root_mode:
        wrong += _namespaces(pid, agent_pid)
    if wrong:
        raise PostureError("; ".join(wrong))


def _namespaces(pid: int, agent_pid: int) -> list[str]:
    """As an ordinary user the keeper can't look: the kernel hides the links of a process that is not dumpable."""
    own, init, agent = proc.namespaces("self"), proc.namespaces(pid), proc.namespaces(agent_pid)
    wrong = [f"pid 1 shares the {name} namespace with the host" for name in _OWN_NAMESPACES if init[name] == own[name]]
    if agent["user"] == init["user"]:
        wrong.append("the agent shares the user namespace with pid 1")
    return wrong
