"""Finds a runsc of a sufficient version, and a platform on which it runs a program here. paddock stores the result.

Only a program that has run is proof, not a version, a supported platform or a device.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import msgspec

from paddock.backends._findings import recall, remember
from paddock.linux import files
from paddock.model.config import read_config

from . import _platforms

OLDEST = 20221219
FIX = "apt-get install --no-install-recommends runsc"
FIX_OLD = "tools/bootstrap levels (as root), or `runsc = ` in config.toml, one of 2023 or later"
UNPACKED = Path("/usr/local/lib/paddock/runsc/usr/bin/runsc")
"""A later one than the release's, if there is (tools/bootstrap.py)."""
_FILE = "gvisor.json"
_VERSION = re.compile(r"runsc version (\S*?(\d{8})\S*)")
_SECONDS = 20.0
_MOST_WORDS = 300


class FoundRunsc(msgspec.Struct, frozen=True, kw_only=True):
    """A runsc that has run a program."""

    program: str
    version: str
    date: int
    platform: str
    terminals: bool
    """Whether signals such as Ctrl-C work in terminals. Early versions lack them."""
    stats: bool
    """Whether stat works as in newer coreutils. Early versions refuse it."""
    tries_kvm: bool = False
    """Whether a trial of sandboxes on KVM is still necessary."""
    beside: str = ""
    """The platform before KVM was proven. States from then continue there."""
    without: str = ""
    """The reason against KVM after a trial."""
    refused: str = ""
    """The reason why KVM isn't available, although the settings name it."""


def programs(state_dir: Path) -> tuple[Path, ...]:
    """Return the programs to try. The first that runs a program counts."""
    given = read_config(state_dir).runsc
    places = (given,) if given is not None else (UNPACKED, files.find_program("runsc"))
    return tuple(Path(place).resolve() for place in places if place is not None and os.access(place, os.X_OK))


def look(state_dir: Path) -> FoundRunsc | str:
    """Return the present runsc, or a sentence about what is missing."""
    programs_found = programs(state_dir)
    if not programs_found:
        return f"runsc (gVisor) is not installed: {FIX}"
    found = remembered(state_dir) or _find(state_dir, programs_found)
    return found.refused or found if isinstance(found, FoundRunsc) else found


def fix(state_dir: Path) -> str:
    """Return the next step if there is none."""
    given = read_config(state_dir).gvisor_platform
    return FIX if given is None else f"without {_platforms.SETTING} in config.toml it is what works"


def settled(state_dir: Path, found: FoundRunsc, kvm: FoundRunsc | str) -> FoundRunsc:
    """Store the result of the KVM trial: sandboxes run on it, or the reason against it."""
    if isinstance(kvm, str):
        why = kvm[:_MOST_WORDS]
        is_asked_for = read_config(state_dir).gvisor_platform is not None
        refused = f"{_platforms.SETTING} is {_platforms.KVM!r}, and here {why}" if is_asked_for else ""
        kvm = msgspec.structs.replace(found, tries_kvm=False, without=why, refused=refused)
    remember(state_dir / _FILE, kvm, _facts(programs(state_dir), read_config(state_dir).gvisor_platform))
    return kvm


def _find(state_dir: Path, programs_found: tuple[Path, ...]) -> FoundRunsc | str:
    platform = read_config(state_dir).gvisor_platform
    reasons: list[str] = []
    for runsc in programs_found:
        found = _try(runsc, platform)
        if isinstance(found, FoundRunsc):
            remember(state_dir / _FILE, found, _facts(programs_found, platform))
            return found
        reasons.append(found)
    return "; ".join(reasons)


def remembered(state_dir: Path) -> FoundRunsc | None:
    """Return the stored result for the present runsc, or None."""
    there = programs(state_dir)
    return (
        recall(state_dir / _FILE, FoundRunsc, _facts(there, read_config(state_dir).gvisor_platform)) if there else None
    )


def _try(runsc: Path, given: str | None) -> FoundRunsc | str:
    from ._trial import attempt  # the guest, which the probe of what is remembered does not need

    version, date = _version(runsc)
    if date < OLDEST:
        return f"{runsc} is version {version or 'unknown'}, {OLDEST} or later is needed: {FIX}"
    names = _platforms.without_device(date, given)
    if isinstance(names, str):
        return names
    reasons: list[str] = []
    for platform in names:
        answer = attempt(runsc, platform, date)
        if not isinstance(answer, str):
            return FoundRunsc(
                program=str(runsc),
                version=version,
                date=date,
                platform=platform,
                terminals=answer["terminals"],
                stats=answer["stats"],
                tries_kvm=_platforms.why_not_kvm(given) is None,
            )
        reasons.append(f"{platform}: {answer}")
    return f"{runsc} {version} runs no program here ({'; '.join(reasons)})"


def stamp(runsc: Path) -> tuple[str, ...]:
    """Return a stamp of the file, which differs for another one."""
    there = runsc.stat()
    return str(runsc), str(there.st_size), str(there.st_mtime_ns)


def _facts(there: tuple[Path, ...], platform: str | None) -> tuple[str, ...]:
    mine = "root" if os.getuid() == 0 else "user"
    return (os.uname().release, mine, *_platforms.facts(platform), *(fact for runsc in there for fact in stamp(runsc)))


def _version(runsc: Path) -> tuple[str, int]:
    try:
        output = subprocess.run(
            [runsc, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False, env={}
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "", 0
    match = _VERSION.search(output.decode("utf-8", "replace"))
    return (match[1], int(match[2])) if match else ("", 0)
