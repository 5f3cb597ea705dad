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


def open_directory(parent: int, name: bytes) -> int:
    """To list what is in it, and never through a link: ENOTDIR. In two steps, since gVisor follows one where
    O_DIRECTORY stands beside O_NOFOLLOW, unless it is O_PATH."""
    held = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        return os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=held)
    finally:
        os.close(held)
