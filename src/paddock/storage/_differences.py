"""What the layer of a copy-on-write mount says against the directory below it.

Documentation/filesystems/overlayfs.rst: a character device 0:0 hides what is below it, a directory marked as opaque
hides all that is below it, anything else covers its own name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paddock.errors import InvalidState
from paddock.model import FileKind
from paddock.storage._hostile import HostileTree, Node

MOST = 100_000
_MOST_DEPTH = 256
_CHUNK = 1 << 20
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")  # as root, and in a user namespace
_HASHED_BYTES = 1 << 30
"""Of what is read to recognise renames."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One path. `old` is on the host, `new` in the sandbox; never both None."""

    path: bytes
    old: Node | None
    new: Node | None


class Comparison:
    """Of a layer with the directory below; both may be read as long as it is used, and neither is trusted.

    With `only`, paths relative to the directory, what is not at or below one of them is passed over, but for the new
    directories that they lie in.
    """

    def __init__(self, layer: HostileTree, host: HostileTree, only: Sequence[bytes] = ()) -> None:
        self.layer, self.host = layer, host
        self._only = tuple(only)
        self.same: dict[bytes, tuple[int, int, int]] = {}
        """Identities on the host of the files that the sandbox has written, and that are the same there and here. A
        part of them, if they are many. Filled by `differences`."""

    def differences(self) -> list[Difference]:
        """A directory before what is in it. InvalidState: more than can be looked at."""
        found: list[Difference] = []
        for difference in self._walk(b"", opaque=False, depth=0):
            found.append(difference)
            if len(found) > MOST:
                raise InvalidState(f"more than {MOST} changes", hint="name paths, to look at a part of them")
        return found

    def renames(self, differences: Sequence[Difference]) -> dict[bytes, bytes]:
        """New path to old path, of files that have the same content under another name."""
        gone = [d for d in differences if d.new is None and _is_content(d.old)]
        sizes = {d.old.size for d in gone if d.old is not None}
        come = [d for d in differences if d.old is None and _is_content(d.new) and d.new and d.new.size in sizes]
        wanted = {d.new.size for d in come if d.new is not None}
        budget = _HASHED_BYTES
        digests: dict[bytes, list[bytes]] = {}
        for tree, candidates in ((self.host, gone), (self.layer, come)):
            for d in candidates:
                node = d.old or d.new
                if node is None or node.size not in wanted:
                    continue
                budget -= node.size
                if budget < 0:
                    return {}
                digest = _digest(tree, d.path)
                if tree is self.host:
                    digests.setdefault(digest, []).append(d.path)
                else:
                    digests[b"+" + d.path] = [digest]
        pairs: dict[bytes, bytes] = {}
        for d in come:
            (digest,) = digests[b"+" + d.path]
            if same := digests.get(digest):
                pairs[d.path] = same.pop(0)
        return pairs

    def _walk(self, path: bytes, *, opaque: bool, depth: int) -> Iterator[Difference]:
        if depth > _MOST_DEPTH:
            raise InvalidState(f"{os.fsdecode(path)[:100]!r}… lies more than {_MOST_DEPTH} directories deep")
        names = self.layer.names(path)
        for name in names:
            below = path + b"/" + name if path else name
            if not self._leads(below):
                continue
            new, old = self.layer.node(below), self.host.node(below)
            if new is None:
                continue
            if new.whiteout:
                if old is not None:
                    yield from self._gone(below, old, depth)
                continue
            if old is not None and old.kind is FileKind.DIRECTORY and new.kind is not FileKind.DIRECTORY:
                yield from self._gone_below(below, depth)
            if self._wanted(below, new):
                if self._differs(below, old, new):
                    yield Difference(below, old, new)
                elif old is not None and old.kind is not FileKind.DIRECTORY and len(self.same) < MOST:
                    self.same[below] = old.identity
            if new.kind is FileKind.DIRECTORY:
                hides = opaque or self.layer.attribute(below, _OPAQUE) == b"y"
                yield from self._walk(below, opaque=hides, depth=depth + 1)
        if opaque:
            there = set(names)
            for name in self.host.names(path):
                below = path + b"/" + name if path else name
                old = self.host.node(below) if name not in there and self._leads(below) else None
                if old is not None:
                    yield from self._gone(below, old, depth)

    def _gone(self, path: bytes, old: Node, depth: int) -> Iterator[Difference]:
        if self._within(path):
            yield Difference(path, old, None)
        if old.kind is FileKind.DIRECTORY:
            yield from self._gone_below(path, depth)

    def _gone_below(self, path: bytes, depth: int) -> Iterator[Difference]:
        if depth > _MOST_DEPTH:
            raise InvalidState(f"{os.fsdecode(path)[:100]!r}… lies more than {_MOST_DEPTH} directories deep")
        for name in self.host.names(path):
            below = path + b"/" + name
            node = self.host.node(below) if self._leads(below) else None
            if node is not None:
                yield from self._gone(below, node, depth + 1)

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
        with self.layer.reading(path) as one, self.host.reading(path) as other:
            while True:
                chunk = os.read(one, _CHUNK)
                rest = len(chunk)
                while rest:
                    other_chunk = os.read(other, rest)
                    if not other_chunk or other_chunk != chunk[len(chunk) - rest :][: len(other_chunk)]:
                        return False
                    rest -= len(other_chunk)
                if not chunk:
                    return not os.read(other, 1)

    def _leads(self, path: bytes) -> bool:
        """It is to be looked at: it is, or contains, or lies in one that was asked for."""
        return not self._only or any(_is_below(path, one) or _is_below(one, path) for one in self._only)

    def _within(self, path: bytes) -> bool:
        return not self._only or any(_is_below(path, one) for one in self._only)

    def _wanted(self, path: bytes, new: Node) -> bool:
        return self._within(path) or new.kind is FileKind.DIRECTORY


def _is_below(path: bytes, directory: bytes) -> bool:
    return not directory or path == directory or path.startswith(directory + b"/")


def _is_content(node: Node | None) -> bool:
    return node is not None and node.kind is FileKind.FILE and node.size > 0


def _digest(tree: HostileTree, path: bytes) -> bytes:
    digest = hashlib.sha256()
    with tree.reading(path) as fd:
        while chunk := os.read(fd, _CHUNK):
            digest.update(chunk)
    return digest.digest()
