"""The first root directory of a virtual machine: the native guest, which is its pid 1, and the kernel's modules.

Format: Linux, Documentation/driver-api/early-userspace/buffer-format.rst (newc).
Not compressed: emulated machines unpack slowly.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator

PROGRAM = "/machine"
"""By this name the guest knows that it is pid 1 of a machine (`native/machine.h`)."""
_DIRECTORIES = ("dev", "root", "modules")
_CONSOLE = (5, 1)


def build(guest: bytes, modules: Iterable[bytes]) -> bytes:
    return b"".join(_records(guest, modules))


def _records(guest: bytes, modules: Iterable[bytes]) -> Iterator[bytes]:
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
    yield record(PROGRAM.lstrip("/"), stat.S_IFREG | 0o755, guest)
    for place, module in enumerate(modules):  # it loads them in this order
        yield record(f"modules/{place}", stat.S_IFREG | 0o644, module)
    yield record("TRAILER!!!", 0)
