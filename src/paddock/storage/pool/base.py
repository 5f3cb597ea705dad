"""The pool: trees by opaque name, copied on write, by the driver for this machine.

paddock makes a tree under a temporary name, and renames it when it is whole. It also renames a tree before it deletes
it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Lock

from paddock.errors import PlatformError
from paddock.linux import files
from paddock.linux.btrfs import Quota
from paddock.linux.descriptors import closing
from paddock.model import Check, PoolSpace
from paddock.storage.pool._copying import copy_tree
from paddock.storage.pool._image import Disk, Image
from paddock.storage.pool.config import Driver, PoolConfig, pool_checks, space_check
from paddock.storage.pool.removal import remove
from paddock.storage.pool.trees import (
    DIRECTORY,
    NAME,
    check_name,
    make_frame,
    make_mount_parts,
    measure,
    names_in,
    open_to_all,
    tree_error,
    within,
)
from paddock.storage.pool.worker import worker_for

_UNFINISHED = re.compile(r"\.(?:making|gone)-[0-9a-f]{16}", re.ASCII)


class Pool:
    """Trees are directories `<pool>/<name>/` that hold `root` (and `work`, where an overlay needs it), and for each
    mount of the sandbox that has its own writable layer `mount0`, `work0` and so on.

    Names match `[a-z]{2}_[a-z0-9_]{1,60}`. On disk, file owners are `supervisor.TREE_ID_BASE + id` where paddock runs
    as root, the caller's subordinate ids where it uses these, and else the caller's own uid. All calls are quick
    and synchronous.

    A driver replaces the methods that it can do better than with plain directories.
    """

    driver: Driver
    overlay = True
    """A sandbox's tree is the writable layer over its template's. Otherwise it is a whole copy."""

    def __init__(self, fd: int, config: PoolConfig, path: str) -> None:
        """Own `fd`, the descriptor of the pool's directory."""
        self._fd = fd
        self.config = config
        self._path = path  # where it would be seen, if it is: where the pool is an image, only the supervisor sees it
        self._room: Disk | Image = Disk(os.path.dirname(path), config)
        self.worker = worker_for(config)
        """The process that can read and write all files of a tree. The program itself may be unable to."""
        self._base = self.worker.base
        self.in_use: set[str] = set()
        """Names of trees that this process uses though no row says so: they are not garbage. Kept in memory only."""
        self._alone, self._at_work = Lock(), 0
        """Number of threads that make or delete trees. Under `_alone`, no thread begins to."""

    def create(
        self, name: str, *, layers: tuple[str, ...] = (), limit_bytes: int | None = None, mounts: int = 0
    ) -> None:
        """Make an empty tree for writes over `layers` (`copy`: with their content).

        Raises AlreadyExistsError and ResourceExhaustedError.
        """

        def fill(tree: int) -> None:
            self.worker.do(make_frame, (tree,), self._base, mounts)
            self._limit(tree, limit_bytes)

        self._make(name, fill)

    def snapshot(
        self, source: str, name: str, *, limit_bytes: int | None = None, at_rest: bool = False, ours: bool = False
    ) -> None:
        """Make a tree with the content of `source` at one instant.

        At `overlay` and `copy`, no program may write meanwhile.

        `at_rest`: no program will write to it, so it gets no work directories. `ours`: only paddock reads it, so it
        needn't keep owners. Raises NotFoundError, AlreadyExistsError and ResourceExhaustedError.
        """
        base = None if ours else self._base
        with closing(self.open(source)) as origin:
            self._make(name, lambda tree: self.worker.do(copy_tree, (origin, tree), base), doing="copy")

    def derive(self, source: str, name: str, *, limit_bytes: int | None = None) -> tuple[str, ...]:
        """Make a tree that begins with the content of `source`, which never changes again. Return the layers that it
        needs below it from now on, `source` or none. NotFoundError, AlreadyExistsError, ResourceExhausted."""
        self.snapshot(source, name, limit_bytes=limit_bytes)
        return ()

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(name for name in names_in(self._fd) if NAME.fullmatch(name)))

    def open(self, name: str) -> int:
        """Return a descriptor of the tree's directory, which the caller closes. Raises NotFoundError."""
        try:
            return os.open(check_name(name), DIRECTORY, dir_fd=self._fd)
        except OSError as error:
            raise tree_error(error, name, "open") from None

    def flush(self, name: str) -> None:
        """Write a tree's data from memory to disk, where a snapshot would do so first. Raises NotFoundError."""
        os.close(self.open(name))

    def rename(self, source: str, name: str, *, limit_bytes: int | None = None) -> None:
        """Rename a tree in one step, with the new limit `limit_bytes` if there is one.

        Raises NotFoundError and AlreadyExistsError.
        """
        check_name(source)
        check_name(name)
        try:
            # A tree is never empty, so that this never replaces one: ENOTEMPTY.
            os.rename(source, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except FileNotFoundError as error:
            raise tree_error(error, source, "rename") from None
        except OSError as error:
            raise tree_error(error, name, "rename") from None

    def allow(self, name: str, limit_bytes: int) -> None:
        """Change the limit of a tree, where this driver has any. NotFound."""
        os.close(self.open(name))

    def exchange(self, one: str, other: str) -> None:
        """Swap the names of two trees in one step.

        Limits and mounts stay with their content.

        Raises NotFoundError if one is missing, and PlatformError if the file system can't do it.
        """
        check_name(one)
        check_name(other)
        try:
            files.exchange(self._fd, one, other)
        except OSError as error:
            raise tree_error(error, f"{one} or {other}", "exchange") from None

    def add_mounts(self, name: str, mounts: int) -> None:
        """Add the directories for so many mounts to a tree, as `create` does.

        Raises NotFoundError, AlreadyExistsError and ResourceExhaustedError.
        """
        with within(self, name, "add mounts to") as tree:
            self.worker.do(make_mount_parts, (tree,), self._base, mounts)

    def delete(self, name: str) -> None:
        """Delete a tree, if it is there, without following its links.

        Raises PlatformError with the files that it can't delete.
        """
        check_name(name)
        gone = f".gone-{os.urandom(8).hex()}"
        with self.working():
            try:
                os.rename(name, gone, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            except FileNotFoundError:
                return
            except OSError as error:
                raise tree_error(error, name, "delete") from None
            self._discard(gone)

    def settle(self) -> None:
        """Make `usage` count deleted data as free, which otherwise takes seconds. It blocks. Raises PlatformError."""

    def usage(self, name: str) -> Quota | None:
        """Return the disk space of a tree. None: this driver can't tell."""
        os.close(self.open(name))

    def measure(self, name: str) -> int:
        """Return the disk space of a tree's files in bytes, which takes long. Raises NotFoundError."""
        with closing(self.open(name)) as tree:
            return self.worker.do(measure, (tree,))

    def space(self) -> PoolSpace:
        return self._room.space()

    def checks(self) -> tuple[Check, ...]:
        """Return lines for `doctor`."""
        return pool_checks(self.config, "this pool can limit no directory")

    def examine(self, *, scrub: bool | None = None) -> tuple[Check, ...]:
        """Return lines for `doctor --storage`. `scrub` reads all data. None: only if that is quick."""
        return (space_check(self.space(), self.config, self._path),)

    def fit(self) -> int:
        """Make the image of the pool larger, if it is nearly full and the disk has room. Return the bytes gained."""
        return 0

    def trim(self) -> int | None:
        """Return free space to the disk below. Return the number of trimmed bytes, or None if the pool can't trim."""
        return None

    def unfinished(self) -> tuple[str, ...]:
        """Return the names of unfinished creations and deletions. They aren't names of trees."""
        return tuple(sorted(filter(_UNFINISHED.fullmatch, names_in(self._fd))))

    def sweep(self) -> dict[str, str]:
        """Delete the unfinished trees, unless a thread makes or deletes trees right now.

        Return the remaining ones with the reasons.
        """
        with self._alone:  # what is begun after this is not listed
            names, busy = self.unfinished(), self._at_work
        left = {name: "trees are made or deleted" if busy else self._discard_quietly(name) for name in names}
        return {name: why for name, why in left.items() if why is not None}

    @contextmanager
    def working(self) -> Generator[None]:
        """Protect unfinished trees from a sweep during the block."""
        with self._alone:
            self._at_work += 1
        try:
            yield
        finally:
            with self._alone:
                self._at_work -= 1

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        self.worker.close()
        fd, self._fd = self._fd, -1
        if fd != -1:
            os.close(fd)

    def _make(
        self,
        name: str,
        fill: Callable[[int], None],
        *,
        begin: Callable[[str], None] | None = None,
        doing: str = "make",
    ) -> None:
        """Make tree `name`, or nothing at all: `begin` makes the directory, `fill` its content."""
        check_name(name)
        self._room.check()
        try:
            self._attempt(name, begin or self._begin, fill)
        except OSError as error:
            raise tree_error(error, name, doing) from error

    def _attempt(self, name: str, begin: Callable[[str], None], fill: Callable[[int], None]) -> None:
        making = f".making-{os.urandom(8).hex()}"
        with self.working():
            begin(making)
            try:
                with closing(os.open(making, DIRECTORY, dir_fd=self._fd)) as tree:
                    fill(tree)
                os.rename(making, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            except BaseException:
                self._discard_quietly(making)
                raise

    def _limit(self, tree: int, limit_bytes: int | None) -> None:
        """Limit the disk space of a tree, where this driver can."""

    def _begin(self, making: str) -> None:
        os.mkdir(making, 0o755, dir_fd=self._fd)
        open_to_all(making, self._fd)

    def _discard(self, name: str) -> None:
        """Delete a directory that was a tree."""
        self.worker.do(remove, (self._fd,), name)

    def _discard_quietly(self, name: str) -> str | None:
        """Return why it stays. The next sweep tries again."""
        try:
            self._discard(name)
        except (OSError, PlatformError) as error:
            return str(error)
        return None
