"""What of a difference must not be taken over on the host, and why."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from paddock.model import FileKind
from paddock.storage._differences import Comparison, Difference
from paddock.storage._git_names import folded, is_data, is_dot_git, is_repository
from paddock.storage._hostile import Node

_HOPS = 40  # as the kernel: MAXSYMLINKS, include/linux/namei.h
_SET_ID = 0o6000
_REPOSITORY = frozenset({"head", "objects", "refs", "commondir"})

Seen = Mapping[bytes, tuple[int, int, int]]
"""Identities (`Node.identity`) of files of the host as an earlier promotion left them."""


class Obstacles:
    """`differences` are those that are to be taken over, all of them. `since_ns`: when the sandbox first saw the
    directory, by the clock of the host's files; None: nobody knows."""

    def __init__(
        self, comparison: Comparison, differences: Sequence[Difference], *, since_ns: int | None, seen: Seen
    ) -> None:
        self._layer, self._host = comparison.layer, comparison.host
        self._planned = {d.path: d.new for d in differences}
        self._since, self._seen = since_ns, seen
        self._uid = os.geteuid()
        self._marks: dict[bytes, set[str]] = {}
        for d in differences:
            folder, _, name = d.path.rpartition(b"/")
            if d.new is not None and folded(name) in _REPOSITORY:
                self._marks.setdefault(folder, set()).add(folded(name))
        self._repositories: dict[bytes, bool] = {}

    def of(self, difference: Difference, *, force: bool = False) -> str | None:
        """`force` passes over what the host has changed meanwhile, and over nothing else."""
        old, new = difference.old, difference.new
        if old is not None and old.foreign:
            return "another file system is mounted there on the host"
        if not force and old is not None and self._has_changed(difference.path, old, new):
            return "the host's has changed since the sandbox was given it"
        if old is not None and self._uid not in (0, old.uid):
            return f"the host's belongs to uid {old.uid}"
        if new is None:
            return None
        if new.kind is FileKind.OTHER:
            return "it is no file, directory or symbolic link"
        if new.kind is not FileKind.SYMLINK and new.mode & _SET_ID and new.kind is not FileKind.DIRECTORY:
            return f"it has set-id bits: mode {new.mode:04o}"
        if new.kind is FileKind.SYMLINK and (where := self._leads(difference.path)):
            return f"it is a link that leads {where}: {os.fsdecode(self._layer.target(difference.path))!r}"
        if self._makes_repository(difference.path, new):
            return "it makes or configures a git repository: git would run what it names"
        return None

    def _has_changed(self, path: bytes, old: Node, new: Node | None) -> bool:
        if old.kind is FileKind.DIRECTORY:
            # Its times follow what is in it. What is in one that is gone has been looked at, one by one.
            return False
        if self._since is None:
            return True
        return old.changed_ns > self._since and self._seen.get(path) != old.identity

    def _leads(self, link: bytes) -> str | None:
        """Tell whether it leads out or into a repository. Followed as the kernel would, through the links that will be
        there afterwards: the sandbox's and the host's."""
        parts = link.split(b"/")
        where, todo, hops = parts[:-1], [parts[-1]], 0
        while todo:
            part = todo.pop()
            if part == b"..":
                if not where:
                    return "out"
                where.pop()
            elif part not in (b"", b"."):
                where.append(part)
                path = b"/".join(where)
                if is_dot_git(part) or (hops and self._is_repository(path)):
                    return "into a git repository"
                target = self._link_at(path)
                if target is not None:
                    hops += 1
                    if hops > _HOPS or not target or target.startswith(b"/"):
                        return "out"
                    where.pop()
                    todo += reversed(target.split(b"/"))
        return None

    def _link_at(self, path: bytes) -> bytes | None:
        tree = self._layer if path in self._planned else self._host
        node = self._planned[path] if path in self._planned else self._host.node(path)
        return tree.target(path) if node is not None and node.kind is FileKind.SYMLINK else None

    def _makes_repository(self, path: bytes, new: Node) -> bool:
        """Git takes a directory for a repository by what is in it, under any name (gitglossary, bare). In one, only
        data is taken over. `.git` itself is not judged here."""
        parts = path.split(b"/")
        for depth in range(len(parts)):
            folder = b"/".join(parts[:depth])
            if (depth and is_dot_git(parts[depth - 1])) or not self._is_repository(folder):
                continue
            below = b"/".join(parts[depth:])
            if folded(below) in _REPOSITORY or below == b"index" or not is_data(below):
                return True
        return False

    def _is_repository(self, folder: bytes) -> bool:
        if folder not in self._repositories:
            self._repositories[folder] = is_repository(lambda name: self._there(folder, name))
        return self._repositories[folder]

    def _there(self, folder: bytes, name: str) -> bool:
        if name in self._marks.get(folder, ()):
            return True
        own = b"HEAD" if name == "head" else name.encode()
        path = folder + b"/" + own if folder else own
        return path not in self._planned and self._host.node(path) is not None
