"""Templates as images of the engine: put there once for each set of layers, found by their names ever after."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import platform
import tarfile
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import IO

import msgspec

from paddock.backends._threads import in_its_own_thread
from paddock.errors import PlatformError, Unsupported
from paddock.linux import mountinfo
from paddock.model import Template
from paddock.storage._trees import DIRECTORY, ROOT, tree_error
from paddock.storage._worker import Worker

from ._engine import Engine
from ._layers import owners, write_layer

REPOSITORY = "localhost/paddock/template"
_VERSION = "2"
_READ = 1 << 20
_LOAD_SECONDS = 1800.0
"""An engine says nothing while it unpacks a large image."""
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


class _Known(msgspec.Struct):
    Id: str


class Images:
    def __init__(self, directory: Path, opened: Callable[[], Awaitable[tuple[int, Worker]]]) -> None:
        """`opened` gives the directory of the pool, which stays whose it is, and who may read what is in it."""
        self._directory, self._opened = directory, opened
        self._there: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = {}

    async def ensure(self, engine: Engine, template: Template) -> str:
        """The name of the image, which may take a while to make, the first time. PlatformError."""
        name = _name(template)
        async with self._locks.setdefault(name, asyncio.Lock()):
            if name not in self._there and await engine.get(f"/images/{name}/json", _Known) is None:
                await self._load(engine, template, name)
            self._there.add(name)
        return name

    def forget(self, name: str) -> None:
        """Somebody has removed it from the engine."""
        self._there.discard(name)

    async def _load(self, engine: Engine, template: Template, name: str) -> None:
        pool, worker = await self._opened()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)

        def load() -> bytes:
            with tempfile.TemporaryFile(dir=self._directory) as archive:
                _write(archive, name, template, pool, worker)
                archive.seek(0)
                return engine.call("POST", "/images/load", {"quiet": "1"}, archive, seconds=_LOAD_SECONDS)

        said = await in_its_own_thread(load)
        if b'"error"' in said or await engine.get(f"/images/{name}/json", _Known) is None:
            words = said[-400:].decode("utf-8", "replace").strip()
            raise PlatformError(f"the container engine did not take template {template.name!r}: {words}")


def shown_of_usr(template: Template) -> tuple[str, ...]:
    """Which directories of the machine's /usr a container of this template sees. Unsupported."""
    if not template.host_usr:
        return ()
    if any(info.mount_point.startswith(b"/usr/") for info in mountinfo.read()):
        raise Unsupported(
            "something is mounted below this machine's /usr, which a container engine would show as well",
            hint="use a template with a /usr of its own: debian, or an image",
        )
    with os.scandir("/usr") as entries:
        return tuple(sorted(e.path for e in entries if e.name != "local" and e.is_dir(follow_symlinks=False)))


def _name(template: Template) -> str:
    facts = json.dumps([_VERSION, owners(template), *template.layers])
    return f"{REPOSITORY}:{hashlib.sha256(facts.encode()).hexdigest()[:32]}"


def _write(archive: IO[bytes], name: str, template: Template, pool: int, worker: Worker) -> None:
    """As `docker save` writes it: layers from the lowest to the topmost, and what they are."""
    with tarfile.open(fileobj=archive, mode="w") as tar:
        files: list[str] = []
        digests: list[str] = []
        for number, layer in enumerate(reversed(template.layers)):
            with tempfile.TemporaryFile(dir="/var/tmp") as file:
                worker.do(_write_layer, (pool, file.fileno()), layer, worker.base, owners(template))
                files.append(f"{number}/layer.tar")
                digests.append(f"sha256:{_digest(file)}")
                member = tarfile.TarInfo(files[-1])
                member.size = file.seek(0, os.SEEK_END)
                file.seek(0)
                tar.addfile(member, file)
        machine = _MACHINES.get(platform.machine(), platform.machine())
        rootfs = {"type": "layers", "diff_ids": digests}
        config = json.dumps({"architecture": machine, "os": "linux", "config": {}, "rootfs": rootfs}).encode()
        config_name = f"{hashlib.sha256(config).hexdigest()}.json"
        _add(tar, config_name, config)
        manifest = [{"Config": config_name, "RepoTags": [name], "Layers": files}]
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def _write_layer(pool: int, file: int, layer: str, base: int | None, owned: Mapping[str, tuple[int, int]]) -> None:
    try:
        root = os.open(f"{layer}/{ROOT}", DIRECTORY, dir_fd=pool)
    except OSError as error:
        raise tree_error(error, layer, "read") from None
    try:
        with open(file, "wb", closefd=False) as out:
            write_layer(root, out, base, owned)
    finally:
        os.close(root)


def _digest(file: IO[bytes]) -> str:
    file.seek(0)
    digest = hashlib.sha256()
    while part := file.read(_READ):
        digest.update(part)
    return digest.hexdigest()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
