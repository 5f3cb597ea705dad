"""Whether something in a tree was made there since a moment, with all that is below it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from paddock.linux.descriptors import closing
from paddock.model import FileKind
from paddock.storage._hostile import HostileTree
from paddock.storage._trees import DIRECTORY, ROOT

_MOST = 1000


def is_new(tree: int, layers: Sequence[int], path: bytes, since_ns: int) -> bool:
    """`path` is relative to the root of the tree `tree`, which lies over `layers`; all are trees' directories.

    False when in doubt: something was there before, is of unknown age, or there is too much to look at. What is renamed
    keeps its age. The tree is an attacker's, who can set every time of a file but the one that is looked at.
    """
    if any(_node_in(layer, path) for layer in layers):
        return False
    with closing(os.open(ROOT, DIRECTORY, dir_fd=tree)) as fd:
        try:
            return _Look(HostileTree(fd), since_ns).all_new(path)
        except OSError:
            return False


def _node_in(tree: int, path: bytes) -> bool:
    with closing(os.open(ROOT, DIRECTORY, dir_fd=tree)) as fd:
        return HostileTree(fd).node(path) is not None


class _Look:
    def __init__(self, tree: HostileTree, since_ns: int) -> None:
        self._tree, self._since = tree, since_ns
        self._left = _MOST

    def all_new(self, path: bytes) -> bool:
        waiting = [path]
        while waiting:
            path = waiting.pop()
            self._left -= 1
            node = self._tree.node(path)
            if self._left < 0 or node is None or node.whiteout or node.foreign:
                return False
            born = self._tree.born_ns(path)
            if born is None or born < self._since:
                return False
            if node.kind is FileKind.DIRECTORY:
                names = self._tree.names(path)
                if len(names) > self._left:
                    return False
                waiting += [path + b"/" + name for name in names]
        return True
