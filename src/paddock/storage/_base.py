"""The contract of the pool: trees by opaque name, copied on write, by whatever driver this machine has."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from paddock.model import Check, PoolSpace
from paddock.storage._config import Watermarks
from paddock.storage._worker import Worker


class TreeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """None: this driver cannot tell."""

    used_bytes: int | None
    limit_bytes: int | None


class Pool(Protocol):
    """Trees are directories `<pool>/<name>/` that hold `root` (and `work`, where an overlay needs it), and for each
    mount of the sandbox that has its own writable layer `mount0`, `work0` and so on.

    Names match `[a-z]{2}_[a-z0-9_]{1,60}`. On disk, file owners are `keeper.TREE_ID_BASE + id` where paddock runs as
    root, the caller's subordinate ids where it uses these, and else the caller's own uid. All calls are quick
    and synchronous.
    """

    @property
    def driver(self) -> str:
        """btrfs, overlay or copy."""
        ...

    @property
    def overlay(self) -> bool:
        """A sandbox's tree is the writable layer over its template's; else it is a whole copy."""
        ...

    @property
    def worker(self) -> Worker:
        """Who can read and write all that is in a tree; the program itself may be unable to."""
        ...

    @property
    def in_use(self) -> set[str]:
        """Names of trees that this process uses though no row says so: they are not garbage. Kept in memory only."""
        ...

    @property
    def marks(self) -> Watermarks: ...
    def create(
        self, name: str, *, layers: tuple[str, ...] = (), limit_bytes: int | None = None, mounts: int = 0
    ) -> None:
        """An empty tree to be written over `layers` (`copy`: with their content). AlreadyExists, ResourceExhausted."""
        ...

    def snapshot(
        self, source: str, name: str, *, limit_bytes: int | None = None, at_rest: bool = False, ours: bool = False
    ) -> None:
        """A tree with the content of `source` at one instant (`overlay`, `copy`: if nothing writes to it meanwhile).

        `at_rest`: nobody will write it, and what is needed for that is not made. `ours`: we read it ourselves; who
        owns what may be lost.

        NotFound, AlreadyExists, ResourceExhausted.
        """
        ...

    def derive(self, source: str, name: str, *, limit_bytes: int | None = None) -> tuple[str, ...]:
        """A tree that begins with the content of `source`, which never changes again: the layers that it needs below it
        from now on, `source` or none. NotFound, AlreadyExists, ResourceExhausted.
        """
        ...

    def flush(self, name: str) -> None:
        """Writes what of a tree is in memory only, where a snapshot would do so first. NotFound."""
        ...

    def rename(self, source: str, name: str, *, limit_bytes: int | None = None) -> None:
        """In one step; with that ceiling, if one is given. NotFound, AlreadyExists."""
        ...

    def allow(self, name: str, limit_bytes: int) -> None:
        """From now on that is its ceiling, where this driver has any. NotFound."""
        ...

    def exchange(self, one: str, other: str) -> None:
        """Each has the other's name then, in one step; ceilings, and what has them mounted, stay with their content.
        NotFound: one of them is not there. PlatformError: the file system can't."""
        ...

    def add_mounts(self, name: str, mounts: int) -> None:
        """To a tree that was made without: what `create` makes for so many. NotFound, AlreadyExists,
        ResourceExhausted."""
        ...

    def delete(self, name: str) -> None:
        """Nothing if it is not there. Never follows what is inside. PlatformError names what would not go."""
        ...

    def names(self) -> tuple[str, ...]: ...
    def open(self, name: str) -> int:
        """A descriptor of the tree's directory; the caller closes it. NotFound."""
        ...

    def usage(self, name: str) -> TreeUsage: ...
    def settle(self) -> None:
        """Have `usage` count what was deleted as free, which else takes seconds. Blocks; PlatformError."""
        ...

    def measure(self, name: str) -> int:
        """What is in a tree, in bytes of disk; counted, so it takes long. NotFound."""
        ...

    def space(self) -> PoolSpace: ...
    def checks(self) -> tuple[Check, ...]:
        """Lines for `doctor`."""
        ...

    def examine(self, *, scrub: bool | None = None) -> tuple[Check, ...]:
        """Lines for `doctor --storage`: what this driver can say of its health. `scrub` reads all; None: if quick."""
        ...

    def unfinished(self) -> tuple[str, ...]:
        """What is half made or half deleted; no names of trees."""
        ...

    def sweep(self) -> dict[str, str]:
        """Delete what is unfinished, unless trees are made or deleted right now. Returns what stays, and why."""
        ...

    def working(self) -> AbstractContextManager[None]:
        """Nothing is swept while the block runs."""
        ...

    def fit(self) -> int:
        """Where the pool is an image: makes it larger if it is nearly full and the disk has room. Bytes gained."""
        ...

    def trim(self) -> int | None:
        """Gives free space back to the disk below. Bytes looked through; None: this driver has nothing to give back."""
        ...

    def close(self) -> None: ...
