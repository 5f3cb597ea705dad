"""The sources of images: each gives the documents of one image, and its layers one by one.

A reader hashes the stored bytes of a layer, decompresses, counts, and hashes the result.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import stat
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import msgspec

from paddock.errors import ImageInvalidError, NotFoundError

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
from ._zstd import ZstdError, ZstdReader
from .limits import INDEX_DEPTH, MANIFEST_BYTES, Budget

_CHUNK = 1 << 18
_GZIP = b"\x1f\x8b"
_ZSTD = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")  # RFC 8878: a frame, or one to be skipped


class Stream(Protocol):
    def read(self, size: int, /) -> bytes:
        """Return at most so many bytes, or b"" at the end."""
        ...


class Piece(NamedTuple):
    """A part of a file, or all of it. The opener closes the descriptor."""

    fd: int
    offset: int
    size: int


class Stored(io.RawIOBase):
    """The bytes of a piece, hashed. `digest` None: its digest is unknown."""

    def __init__(self, piece: Piece, digest: str | None) -> None:
        self._piece, self._expected, self._at = piece, digest, 0
        self._hash = None if digest is None else hashlib.new(digest.partition(":")[0])

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[: self._piece.size - self._at]
        count = os.preadv(self._piece.fd, [view], self._piece.offset + self._at)
        self._at += count
        if self._hash is not None:
            self._hash.update(view[:count])
        return count

    def finish(self) -> None:
        """Read the rest and compare the digest. ImageInvalidError: it was another layer, or cut short."""
        while self.read(_CHUNK):
            pass
        if self._at != self._piece.size:
            raise ImageInvalidError(f"a layer ends after {self._at} of {self._piece.size} bytes")
        if self._hash is not None and f"{self._hash.name}:{self._hash.hexdigest()}" != self._expected:
            raise ImageInvalidError(f"a layer is not {self._expected}: its digest is {self._hash.hexdigest()}")


class Unpacked:
    """The decompressed bytes of a layer, hashed and charged to the budget."""

    def __init__(self, stored: Stored, budget: Budget, diff_id: str) -> None:
        self._source, self._errors = _decompressed(stored)
        self._budget, self._expected = budget, diff_id
        self._hash = hashlib.new(diff_id.partition(":")[0])

    def read(self, size: int, /) -> bytes:
        """Read at most so many bytes, none at the end. ImageInvalidError, ResourceExhausted."""
        try:
            data = self._source.read(min(size, _CHUNK))
        except self._errors as error:
            raise ImageInvalidError(f"a layer cannot be unpacked: {error}") from None
        self._budget.check(len(data))
        self._budget.bytes -= len(data)
        self._hash.update(data)
        return data

    def finish(self) -> None:
        """Read the rest and compare the digest. ImageInvalidError: the image's configuration says another."""
        while self.read(_CHUNK):
            pass
        found = f"{self._hash.name}:{self._hash.hexdigest()}"
        if found != self._expected:
            raise ImageInvalidError(f"a layer unpacks to {found}, and the image's configuration says {self._expected}")


def _decompressed(stored: Stored) -> tuple[Stream, tuple[type[Exception], ...]]:
    """Return a stream of the content in bounded memory, and the errors by which it reports damage."""
    file = io.BufferedReader(stored, _CHUNK)
    head = file.peek(4)
    if head.startswith(_GZIP):
        return gzip.GzipFile(fileobj=file), (gzip.BadGzipFile, zlib.error, EOFError)
    if _ZSTD.match(head):
        return ZstdReader(file), (ZstdError,)
    return file, ()


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer. `diff_id` is the digest of its archive, `digest` that of the stored form, where the image names it."""

    diff_id: str
    digest: str | None = None
    size: int
    place: str = ""


class FoundImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image for this machine. `digest` is that of its manifest, `id` that of its configuration."""

    digest: str
    id: str
    config: Config
    layers: tuple[Layer, ...]


class Source(Protocol):
    def find(self) -> FoundImage:
        """Find the image.

        Raises NotFoundError, InvalidArgumentError if there are several, ImageInvalidError, UnsupportedError and
        PlatformError.
        """
        ...

    def open(self, layer: Layer) -> AbstractContextManager[Piece]:
        """Open the layer as stored, without a check."""
        ...


Fetch = Callable[[Descriptor], bytes]
"""Fetches the document that a descriptor names. The caller checks its digest."""


def resolve(descriptor: Descriptor, fetch: Fetch, depth: int = 0) -> FoundImage:
    """Follow a descriptor, by way of indexes, to the image for this machine."""
    data = _document(descriptor, fetch)
    if descriptor.media_type in INDEXES:
        if depth == INDEX_DEPTH:
            raise ImageInvalidError(f"the image has indexes in indexes, more than {INDEX_DEPTH} deep")
        index = decode_index(data, f"index {descriptor.digest}")
        fitting = choose(index.manifests)
        if fitting is None:
            raise NotFoundError(f"the image is not there for this machine; it is for {platforms(index.manifests)}")
        return resolve(fitting, fetch, depth + 1)
    if descriptor.media_type not in MANIFESTS:
        raise ImageInvalidError(
            f"{descriptor.digest} is of type {descriptor.media_type[:100]!r}, which is not an image"
        )
    manifest = decode_manifest(data, f"manifest {descriptor.digest}")
    config = decode_config(_document(manifest.config, fetch), len(manifest.layers))
    layers = zip(config.rootfs.diff_ids, manifest.layers, strict=True)
    return FoundImage(
        digest=descriptor.digest,
        id=manifest.config.digest,
        config=config,
        layers=tuple(Layer(diff_id=id, digest=each.digest, size=each.size) for id, each in layers),
    )


def _document(descriptor: Descriptor, fetch: Fetch) -> bytes:
    if descriptor.size > MANIFEST_BYTES:
        raise ImageInvalidError(
            f"{descriptor.digest} has {descriptor.size} bytes, and {MANIFEST_BYTES} are taken at most"
        )
    data = fetch(descriptor)
    check_digest(data, descriptor.digest, "a document of the image")
    return data


def whole_file(fd: int, what: str) -> Piece:
    """Return all of an open file. ImageInvalidError: it isn't a regular one."""
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        raise ImageInvalidError(f"{what} is not a regular file")
    return Piece(fd, 0, info.st_size)


def read_small(piece: Piece, what: str) -> bytes:
    if piece.size > MANIFEST_BYTES:
        raise ImageInvalidError(f"{what} has {piece.size} bytes, and {MANIFEST_BYTES} are taken at most")
    data = b""
    while len(data) < piece.size and (more := os.pread(piece.fd, piece.size - len(data), piece.offset + len(data))):
        data += more
    return data
