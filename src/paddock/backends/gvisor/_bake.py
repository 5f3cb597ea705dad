"""Baking: paddock starts a guest once for a shape of sandbox, and every sandbox of that shape begins from its state.

The result is a tree of the pool with the state of a sentry (`vmm/_saved.py`). In it our guest waits for its first
message. It is independent of the template. paddock builds it like templates: under a lock, atomically.
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

from paddock.backends.base import FROZEN
from paddock.backends.vmm import kvm
from paddock.storage.pool.worker import Worker
from paddock.storage.templates.recipe import Progress, Recipe, of_kit, scratch_of

STATE = f"/{FROZEN}"
"""The directory in a sandbox's own tree with its saved state, or the state of its source. No program inside sees it."""
BAKED = "/.baked"
"""The path of the shared state in the jail."""
_VERSION = "2"
_KEY_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class GuestInputs:
    """The inputs of a guest before its use.

    `spec` fits any sandbox. `program` identifies the runsc.

    `guest` is the tree with its pid 1, and `who` are the users of its agents.
    """

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
        """Return the stamp of states for this shape."""
        decides = json.dumps([self.flags, self.spec, self.cpus, self.guest, self.who], sort_keys=True)
        return f"runsc {self.version} ({self.platform}), shape {hashlib.sha256(decides.encode()).hexdigest()[:12]}"

    def recipe(self, key: bytes, boot: Callable[[str], None]) -> Recipe:
        """`boot(tree)` has a sandbox start in that tree and leave its state there, sealed with `key`."""
        sealed = hashlib.sha256(key).hexdigest()
        facts = (_VERSION, self.stamp, *self.program, sealed, os.uname().release, _features())

        def fill(root: int, worker: Worker, progress: Progress) -> None:
            boot(scratch_of(recipe.tree))
            worker.do(_leave_only, (root,), FROZEN)

        recipe = of_kit("sentry", facts, fill)
        return recipe


def seal_key(place: Path) -> bytes:
    """Return the key with which a controller seals states. The first use creates it."""
    with suppress(FileExistsError):
        fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
    return place.read_bytes()


def _features() -> str:
    """Return the processor's features, which a state may need."""
    processor = kvm.processor()
    return processor.get("flags", processor.get("Features", ""))


def _leave_only(root: int, name: str) -> None:
    for other in os.listdir(root):
        if other != name:
            shutil.rmtree(other, dir_fd=root)
