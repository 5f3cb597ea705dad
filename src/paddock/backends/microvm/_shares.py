"""The host's files in a virtual machine: the trees of its plan, and its directories.

In the VMM's jail their paths avoid the machine's programs. In the machine they are at the targets of the plan. The jail
mounts protected paths read-only over themselves, out of reach of the machine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from paddock.backends.base import SandboxPlan
from paddock.backends.guest import Request, orders
from paddock.errors import UnsupportedError
from paddock.model import MountMode
from paddock.supervisor.plan import JailPlan

_PLACE = "/exports"


def moved(plan: SandboxPlan, jail: JailPlan) -> JailPlan:
    """Return `jail` with these files at other paths. Its additional trees stay in place."""
    places = [_place(number) for number in range(len(plan.trees) + len(plan.spec.mounts))]
    own = len(plan.trees)
    trees = [tree._replace(target=place) for tree, place in zip(jail.trees, places[:own], strict=False)]
    mounts = [mount._replace(target=place) for mount, place in zip(jail.mounts, places[own:], strict=True)]
    kept = tuple(place for path in plan.protect if (place := _kept(plan, path)) is not None)
    return jail._replace(trees=(*trees, *jail.trees[own:]), mounts=tuple(mounts), protect=kept)


def on_disk(plan: SandboxPlan) -> list[str]:
    """Return the protected paths on the machine's own disk, where its root can change everything."""
    return [path for path in plan.protect if _kept(plan, path) is None]


async def unkept(paths: list[str], is_absent: Callable[[str], Awaitable[bool]]) -> UnsupportedError:
    """Return the error for the first present path of these."""
    for path in paths:
        if not await is_absent(path):
            break
    else:
        path = paths[0]
    return UnsupportedError(
        f"the policy lets nobody change {path}, which lies on the disk of the virtual machine, and its own root could",
        hint="level='jail', or have it in a workspace or a mount: what is protected there is kept from outside",
    )


def exports(plan: SandboxPlan) -> list[dict[str, Any]]:
    """Return the directories that the controller serves.

    `shared`: other programs may write there. `across`: parts of it are protected.
    """
    trees = [{"writable": tree.writable, "shared": False} for tree in plan.trees]
    mounts = [
        {"writable": mount.mode is not MountMode.READ_ONLY, "shared": mount.mode is not MountMode.COPY_ON_WRITE}
        for mount in plan.spec.mounts
    ]
    kept = [_kept(plan, path) or "" for path in plan.protect]
    return [
        {"name": str(number), "place": place, "across": any(_is_below(path, place) for path in kept), **export}
        for number, export in enumerate((*trees, *mounts))
        for place in (_place(number),)
    ]


def shares(plan: SandboxPlan) -> list[Request]:
    """Return the orders that mount the exports in the machine, by their numbers, outermost first."""
    found = enumerate(zip(exports(plan), _targets(plan), strict=True))
    outermost_first = sorted(found, key=lambda one: one[1][1].count("/"))
    return [orders.share(number, target, writable=export["writable"]) for number, (export, target) in outermost_first]


def _kept(plan: SandboxPlan, path: str) -> str | None:
    """Return where that path lies in the VMM's jail, or None if it is in no share."""
    targets = _targets(plan)
    above = [(len(target), number) for number, target in enumerate(targets) if _is_below(path, target)]
    if not above:
        return None
    length, number = max(above)
    return _place(number) + path[length:]


def _targets(plan: SandboxPlan) -> list[str]:
    return [entry.target for entry in (*plan.trees, *plan.spec.mounts)]


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")


def _place(number: int) -> str:
    return f"{_PLACE}/{number}"
