"""The native guest where an engine can show it: alone in a directory that nothing else writes."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from paddock.backends.guest import program

NAME = "paddock-guest"


def guest_directory(directory: Path) -> Path:
    """`directory/guest/<digest>`, made if it is not there: whole or not at all. NotConfigured."""
    source = program()
    place = directory / "guest" / hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    if place.is_dir():
        return place
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = place.with_suffix(".new")
    shutil.rmtree(scratch, ignore_errors=True)  # a killed builder's
    scratch.mkdir(mode=0o755)
    shutil.copyfile(source, scratch / NAME)
    (scratch / NAME).chmod(0o555)
    scratch.chmod(0o755)  # whatever the umask
    scratch.rename(place)
    return place
