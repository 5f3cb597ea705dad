"""The kernel of virtual machines (Debian's), and their first root directory, with its modules.

The format: Linux, Documentation/driver-api/early-userspace/buffer-format.rst (newc). It isn't compressed, because
emulated machines decompress slowly.
"""

from __future__ import annotations

import lzma
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from paddock.errors import NotConfiguredError

OURS = Path("/usr/local/lib/paddock/kernel")
REMEDY = "tools/bootstrap levels (as root, on Debian), or `kernel` in config.toml: a vmlinuz with its modules beside it"
_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")
PROGRAM = "/machine"
"""The name by which the guest knows that it is pid 1 of a machine (`native/machine.h`)."""
_DIRECTORIES = ("dev", "root", "modules")
_CONSOLE = (5, 1)
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True)
class Kernel:
    """`image` and the directory `modules` of one release."""

    image: Path
    modules: Path

    @property
    def release(self) -> str:
        return self.modules.name

    @property
    def stamp(self) -> str:
        info = self.image.stat()
        return f"{self.release} {info.st_size} {info.st_mtime_ns}"

    def chain(self, wanted: tuple[str, ...]) -> tuple[bytes, ...]:
        """Return modules in the order of loading, decompressed.

        Raises NotConfiguredError for an unreadable one.

        A module without a file is built in: Debian's kernels report a missing one only at its use.
        """
        order: dict[str, bytes] = {}
        for name in wanted:
            self._add(name, order)
        return tuple(order.values())

    def _add(self, name: str, order: dict[str, bytes]) -> None:
        path = self._files.get(name)
        if path is None or name in order:
            return
        module = _read(path)
        found = _DEPENDS.search(module)
        if found is None:
            raise NotConfiguredError(f"{path} is not a readable kernel module", hint=REMEDY)
        for below in filter(None, found[1].decode("ascii").split(",")):
            self._add(below.replace("-", "_"), order)
        order[name] = module

    @cached_property
    def _files(self) -> Mapping[str, Path]:
        return {path.name.split(".ko")[0].replace("-", "_"): path for path in self.modules.rglob("*.ko*")}


def _read(path: Path) -> bytes:
    """Return a module as the guest loads it. Debian compresses them with xz since 2024."""
    try:
        return lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    except lzma.LZMAError as error:
        raise NotConfiguredError(f"{path} can't be decompressed: {error}", hint=REMEDY) from None


def find(choice: str | None = None, places: tuple[Path, ...] = (OURS, Path("/"))) -> Kernel:
    """Return the configured kernel, or else the newest cloud kernel. NotConfiguredError says why there is none."""
    if choice is not None:
        image = Path(choice)
        return _checked(image, image.parent.parent)
    for place in places:
        for image in sorted((place / "boot").glob("vmlinuz-*-cloud-*"), key=_by_version, reverse=True):
            if os.access(image, os.R_OK):
                return _checked(image, place)
    raise NotConfiguredError("there is no kernel here that a virtual machine could boot", hint=REMEDY)


def _checked(image: Path, place: Path) -> Kernel:
    kernel = Kernel(image, place / "lib/modules" / image.name.removeprefix("vmlinuz-"))
    if not os.access(image, os.R_OK):
        raise NotConfiguredError(f"the kernel {image} is not there, or not for us to read", hint=REMEDY)
    if not kernel.modules.is_dir():
        raise NotConfiguredError(f"the kernel {image} has no modules in {kernel.modules}", hint=REMEDY)
    return kernel


def _by_version(path: Path) -> list[int]:
    return [int(number) for number in _NUMBERS.findall(path.name)]


def initramfs(guest: bytes, modules: Iterable[bytes]) -> bytes:
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
