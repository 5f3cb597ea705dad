"""Trees and directories of the host for a vessel that waited, mounted while it lives: what its sandbox is over is known
when it is claimed.

What runs in there are processes of ours, a wall, and what has been nobody's sandbox: nothing in its tree was written by
anybody else, nobody knows of these mounts before they are told, and all of it ends if one of them fails.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from paddock.keeper._door import Door, visit
from paddock.keeper._errors import JailError
from paddock.keeper._house import House
from paddock.keeper._jail import Jail
from paddock.keeper._mounts import make_mounts
from paddock.keeper._places import attach as attach_mounts
from paddock.keeper._plan import JailPlan
from paddock.keeper._protect import protect
from paddock.keeper._trees import make_trees


def attach(house: House, jail: Jail, plan: JailPlan, targets: Collection[str]) -> None:
    """Its mounts, those of its trees that belong at `targets`, and all that it protects. OSError, JailError."""
    held: list[int] = []
    late = plan._replace(trees=tuple(tree for tree in plan.trees if tree.target in targets))
    door = _door(house, jail)
    try:
        made = [*make_mounts(house, late, jail.slot, held), *make_trees(house, late, jail.slot, held)]
        with visit(door, house.home):
            os.chdir("/")
            attach_mounts(house.base(jail.slot), made)
            protect(plan.protect)
    finally:
        door.close()
        for fd in held:
            os.close(fd)


def _door(house: House, jail: Jail) -> Door:
    """To its mounts alone: its names are its own affair by now."""
    if jail.way is not None:
        mounts = os.dup(jail.way.mounts)
    elif house.root_mode:
        mounts = os.open(f"/proc/{jail.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    else:
        raise JailError("the keeper that could mount something into it is dead, and an ordinary user's next one can't")
    return Door(mounts, os.dup(house.home.names))
