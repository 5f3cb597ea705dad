"""`paddock.vmm` with one driver more, whose guest is one program, with no further wall."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from paddock import vmm

_SOURCES = Path(vmm.__file__ or "").parent


def package(directory: Path) -> str:
    """Make a package `paddock` in `directory`, and return the path of its `vmm`."""
    place = directory / "paddock/vmm"
    if not place.exists():
        place.mkdir(parents=True)
        for source in (*_SOURCES.glob("*.py"), Path(__file__).with_name("_driver_plain.py")):
            (place / source.name).symlink_to(source)
        for name in ("__init__.py", "linux", "wire"):
            (place.parent / name).symlink_to(_SOURCES.parent / name)
    return str(place)


@contextmanager
def in_kits(directory: Path) -> Generator[None]:
    """Make the kits of this process with that driver, from a package in `directory`."""
    vmm.__path__.insert(0, package(directory))
    try:
        yield
    finally:
        del vmm.__path__[0]
