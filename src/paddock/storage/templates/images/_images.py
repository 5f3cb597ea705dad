"""Images of one pool: found by reference, made into templates once, listed, removed."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from paddock.errors import ImageInvalidError, InvalidArgumentError, NotFoundError
from paddock.linux.whole import keep_file
from paddock.model import Image, Template
from paddock.storage.pool.base import Pool
from paddock.storage.templates.recipe import SYSTEM_PATH, Progress, Versions
from paddock.supervisor.layout import IMAGES

from ._archive import Layout, SavedArchive, open_in_archive, open_in_directory
from ._building import VERSION, Accounts, accounts_of, build, workdir_of
from ._reference import Reference, parse
from ._source import FoundImage, Source
from .limits import ImageLimits

_TREES = ("tp_oci_", "tb_oci_")
_ENVIRONMENT_BYTES = 64 << 10
_LEAST_PREFIX = len("sha256:") + 6


_SUFFIX = ".json"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A local image.

    `tree` is the image's own. `chain` are the trees of its layers, each with all below it, if the pool has them.
    `stamp` is that of its source (`_stamp`).
    """

    image: Image
    template: Template
    tree: str
    chain: tuple[str, ...] = ()
    stamp: tuple[int, ...] = ()
    version: int = VERSION


_decode = msgspec.json.Decoder(Record).decode


