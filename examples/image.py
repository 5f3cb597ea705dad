"""An image of one program, written here as an OCI layout, and a sandbox from it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from paddock import Sandbox

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def blob(layout: Path, data: bytes, kind: str) -> dict[str, object]:
    digest = hashlib.sha256(data).hexdigest()
    (layout / "blobs" / "sha256" / digest).write_bytes(data)
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}


def write_image(layout: Path, program: Path) -> None:
    (layout / "blobs" / "sha256").mkdir(parents=True)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.add(program, "busybox")
    layer = blob(layout, stream.getvalue(), "layer.v1.tar")
    machine = os.uname().machine
    config = {
        "architecture": ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Entrypoint": ["/busybox"], "Cmd": ["echo", "hello"], "Env": ["MADE=here"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    described = blob(layout, json.dumps(config).encode(), "config.v1+json")
    manifest = {"schemaVersion": 2, "config": described, "layers": [layer]}
    top = blob(layout, json.dumps(manifest).encode(), "manifest.v1+json")
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [top]}))
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def main() -> None:
    program = shutil.which("busybox")
    if program is None:
        sys.exit("this example puts busybox into an image: apt-get install busybox-static")
    with tempfile.TemporaryDirectory() as directory:
        write_image(Path(directory) / "layout", Path(program).resolve())
        with Sandbox.create(template=f"oci:{directory}/layout") as sandbox:
            print(sandbox.exec(["/busybox", "ls", "/"]).stdout.split())
            print(sandbox.exec(["/busybox", "sh", "-c", "echo MADE=$MADE"]).stdout.strip())


if __name__ == "__main__":
    main()
