"""The changes in the layer of a copy-on-write mount against the directory below it, and the conflicts with the host.

Documentation/filesystems/overlayfs.rst: a character device 0:0 hides the file below it, an opaque directory hides all
files below it, and any other file covers its own name. The files beside the layers have their age, and the promoted
changes. No sandbox sees those files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile

from paddock.errors import InvalidStateError
from paddock.linux.whole import write_whole
from paddock.model import FileKind
from paddock.storage.diff._git_names import folded, is_data, is_dot_git, is_repository
from paddock.storage.pool.hostile import HostileTree, Node
from paddock.storage.pool.trees import BASIS, PROMOTED, READ

MOST = 100_000
_MOST_BYTES = 32 << 20
"""Most bytes of all paths of changes."""
_MOST_DEPTH, _PATH_BYTES = 256, 3839
_CHUNK = 1 << 20
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")  # as root, and in a user namespace


@dataclass(frozen=True, slots=True)
class Difference:
    """A path that differs. `old` is on the host, `new` in the sandbox. At least one exists."""

    path: bytes
    old: Node | None
    new: Node | None


class LayerDiff:
    """A comparison of a layer with the directory below.

    It reads both while in use, and trusts neither.

    With `only`, paths relative to the directory, it covers only the files at or below one of them, and new directories
    above those.
    """

    def __init__(self, layer: HostileTree, host: HostileTree, only: Sequence[bytes] = ()) -> None:
        self.layer, self.host = layer, host
        self._only = tuple(only)
        self.same: dict[bytes, tuple[int, int, int]] = {}
        """Identities on the host of the files that the sandbox has written, and that are the same there and here. A
        part of them, if they are many. Filled by `differences`."""

    def differences(self) -> list[Difference]:
        """List all differences, a directory before its content. Raises InvalidStateError if there are too many."""
        found: list[Difference] = []
        size = 0
        for difference in self._walk(b"", opaque=False, depth=0):
            found.append(difference)
            size += len(difference.path)
            if len(found) > MOST or size > _MOST_BYTES:
                most = f"{MOST} changes" if len(found) > MOST else f"{_MOST_BYTES >> 20} MiB of paths"
                raise InvalidStateError(f"more than {most}", hint="name paths, to look at a part of the changes")
        return found

    def _walk(self, path: bytes, *, opaque: bool, depth: int) -> Iterator[Difference]:
        names = _names(self.layer, path, depth)
        for name in names:
            below = path + b"/" + name if path else name
            if not self._overlaps_request(below):
                continue
            new, old = self.layer.node(below), self.host.node(below)
            if new is None:
                continue
            if new.whiteout:
                if old is not None:
                    yield from self._deleted(below, old, depth)
                continue
            if old is not None and old.kind is FileKind.DIRECTORY and new.kind is not FileKind.DIRECTORY:
                yield from self._deleted_below(below, depth)
            if self._is_requested(below) or new.kind is FileKind.DIRECTORY:
                if self._differs(below, old, new):
                    yield Difference(below, old, new)
                elif old is not None and old.kind is not FileKind.DIRECTORY and len(self.same) < MOST:
                    self.same[below] = old.identity
            if new.kind is FileKind.DIRECTORY:
                hides = opaque or self.layer.attribute(below, _OPAQUE) == b"y"
                yield from self._walk(below, opaque=hides, depth=depth + 1)
        if opaque:
            in_layer = set(names)
            for name in self.host.names(path):
                below = path + b"/" + name if path else name
                old = self.host.node(below) if name not in in_layer and self._overlaps_request(below) else None
                if old is not None:
                    yield from self._deleted(below, old, depth)

    def _deleted(self, path: bytes, old: Node, depth: int) -> Iterator[Difference]:
        if self._is_requested(path):
            yield Difference(path, old, None)
        if old.kind is FileKind.DIRECTORY:
            yield from self._deleted_below(path, depth)

    def _deleted_below(self, path: bytes, depth: int) -> Iterator[Difference]:
        for name in _names(self.host, path, depth):
            below = path + b"/" + name
            node = self.host.node(below) if self._overlaps_request(below) else None
            if node is not None:
                yield from self._deleted(below, node, depth + 1)

    def _differs(self, path: bytes, old: Node | None, new: Node) -> bool:
        if old is None or old.kind is not new.kind or old.foreign:
            return True
        match new.kind:
            case FileKind.FILE:
                return old.mode != new.mode or not self._same_content(path, old, new)
            case FileKind.SYMLINK:
                return self.layer.target(path) != self.host.target(path)
            case FileKind.DIRECTORY:
                return old.mode != new.mode
            case _:
                return True

    def _same_content(self, path: bytes, old: Node, new: Node) -> bool:
        if old.size != new.size:
            return False
        with self.layer.reading(path) as new_file, self.host.reading(path) as old_file:
            while (chunk := new_file.read(_CHUNK)) == old_file.read(_CHUNK):
                if not chunk:
                    return True
            return False

    def _overlaps_request(self, path: bytes) -> bool:
        """Tell whether `path` is a requested path, contains one, or lies in one."""
        return not self._only or any(_is_below(path, wanted) or _is_below(wanted, path) for wanted in self._only)

    def _is_requested(self, path: bytes) -> bool:
        return not self._only or any(_is_below(path, wanted) for wanted in self._only)


def _names(tree: HostileTree, directory: bytes, depth: int) -> list[bytes]:
    """List a directory. Raises InvalidStateError if a path to an entry may be too long for the kernel."""
    if depth > _MOST_DEPTH or len(directory) > _PATH_BYTES:
        limit = f"{_MOST_DEPTH} directories or {_PATH_BYTES} bytes deep"
        name = f"{os.fsdecode(directory)[:100]!r}…"
        raise InvalidStateError(f"{name} lies more than {limit}", hint="name paths, to look at a part of the changes")
    return tree.names(directory)


def _is_below(path: bytes, directory: bytes) -> bool:
    return not directory or path == directory or path.startswith(directory + b"/")


_HOPS = 40  # as the kernel: MAXSYMLINKS, include/linux/namei.h
_NAME_BYTES = 255
_STEPS = 500_000
"""Most names through which all links of a promotion lead: seconds of work."""
_SET_ID = 0o6000
_REPOSITORY = frozenset({"head", "objects", "refs", "commondir"})

Promoted = Mapping[bytes, tuple[int, int, int]]
"""Identities (`Node.identity`) of files of the host as an earlier promotion left them."""


class Obstacles:
    """The conflicts that prevent promoting `differences`, all of which the promotion covers.

    `since_ns` is the time at which the sandbox first saw the directory, by the clock of the host's files. None:
    unknown.
    """

    def __init__(
        self, comparison: LayerDiff, differences: Sequence[Difference], *, since_ns: int | None, seen: Promoted
    ) -> None:
        self._layer, self._host = comparison.layer, comparison.host
        self._planned = {d.path: d.new for d in differences}
        self._since, self._seen = since_ns, seen
        self._uid = os.geteuid()
        self._new_repository_files: dict[bytes, set[str]] = {}
        for d in differences:
            folder, _, name = d.path.rpartition(b"/")
            if d.new is not None and folded(name) in _REPOSITORY:
                self._new_repository_files.setdefault(folder, set()).add(folded(name))
        self._repositories: dict[bytes, bool] = {}
        self._above: dict[bytes, tuple[int, ...]] = {}
        self._steps = 0

    def of(self, difference: Difference, *, force: bool = False) -> str | None:
        """Return why a promotion must not include a difference, or None. `force` ignores only changes on the host."""
        old, new = difference.old, difference.new
        if old is not None and old.foreign:
            return "another file system is mounted there on the host"
        if not force and old is not None and self._has_changed(difference.path, old):
            return "the host's has changed since the sandbox was given it"
        if old is not None and self._uid not in (0, old.uid):
            return f"the host's belongs to uid {old.uid}"
        if new is None:
            return None
        if new.kind is FileKind.OTHER:
            return "it is not a file, directory or symbolic link"
        if new.kind is not FileKind.SYMLINK and new.mode & _SET_ID and new.kind is not FileKind.DIRECTORY:
            return f"it has set-id bits: mode {new.mode:04o}"
        if new.kind is FileKind.SYMLINK and (where := self._link_escape(difference.path)):
            return f"it is a link that leads {where}: {os.fsdecode(self._layer.target(difference.path))[:200]!r}"
        if self._makes_repository(difference.path):
            return "it makes or configures a git repository: git would run what it names"
        return None

    def _has_changed(self, path: bytes, old: Node) -> bool:
        if old.kind is FileKind.DIRECTORY:
            # Its times follow its content. `of` has checked the content of a deleted one, file by file.
            return False
        if self._since is None:
            return True
        return old.changed_ns > self._since and self._seen.get(path) != old.identity

    def _link_escape(self, link: bytes) -> str | None:
        """Return where a link leads that a promotion must not take, such as "out". None: inside.

        It follows the link as the kernel would after the promotion, through links of the sandbox and of the host. A
        target has no `..` after a name: a later promotion could make that name a link, and so lead this one out.
        """
        parts = link.split(b"/")
        directory, remaining, hops, missing = parts[:-1], [parts[-1]], 0, False
        while remaining:
            part = remaining.pop()
            if part == b"..":
                if not directory:
                    return "out"
                directory.pop()
            elif part not in (b"", b"."):
                if is_dot_git(part):
                    return "into a git repository"
                if missing:
                    continue
                directory.append(part)
                path = b"/".join(directory)
                if self._steps > _STEPS or len(part) > _NAME_BYTES or len(path) > _PATH_BYTES:
                    return "through too many or too long names"
                tree = self._layer if path in self._planned else self._host
                node = self._planned[path] if path in self._planned else self._host.node(path)
                missing = node is None
                if hops and not missing and self._is_repository(path):
                    return "into a git repository"
                if node is not None and node.kind is FileKind.SYMLINK:
                    target = tree.target(path)
                    hops += 1
                    if hops > _HOPS or not target or target.startswith(b"/"):
                        return "out"
                    names = target.split(b"/")
                    self._steps += len(names)
                    if b".." in dropwhile((b"..", b".", b"").__contains__, names):
                        return "out, or may later: it has `..` after a name"
                    directory.pop()
                    remaining += reversed(names)
        return None

    def _makes_repository(self, path: bytes) -> bool:
        """Tell whether a promotion of `path` makes or configures a repository.

        git recognises a repository by its content, under any name (gitglossary, bare). In a repository, a promotion
        only includes data. Other code judges `.git` itself.
        """
        folder = path.rpartition(b"/")[0]
        below = [path[start:] for start in self._repositories_above(folder)]
        return any(folded(name) in _REPOSITORY or name == b"index" or not is_data(name) for name in below)

    def _repositories_above(self, folder: bytes) -> tuple[int, ...]:
        """Return where the paths below each repository begin that contains `folder`, or is it."""
        if folder not in self._above:
            parent, _, name = folder.rpartition(b"/")
            above = self._repositories_above(parent) if folder else ()
            if self._is_repository(folder) and not is_dot_git(name):
                above += (len(folder) + 1 if folder else 0,)
            self._above[folder] = above
        return self._above[folder]

    def _is_repository(self, folder: bytes) -> bool:
        if folder not in self._repositories:
            self._repositories[folder] = is_repository(lambda name: self._will_exist(folder, name))
        return self._repositories[folder]

    def _will_exist(self, folder: bytes, name: str) -> bool:
        if name in self._new_repository_files.get(folder, ()):
            return True
        host_name = b"HEAD" if name == "head" else name.encode()
        path = folder + b"/" + host_name if folder else host_name
        return path not in self._planned and self._host.node(path) is not None


def since_ns(tree: int) -> int | None:
    """Return the age of the tree's mounts over the host's directories, by the clock of files. None: unknown."""
    try:
        return os.stat(BASIS, dir_fd=tree, follow_symlinks=False).st_mtime_ns
    except FileNotFoundError:
        return None


def load_promoted(tree: int, number: int) -> Promoted:
    """Return the files on the host that earlier promotions from mount `number` have written."""
    try:
        fd = os.open(f"{PROMOTED}{number}", READ, dir_fd=tree)
    except FileNotFoundError:
        return {}
    with os.fdopen(fd, "rb") as file:
        entries: dict[str, tuple[int, int, int]] = json.load(file)
    return {os.fsencode(path): (inode, changed_ns, size) for path, (inode, changed_ns, size) in entries.items()}


def save_promoted(tree: int, number: int, promoted: Promoted) -> None:
    """Record the files that promotions have written on the host, beside the layers.

    Raises OSError if the sandbox's disk is full.
    """
    entries = {os.fsdecode(path): identity for path, identity in promoted.items()}
    write_whole(tree, f"{PROMOTED}{number}", json.dumps(entries).encode())
