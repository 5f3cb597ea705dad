"""Directories of the host in a container: the keeper finds and makes them as for a jail, with the ids of the machine,
and the emissary attaches them before anything foreign runs. The engine is told nothing of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator
from typing import cast

from paddock.backends._base import SandboxPlan, TreeMount
from paddock.errors import Unsupported
from paddock.linux import namespaces

from ._carry import Porters

_IDS = 65536


def require_apart(plan: SandboxPlan, carried: tuple[TreeMount, ...]) -> None:
    """Unsupported: one lies in a workspace, or around one, whose files are put there when it runs."""
    for mount in plan.spec.mounts:
        for tree in carried:
            ours, theirs = f"{mount.target}/", f"{tree.target}/"
            if ours.startswith(theirs) or theirs.startswith(ours):
                raise Unsupported(
                    f"in a container nothing is mounted in a workspace or around it: {mount.target} and {tree.target}",
                    hint="give the mount another target, or level='jail', 'gvisor' or 'microvm'",
                )


def require_own_ids(pid: int) -> None:
    """Of the container of that process. Unsupported."""
    inside, outside, count = namespaces.read_uid_map(pid)[0]
    if (inside, outside) != (0, 0) or count < _IDS:
        raise Unsupported(
            "this engine maps users: a directory of the host would be other people's there",
            hint="level='jail', 'gvisor' or 'microvm'",
        )


@contextlib.asynccontextmanager
async def mounted(porters: Porters, plan: SandboxPlan) -> AsyncGenerator[dict[str, int]]:
    """Detached mounts by their targets, open within the block. InvalidArgument."""
    message = porters.jail_plan(plan).to_message()
    descriptors = cast("list[int]", (await porters.keeper.request("mounts", plan=message)).get("fds", []))
    try:
        yield dict(zip((mount.target for mount in plan.spec.mounts), descriptors, strict=True))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
