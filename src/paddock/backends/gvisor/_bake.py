"""Baking: a guest is started once for a shape of sandbox; every sandbox of that shape begins where it stood.

What is baked is a tree of the pool with the state of a sentry (`vmm/_saved.py`), in which our guest waits for its
first word: it needs nothing of the template. It is made as templates are: under a lock, whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from paddock.backends._base import FROZEN
from paddock.storage.pool.worker import Worker
from paddock.storage.templates.recipe import Progress, Recipe

STATE = f"/{FROZEN}"
"""In a sandbox's own tree: what it, or the one that it was copied from, has saved. Nobody inside sees it."""
BAKED = "/.baked"
"""Where the jail has the state that is for all."""
_VERSION = "2"
_KEY_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class Shape:
    """All that decides what a guest is like before it is anybody's. `spec`: of any sandbox; `program`: the runsc;
    `guest`: the tree with its pid 1; `who`: whom its agents are."""

    version: str
    platform: str
    program: tuple[str, ...]
    flags: tuple[str, ...]
    spec: dict[str, Any]
    cpus: int
    guest: str
    who: list[tuple[int, int]]

    @cached_property
    def stamp(self) -> str:
        """By which a state is known to be for this shape."""
        decides = json.dumps([self.flags, self.spec, self.cpus, self.guest, self.who], sort_keys=True)
        return f"runsc {self.version} ({self.platform}), shape {hashlib.sha256(decides.encode()).hexdigest()[:12]}"

    def recipe(self, key: bytes, boot: Callable[[str], None]) -> Recipe:
        """`boot(tree)` has a sandbox start in that tree and leave its state there, sealed with `key`."""
        sealed = hashlib.sha256(key).hexdigest()
        facts = (_VERSION, self.stamp, *self.program, sealed, os.uname().release, _processor())

        def fill(root: int, worker: Worker, progress: Progress) -> None:
            boot("tb" + recipe.tree.removeprefix("tp"))
            worker.do(_leave_only, (root,), FROZEN)

        recipe = Recipe(name="kit-sentry", facts=facts, fill=fill, host_usr=False, env={})
        return recipe


def seal_key(place: Path) -> bytes:
    """By it a controller knows what was saved here. Made when it is first needed."""
    with suppress(FileExistsError):
        fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
    return place.read_bytes()


def _processor() -> str:
    """Return what it can do: a state is for one that can do as much."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("ascii", "replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in {"flags", "Features"}:
                return value.strip()
    return ""


def _leave_only(root: int, name: str) -> None:
    for other in os.listdir(root):
        if other != name:
            shutil.rmtree(other, dir_fd=root)
