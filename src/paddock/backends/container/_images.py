"""Templates as images of the engine. paddock loads each set of layers once, and later finds it by its name.

A layer of the pool becomes a tar archive, with whiteouts in the format of images. Layers of templates are ours, and
never change. This only reads them, through no link. Source: image-spec, layer.md ("Whiteouts"), overlayfs.rst
(character device 0:0, `trusted.overlay.opaque`).
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import platform
import stat
import tarfile
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec

from paddock.backends._trees import directory_owners
from paddock.backends.threads import in_its_own_thread
from paddock.errors import PlatformError, UnsupportedError
from paddock.linux import mountinfo
from paddock.linux.descriptors import closing
from paddock.model import Template
from paddock.storage import Pool
from paddock.storage.pool.trees import DIRECTORY, ROOT

from ._engine import Engine

REPOSITORY = "localhost/paddock/template"
_VERSION = "2"
_LOAD_SECONDS = 1800.0
"""An engine says nothing while it unpacks a large image."""
_WHITEOUT = os.makedev(0, 0)
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")  # as root, and in a user namespace
_HIDES, _HIDES_ALL = ".wh.", ".wh..wh..opq"
# Paths at which engines create mounts and files before a container has its root. With a link there they would do it on
# the host (runc 1.1.5 makes /dev/stdin at the target of a link at /dev).
_PLACES = frozenset({"dev", "etc", "proc", "sys", "tmp", ".paddock", ".paddock-host"})
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


class _Known(msgspec.Struct):
    Id: str


class Images:
    def __init__(self, directory: Path, opened: Callable[[], Awaitable[Pool]]) -> None:
        """Start with no image. `opened` returns the pool."""
        self._directory, self._opened = directory, opened
        self._locks: dict[str, asyncio.Lock] = {}

    async def ensure(self, engine: Engine, template: Template) -> str:
        """Return the name of the image, which may take a while to make, the first time. PlatformError."""
        name = _name(template)
        async with self._locks.setdefault(name, asyncio.Lock()):
            if await engine.get(f"/images/{name}/json", _Known) is None:
                await self._load(engine, template, name)
        return name

    async def _load(self, engine: Engine, template: Template, name: str) -> None:
        pool = await self._opened()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)

        def load() -> bytes:
            with tempfile.TemporaryFile(dir=self._directory) as archive:
                _write(archive, name, template, pool)
                archive.seek(0)
                return engine.call("POST", "/images/load", {"quiet": "1"}, archive, seconds=_LOAD_SECONDS)

        output = await in_its_own_thread(load)
        if b'"error"' in output or await engine.get(f"/images/{name}/json", _Known) is None:
            words = output[-400:].decode("utf-8", "replace").strip()
            raise PlatformError(f"the container engine did not take template {template.name!r}: {words}")


def shown_of_usr(template: Template) -> tuple[str, ...]:
    """Which directories of the machine's /usr a container of this template sees. Unsupported."""
    if not template.host_usr:
        return ()
    if any(info.mount_point.startswith(b"/usr/") for info in mountinfo.read()):
        raise UnsupportedError(
            "something is mounted below this machine's /usr, which a container engine would show as well",
            hint="use a template with a /usr of its own: debian, or an image",
        )
    with os.scandir("/usr") as entries:
        return tuple(sorted(e.path for e in entries if e.name != "local" and e.is_dir(follow_symlinks=False)))


def _name(template: Template) -> str:
    facts = json.dumps([_VERSION, directory_owners(template), *template.layers])
    return f"{REPOSITORY}:{hashlib.sha256(facts.encode()).hexdigest()[:32]}"


def _write(archive: IO[bytes], name: str, template: Template, pool: Pool) -> None:
    """Write an image in the format of `docker save`: layers from the lowest to the topmost, and the configuration."""
    with tarfile.open(fileobj=archive, mode="w") as tar:
        files: list[str] = []
        digests: list[str] = []
        for number, layer in enumerate(reversed(template.layers)):
            with tempfile.TemporaryFile(dir="/var/tmp") as file, closing(pool.open(layer)) as tree:
                pool.worker.do(_write_layer, (tree, file.fileno()), pool.worker.base, directory_owners(template))
                files.append(f"{number}/layer.tar")
                file.seek(0)
                digests.append(f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}")
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


