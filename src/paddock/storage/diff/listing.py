"""The content of a tree beyond its start: as lines for a record, and whether all of it is new."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence

import msgspec

from paddock.linux.descriptors import closing
from paddock.model import FileKind
from paddock.storage.pool.hostile import HostileTree, Node
from paddock.storage.pool.trees import DIRECTORY, ROOT, layers_in

_MOST = 100_000
_MOST_DEPTH = 256
_HASHED_BYTES = 1 << 30
_CHUNK = 1 << 20


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of a tree.

    `sha256` is the digest of all lines, each with a newline. `first` are some of them.

    `whole`: the listing is complete. It isn't for trees with too many, too deep or too large files.
    """

    changes: int
    sha256: str
    first: tuple[str, ...]
    whole: bool


def list_changes(tree: int, *, first: int, own: bool = False) -> Listing:
    """List the written files: `kind mode size digest path` of each, or `gone` of one that hides another below.

    It is for trees of a driver that begins with an empty tree. The tree may be an attacker's. `own`: its deletion
    follows, so the listing may change its modes to read it.
    """
    walk = _Walk(own)
    digest, kept, number = hashlib.sha256(), list[str](), 0
    for layer in layers_in(tree):
        with closing(os.open(layer, DIRECTORY, dir_fd=tree)) as fd:
            for line in walk.lines(HostileTree(fd, own=own), b"/" if layer == ROOT else os.fsencode(layer) + b":/"):
                digest.update(os.fsencode(line) + b"\n")
                number += 1
                if number <= first:
                    kept.append(line)
    return Listing(changes=number, sha256=digest.hexdigest(), first=tuple(kept), whole=walk.whole)


class _Walk:
    def __init__(self, own: bool) -> None:
        self._own = own
        self._left, self._bytes = _MOST, _HASHED_BYTES
        self.whole = True

    def lines(self, tree: HostileTree, prefix: bytes, path: bytes = b"", depth: int = 0) -> Iterator[str]:
        try:
            names = tree.names(path)
        except OSError:
            self.whole = False
            return
        for name in names:
            below = path + b"/" + name if path else name
            node = tree.node(below)
            if node is None:
                continue
            if self._left == 0 or depth == _MOST_DEPTH:
                self.whole = False
                return
            if node.kind is FileKind.DIRECTORY:
                yield from self.lines(tree, prefix, below, depth + 1)
            self._left = max(0, self._left - 1)
            yield os.fsdecode(self._line(tree, below, node).encode("ascii") + b" " + prefix + below)

    def _line(self, tree: HostileTree, path: bytes, node: Node) -> str:
        if node.whiteout:
            return "gone"
        try:
            content = self._content(tree, path, node)
        except OSError:
            self.whole, content = False, "unreadable"
        return f"{node.kind.value} {node.mode:o} {node.size if node.kind is FileKind.FILE else 0} {content}"

    def _content(self, tree: HostileTree, path: bytes, node: Node) -> str:
        if node.kind is FileKind.SYMLINK:
            return hashlib.sha256(tree.target(path)).hexdigest()
        if node.kind is not FileKind.FILE:
            return "-"
        if node.size > self._bytes:
            self.whole = False
            return "-"
        digest = hashlib.sha256()
        with tree.reading(path) as file:
            while self._bytes > 0 and (data := file.read(min(_CHUNK, self._bytes))):
                digest.update(data)
                self._bytes -= len(data)
        return digest.hexdigest()


_MOST_BELOW = 1000


def is_new(tree: int, layers: Sequence[int], path: bytes, since_ns: int) -> bool:
    """Tell whether all files at `path` are newer than `since_ns`.

    `path` is relative to the root of `tree`, which lies over `layers`. All of them are directories of trees. The answer
    is False in doubt: an older file was there, its age is unknown, or there are too many files. A renamed file keeps
    its age. The tree may be an attacker's, who can set every time of a file except its birth time.
    """
    if any(_node_in(layer, path) for layer in layers):
        return False
    with closing(os.open(ROOT, DIRECTORY, dir_fd=tree)) as fd:
        try:
            return _all_new(HostileTree(fd), path, since_ns)
        except OSError:
            return False


def _node_in(tree: int, path: bytes) -> bool:
    with closing(os.open(ROOT, DIRECTORY, dir_fd=tree)) as fd:
        return HostileTree(fd).node(path) is not None


def _all_new(tree: HostileTree, path: bytes, since_ns: int) -> bool:
    waiting, left = [path], _MOST_BELOW
    while waiting:
        path = waiting.pop()
        left -= 1
        node = tree.node(path)
        if left < 0 or node is None or node.whiteout or node.foreign:
            return False
        birth = tree.birth_ns(path)
        if birth is None or birth < since_ns:
            return False
        if node.kind is FileKind.DIRECTORY:
            names = tree.names(path)
            if len(names) > left:
                return False
            waiting += [path + b"/" + name for name in names]
    return True
