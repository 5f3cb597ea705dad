"""Images that tests write themselves, byte by byte, and programs of this machine to put into them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from paddock.storage.templates.images._documents import architecture

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
REF = "org.opencontainers.image.ref.name"
PASSWD = b"root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\nmail:x:8:8::/var/mail:/bin/false\n"
GROUP = b"root:x:0:\nstaff:x:50:\napp:x:1000:\n"

Compress = Callable[[bytes], bytes]
COMPRESSIONS: Mapping[str, Compress] = {
    "": lambda data: data,
    "+gzip": lambda data: gzip.compress(data, 1, mtime=0),
    "+zstd": lambda data: zstandard.ZstdCompressor().compress(data),
}


def member(
    name: str, content: bytes = b"", *, kind: bytes = tarfile.REGTYPE, mode: int = 0o644, target: str = "", **rest: Any
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname, info.size = kind, mode, target, len(content)
    for key, value in rest.items():
        setattr(info, key, value)
    return info, content


def directory(name: str, mode: int = 0o755, **rest: Any) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, kind=tarfile.DIRTYPE, mode=mode, **rest)


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, kind=tarfile.SYMTYPE, target=target, mode=0o777)


def hard(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, kind=tarfile.LNKTYPE, target=target)


def layer(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class LayoutWriter:
    """Writes an OCI layout into a directory. What is wrong with it, a test changes before or after."""

    path: Path
    manifests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def blob(self, data: bytes) -> str:
        name = digest(data)
        place = self.path / "blobs" / "sha256" / name.partition(":")[2]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        return name

    def descriptor(self, data: bytes, media_type: str, **more: Any) -> dict[str, Any]:
        return {"mediaType": media_type, "digest": self.blob(data), "size": len(data), **more}

    def image(
        self,
        layers: Iterable[bytes],
        *,
        tag: str | None = "latest",
        compression: str = "+gzip",
        platform: dict[str, str] | None = None,
        machine: str | None = None,
        **execution: Any,
    ) -> dict[str, Any]:
        """Adds an image of these layers (tar archives), and returns the descriptor of its manifest."""
        contents = list(layers)
        config = {
            "architecture": machine or architecture(),
            "os": "linux",
            "config": execution,
            "rootfs": {"type": "layers", "diff_ids": [digest(each) for each in contents]},
        }
        compress = COMPRESSIONS[compression]
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.descriptor(encoded(config), CONFIG),
            "layers": [self.descriptor(compress(each), LAYER + compression) for each in contents],
        }
        more: dict[str, Any] = {"annotations": {REF: tag}} if tag is not None else {}
        if platform is not None:
            more["platform"] = platform
        described = self.descriptor(encoded(manifest), MANIFEST, **more)
        self.manifests.append(described)
        self.write()
        return described

    def write(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        (self.path / "index.json").write_bytes(
            encoded({"schemaVersion": 2, "mediaType": INDEX, "manifests": self.manifests})
        )


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


def write_layout(path: Path, *layers: bytes, **options: Any) -> str:
    """A layout of one image, and how to name it."""
    LayoutWriter(path).image(layers, **options)
    return f"oci:{path}"


def archived(layout: Path, archive: Path) -> str:
    """The layout as an archive, and how to name it."""
    with tarfile.open(archive, "w") as tar:
        for entry in sorted(layout.rglob("*")):
            tar.add(entry, str(entry.relative_to(layout)), recursive=False)
    return f"oci-archive:{archive}"


def static_busybox() -> bytes | None:
    """That of Debian's package busybox-static, which needs no library and no loader."""
    found = shutil.which("busybox")
    data = Path(found).read_bytes() if found else b""
    return data if data and b"ld-linux" not in data[:4096] else None


def busybox_layer(busybox: bytes, *, shell: bool = True) -> bytes:
    names = ("cat", "id", "ls", "echo", "env", "pwd", "touch", "true", *(("sh",) if shell else ()))
    return layer(
        directory("bin"),
        member("bin/busybox", busybox, mode=0o755),
        *(hard(f"bin/{name}", "bin/busybox") for name in names),
        directory("etc"),
        member("etc/passwd", PASSWD),
        member("etc/group", GROUP),
        directory("home"),
        directory("home/app", uid=1000, gid=1000),
        directory("tmp", 0o1777),
    )


def distroless_layer(busybox: bytes) -> bytes:
    """One program, and nothing else: no shell, no /etc, no /tmp."""
    return layer(member("busybox", busybox, mode=0o755))


def is_root() -> bool:
    return os.geteuid() == 0
