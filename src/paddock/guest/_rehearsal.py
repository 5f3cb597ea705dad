"""A rehearsal: a process that waits for its work does it once for nothing, and throws the result away.

A fork shares its memory with its parent until it writes to it, page by page, some three microseconds each, and Python
writes wherever it looks. What is looked at here is its own already when somebody waits for it.
"""

from __future__ import annotations

import socket

from ._agent import Agent
from ._config import AgentConfig, UserEntry
from ._frames import VERSION, Kind, pack

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