class Records:
    """The records of the images: a small file for each reference, written whole or not at all."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def find(self, reference: str) -> Record | None:
        return self._load(self._path(reference))

    def all(self) -> tuple[Record, ...]:
        found = [self._load(path) for path in sorted(self.directory.glob(f"*{_SUFFIX}"))]
        return tuple(record for record in found if record is not None)

    def write(self, record: Record) -> None:
        self.directory.mkdir(mode=0o700, exist_ok=True)
        keep_file(self._path(record.image.reference), msgspec.json.encode(record))

    def remove(self, reference: str) -> None:
        with suppress(FileNotFoundError):
            self._path(reference).unlink()

    def _path(self, reference: str) -> Path:
        return self.directory / (hashlib.sha256(reference.encode()).hexdigest()[:40] + _SUFFIX)

    def _load(self, path: Path) -> Record | None:
        """Load a record. Return None if it is missing, or of another version. Then paddock rebuilds the image."""
        try:
            record = _decode(path.read_bytes())
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return record if record.version == VERSION else None


class Images:
    """The images of a pool.

    Several threads can use it at once. Times are by `clock`, seconds since the epoch.

    It contacts a registry for a missing image and for a pull. It checks a file or directory each time.
    """

    def __init__(
        self,
        pool: Pool,
        state_dir: Path,
        *,
        limits: ImageLimits = ImageLimits(),  # noqa: B008 (a frozen value)
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._pool, self._limits, self._clock = pool, limits, clock
        self._versions = Versions(pool)
        self._records = Records(state_dir / IMAGES)

    def get(self, text: str, progress: Progress) -> Record:
        """Return the earlier result for that name, if it is still valid. Otherwise do the same as `pull`."""
        reference = parse(text)
        kept = self._records.find(reference.text)
        if kept is not None and kept.stamp == _stamp(reference) and self._versions.is_built(kept.tree):
            return kept
        return self._make(reference, progress)

    def pull(self, text: str, progress: Progress) -> Record:
        """Find, fetch and build an image, which can take minutes.

        Raises InvalidArgumentError, NotFoundError, ImageInvalidError, UnsupportedError and ResourceExhaustedError, and
        PlatformError for an unreachable source.
        """
        return self._make(parse(text), progress)

    def list(self) -> tuple[Image, ...]:
        return tuple(sorted((record.image for record in self._records.all()), key=lambda image: image.reference))

    def remove(self, text: str) -> tuple[str, ...]:
        """Remove images, and return the trees that no image has any more.

        NotFoundError, InvalidArgumentError: `text` is the beginning of several digests.
        """
        before = self._records.all()
        removed = [record for record in before if _is_meant(record, text)]
        if not removed:
            raise NotFoundError(f"there is no image {text[:300]!r}", hint="`paddock image ls` lists them")
        if len({record.image.digest for record in removed}) > 1:
            raise InvalidArgumentError(f"{text!r} is the beginning of several digests", hint="give more characters")
        for record in removed:
            self._records.remove(record.image.reference)
        return tuple(sorted({tree for record in removed for tree in self._let_go(record)}))

    def trees(self) -> dict[str, str]:
        """Return the trees of the images that are here, each with one image that has it."""
        records = self._records.all()
        return {tree: record.image.reference for record in records for tree in (*record.chain, record.tree)}

    def is_version(self, tree: str) -> bool:
        """Tell whether the tree is one of an image's, or a builder has begun it."""
        return tree.startswith(_TREES)

    def discard(self, tree: str) -> bool:
        """Delete one tree, or the remains of its build. Return False if it is in use or under construction."""
        return self._versions.discard(tree)

    def _make(self, reference: Reference, progress: Progress) -> Record:
        progress(f"looking at image {reference.text}")
        stamp = _stamp(reference)  # before it is read: of a source that changes meanwhile it isn't the stamp any more
        source = self._source(reference)
        found = source.find()
        workdir_of(found)  # what can't be, before anything is fetched
        environment = _environment(found)
        tree, chain = build(self._pool, self._versions, self._limits, found, source, progress)
        who = accounts_of(self._pool, tree, found)
        record = Record(
            image=self._image(reference, found, who),
            template=Template(
                name=reference.text,
                digest=found.digest.partition(":")[2],
                layers=(tree,),
                host_usr=False,
                users=who.users,
                default_user=who.user.name,
                workdir=workdir_of(found),
                env=environment,
            ),
            tree=tree,
            chain=chain,
            stamp=stamp or (),
        )
        before = self._records.find(reference.text)
        self._records.write(record)
        if before is not None:
            self._let_go(before)
        return record

    def _let_go(self, record: Record) -> tuple[str, ...]:
        """Return the trees of a removed record, but for those that other images have."""
        gone = {record.tree, *record.chain} - self.trees().keys()
        for tree in gone:
            self._versions.release(tree)
        return tuple(sorted(gone))

    def _image(self, reference: Reference, found: FoundImage, who: Accounts) -> Image:
        execution = found.config.execution
        return Image(
            reference=reference.text,
            digest=found.digest,
            user=who.user.name,
            workdir=workdir_of(found),
            entrypoint=tuple(execution.Entrypoint or ()),
            command=tuple(execution.Cmd or ()),
            command_workdir=workdir_of(found) if (execution.WorkingDir or "/") != "/" else "/",
            layers=len(found.layers),
            bytes=sum(layer.size for layer in found.layers),
            notes=tuple(self._notes(found, who)),
            pulled_at=self._clock(),
        )

    def _notes(self, found: FoundImage, who: Accounts) -> list[str]:
        notes: list[str] = []
        wanted = found.config.execution.User or "root"
        if self._pool.worker.base is None:
            notes.append(
                f"it is to run as {wanted[:80]}, and all in it belongs to {who.user.name}: an ordinary user's sandboxes"
                " have one id (`subordinate_ids = true` in config.toml gives a new state directory all)"
            )
        if devices := who.left.get("devices"):
            notes.append(f"{devices[0]} devices are left out: a sandbox has its own")
        if attributes := who.left.get("attributes"):
            notes.append(f"attributes of files are left out: {', '.join(attributes)}")
        return notes

    def _source(self, reference: Reference) -> Source:
        in_archive = partial(open_in_archive, reference.path, self._pool.worker)
        match reference.transport:
            case "oci":
                return Layout(reference, partial(open_in_directory, reference.path))
            case "oci-archive":
                return Layout(reference, in_archive)
            case "docker-archive":
                return SavedArchive(reference, in_archive)
            case "docker":
                from ._registry import Registry  # HTTP: not where an image is here

                return Registry(reference, self._records.directory)


def _stamp(reference: Reference) -> tuple[int, ...] | None:
    """Return a value that is equal as long as an image is the same, without reading much. None: unknown.

    An image of a registry stays until a pull.
    """
    if not reference.local:
        return ()
    index = "/index.json" if reference.transport == "oci" else ""
    try:
        info = os.stat(reference.path + index, follow_symlinks=not index)
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _environment(found: FoundImage) -> dict[str, str]:
    """Return the environment that the image sets. ImageInvalid."""
    lines = found.config.execution.Env or []
    if sum(map(len, lines)) > _ENVIRONMENT_BYTES:
        raise ImageInvalidError(f"the image sets more than {_ENVIRONMENT_BYTES >> 10} KiB of environment")
    values = {"PATH": SYSTEM_PATH}
    for line in lines:
        name, _, value = line.partition("=")
        if not name or "\0" in line:
            raise ImageInvalidError(f"the image sets {line[:80]!r}, which is not a variable")
        values[name] = value
    return values


def _is_meant(record: Record, text: str) -> bool:
    if text.startswith("sha256:"):
        return len(text) >= _LEAST_PREFIX and record.image.digest.startswith(text)
    try:
        return record.image.reference == parse(text).text
    except InvalidArgumentError:
        return record.image.reference == text
