"""`paddock.vmm` with one driver more, whose guest is one program, with no further wall."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from paddock import vmm

_SOURCES = Path(vmm.__file__ or "").parent


def package(directory: Path) -> str:
    """Make the package in `directory`, and return its path."""
    place = directory / "vmm"
    if not place.exists():
        place.mkdir()
        for source in (*_SOURCES.glob("*.py"), Path(__file__).with_name("_driver_plain.py")):
            (place / source.name).symlink_to(source)
    return str(place)


@contextmanager
def in_kits(directory: Path) -> Generator[None]:
    """Make the kits of this process with that driver, from a package in `directory`."""
    vmm.__path__.insert(0, package(directory))
    try:
        yield
    finally:
        del vmm.__path__[0]
