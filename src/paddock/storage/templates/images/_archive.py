"""Image layouts (OCI image specification, image-layout.md): a directory, or the same in an archive.

An archive is a layout in a tar file, or the output of `docker save`. paddock doesn't extract it.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, TypeVar

import msgspec

from paddock.errors import ImageInvalidError, InvalidArgumentError, NotFoundError
from paddock.linux import openat2
from paddock.linux.descriptors import closing
from paddock.storage.pool.worker import Worker
from paddock.wire import tar

from ._documents import Descriptor, Index, SavedImage, choose, decode, decode_config, decode_index
from ._reference import Reference
from ._source import FoundImage, Layer, Piece, read_small, resolve, whole_file
from .limits import HEADER_BYTES, MOST_LAYERS

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_INDEX = "index.json"
T = TypeVar("T")


class _Version(msgspec.Struct, rename="camel"):
    image_layout_version: str


Open = Callable[[str], AbstractContextManager[Piece]]
"""Opens a file of a layout, wherever that is. NotFound."""


class Layout:
    def __init__(self, reference: Reference, open_file: Open) -> None:
        self._reference, self._open_file = reference, open_file

    def find(self) -> FoundImage:
        version = decode(self._read("oci-layout"), _Version, "oci-layout")
        if not version.image_layout_version.startswith("1."):
            raise ImageInvalidError(f"the layout is of version {version.image_layout_version[:20]!r}, not 1")
        index = decode_index(self._read(_INDEX), _INDEX)
        return resolve(self._chosen(index), lambda descriptor: self._read(_place(descriptor.digest)))

    @contextmanager
    def open(self, layer: Layer) -> Generator[Piece]:
        assert layer.digest is not None
        with self._open_file(_place(layer.digest)) as piece:
            if layer.size != piece.size:
                raise ImageInvalidError(f"layer {layer.digest} has {piece.size} bytes, not {layer.size}")
            yield piece

    def _chosen(self, index: Index) -> Descriptor:
        tag = self._reference.tag
        named = index.manifests if tag is None else [manifest for manifest in index.manifests if manifest.named(tag)]
        chosen = None if tag is None else choose(named)
        tags = [(each.annotations or {}).get("org.opencontainers.image.ref.name", "") for each in index.manifests]
        return chosen or self._only(named, tags)

    def _only(self, named: Sequence[T], tags: Iterable[str]) -> T:
        """Return the only match. Raises NotFoundError or InvalidArgumentError with the present `tags`."""
        if len(named) == 1:
            return named[0]
        listed = ", ".join(name[:80] for name in tags if name)[:1000]
        if named:
            raise InvalidArgumentError(f"{self._reference.path} holds {len(named)} images", hint=f"name one: {listed}")
        wanted = "no image" if self._reference.tag is None else f"no image {self._reference.tag!r}"
        raise NotFoundError(f"{self._reference.path} holds {wanted}", hint=f"there are: {listed}" if listed else None)

    def _read(self, path: str) -> bytes:
        with self._open_file(path) as piece:
            return read_small(piece, path)


@contextmanager
def open_in_directory(layout: str, path: str) -> Generator[Piece]:
    """Open a file of a layout that is a directory: through no link, so no link leads out of it."""
    try:
        directory = os.open(layout, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise NotFoundError(f"there is no image layout {layout}: {error.strerror}") from None
    with closing(directory):
        try:
            fd = openat2.open_beneath(directory, path.encode(), _READ)
        except OSError as error:
            what = f"{path} of the image layout {layout} cannot be read: {error.strerror}"
            raise (NotFoundError(what) if error.errno == 2 else ImageInvalidError(what)) from None
    with closing(fd):
        yield whole_file(fd, path)


def _place(digest: str) -> str:
    """Return the path of a blob. Decoding has checked the digest, so it can't lead upwards."""
    return f"blobs/{digest.replace(':', '/')}"


_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_MOST_FILES = 50_000
_NAMES_BYTES = 16 << 20
_MANIFEST = "manifest.json"
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")


class _Member(NamedTuple):
    offset: int
    size: int
    link: str = ""


