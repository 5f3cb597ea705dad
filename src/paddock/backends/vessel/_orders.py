"""What a pilot is told (`guest/_pilot.py`)."""

from __future__ import annotations

from typing import Any

import msgspec

from paddock.model import SandboxSpec, replace

OWN_VARIABLES = frozenset({"HOME", "USER", "LOGNAME"})  # each agent has its own, whatever a spec says
FOREVER = 1e15  # the keeper and the jail's pid 1 hold the deadline


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """The program that is the wall: the guest's line is its standard input and output."""

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    cwd: str = "/"


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """`course` names the module `guest/_pilot_<course>.py`, made with `options`, that starts the wall in place of
    `child`. `env`: what is the sandbox's own of its environment, which comes with each command. `waiting`: it ends with
    the service, until it is claimed."""

    child: Child | None = None
    course: str | None = None
    options: dict[str, Any] = {}
    env: dict[str, str] = {}
    waiting: bool = False
    greeting_seconds: float = 60.0
    """How long the guest may take until it says its first word."""


def nobodys(spec: SandboxSpec) -> SandboxSpec:
    """Of what is made for many by way of one: all that is this one's own. Nor is it idle while nobody uses it."""
    return replace(spec, mounts=(), env={}, idle_seconds=None)
