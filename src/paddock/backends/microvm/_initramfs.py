"""The first root directory of a virtual machine: the kit, the kernel's modules, and what its pid 1 is told.

Format: Linux, Documentation/driver-api/early-userspace/buffer-format.rst (newc).
Not compressed: emulated machines unpack slowly.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from paddock.storage._kit import COMMAND, PLACE
from paddock.storage._recipe import Entry, Manifest

CONFIG = "/machine.json"
ARGUMENTS = (*COMMAND, f"@{CONFIG}")
_DIRECTORIES = ("dev", "proc", "sys", "view", "disk", "root", "modules")
_KINDS = {"directory": stat.S_IFDIR, "file": stat.S_IFREG, "link": stat.S_IFLNK}
_CONSOLE = (5, 1)


def module_places(modules: Iterable[Path]) -> list[str]:
    """Where in there the modules lie."""
    return [f"/modules/{path.name}" for path in modules]


def build(kit: Manifest, modules: Iterable[Path], config: dict[str, Any]) -> bytes:
    return b"".join(_records(kit, modules, config))


def _records(kit: Manifest, modules: Iterable[Path], config: dict[str, Any]) -> Iterator[bytes]:
    number = 0

    def record(path: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> bytes:
        nonlocal number
        number += 1
        name = path.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name), 0)
        head = b"070701" + b"".join(b"%08X" % value for value in fields) + name
        return head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4)

    for name in _DIRECTORIES:
        yield record(name, stat.S_IFDIR | 0o755)
    yield record("dev/console", stat.S_IFCHR | 0o600, device=_CONSOLE)
    below = PLACE.lstrip("/")
    for path, entry in sorted({**kit, ".": Entry("directory", 0o755)}.items()):
        place = below if path == "." else f"{below}/{path}"
        yield record(place, _KINDS[entry.kind] | entry.mode, entry.content)
    for path in modules:
        yield record(f"modules/{path.name}", stat.S_IFREG | 0o644, path.read_bytes())
    yield record(CONFIG.lstrip("/"), stat.S_IFREG | 0o600, json.dumps(config).encode())
    yield record("TRAILER!!!", 0)
