"""What init and agents are told by whoever starts them.

No data classes here, nor in what is imported with this: what makes those costs a program that is just starting more
than all else that the guest imports of the library but `socket`.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class UserEntry(NamedTuple):
    """An account that an agent may act for."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = "/"


class AgentConfig(NamedTuple):
    """One agent acts as `user`, the identity that its process already has.

    `env` is what every command gets, less what it sets itself. `exec_dir` is where the output of background
    commands goes; made if missing. With `may_switch_user` commands may ask for another of `users`. `root` is a
    prefix below which file paths and working directories are taken lexically: no wall, only the process backend
    has one.
    `subreaper` must stay on but where another process adopts orphans by design.
    """

    user: UserEntry
    workdir: str
    exec_dir: str
    env: Mapping[str, str] = MappingProxyType({})
    users: tuple[UserEntry, ...] = ()
    may_switch_user: bool = False
    root: str = ""
    subreaper: bool = True

    def entry(self, name: str | None) -> UserEntry | None:
        if name is None or name == self.user.name or name == str(self.user.uid):
            return self.user
        return next((user for user in self.users if user.name == name or str(user.uid) == name), None)


class InitConfig(NamedTuple):
    """`control` takes the host's orders; `agents` are the listeners of the identities, of which `eager` start at once.

    `deadline` is in seconds of CLOCK_BOOTTIME; `grace_seconds` later init ends by itself. `host` is the writing end of
    a pipe: init ends when nobody can read it any more.
    """

    control: socket.socket
    agents: Mapping[str, socket.socket]
    deadline: float
    eager: tuple[str, ...] = ("user",)
    grace_seconds: float = 1.0
    host: int = -1
