"""Images of registries (OCI distribution specification 1.1). A layer is written to a file first, and deleted after."""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from paddock.errors import ImageInvalid

from ._documents import INDEXES, MANIFESTS, Descriptor
from ._http import Http
from ._limits import MANIFEST_BYTES
from ._reference import Reference
from ._source import Found, Layer, Piece, resolve

_CHUNK = 1 << 18
_ANY = "application/octet-stream, */*"


class Registry:
    """`directory` is where layers are kept for as long as they are unpacked."""

    def __init__(self, reference: Reference, directory: Path, http: Http | None = None) -> None:
        self._reference, self._directory = reference, directory
        self._http = http or Http(reference.host, reference.name)
        self._path = f"/v2/{reference.name}"

    def stamp(self) -> object | None:
        return None

    def find(self) -> Found:
        wanted = self._reference.digest or self._reference.tag
        data, kind = self._read(f"{self._path}/manifests/{wanted}", ", ".join(sorted(INDEXES | MANIFESTS)))
        digest = self._reference.digest or f"sha256:{hashlib.sha256(data).hexdigest()}"
        top = Descriptor(digest=digest, size=len(data), media_type=kind)

        def fetch(descriptor: Descriptor) -> bytes:
            if descriptor is top:
                return data
            if descriptor.media_type in INDEXES | MANIFESTS:
                return self._read(f"{self._path}/manifests/{descriptor.digest}", descriptor.media_type)[0]
            return self._read(f"{self._path}/blobs/{descriptor.digest}", _ANY)[0]

        return resolve(top, fetch)

    @contextmanager
    def open(self, layer: Layer) -> Generator[Piece]:
        assert layer.digest is not None
        assert layer.size is not None
        self._directory.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._directory) as file:  # without a name: it goes with us
            size = 0
            try:
                with self._http.open(f"{self._path}/blobs/{layer.digest}", _ANY) as answer:
                    while data := answer.read(_CHUNK):
                        size += len(data)
                        if size > layer.size:
                            raise ImageInvalid(f"layer {layer.digest} has more than its {layer.size} bytes")
                        file.write(data)
            except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
                raise self._http.unreachable(error) from None
            file.flush()
            if size != layer.size:
                raise ImageInvalid(f"layer {layer.digest} ends after {size} of {layer.size} bytes", hint="try again")
            yield Piece(file.fileno(), 0, os.fstat(file.fileno()).st_size)

    def _read(self, path: str, accept: str) -> tuple[bytes, str]:
        try:
            with self._http.open(path, accept) as answer:
                data = answer.read(MANIFEST_BYTES + 1)
                kind = str(getattr(answer, "headers", {}).get("Content-Type", ""))
        except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
            raise self._http.unreachable(error) from None
        if len(data) > MANIFEST_BYTES:
            raise ImageInvalid(f"registry {self._reference.host} gives a document of more than {MANIFEST_BYTES} bytes")
        return data, kind.partition(";")[0].strip()
