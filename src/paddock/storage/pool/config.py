"""`supervisor.json`: the choice of the pool's driver, once per state directory, and the reasons against better ones."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from paddock.errors import PlatformError
from paddock.linux.subordinate_ids import SubordinateIds
from paddock.linux.whole import keep_file
from paddock.model import Check, PoolSpace
from paddock.supervisor.layout import SUPERVISOR_CONFIG

Driver = Literal["btrfs", "overlay", "copy"]
VERSION = 1


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a better way was not taken. `fix` is one command, if one command makes it possible."""

    way: str
    why: str
    fix: str | None = None


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a pool.

    `image` is the file in the state directory whose mount is `pool/`. None: `pool/` itself.

    If the used fraction of the usable space is above `high`, the sweep deletes replaceable trees until it is below
    `low`. It never does while more than `enough_mib` are available, because the last tenth of a large disk is a lot.
    """

    driver: Driver
    image: str | None = None
    reasons: tuple[Reason, ...] = ()
    subordinate_ids: SubordinateIds | None = None
    """Ids that may own files in the trees, in addition to an ordinary user's own.

    It can't change, because the files already have those owners.
    """
    high: float = 0.9
    low: float = 0.75
    enough_mib: int = 20_480
    keep_free_mib: int | None = None
    """Reserve of the disk below.

    With less free space paddock makes no tree. The default for an image is a twentieth of the disk, at most 1 GiB,
    because a full disk corrupts it. Otherwise it is 64 MiB.
    """

    def is_full(self, space: PoolSpace) -> bool:
        """Tell whether the collector starts."""
        return space.fill > self.high and space.available_bytes < self.enough_mib << 20

    def has_room(self, space: PoolSpace) -> bool:
        """Tell whether the collector stops in a pool that was too full."""
        return space.fill <= self.low or space.available_bytes >= self.enough_mib << 20


class _File(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    pool: PoolConfig


def load(state_dir: Path) -> PoolConfig | None:
    """Return the stored choice, or None before the first. Writers rename, so an unreadable file isn't half written."""
    try:
        text = (state_dir / SUPERVISOR_CONFIG).read_bytes()
    except FileNotFoundError:
        return None
    path = state_dir / SUPERVISOR_CONFIG
    try:
        file = msgspec.json.decode(text, type=_File)
    except msgspec.DecodeError as error:
        raise PlatformError(f"{path} cannot be read: {error}", hint=f"rm {path}") from error
    if file.version != VERSION:
        raise PlatformError(
            f"{path} is of version {file.version}, this paddock knows {VERSION}", hint="use the paddock that wrote it"
        )
    return file.pool


def store(state_dir: Path, config: PoolConfig) -> None:
    """Write the decision, whole or not at all. It survives a power loss."""
    keep_file(state_dir / SUPERVISOR_CONFIG, msgspec.json.encode(_File(version=VERSION, pool=config)) + b"\n")


_COST = {
    "btrfs": "a copy of a tree costs the same whatever it holds",
    "overlay": "an empty tree is quick; a snapshot costs what was written since the template",
    "copy": "every tree is a whole copy of its template",
}


def check(name: str, status: str, detail: str, fix: str | None = None) -> Check:
    return Check(area="storage", name=name, status=status, detail=detail, fix=fix)


def pool_checks(config: PoolConfig, unlimited: str | None, *, fix: str | None = None) -> tuple[Check, ...]:
    """Return lines for `doctor`.

    `unlimited` is the reason for missing disk limits, or None. `fix` is the command for them.
    """
    how = f"{config.driver} in {config.image}" if config.image else config.driver
    best = config.driver == "btrfs"
    reasons = "" if best else "".join(f"; not {reason.way}: {reason.why}" for reason in config.reasons)
    better = None if best else next((reason.fix for reason in config.reasons if reason.fix), None)
    pool = check("pool", "ok" if best else "weak", f"{how}: {_COST[config.driver]}{reasons}", better)
    if unlimited is None:
        return pool, check("disk", "ok", "enforced by btrfs quota")
    return pool, check("disk", "weak", f"not enforced: {unlimited}", fix or better)


_MIB = 1 << 20


def space_check(space: PoolSpace, config: PoolConfig, path: str) -> Check:
    """Report how full the pool is, and when the collector acts."""
    full = config.is_full(space)
    image = "" if space.image_bytes is None else f", {space.image_bytes // _MIB} MiB of the disk taken"
    detail = (
        f"{space.used_bytes // _MIB} MiB used, {space.available_bytes // _MIB} MiB available{image};"
        f" {space.fill:.0%} full, collected from {config.high:.0%} to {config.low:.0%}"
    )
    return check("room", "weak" if full else "ok", detail, f"paddock gc; df -h {path}" if full else None)
