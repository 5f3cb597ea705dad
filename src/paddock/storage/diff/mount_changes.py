"""The changes of a sandbox in a directory of the host: listed, as a patch, and promoted."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from paddock.errors import InvalidArgumentError, InvalidStateError, PlatformError, exhaustion
from paddock.linux.descriptors import closing
from paddock.model import Change, ChangeKind, FileKind, PlannedChange, PlannedNode, PromotionPlan
from paddock.storage.diff._git_names import MOST_BYTES, below_dot_git, in_git, is_data, names_only_work
from paddock.storage.diff._patch import Piece, Side, Work, piece
from paddock.storage.diff.differences import Comparison, Difference, Obstacles, Seen, load_promoted, since_ns
from paddock.storage.pool.hostile import HostileTree, Node
from paddock.storage.pool.trees import DIRECTORY, MOUNT

_TEXT_BYTES = 8 << 20
"""A file that is larger is not counted in lines."""
_COUNTED_BYTES = 256 << 20
PATCH_BYTES = 64 << 20
_LISTED = 20
_CONFIG_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """A promotion: the changes to take over, also as text, and the changes in `.git` that it leaves out."""

    differences: Sequence[Difference]
    words: tuple[Change, ...]
    left_out: tuple[Change, ...]


class MountChanges:
    """The changes in one mount, from `mount_changes`. `only` are relative paths. An empty list means all."""

    def __init__(self, comparison: Comparison, only: Sequence[bytes], since: int | None, promoted: Seen) -> None:
        self._comparison = comparison
        self._differences = self._comparison.differences()
        self._named = tuple(only)
        # A daemon may have died during a promotion. Then the equal files are its work.
        self._since, self._promoted = since, {**promoted, **comparison.same}

    def tell(self, *, patch: bool) -> tuple[tuple[Change, ...], bytes | None]:
        """List the changes by path, with the obstacles to a promotion of all of it. InvalidStateError: too large for a
        patch."""
        obstacles = self._obstacles(self._differences)
        renames = self._comparison.renames(self._differences)
        moved = set(renames.values())
        gone = {d.path: d for d in self._differences if d.path in moved}
        out: list[Change] = []
        pieces: list[bytes] = []
        work, counted, size = Work(), 0, 0
        for d in sorted(self._differences, key=lambda d: d.path):
            if d.path in moved:
                continue
            source = gone.get(renames.get(d.path, b""))
            text: Piece | None = None
            if patch or counted < _COUNTED_BYTES:
                text = self._piece(d, source, work, most=PATCH_BYTES if patch else _TEXT_BYTES)
            if text is not None:
                counted += sum(node.size for node in (d.old, d.new) if node is not None)
                size += len(text.text)
                if patch:
                    pieces.append(text.text)
            if patch and size > PATCH_BYTES:
                raise InvalidStateError(
                    f"the patch is larger than {PATCH_BYTES >> 20} MiB", hint="name paths; or paddock cp"
                )
            out.append(_change(d, source, text, obstacles.of(d) or self._git_obstacle(d, git=False)))
        return tuple(out), b"".join(pieces) if patch else None

    def plan(self, *, git: bool, force: bool) -> Plan:
        """Plan a promotion. Raises InvalidStateError with the list of conflicts."""
        inside = [d for d in self._differences if self._git_obstacle(d, git=git)]
        named = [d for d in inside if any(in_git(path) for path in self._named)]
        if named:
            raise InvalidStateError(f"{os.fsdecode(named[0].path)}: {self._git_obstacle(named[0], git=git)}")
        planned = [d for d in self._differences if d not in inside] if inside else self._differences
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
        words = tuple(_change(d, None, None, None) for d in planned)
        return Plan(planned, words, tuple(_change(d, None, None, self._git_obstacle(d, git=git)) for d in inside))

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

    def taken_over(self, plan: Plan, steps: Sequence[Sequence[int]]) -> tuple[Seen, Mapping[bytes, str]]:
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
        read."""
        if new.kind is not FileKind.FILE or new.size > MOST_BYTES or self._mentions_other_ids(path):
            return False
        with self._comparison.layer.reading(path) as file:
            return names_only_work(file.read(MOST_BYTES))

    def _mentions_other_ids(self, index: bytes) -> bool:
        host, config = self._comparison.host, index.removesuffix(b"index") + b"config"
        node = host.node(config)
        if node is None:
            return False
        if node.kind is not FileKind.FILE or node.size > _CONFIG_BYTES:
            return True
        with host.reading(config) as file:
            return b"objectformat" in file.read(_CONFIG_BYTES).lower()

    def _piece(self, d: Difference, source: Difference | None, work: Work, *, most: int) -> Piece | None:
        """Return the patch of one difference. None: git wouldn't keep it, or it is larger than `most`."""
        old, new = source or d, d
        if any(node is not None and node.size > most for node in (old.old, new.new)):
            if most == PATCH_BYTES:
                raise InvalidStateError(
                    f"{os.fsdecode(d.path)} is larger than {most >> 20} MiB", hint="name paths; or paddock cp"
                )
            return None
        one = self._side(self._comparison.host, old.path, old.old)
        other = self._side(self._comparison.layer, new.path, new.new)
        return piece(one, other, work) if one or other else None

    def _side(self, tree: HostileTree, path: bytes, node: Node | None) -> Side | None:
        match node:
            case Node(kind=FileKind.FILE):
                with tree.reading(path) as file:
                    content = file.read(node.size)
                return Side(path, 0o100755 if node.mode & 0o100 else 0o100644, content)
            case Node(kind=FileKind.SYMLINK):
                return Side(path, 0o120000, tree.target(path))
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
                comparison = Comparison(HostileTree(layer, own=True), HostileTree(host), only)
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


def _change(d: Difference, source: Difference | None, text: Piece | None, obstacle: str | None) -> Change:
    node = d.new or d.old
    assert node is not None
    old = source.old if source is not None else d.old
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
        renamed_from=os.fsdecode(source.path) if source is not None else None,
        old_mode=old.mode if old is not None else None,
        mode=d.new.mode if d.new is not None else None,
        size_bytes=node.size,
        insertions=text.insertions if text is not None else None,
        deletions=text.deletions if text is not None else None,
        obstacle=obstacle,
    )
