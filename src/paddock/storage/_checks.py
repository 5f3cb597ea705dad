"""What `doctor` says about the pool."""

from __future__ import annotations

from paddock.model import Check, PoolSpace
from paddock.storage._config import PoolConfig

_COST = {
    "btrfs": "a copy of a tree costs the same whatever it holds",
    "overlay": "an empty tree is quick; a snapshot costs what was written since the template",
    "copy": "every tree is a whole copy of its template",
}


def pool_checks(config: PoolConfig, unlimited: str | None, *, fix: str | None = None) -> tuple[Check, ...]:
    """`unlimited` says why disk ceilings do not hold, None that they do; `fix` what would change that."""
    how = f"{config.driver} in {config.image}" if config.image else config.driver
    reasons = "".join(f"; not {reason.way}: {reason.why}" for reason in config.reasons)
    better = next((reason.fix for reason in config.reasons if reason.fix), None)
    pool = Check(
        area="storage",
        name="pool",
        status="ok" if config.driver == "btrfs" else "weak",
        detail=f"{how}: {_COST[config.driver]}{reasons if config.driver != 'btrfs' else ''}",
        fix=better if config.driver != "btrfs" else None,
    )
    if unlimited is None:
        return pool, Check(area="storage", name="disk", status="ok", detail="enforced by btrfs quota")
    disk = Check(
        area="storage",
        name="disk",
        status="weak",
        detail=f"not enforced: {unlimited}",
        fix=fix or (better if config.driver != "btrfs" else None),
    )
    return pool, disk


_MIB = 1 << 20


def space_check(space: PoolSpace, config: PoolConfig, path: str) -> Check:
    """How full it is, and when something will be done about that."""
    full = config.marks.reached(space)
    image = "" if space.image_bytes is None else f", {space.image_bytes // _MIB} MiB of the disk taken"
    return Check(
        area="storage",
        name="room",
        status="weak" if full else "ok",
        detail=f"{space.used_bytes // _MIB} MiB used, {space.available_bytes // _MIB} MiB available{image};"
        f" {space.fill:.0%} full, collected from {config.high:.0%} to {config.low:.0%}",
        fix=f"paddock gc; df -h {path}" if full else None,
    )
