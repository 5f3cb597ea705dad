"""What of a difference must not be taken over on the host, and why."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from paddock.model import FileKind
from paddock.storage._differences import Comparison, Difference
from paddock.storage._hostile import Node

_HOPS = 40  # as the kernel: MAXSYMLINKS, include/linux/namei.h
_SET_ID = 0o6000
# What git itself writes at a commit, and nothing that names a program, a file elsewhere or another configuration.
_GIT_WRITES = re.compile(
    rb"(objects/([0-9a-f]{2}(/[0-9a-f]+)?|pack(/pack-[0-9a-f]+\.\w+)?|info|info/packs|info/commit-graph)?"
    rb"|(refs|logs)(/.+)?|(HEAD|ORIG_HEAD|FETCH_HEAD|MERGE_HEAD|AUTO_MERGE|COMMIT_EDITMSG|MERGE_MSG|index|packed-refs))"
)

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
        if new.kind is FileKind.SYMLINK and self._leads_out(difference.path):
            return f"it is a link that leads out: {os.fsdecode(self._layer.target(difference.path))!r}"
        if self._configures_git(difference.path):
            return "it configures a git repository: git would run what it names"
        return None

    def _has_changed(self, path: bytes, old: Node, new: Node | None) -> bool:
        if old.kind is FileKind.DIRECTORY:
            # Its times follow what is in it. What is in one that is gone has been looked at, one by one.
            return False
        if self._since is None:
            return True
        return old.changed_ns > self._since and self._seen.get(path) != old.identity

    def _leads_out(self, link: bytes) -> bool:
        """Followed as the kernel would, through what will be there afterwards: the sandbox's links and the host's."""
        parts = link.split(b"/")
        where, todo, hops = parts[:-1], [parts[-1]], 0
        while todo:
            part = todo.pop()
            if part == b"..":
                if not where:
                    return True
                where.pop()
            elif part not in (b"", b"."):
                where.append(part)
                target = self._link_at(b"/".join(where))
                if target is not None:
                    hops += 1
                    if hops > _HOPS or not target or target.startswith(b"/"):
                        return True
                    where.pop()
                    todo += reversed(target.split(b"/"))
        return False

    def _link_at(self, path: bytes) -> bytes | None:
        tree = self._layer if path in self._planned else self._host
        node = self._planned[path] if path in self._planned else self._host.node(path)
        return tree.target(path) if node is not None and node.kind is FileKind.SYMLINK else None

    def _configures_git(self, path: bytes) -> bool:
        """A directory that looks like a repository is one, under whatever name it goes (gitglossary, bare)."""
        folder, _, name = path.rpartition(b"/")
        if name.lower() in (b"head", b"config", b"objects") and not in_git(path):
            beside = {other: self._there(folder, other) for other in (b"HEAD", b"config", b"objects")}
            return all(beside.values())
        return False

    def _there(self, folder: bytes, name: bytes) -> bool:
        path = folder + b"/" + name if folder else name
        node = self._planned[path] if path in self._planned else self._host.node(path)
        return node is not None


def in_git(path: bytes) -> bool:
    return any(_is_git(part) for part in path.split(b"/"))


def git_writes(path: bytes) -> bool:
    """Whether a path in a `.git` is one that git's everyday commands write, and that git reads as data only."""
    parts = path.split(b"/")
    first = next(number for number, part in enumerate(parts) if _is_git(part))
    rest = b"/".join(parts[first + 1 :])
    if parts[first] != b".git" or any(_is_git(part) for part in parts[first + 1 :]):
        return False
    return not rest or _GIT_WRITES.fullmatch(rest) is not None


def _is_git(part: bytes) -> bool:
    """Also as a file system writes it that does not tell cases apart, or has short names."""
    return part.lower().rstrip(b". ") in (b".git", b"git~1")
