"""What every place that images come from gives: the documents of one image, and its layers one by one."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from paddock.errors import ImageInvalid, NotFound

from ._documents import (
    INDEXES,
    MANIFESTS,
    Config,
    Descriptor,
    check_digest,
    choose,
    decode_config,
    decode_index,
    decode_manifest,
    platforms,
)
from ._limits import INDEX_DEPTH, MANIFEST_BYTES
from ._streams import Piece


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """`diff_id` is the digest of its archive, `digest` that of what lies at the source, where the image says it."""

    diff_id: str
    digest: str | None = None
    size: int | None = None
    place: str = ""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """An image for this machine. `digest` is that of its manifest, `id` that of its configuration."""

    digest: str
    id: str
    config: Config
    layers: tuple[Layer, ...]


class Source(Protocol):
    def stamp(self) -> object | None:
        """Equal as long as `find` would find the same, seen without reading much; None: that cannot be told."""
        ...

    def find(self) -> Found:
        """NotFound, InvalidArgument: it has several; ImageInvalid, Unsupported, PlatformError."""
        ...

    def open(self, layer: Layer) -> AbstractContextManager[Piece]:
        """Where the layer lies. Nothing of it is checked."""
        ...


Fetch = Callable[[Descriptor], bytes]
"""The document that a descriptor names; whoever calls checks its digest."""


def resolve(descriptor: Descriptor, fetch: Fetch, depth: int = 0) -> Found:
    """From a descriptor, by way of indexes, to the image for this machine."""
    data = _document(descriptor, fetch)
    if descriptor.media_type in INDEXES:
        if depth == INDEX_DEPTH:
            raise ImageInvalid(f"the image has indexes in indexes, more than {INDEX_DEPTH} deep")
        index = decode_index(data, f"index {descriptor.digest}")
        fitting = choose(index.manifests)
        if fitting is None:
            raise NotFound(f"the image is not there for this machine; it is for {platforms(index.manifests)}")
        return resolve(fitting, fetch, depth + 1)
    if descriptor.media_type not in MANIFESTS:
        raise ImageInvalid(f"{descriptor.digest} is of type {descriptor.media_type[:100]!r}: no image")
    manifest = decode_manifest(data, f"manifest {descriptor.digest}")
    config = decode_config(_document(manifest.config, fetch), len(manifest.layers))
    layers = zip(config.rootfs.diff_ids, manifest.layers, strict=True)
    return Found(
        digest=descriptor.digest,
        id=manifest.config.digest,
        config=config,
        layers=tuple(Layer(diff_id=id, digest=each.digest, size=each.size) for id, each in layers),
    )


def _document(descriptor: Descriptor, fetch: Fetch) -> bytes:
    if descriptor.size > MANIFEST_BYTES:
        raise ImageInvalid(f"{descriptor.digest} has {descriptor.size} bytes, and {MANIFEST_BYTES} are taken at most")
    data = fetch(descriptor)
    check_digest(data, descriptor.digest, "a document of the image")
    return data


def whole_file(fd: int, what: str) -> Piece:
    """All of an open file. ImageInvalid: it is none."""
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        raise ImageInvalid(f"{what} is no file")
    return Piece(fd, 0, info.st_size)


def identity(info: os.stat_result) -> tuple[int, ...]:
    """Changes when somebody writes to the file or replaces it."""
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def read_small(piece: Piece, what: str) -> bytes:
    if piece.size > MANIFEST_BYTES:
        raise ImageInvalid(f"{what} has {piece.size} bytes, and {MANIFEST_BYTES} are taken at most")
    data = b""
    while len(data) < piece.size and (more := os.pread(piece.fd, piece.size - len(data), piece.offset + len(data))):
        data += more
    return data
