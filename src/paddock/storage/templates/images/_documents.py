"""The documents of an image: index, manifest and configuration (OCI image specification 1.1, Docker's schema 2).

Don't trust their author. They have size limits and a strict form, and paddock uses no text in them as a path.
"""

from __future__ import annotations

import hashlib
import os
from typing import TypeVar

import msgspec

from paddock.errors import ImageInvalidError, UnsupportedError

from ._reference import DIGEST
from .limits import MOST_LAYERS

T = TypeVar("T")

INDEXES = frozenset(
    {"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"}
)
MANIFESTS = frozenset(
    {"application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"}
)
_LAYERS = frozenset(
    f"application/vnd.{kind}{compression}"
    for kind, compressions in (
        ("oci.image.layer.v1.tar", ("", "+gzip", "+zstd")),
        ("oci.image.layer.nondistributable.v1.tar", ("", "+gzip", "+zstd")),
        ("docker.image.rootfs.diff.tar", ("", ".gzip", ".zstd")),
        ("docker.image.rootfs.foreign.diff.tar", ("", ".gzip")),
    )
    for compression in compressions
)
# The names of Go, which images use.
_ARCHITECTURES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "i686": "386",
    "ppc64le": "ppc64le",
    "riscv64": "riscv64",
    "s390x": "s390x",
}


class Platform(msgspec.Struct, frozen=True):
    architecture: str = ""
    os: str = ""


class Descriptor(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    digest: str
    size: int
    media_type: str = ""
    platform: Platform | None = None
    annotations: dict[str, str] | None = None

    def __post_init__(self) -> None:
        if not DIGEST.fullmatch(self.digest):
            raise ValueError(f"{self.digest[:80]!r} is not a digest")
        if self.size < 0:
            raise ValueError(f"a size of {self.size}")

    def named(self, tag: str) -> bool:
        return (self.annotations or {}).get("org.opencontainers.image.ref.name") == tag


class Index(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    manifests: list[Descriptor]
    schema_version: int = 2
    layers: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    config: Descriptor
    layers: list[Descriptor]
    schema_version: int = 2
    manifests: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _RootFs(msgspec.Struct, frozen=True):
    diff_ids: list[str]
    type: str = "layers"


class Execution(msgspec.Struct, frozen=True):
    """The settings of an image for its execution. Each may be null."""

    User: str | None = None
    Env: list[str] | None = None
    Entrypoint: list[str] | None = None
    Cmd: list[str] | None = None
    WorkingDir: str | None = None


class Config(msgspec.Struct, frozen=True):
    architecture: str
    os: str
    rootfs: _RootFs
    config: Execution | None = None

    @property
    def execution(self) -> Execution:
        return self.config or Execution()


class SavedImage(msgspec.Struct, frozen=True):
    """One image of `manifest.json` in the output of `docker save`."""

    Config: str
    Layers: list[str]
    RepoTags: list[str] | None = None


def decode(data: bytes, kind: type[T], what: str) -> T:
    """Decode a document. ImageInvalidError: it isn't of that form."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ImageInvalidError(f"{what} is not what it should be: {str(error)[:300]}") from None


def decode_index(data: bytes, what: str) -> Index:
    index = decode(data, Index, what)
    # In a document that is both, two readers would see two images (CVE-2021-41190).
    if index.layers is not msgspec.UNSET or index.schema_version != 2:
        raise ImageInvalidError(f"{what} is an index and something else at once")
    return index


def decode_manifest(data: bytes, what: str) -> Manifest:
    manifest = decode(data, Manifest, what)
    if manifest.manifests is not msgspec.UNSET or manifest.schema_version != 2:
        raise ImageInvalidError(f"{what} is a manifest and something else at once")
    if len(manifest.layers) > MOST_LAYERS:
        raise ImageInvalidError(f"{what} has {len(manifest.layers)} layers, and {MOST_LAYERS} are taken at most")
    for layer in manifest.layers:
        if layer.media_type not in _LAYERS:
            raise ImageInvalidError(f"{what} has a layer of type {layer.media_type[:100]!r}, which is not known")
    return manifest


def decode_config(data: bytes, layers: int) -> Config:
    """Decode the configuration of an image for this machine. ImageInvalidError, Unsupported."""
    config = decode(data, Config, "the configuration of the image")
    own = architecture()
    if config.os != "linux" or config.architecture != own:
        raise UnsupportedError(
            f"the image is for {config.os[:40]} on {config.architecture[:40]}, and this machine is linux on {own}",
            hint="an image of several platforms, or one for this",
        )
    ids = config.rootfs.diff_ids
    if config.rootfs.type != "layers" or len(ids) != layers or not all(DIGEST.fullmatch(each) for each in ids):
        raise ImageInvalidError(f"the configuration of the image names {len(ids)} layers, and its manifest {layers}")
    return config


def architecture() -> str:
    machine = os.uname().machine
    return _ARCHITECTURES.get(machine, machine)


def choose(descriptors: list[Descriptor]) -> Descriptor | None:
    """Choose the descriptor for this machine by its platform, or the only one if it names none."""
    own = architecture()
    fitting = [
        each
        for each in descriptors
        if each.platform is not None and (each.platform.os, each.platform.architecture) == ("linux", own)
    ]
    if fitting:
        return fitting[0]
    return descriptors[0] if len(descriptors) == 1 and descriptors[0].platform is None else None


def platforms(descriptors: list[Descriptor]) -> str:
    shown = (f"{each.platform.os}/{each.platform.architecture}"[:60] for each in descriptors if each.platform)
    return ", ".join(list(dict.fromkeys(shown))[:10]) or "none that is named"


def check_digest(data: bytes, digest: str, what: str) -> None:
    """Compare a document with its digest. ImageInvalid."""
    algorithm, _, expected = digest.partition(":")
    found = hashlib.new(algorithm, data).hexdigest()
    if found != expected:
        raise ImageInvalidError(f"{what} is not {digest}: its digest is {algorithm}:{found}")
