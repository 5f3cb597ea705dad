"""Trees of the pool that no row names: of spares, trials and utility jails. `Pool.in_use` keeps them from the sweep."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from paddock.backends.threads import in_thread
from paddock.errors import logged
from paddock.model import Limits, Template

if TYPE_CHECKING:
    from paddock.storage import Pool


async def create_tree(pool: Pool, name: str, template: Template, limits: Limits) -> None:
    """Make an empty tree over the template. `delete_tree` has to follow, even if this raises."""
    pool.in_use.add(name)
    await in_thread(pool.create, name, layers=template.layers, limit_bytes=limits.disk_mib << 20)


async def delete_tree(pool: Pool, name: str) -> None:
    """Delete it. If that fails, a sweep finds it."""
    try:
        with logged("delete the tree", name):
            await asyncio.to_thread(pool.delete, name)
    finally:
        pool.in_use.discard(name)


def directory_owners(template: Template) -> dict[str, tuple[int, int]]:
    """Return the owners of homes and working directory."""
    homes = {user.home: (user.uid, user.gid) for user in template.users if user.home != "/"}
    default = template.user(None)
    return homes if default is None else {**homes, template.workdir: (default.uid, default.gid)}


@contextlib.asynccontextmanager
async def scratch_tree(pool: Pool, name: str, template: Template, limits: Limits) -> AsyncGenerator[None]:
    """Have a tree while the block runs."""
    try:
        await create_tree(pool, name, template, limits)
        yield
    finally:
        await delete_tree(pool, name)
