"""A recipe: the inputs of a template, and the function that writes it.

A manifest: files to write, with owners.

A version is a tree from a recipe. paddock builds it once and atomically, and many sandboxes use it at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from paddock.linux import files
from paddock.linux.descriptors import closing
from paddock.storage.pool.base import Pool
from paddock.storage.pool.trees import DIRECTORY, NEW, ROOT, is_there
from paddock.storage.pool.worker import Worker

Progress = Callable[[str], None]
FillLayer = Callable[[int, Worker, Progress], None]
"""Writes a layer into a directory, through the worker."""

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PATH = f"{SYSTEM_PATH}:/home/user/.local/bin"
"""The last is where pip puts programs of the default user: behind the others, since root inside has this PATH too."""
ENV = {
    "PATH": PATH,
    "LANG": "C.UTF-8",
    "TERM": "xterm-256color",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_BREAK_SYSTEM_PACKAGES": "1",  # a disposable computer is the environment that PEP 668 asks for
}


class Entry(NamedTuple):
    """One file of a manifest. `content` is a file's bytes or a link's target. Ids are the ones inside the sandbox."""

    kind: Literal["directory", "file", "link"]
    mode: int
    content: bytes = b""
    uid: int = 0
    gid: int = 0


Manifest = Mapping[str, Entry]
"""Entries by path, relative to the root, without "." and "..". Each parent is an entry itself."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe. `facts` decide the digest. `fill` writes the layer."""

    name: str
    facts: tuple[str, ...]
    fill: FillLayer
    below: Recipe | None = None
    host_usr: bool = True
    env: dict[str, str] = field(default_factory=lambda: dict(ENV))

    @property
    def digest(self) -> str:
        below = self.below.digest if self.below else ""
        return hashlib.sha256(json.dumps([self.name, below, *self.facts]).encode()).hexdigest()

    @property
    def tree(self) -> str:
        return f"tp_{self.name.replace('-', '_')}_{self.digest[:12]}"


def of_kit(part: str, facts: tuple[str, ...], fill: FillLayer) -> Recipe:
    """Return the recipe of a tree that lies beside the kit, in jails of VMMs alone."""
    return Recipe(name=f"kit-{part}", facts=facts, fill=fill, host_usr=False, env={})


FOLDER = Entry("directory", 0o755)


def put(files: dict[str, Entry], path: str, entry: Entry) -> None:
    """Add an entry to a manifest, with the directories that it lies in."""
    parent = path.rpartition("/")[0]
    if parent and parent not in files:
        put(files, parent, FOLDER)
    files[path] = entry


def manifest_digest(manifest: Manifest) -> str:
    digest = hashlib.sha256()
    for path, entry in sorted(manifest.items()):
        head = (path, entry.kind, entry.mode, entry.uid, entry.gid, len(entry.content))
        digest.update(json.dumps(head).encode() + b"\n" + entry.content)
    return digest.hexdigest()


def writes(manifest: Callable[[], Manifest]) -> FillLayer:
    """Return the `fill` of a layer that consists of the files of a manifest."""
    return lambda root, worker, _: write_manifest(root, worker, manifest())


def write_manifest(root: int, worker: Worker, manifest: Manifest) -> None:
    """Write the files of `manifest` into the directory `root`, where no one else writes."""
    entries = sorted(manifest.items())
    with open(os.memfd_create("manifest"), "w+b") as contents:
        contents.writelines(entry.content for _, entry in entries)
        contents.seek(0)
        heads = [(path, one.kind, one.mode, one.uid, one.gid, len(one.content)) for path, one in entries]
        worker.do(_write, (root, contents.fileno()), heads, worker.base)


def _write(root: int, contents: int, heads: Sequence[tuple[str, str, int, int, int, int]], base: int | None) -> None:
    with open(contents, "rb", closefd=False) as stream:
        for path, kind, mode, uid, gid, size in heads:
            content = stream.read(size)
            if kind == "directory":
                if path != ".":
                    os.mkdir(path, 0o700, dir_fd=root)
            elif kind == "link":
                os.symlink(content, os.fsencode(path), dir_fd=root)
            else:
                with os.fdopen(os.open(path, NEW, 0o600, dir_fd=root), "wb") as file:
                    file.write(content)
            if base is not None:
                os.chown(path, base + uid, base + gid, dir_fd=root, follow_symlinks=False)
            if kind != "link":
                os.chmod(path, mode, dir_fd=root)


def scratch_of(tree: str) -> str:
    """Return the name of a version while it is under construction."""
    return "tb" + tree.removeprefix("tp")


Fill = Callable[[int, int], None]
"""Writes the content of a new tree, given descriptors of its directory and of its root."""


class Versions:
    """The versions in one pool. Several threads can use it at once. A requested version is in use until `release`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        """A lock for each tree: one thread at a time checks, builds or deletes it."""

    def is_built(self, tree: str) -> bool:
        with self._turns[tree]:
            return self._is_there(tree)

    def release(self, tree: str) -> None:
        self._pool.in_use.discard(tree)

    def ensure(self, tree: str, words: str, fill: Fill, progress: Progress, *, on: str = "") -> None:
        """Build a version, if it isn't there. It begins with the content of the tree `on`, or empty."""
        turn = self._turns[tree]
        if not turn.acquire(blocking=False):
            progress(f"{words} is being built")
            turn.acquire()
        try:
            if not self._is_there(tree):
                self._build(tree, words, fill, progress, on)
        finally:
            turn.release()

    def discard(self, tree: str) -> bool:
        """Delete one version, or the remains of its build. Return False if it is in use or under construction."""
        version = "tp" + tree[2:]
        turn = self._turns[version]
        if not turn.acquire(blocking=False):
            return False
        try:
            if version in self._pool.in_use:
                return False
            self._pool.delete(tree)
        finally:
            turn.release()
        return True

    def _is_there(self, tree: str) -> bool:
        self._pool.in_use.add(tree)
        return is_there(self._pool, tree)

    def _build(self, tree: str, words: str, fill: Fill, progress: Progress, on: str) -> None:
        """Build under another name, so that a version is whole, also after a power loss."""
        scratch = scratch_of(tree)
        self._pool.delete(scratch)  # a killed builder's
        progress(f"building {words}")
        if on:
            self._pool.snapshot(on, scratch, at_rest=True)
        else:
            self._pool.create(scratch)
        try:
            with closing(self._pool.open(scratch)) as fd, closing(os.open(ROOT, DIRECTORY, dir_fd=fd)) as root:
                fill(fd, root)
                files.sync_file_system(root)
            self._pool.rename(scratch, tree)
        except BaseException:
            self._pool.delete(scratch)
            raise
        progress(f"{words} is ready")