def _write_layer(tree: int, file: int, base: int | None, owned: Mapping[str, tuple[int, int]]) -> None:
    with closing(os.open(ROOT, DIRECTORY, dir_fd=tree)) as root, open(file, "wb", closefd=False) as out:
        _pack_layer(root, out, base, owned)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


# -- one layer


def _pack_layer(root: int, out: IO[bytes], base: int | None, owners: Mapping[str, tuple[int, int]]) -> None:
    """Pack the tree below the directory `root`.

    `base` is the offset of its owners. None: all files have our id, and become root's, except the ones of `owners` with
    all below them. Raises UnsupportedError for a layer that an engine must not get.
    """
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        _Writer(archive, base, owners).directory(root, PurePosixPath())


class _Writer:
    def __init__(self, archive: tarfile.TarFile, base: int | None, owners: Mapping[str, tuple[int, int]]) -> None:
        self._archive, self._base = archive, base
        self._owners = {PurePosixPath(path).relative_to("/"): ids for path, ids in owners.items() if path != "/"}
        self._links: dict[tuple[int, int], str] = {}

    def directory(self, fd: int, path: PurePosixPath) -> None:
        self._add(os.fstat(fd), path, tarfile.DIRTYPE)
        if _is_opaque(fd):
            self._archive.addfile(tarfile.TarInfo(str(path / _HIDES_ALL)))
        for name in sorted(os.listdir(fd)):
            info, below = os.stat(name, dir_fd=fd, follow_symlinks=False), path / name
            if not path.parts and name in _PLACES and not stat.S_ISDIR(info.st_mode) and not _hides(info):
                raise UnsupportedError(
                    f"/{name} of this template is not a directory, and a container engine mounts its own there",
                    hint="level='jail', 'gvisor' or 'microvm'",
                )
            if stat.S_ISDIR(info.st_mode):
                with closing(os.open(name, DIRECTORY, dir_fd=fd)) as inner:
                    self.directory(inner, below)
            elif _hides(info):
                self._archive.addfile(tarfile.TarInfo(str(path / f"{_HIDES}{name}")))
            elif stat.S_ISLNK(info.st_mode):
                self._add(info, below, tarfile.SYMTYPE, link=os.readlink(name, dir_fd=fd))
            elif stat.S_ISREG(info.st_mode):
                self._file(fd, name, info, below)

    def _file(self, fd: int, name: str, info: os.stat_result, path: PurePosixPath) -> None:
        known = self._links.setdefault((info.st_dev, info.st_ino), str(path)) if info.st_nlink > 1 else str(path)
        if known != str(path):
            self._add(info, path, tarfile.LNKTYPE, link=known)
            return
        with os.fdopen(os.open(name, _READ, dir_fd=fd), "rb") as file:
            self._add(os.fstat(file.fileno()), path, tarfile.REGTYPE, content=file)

    def _add(
        self,
        info: os.stat_result,
        path: PurePosixPath,
        kind: bytes,
        *,
        link: str = "",
        content: IO[bytes] | None = None,
    ) -> None:
        member = self._member(info, path)
        member.type, member.linkname = kind, link
        if content is not None:
            member.size = info.st_size
        self._archive.addfile(member, content)

    def _member(self, info: os.stat_result, path: PurePosixPath) -> tarfile.TarInfo:
        member = tarfile.TarInfo(str(path))
        member.mode = stat.S_IMODE(info.st_mode)
        member.mtime = int(info.st_mtime)
        if self._base is not None:
            member.uid, member.gid = info.st_uid - self._base, info.st_gid - self._base
        else:
            member.uid, member.gid = self._owner(path)
        return member

    def _owner(self, path: PurePosixPath) -> tuple[int, int]:
        """Return the nearest."""
        above = (path, *path.parents)
        return next((self._owners[place] for place in above if place in self._owners), (0, 0))


def _hides(info: os.stat_result) -> bool:
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == _WHITEOUT


def _is_opaque(fd: int) -> bool:
    for name in _OPAQUE:
        try:
            if os.getxattr(fd, name) == b"y":
                return True
        except OSError:  # it has none, or we may not see it
            continue
    return False