@contextmanager
def open_in_archive(archive: str, worker: Worker, path: str) -> Generator[Piece]:
    """Open a file in a tar file, by name. It opens the archive anew for each, and digests reveal a change.

    A stranger wrote it, so a confined process reads its headers.
    """
    with closing(_open_archive(archive)) as fd:
        found = worker.confined(_find, (fd,), path)
        if found is None:
            raise NotFoundError(f"{archive} holds no {path[:200]!r}")
        yield Piece(fd, *found)


def _open_archive(archive: str) -> int:
    try:
        fd = os.open(archive, _OPEN)
    except OSError as error:
        raise NotFoundError(f"there is no archive {archive}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise InvalidArgumentError(f"{archive} is not a file")
    if os.pread(fd, 6, 0).startswith(_COMPRESSED):
        os.close(fd)
        raise InvalidArgumentError(f"{archive} is compressed", hint="unpack it first: gunzip, zstd -d")
    return fd


def _find(fd: int, path: str) -> tuple[int, int] | None:
    """Find where the content of a file begins, and its bytes."""
    members = _list(fd)
    member = members.get(path)
    if member is not None and member.link:  # as old versions of Docker name a layer twice
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), member.link))
        member = members.get(target.lstrip("/"))
    return None if member is None or member.link else (member.offset, member.size)


def _list(fd: int) -> dict[str, _Member]:
    """List the files of the archive, without reading their content."""
    headers = tar.Headers(most_bytes=HEADER_BYTES, most_records=HEADER_BYTES)
    members: dict[str, _Member] = {}
    at = spent = 0
    while not headers.complete:
        data = os.pread(fd, headers.wanted, at)
        if data and len(data) < headers.wanted:
            raise ImageInvalidError("the archive ends in the middle of a header")
        at += len(data)
        try:
            entry = headers.take(data) if data else headers.end()
        except tar.TarError as error:
            raise ImageInvalidError(str(error)) from None
        if entry is None:
            continue
        name = posixpath.normpath(entry.name.decode("utf-8", "surrogateescape")).lstrip("/")
        spent += len(name) + len(entry.target)
        if len(members) == _MOST_FILES or spent > _NAMES_BYTES:
            raise ImageInvalidError("the archive holds more files than an image has")
        if entry.kind == tar.FILE:
            members[name] = _Member(at, entry.size)
            at += entry.size + tar.padding(entry.size)
        elif entry.kind in (tar.SYMLINK, tar.LINK):
            target = entry.target.decode("utf-8", "surrogateescape")
            members[name] = _Member(0, 0, f"/{target}" if entry.kind == tar.LINK else target)
    return members


class SavedArchive(Layout):
    """The output of `docker save` and `podman save --format docker-archive`: layers by path, a configuration, names."""

    def find(self) -> FoundImage:
        saved = self._saved(decode(self._read(_MANIFEST), list[SavedImage], _MANIFEST))
        if len(saved.Layers) > MOST_LAYERS:
            raise ImageInvalidError(f"the image has {len(saved.Layers)} layers, and {MOST_LAYERS} are taken at most")
        data = self._read(posixpath.normpath(saved.Config))
        config = decode_config(data, len(saved.Layers))
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        layers = zip(config.rootfs.diff_ids, map(posixpath.normpath, saved.Layers), strict=True)
        return FoundImage(
            digest=digest,
            id=digest,
            config=config,
            layers=tuple(Layer(diff_id=id, size=self._size(path), place=path) for id, path in layers),
        )

    @contextmanager
    def open(self, layer: Layer) -> Generator[Piece]:
        with self._open_file(layer.place) as piece:
            yield piece

    def _size(self, path: str) -> int:
        with self._open_file(path) as piece:
            return piece.size

    def _saved(self, images: list[SavedImage]) -> SavedImage:
        tag = self._reference.tag
        named = images if tag is None else [image for image in images if _is_named(image, tag)]
        return self._only(named, (name for each in images for name in each.RepoTags or ()))


def _is_named(image: SavedImage, wanted: str) -> bool:
    """Tell whether `wanted` names the image: with or without the host, and `latest` without a tag."""
    wanted = wanted if ":" in wanted.rpartition("/")[2] else f"{wanted}:latest"
    return any(name == wanted or name.endswith(f"/{wanted}") for name in image.RepoTags or ())
