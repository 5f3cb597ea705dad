"""Rehearsals: a process that waits for its work does it once for nothing, and throws the result away.

A fork shares its memory with its parent until it writes to it, page by page, some three microseconds each, and Python
writes wherever it looks. What is looked at here is its own already when somebody waits for it.
"""

from __future__ import annotations

import socket

from ._agent import Agent
from ._config import AgentConfig, InitConfig, UserEntry
from ._frames import VERSION, Kind, pack
from ._init import Init
from ._loop import boottime

_NOBODY = UserEntry(name="nobody", uid=65534, gid=65534)
# Not a directory, so that nothing can be started by this name, whatever the root directory is.
_NOTHING = "/dev/null/nothing"


def rehearse_agent() -> None:
    """One connection, one command that can't be started. Leaves descriptors behind, which `run_agent` closes."""
    ours, theirs = socket.socketpair()
    request = {"op": "exec", "id": "ex_rehearsal", "argv": [_NOTHING], "cwd": "/", "env": {"A": "b"}, "stdin": False}
    ours.send(pack(Kind.HELLO, 0, {"version": VERSION, "features": []}) + pack(Kind.OPEN, 1, request))
    ours.shutdown(socket.SHUT_WR)
    Agent(AgentConfig(user=_NOBODY, workdir="/", exec_dir=_NOTHING, env={"PATH": "/"})).serve_one(theirs)
    ours.close()


def rehearse_init() -> None:
    """Everything up to the first agent. Leaves descriptors behind, which `run_init` closes."""
    control, agents = socket.socketpair()
    config = InitConfig(control=control, agents={"user": agents}, deadline=boottime() + 3600, eager=())
    Init(config, _no_agent).set_out(_nothing)


def _no_agent(name: str) -> int:
    raise OSError(f"no agent {name} at a rehearsal")


def _nothing() -> None:
    pass
