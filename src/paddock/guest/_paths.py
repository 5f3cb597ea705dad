"""Paths as the sandbox knows them, and where they are for the agent's own calls."""

from __future__ import annotations

import os

from ._config import AgentConfig
from ._faults import encode


def locate(name: bytes, config: AgentConfig) -> bytes:
    """Where the agent finds it. Only the process backend has a prefix; it is lexical and no wall."""
    if not config.root:
        return name
    return encode(config.root).rstrip(b"/") + os.path.normpath(b"/" + name.lstrip(b"/"))


def tidy(name: bytes) -> bytes:
    """Without doubled slashes and dots. Left alone where `..` stands in it: a link may come before."""
    if b".." in name.split(b"/"):
        return name
    return os.path.normpath(b"/" + name.lstrip(b"/"))
