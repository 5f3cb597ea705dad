"""Image layouts (OCI image specification, image-layout.md): a directory, or the same in an archive."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

import msgspec

from paddock.errors import ImageInvalid, InvalidArgument, NotFound
from paddock.linux import openat2
from paddock.linux.descriptors import closing

from ._documents import Descriptor, Index, choose, decode, decode_index
from ._reference import Reference
from ._source import Found, Layer, identity, read_small, resolve, whole_file
from ._streams import Piece

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_INDEX = "index.json"


class _Version(msgspec.Struct, rename="camel"):
    image_layout_version: str


class Files(Protocol):
    """The files of a layout, wherever they are."""

    def stamp(self) -> object: ...
    def open(self, path: str) -> Generator[Piece]:
        """NotFound."""
        ...


class Layout:
    def __init__(self, reference: Reference, files: Files) -> None:
        self._reference, self._files = reference, files

    def stamp(self) -> object | None:
        return self._files.stamp()

    def find(self) -> Found:
        version = decode(self._read("oci-layout"), _Version, "oci-layout")
        if not version.image_layout_version.startswith("1."):
            raise ImageInvalid(f"the layout is of version {version.image_layout_version[:20]!r}, not 1")
        index = decode_index(self._read(_INDEX), _INDEX)
        return resolve(self._chosen(index), lambda descriptor: self._read(_place(descriptor.digest)))

    @contextmanager
    def open(self, layer: Layer) -> Generator[Piece]:
        assert layer.digest is not None
        with contextmanager(self._files.open)(_place(layer.digest)) as piece:
            if layer.size != piece.size:
                raise ImageInvalid(f"layer {layer.digest} has {piece.size} bytes, not {layer.size}")
            yield piece

    def _chosen(self, index: Index) -> Descriptor:
        tag = self._reference.tag
        named = index.manifests if tag is None else [each for each in index.manifests if each.named(tag)]
        if len(named) == 1:
            return named[0]
        tags = _tags(index)
        if not named:
            wanted = "no image" if tag is None else f"no image {tag!r}"
            raise NotFound(f"{self._reference.path} holds {wanted}", hint=f"there are: {tags}" if tags else None)
        chosen = choose(named)
        if chosen is None or tag is None:
            raise InvalidArgument(f"{self._reference.path} holds {len(named)} images", hint=f"name one: {tags}")
        return chosen

    def _read(self, path: str) -> bytes:
        with contextmanager(self._files.open)(path) as piece:
            return read_small(piece, path)


class Directory:
    """A layout that is a directory: nothing of it is found through a link, so that no link leads out of it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def stamp(self) -> object:
        try:
            return identity(os.stat(f"{self._path}/{_INDEX}", follow_symlinks=False))
        except OSError:
            return None

    def open(self, path: str) -> Generator[Piece]:
        try:
            directory = os.open(self._path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise NotFound(f"there is no image layout {self._path}: {error.strerror}") from None
        with closing(directory):
            try:
                fd = openat2.open_beneath(directory, path.encode(), _READ, symlinks=False)
            except OSError as error:
                what = f"{path} of the image layout {self._path} cannot be read: {error.strerror}"
                raise (NotFound(what) if error.errno == 2 else ImageInvalid(what)) from None
        with closing(fd):
            yield whole_file(fd, path)


def _place(digest: str) -> str:
    """A digest has been looked at where it was decoded: it climbs nowhere."""
    return f"blobs/{digest.replace(':', '/')}"


def _tags(index: Index) -> str:
    names = ((each.annotations or {}).get("org.opencontainers.image.ref.name", "") for each in index.manifests)
    return ", ".join(name[:80] for name in names if name)[:1000]
