"""What a pilot is told (`guest/_pilot.py`), and what a guest behind another wall is (`guest/_entry.py`)."""

from __future__ import annotations

from typing import Any

import msgspec

from paddock.keeper._plan import JailPlan
from paddock.model import SandboxSpec, Template, User, replace

EXEC_DIRECTORY = ".paddock/exec"  # below the home directory: what background commands print
OWN_VARIABLES = frozenset({"HOME", "USER", "LOGNAME"})  # each agent has its own, whatever a spec says
FOREVER = 1e15  # the keeper and the jail's pid 1 hold the deadline


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """The program that is the wall. `streams`: which of its descriptors is the line of which identity."""

    argv: tuple[str, ...]
    streams: dict[str, int]
    env: dict[str, str] = {}
    cwd: str = "/"


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """`course` names the module `guest/_pilot_<course>.py`, made with `options`, that starts the wall in place of
    `child`. `marks`: those of a guest that has spoken to an earlier pilot. `env`: what the guest does not know of the
    sandbox's environment, so that it comes with each command. `waiting`: it ends with the service, until it is
    claimed."""

    child: Child | None = None
    course: str | None = None
    options: dict[str, Any] = {}
    marks: dict[str, str] = {}
    env: dict[str, str] = {}
    waiting: bool = False
    greeting_seconds: float = 60.0
    """How long the guest may take until it says its first word."""


def nobodys(spec: SandboxSpec) -> SandboxSpec:
    """Of what is made for many by way of one: all that is this one's own. Nor is it idle while nobody uses it."""
    return replace(spec, mounts=(), env={}, idle_seconds=None)


def guest_config(template: Template, jail: JailPlan, streams: dict[str, object], *, root_user: bool) -> dict[str, Any]:
    """The guest's configuration, an agent for each identity. `streams`: [reader, writer] or a path, by identity."""
    default = template.user(None)
    assert default is not None
    agents = {"user": _agent(template, jail, default, may_switch=False)}
    root = next((user for user in template.users if user.uid == 0), None)
    if root_user and root is not None:
        agents["root"] = _agent(template, jail, root, may_switch=True)
    return {"streams": streams, "agents": agents, "deadline": FOREVER}


def _agent(template: Template, jail: JailPlan, user: User, *, may_switch: bool) -> dict[str, Any]:
    return {
        "user": _entry(user),
        "workdir": template.workdir,
        "exec_dir": f"{user.home}/{EXEC_DIRECTORY}",
        "env": {**jail.env, "HOME": user.home, "USER": user.name, "LOGNAME": user.name},
        "users": [_entry(other) for other in template.users],
        "may_switch_user": may_switch,
    }


def _entry(user: User) -> dict[str, Any]:
    return {"name": user.name, "uid": user.uid, "gid": user.gid, "home": user.home}
