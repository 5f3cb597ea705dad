"""Builds a tree from an image: its layers over each other, and the files for sandboxes on top.

The trees are complete, with whiteouts applied, so any driver copies them and any level mounts them. On btrfs a copy
costs nothing, so each layer with all below it is a separate tree, and images share their common layers. Other drivers
have one tree for an image.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import NamedTuple

import msgspec

from paddock.errors import ImageInvalidError
from paddock.linux.descriptors import closing
from paddock.linux.whole import write_whole
from paddock.model import User
from paddock.storage.pool.base import Pool
from paddock.storage.pool.trees import DIRECTORY, READ, ROOT
from paddock.storage.templates.recipe import Progress, Versions

from ._finish import Finish, accounts, knows
from ._source import FoundImage, Layer, Piece, Source, Stored, Unpacked
from .layer import LayerWriter
from .limits import Budget, ImageLimits

VERSION = 1
"""The version of the build. A new one rebuilds all trees."""
_LEFT = "left.json"
WORKDIR = "/workspace"


class Accounts(NamedTuple):
    users: tuple[User, ...]
    user: User
    left: dict[str, list[str]]
    """The parts of the image that the tree lacks: the number of `devices`, and the names of `attributes`."""


def tree_of(found: FoundImage) -> str:
    return f"tp_oci_{hashlib.sha256(f'{VERSION} {found.id}'.encode()).hexdigest()[:48]}"


def workdir_of(found: FoundImage) -> str:
    """Return where commands start. An image that says nothing has the top, which isn't a place for work."""
    path = found.config.execution.WorkingDir or "/"
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in path or len(path) > 4095:
        raise ImageInvalidError(f"the image is to start in {path[:200]!r}")
    return "/" + "/".join(parts) if parts else WORKDIR


def build(
    pool: Pool, versions: Versions, limits: ImageLimits, found: FoundImage, source: Source, say: Progress
) -> tuple[str, tuple[str, ...]]:
    """Build the missing trees of an image. Return its own, and those of its layers if the pool has them.

    Raises ImageInvalidError, ResourceExhaustedError, and the errors of the source.
    """
    tree = tree_of(found)
    budget = limits.budget(pool.space().available_bytes)
    chain = tuple(_chain(found)) if pool.driver == "btrfs" else ()

    def lay(layers: tuple[Layer, ...], at: int, root: int) -> None:
        for layer in layers:
            budget.check(layer.size)
            with source.open(layer) as piece:
                what = (piece.offset, piece.size, layer.digest, layer.diff_id)
                left = msgspec.structs.astuple(budget)
                fds = (at, root, piece.fd)
                budget.bytes, budget.entries = pool.worker.confined(_lay, fds, pool.worker.base, left, what)

    def finish(at: int, root: int) -> None:
        if not chain:
            lay(found.layers, at, root)
        pool.worker.confined(_finish, (root,), pool.worker.base, _wanted(found), workdir_of(found))

    if not versions.is_built(tree):
        below = ""
        for number, (name, layer) in enumerate(zip(chain, found.layers, strict=False)):
            words = f"layer {number + 1} of {len(chain)}"
            versions.ensure(name, words, lambda at, root, layer=layer: lay((layer,), at, root), say, on=below)
            below = name
        versions.ensure(tree, f"image {found.digest[:19]}", finish, say, on=below)
    return tree, chain


def accounts_of(pool: Pool, tree: str, found: FoundImage) -> Accounts:
    """Return the users of a finished tree."""
    with closing(pool.open(tree)) as at, closing(os.open(ROOT, DIRECTORY, dir_fd=at)) as root:
        answer = pool.worker.confined(_look, (at, root), pool.worker.base is not None, _wanted(found))
        return msgspec.convert(answer, Accounts)


def _chain(found: FoundImage) -> list[str]:
    """Return the names of the layers with all below them: by their chain ids (OCI image specification, config.md)."""
    names: list[str] = []
    chain = ""
    for layer in found.layers:
        text = f"{chain} {layer.diff_id}" if chain else layer.diff_id
        chain = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}" if chain else layer.diff_id
        names.append(f"tp_oci_layer_{hashlib.sha256(f'{VERSION} {chain}'.encode()).hexdigest()[:46]}")
    return names


def _wanted(found: FoundImage) -> str:
    """Return the user of the image's commands."""
    return found.config.execution.User or ""


def _look(at: int, root: int, whole: bool, wanted: str) -> object:
    users, user = accounts(root, wanted, whole=whole)
    return msgspec.to_builtins(Accounts(users, user, _left(at)))


def _lay(
    at: int,
    root: int,
    file: int,
    base: int | None,
    left_over: tuple[int, int, bool],
    what: tuple[int, int, str | None, str],
) -> tuple[int, int]:
    """Write one layer into a tree, in a worker. Return the rest of the budget."""
    offset, size, stored_digest, diff_id = what
    budget = Budget(*left_over)
    stored = Stored(Piece(file, offset, size), stored_digest)
    unpacked = Unpacked(stored, budget, diff_id)
    writer = LayerWriter(root, base, budget)
    writer.apply(unpacked)
    unpacked.finish()
    stored.finish()
    if writer.devices or writer.attributes:
        known = _left(at)
        devices = int(known.get("devices", ["0"])[0]) + writer.devices
        attributes = sorted({*known.get("attributes", []), *writer.attributes})
        write_whole(at, _LEFT, json.dumps({"devices": [str(devices)], "attributes": attributes[:20]}).encode())
    return budget.bytes, budget.entries


def _left(at: int) -> dict[str, list[str]]:
    try:
        fd = os.open(_LEFT, READ, dir_fd=at)
    except FileNotFoundError:
        return {}
    with os.fdopen(fd) as file:
        known: dict[str, list[str]] = json.load(file)
    return known


def _finish(root: int, base: int | None, wanted: str, workdir: str) -> None:
    users, user = accounts(root, wanted, whole=base is not None)
    finish = Finish(root, base)
    finish.places()
    if not knows(root, user) and base is None:
        finish.account(user)
    for each in {users[0].name: users[0], user.name: user}.values():
        finish.directory_of(each, each.home, 0o700 if each.uid == 0 else 0o755)
    for path in (WORKDIR, workdir):
        finish.directory_of(user, path, 0o755)
