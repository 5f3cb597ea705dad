"""Which images are here: a small file for each reference, written whole or not at all."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import msgspec

from paddock.model import Image, Template
from paddock.storage._whole import keep_file

VERSION = 1
_SUFFIX = ".json"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """`tree` is the image's; `chain` are those of its layers, each with all below it, where the pool keeps them."""

    image: Image
    template: Template
    tree: str
    chain: tuple[str, ...] = ()
    version: int = VERSION


_decode = msgspec.json.Decoder(Record).decode


class Records:
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
        """None: it is not there, or of another version of ours: then the image is made anew."""
        try:
            record = _decode(path.read_bytes())
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return record if record.version == VERSION else None
