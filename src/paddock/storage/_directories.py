"""Trees as plain directories: made under another name, renamed when whole, renamed away before they are deleted.

As the upper layer of an overlay an empty one is quick, and a snapshot costs what was written. As a whole copy it works
on every file system, and costs what the template holds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock

from paddock.errors import PlatformError
from paddock.linux import renames
from paddock.linux.descriptors import closing
from paddock.model import Check, PoolSpace, replace
from paddock.storage._base import TreeUsage
from paddock.storage._config import Driver, PoolConfig, pool_checks, space_check
from paddock.storage._copying import Copier
from paddock.storage._differences import copy_basis
from paddock.storage._image import Disk
from paddock.storage._probe import is_refused_overlay
from paddock.storage._probe import overlay as probe_overlay
from paddock.storage._removal import remove
from paddock.storage._trees import (
    DIRECTORY,
    NAME,
    check_name,
    copy_root,
    layers_in,
    make_frame,
    make_mount_parts,
    measure,
    names_in,
    open_to_all,
    tree_error,
    within,
)
from paddock.storage._worker import by_worker, worker_for

_UNFINISHED = re.compile(r"\.(?:making|gone)-[0-9a-f]{16}", re.ASCII)


class Directories:
    """What all drivers share. Owns the descriptor of the pool's directory."""

    driver: Driver
    overlay: bool

    def __init__(self, fd: int, config: PoolConfig, path: str) -> None:
        self._fd = fd
        self._config = config
        self._path = path  # where it would be seen, if it is: where the pool is an image, only the keeper sees it
        self._disk = Disk(os.path.dirname(path), config)
        self.worker = worker_for(config)
        self._base = self.worker.base
        self.marks = config.marks
        self.in_use: set[str] = set()
        self._alone, self._at_work = Lock(), 0
        """How many make or delete trees; with `_alone` held, nobody begins to."""

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(name for name in names_in(self._fd) if NAME.fullmatch(name)))

    def open(self, name: str) -> int:
        try:
            return os.open(check_name(name), DIRECTORY, dir_fd=self._fd)
        except OSError as error:
            raise tree_error(error, name, "open") from None

    def flush(self, name: str) -> None:
        os.close(self.open(name))

    def rename(self, source: str, name: str, *, limit_bytes: int | None = None) -> None:
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
        os.close(self.open(name))

    def exchange(self, one: str, other: str) -> None:
        check_name(one)
        check_name(other)
        try:
            renames.exchange(self._fd, one, other)
        except OSError as error:
            raise tree_error(error, f"{one} or {other}", "exchange") from None

    @by_worker
    def add_mounts(self, name: str, mounts: int) -> None:
        with within(self, name, "lay mounts over") as tree:
            make_mount_parts(tree, self._base, mounts)

    def delete(self, name: str) -> None:
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
        """Do nothing: these trees have no quotas."""

    def usage(self, name: str) -> TreeUsage:
        os.close(self.open(name))
        return TreeUsage(used_bytes=None, limit_bytes=None)

    @by_worker
    def measure(self, name: str) -> int:
        with closing(self.open(name)) as tree:
            return measure(tree)

    def space(self) -> PoolSpace:
        return self._disk.space()

    def checks(self) -> tuple[Check, ...]:
        return pool_checks(self._config, "no directory can be given a ceiling here")

    def examine(self, *, scrub: bool | None = None) -> tuple[Check, ...]:
        return (space_check(self.space(), self._config, self._path),)

    def fit(self) -> int:
        return 0

    def trim(self) -> int | None:
        return None

    def unfinished(self) -> tuple[str, ...]:
        return tuple(sorted(filter(_UNFINISHED.fullmatch, names_in(self._fd))))

    def sweep(self) -> dict[str, str]:
        with self._alone:  # what is begun after this is not listed
            names, busy = self.unfinished(), self._at_work
        left = {name: "trees are made or deleted" if busy else self._discard_quietly(name) for name in names}
        return {name: why for name, why in left.items() if why is not None}

    @contextmanager
    def working(self) -> Generator[None]:
        with self._alone:
            self._at_work += 1
        try:
            yield
        finally:
            with self._alone:
                self._at_work -= 1

    def fileno(self) -> int:
        return self._fd

    def opened(self) -> tuple[PoolConfig, str]:
        return self._config, self._path

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
        """Makes tree `name`, or nothing at all: `begin` makes the directory, `fill` what is to be in it."""
        check_name(name)
        self._check_room()
        making = f".making-{os.urandom(8).hex()}"
        try:
            with self.working():
                (begin or self._begin)(making)
                try:
                    with closing(os.open(making, DIRECTORY, dir_fd=self._fd)) as tree:
                        fill(tree)
                    os.rename(making, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
                except BaseException:
                    self._discard_quietly(making)
                    raise
        except OSError as error:
            raise tree_error(error, name, doing) from error

    def _check_room(self) -> None:
        """ResourceExhausted if there is none for another tree."""
        self._disk.check()

    def _begin(self, making: str) -> None:
        os.mkdir(making, 0o755, dir_fd=self._fd)
        open_to_all(making, self._fd)

    @by_worker
    def _discard(self, name: str) -> None:
        """Delete a directory that is no tree any more."""
        remove(self._fd, name)

    def _discard_quietly(self, name: str) -> str | None:
        """Return why it stays. The next sweep tries again."""
        try:
            self._discard(name)
        except (OSError, PlatformError) as error:
            return str(error)
        return None


class OverlayPool(Directories):
    """No ceiling on disk space: a directory has none, and project quotas are not everywhere."""

    driver = "overlay"
    overlay = True

    @by_worker
    def create(
        self, name: str, *, layers: tuple[str, ...] = (), limit_bytes: int | None = None, mounts: int = 0
    ) -> None:
        self._make(name, lambda tree: make_frame(tree, self._base, mounts))

    @by_worker
    def snapshot(
        self, source: str, name: str, *, limit_bytes: int | None = None, at_rest: bool = False, ours: bool = False
    ) -> None:
        with closing(self.open(source)) as origin:
            mounts = len(layers_in(origin)) - 1

            def fill(tree: int) -> None:
                self._fill(tree, (origin,), mounts, base=None if ours else self._base)
                copy_basis(origin, tree)

            self._make(name, fill, doing="copy")

    @by_worker
    def derive(self, source: str, name: str, *, limit_bytes: int | None = None) -> tuple[str, ...]:
        def fill(tree: int) -> None:
            make_frame(tree, self._base)
            copy_root(origin, tree, keep_owner=self._base is not None)

        with closing(self.open(source)) as origin:
            self._make(name, fill)
        return (source,)

    def _fill(self, tree: int, origins: tuple[int, ...], mounts: int = 0, *, base: int | None) -> None:
        """Makes `tree` with the content of `origins`, lowest first; without a `base` all of it is ours."""
        make_frame(tree, base, mounts)
        for origin in origins:
            for part in layers_in(origin):
                self._copy(origin, tree, part, keep_owners=base is not None)

    def _copy(self, origin: int, tree: int, part: str, *, keep_owners: bool) -> None:
        with (
            closing(os.open(part, DIRECTORY, dir_fd=origin)) as source,
            closing(os.open(part, DIRECTORY, dir_fd=tree)) as target,
        ):
            Copier(keep_owners=keep_owners).copy(source, target)


class CopyPool(OverlayPool):
    """As overlay's, but a tree begins with all that its layers hold."""

    driver = "copy"
    overlay = False

    @by_worker
    def create(
        self, name: str, *, layers: tuple[str, ...] = (), limit_bytes: int | None = None, mounts: int = 0
    ) -> None:
        with ExitStack() as stack:
            origins: list[int] = []
            for layer in reversed(layers):
                origins.append(self.open(layer))
                stack.callback(os.close, origins[-1])
            self._make(name, lambda tree: self._fill(tree, tuple(origins), mounts, base=self._base))

    def checks(self) -> tuple[Check, ...]:
        pool, *more = super().checks()
        if is_refused_overlay(self._config) and probe_overlay(Path(self._path).parent) is None:
            said = (
                f"{pool.detail}. An overlay works by now, but trees do not change drivers: a new state directory has it"
            )
            pool = replace(pool, detail=said, fix="PADDOCK_STATE_DIR=DIRECTORY paddock doctor")
        return pool, *more

    @by_worker
    def derive(self, source: str, name: str, *, limit_bytes: int | None = None) -> tuple[str, ...]:
        self.snapshot(source, name, limit_bytes=limit_bytes)
        return ()
