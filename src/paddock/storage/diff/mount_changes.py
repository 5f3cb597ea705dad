"""The changes of a sandbox in a directory of the host: listed, as a patch, and promoted."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO

from paddock.errors import InvalidArgumentError, InvalidStateError, PaddockError, PlatformError, exhaustion
from paddock.linux.descriptors import closing
from paddock.model import Change, ChangeKind, FileKind, PlannedChange, PlannedNode, PromotionPlan
from paddock.storage.diff._git_names import MOST_BYTES, below_dot_git, folded, in_git, is_data, names_only_work
from paddock.storage.diff.differences import Difference, LayerDiff, Obstacles, Promoted, load_promoted, since_ns
from paddock.storage.git.patches import LINK, FileVersion, Lines, compare, write_side
from paddock.storage.pool.hostile import HostileTree, Node
from paddock.storage.pool.trees import DIRECTORY, MOUNT

_COMPARED_BYTES = 256 << 20
"""Most bytes of the files, on both sides, of which git compares the lines."""
_NO_LINES = Lines(None, None, None)
_LISTED = 20
_CONFIG_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """A promotion: the changes to take over, also as text, and the changes in `.git` that it leaves out."""

    differences: Sequence[Difference]
    changes: tuple[Change, ...]
    left_out: tuple[Change, ...]


class MountChanges:
    """The changes in one mount, made by `mount_changes`. `only` are relative paths. An empty list means all."""

    def __init__(self, comparison: LayerDiff, only: Sequence[bytes], since: int | None, promoted: Promoted) -> None:
        self._comparison = comparison
        self._differences = self._comparison.differences()
        self._named = tuple(only)
        self._index_bytes = MOST_BYTES
        # A daemon may have died during a promotion. Then the equal files are its work.
        self._since, self._promoted = since, {**promoted, **comparison.same}

    async def report(self, *, patch: bool) -> tuple[tuple[Change, ...], bytes | None]:
        """List the changes by path, with the obstacles to a promotion of all of it. InvalidStateError: too large for a
        patch."""
        stream = await asyncio.to_thread(TemporaryFile)
        try:
            await asyncio.to_thread(self._write, stream, patch=patch)
            try:
                lines, text = await compare(stream, patch=patch)
            except PaddockError:
                if patch:
                    raise
                lines, text = {}, b""  # the list is whole without the lines
        finally:
            await asyncio.to_thread(stream.close)  # to free the blocks of a large file takes time
        return await asyncio.to_thread(self._changes, lines), text if patch else None

    def _changes(self, lines: Mapping[bytes, Lines]) -> tuple[Change, ...]:
        obstacles = self._obstacles(self._differences)
        moved = {line.renamed_from for line in lines.values()}
        gone = {d.path: d for d in self._differences if d.path in moved}
        return tuple(
            _change(d, lines.get(d.path, _NO_LINES), gone, obstacles.of(d) or self._git_obstacle(d, git=False))
            for d in sorted(self._differences, key=lambda d: d.path)
            if d.path not in gone
        )

    def _write(self, stream: IO[bytes], *, patch: bool) -> None:
        """Write the files on both sides for `compare`. InvalidStateError: too large for a patch."""
        taken: list[Difference] = []
        size = 0
        for d in sorted(self._differences, key=lambda d: d.path):
            both = sum(node.size for node in (d.old, d.new) if node is not None and node.kind is FileKind.FILE)
            if size + both <= _COMPARED_BYTES:
                size += both
                taken.append(d)
            elif patch:
                most = f"more than the {_COMPARED_BYTES >> 20} MiB of a patch"
                raise InvalidStateError(
                    f"the files up to {os.fsdecode(d.path)} have {most}", hint="name paths; or paddock cp"
                )
        for name, tree, nodes in (
            (b"old", self._comparison.host, [(d.path, d.old) for d in taken]),
            (b"new", self._comparison.layer, [(d.path, d.new) for d in taken]),
        ):
            write_side(stream, name, filter(None, (_side(tree, path, node) for path, node in nodes)))

    def plan(self, *, git: bool, force: bool, most_bytes: int) -> Plan:
        """Plan a promotion of at most so many bytes: sparse files, and copies that share blocks, take more of the host
        than of the sandbox's disk. Raises InvalidStateError with the list of conflicts."""
        in_gits = [(d, self._git_obstacle(d, git=git)) for d in self._differences]
        inside = [(d, obstacle) for d, obstacle in in_gits if obstacle]
        if inside and any(map(in_git, self._named)):
            raise InvalidStateError(f"{os.fsdecode(inside[0][0].path)}: {inside[0][1]}")
        planned = [d for d, obstacle in in_gits if not obstacle]
        obstacles = self._obstacles(planned)
        found = [(d, obstacle) for d in planned if (obstacle := obstacles.of(d, force=force)) is not None]
        if found:
            lines = [f"{os.fsdecode(d.path)}: {obstacle}" for d, obstacle in found]
            more = [f"and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
            raise InvalidStateError(
                "nothing was taken over: " + "; ".join(lines[:_LISTED] + more),
                hint="name the paths that you want; where the host has changed, --force prefers the sandbox's",
                obstacles={os.fsdecode(d.path): obstacle for d, obstacle in found[:1000]},
            )
        size = sum(d.new.size for d in planned if d.new is not None and d.new.kind is FileKind.FILE)
        if size > most_bytes:
            raise InvalidStateError(
                f"nothing was taken over: the files have {size} bytes, and the disk of the sandbox {most_bytes}",
                hint="name the paths that you want; paddock cp copies one sparse file",
            )
        left_out = (_change(d, obstacle=obstacle) for d, obstacle in inside)
        return Plan(planned, tuple(map(_change, planned)), tuple(left_out))

    def message(self, plan: Plan, source: str) -> PromotionPlan:
        """Return the plan as a message for the process that writes it into `source`."""
        info = os.fstat(self._comparison.host.fd)
        changes = (
            PlannedChange(
                path=os.fsdecode(d.path), old=self._planned(d.path, d.old), new=self._planned(d.path, d.new, True)
            )
            for d in plan.differences
        )
        return PromotionPlan(source=source, directory=(info.st_dev, info.st_ino), changes=tuple(changes))

    def promoted_after(self, plan: Plan, steps: Sequence[Sequence[int]]) -> tuple[Promoted, Mapping[bytes, str]]:
        """Return the files on the host that are the work of promotions after these steps of `plan`, with their digests.

        A step is the number of a difference, and the identity on the host of a written file.
        """
        seen, digests = dict(self._promoted), dict[bytes, str]()
        for number, *identity in steps:
            d = plan.differences[number]
            if d.new is None or len(identity) != 3:
                continue
            seen[d.path] = (identity[0], identity[1], identity[2])
            if d.new.kind is FileKind.FILE:
                digests[d.path] = self._comparison.layer.digest(d.path)
        return seen, digests

    def open_layer(self) -> int:
        """Return a descriptor of the sandbox's files, which the caller closes."""
        return os.dup(self._comparison.layer.fd)

    def _planned(self, path: bytes, node: Node | None, new: bool = False) -> PlannedNode | None:
        if node is None:
            return None
        link = new and node.kind is FileKind.SYMLINK
        target = os.fsdecode(self._comparison.layer.target(path)) if link else None
        return PlannedNode(
            kind=node.kind, mode=node.mode, uid=node.uid, gid=node.gid, identity=node.identity, target=target
        )

    def _obstacles(self, differences: Sequence[Difference]) -> Obstacles:
        return Obstacles(self._comparison, differences, since_ns=self._since, seen=self._promoted)

    def _git_obstacle(self, d: Difference, *, git: bool) -> str | None:
        if not in_git(d.path):
            return None
        if not git:
            return "it lies in .git, which stays in the sandbox unless --git is said"
        below = below_dot_git(d.path)
        if below is None or (below and not is_data(below)):
            return "git on the host would run what this file says"
        kinds = (FileKind.FILE, FileKind.DIRECTORY) if below else (FileKind.DIRECTORY,)
        if d.new is not None and d.new.kind not in kinds:
            return "in .git only files and directories are taken over: git on the host would follow it elsewhere"
        if below == b"index" and d.new is not None and not self._is_plain_index(d.path, d.new):
            return "git on the host would write the files that this index names: it is not a plain index of this tree"
        return None

    def _is_plain_index(self, path: bytes, new: Node) -> bool:
        """Tell whether git reads this index safely. An index of a repository with other object ids than SHA-1 isn't
        read, nor are more than `MOST_BYTES` of all indexes."""
        if new.kind is not FileKind.FILE or new.size > self._index_bytes or self._mentions_other_ids(path):
            return False
        self._index_bytes -= new.size
        with self._comparison.layer.reading(path) as file:
            return names_only_work(file.read(new.size))

    def _mentions_other_ids(self, index: bytes) -> bool:
        host, config = self._comparison.host, index.removesuffix(b"index") + b"config"
        node = host.node(config)
        if node is None:
            return False
        if node.kind is not FileKind.FILE or node.size > _CONFIG_BYTES:
            return True
        with host.reading(config) as file:
            return b"objectformat" in file.read(_CONFIG_BYTES).lower()


def _side(tree: HostileTree, path: bytes, node: Node | None) -> FileVersion | None:
    """Return a file for `compare`. None: git has no such files, or takes none of that name."""
    if in_git(path):
        return None
    match node:
        case Node(kind=FileKind.FILE):
            with tree.reading(path) as file:
                return FileVersion(path, 0o100755 if node.mode & 0o100 else 0o100644, file.read(node.size))
        case Node(kind=FileKind.SYMLINK) if folded(os.path.basename(path)) != ".gitmodules":
            return FileVersion(path, LINK, tree.target(path))
        case _:
            return None


@contextmanager
def mount_changes(tree: int, number: int, source: str, paths: Sequence[str]) -> Generator[MountChanges]:
    """Open the changes in mount `number` of the sandbox's tree `tree`, or of an unchanging copy.

    `source` is the directory below. Raises InvalidArgumentError, InvalidStateError if the directory is missing,
    PlatformError and ResourceExhaustedError.
    """
    only = [relative(path) for path in paths]
    with closing(os.open(f"{MOUNT}{number}", DIRECTORY, dir_fd=tree)) as layer:
        try:
            host = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidStateError(f"{source!r} of the host: {error.strerror}") from error
        with closing(host):
            try:
                comparison = LayerDiff(HostileTree(layer, own=True), HostileTree(host), only)
                yield MountChanges(comparison, only, since_ns(tree), load_promoted(tree, number))
            except OSError as error:
                name = error.filename if isinstance(error.filename, (str, bytes)) else ""
                raise exhaustion(error) or PlatformError(
                    f"{os.fsdecode(os.fsencode(name))}: {error.strerror}"
                ) from error


def relative(path: str) -> bytes:
    """Return `path` in one form. InvalidArgumentError: it leads out, or isn't a path."""
    parts = [part for part in os.fsencode(path).split(b"/") if part not in (b"", b".")]
    if path.startswith("/") or b".." in parts or not path or "\0" in path:
        raise InvalidArgumentError(
            f"{path!r} is not a path below the mount: write it relative to the mount", field="paths"
        )
    return b"/".join(parts)


def _change(
    d: Difference, lines: Lines = _NO_LINES, gone: Mapping[bytes, Difference] = {}, obstacle: str | None = None
) -> Change:
    """Describe a difference. `gone` are the sources of renames."""
    node = d.new or d.old
    assert node is not None
    source = gone.get(lines.renamed_from or b"")
    old = d.old if source is None else source.old
    if source is not None:
        kind = ChangeKind.RENAMED
    elif d.new is None:
        kind = ChangeKind.DELETED
    else:
        kind = ChangeKind.ADDED if d.old is None else ChangeKind.MODIFIED
    return Change(
        path=os.fsdecode(d.path),
        kind=kind,
        file=node.kind,
        renamed_from=None if source is None else os.fsdecode(source.path),
        old_mode=None if old is None else old.mode,
        mode=None if d.new is None else d.new.mode,
        size_bytes=node.size,
        insertions=lines.insertions,
        deletions=lines.deletions,
        obstacle=obstacle,
    )
