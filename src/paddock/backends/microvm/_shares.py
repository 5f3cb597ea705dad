"""What of the host's a virtual machine sees as files: the trees of its plan, and its directories.

In the vessel's jail they lie where nothing of the machine's programs is; in the machine, at the targets of the plan.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from paddock.backends._base import SandboxPlan
from paddock.keeper._plan import JailPlan
from paddock.model import MountMode

_PLACE = "/exports"


def moved(plan: SandboxPlan, jail: JailPlan) -> JailPlan:
    """`jail` with them out of the way. What it has beside those of the plan stays where it is."""
    places = [_place(number) for number in range(len(plan.trees) + len(plan.spec.mounts))]
    own = len(plan.trees)
    trees = [dataclasses.replace(tree, target=place) for tree, place in zip(jail.trees, places[:own], strict=False)]
    mounts = [dataclasses.replace(mount, target=place) for mount, place in zip(jail.mounts, places[own:], strict=True)]
    return dataclasses.replace(jail, trees=(*trees, *jail.trees[own:]), mounts=tuple(mounts))


def exports(plan: SandboxPlan) -> list[dict[str, Any]]:
    """What the pilot is told to serve. `shared`: somebody else may write there, too."""
    trees = [{"writable": tree.writable, "shared": False} for tree in plan.trees]
    mounts = [
        {"writable": mount.mode is not MountMode.READ_ONLY, "shared": mount.mode is not MountMode.COPY_ON_WRITE}
        for mount in plan.spec.mounts
    ]
    return [{"name": str(number), "place": _place(number), **export} for number, export in enumerate((*trees, *mounts))]


def shares(plan: SandboxPlan) -> list[dict[str, Any]]:
    """What the guest is told to mount, outermost first."""
    targets = [entry.target for entry in (*plan.trees, *plan.spec.mounts)]
    found = [
        {"name": export["name"], "target": target, "writable": export["writable"]}
        for export, target in zip(exports(plan), targets, strict=True)
    ]
    return sorted(found, key=lambda share: share["target"].count("/"))


def _place(number: int) -> str:
    return f"{_PLACE}/{number}"
