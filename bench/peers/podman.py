"""Podman with a store of its own and one small image in it: nothing of the machine's podman is seen or changed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

IMAGE = "localhost/bench"
_APPLETS = ("sh", "true", "sleep", "mkdir", "cat", "tar")
# Podman's own defaults ask for more files and processes than a root without CAP_SYS_RESOURCE may have.
_PODMAN = """[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
"""


class Store:
    """`podman` is the beginning of every command; `serve` starts Docker's API on a socket."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._service: subprocess.Popen[bytes] | None = None
        configuration = place / "containers.conf"
        configuration.write_text(_PODMAN)
        self.environment = {**os.environ, "CONTAINERS_CONF": str(configuration)}
        places = {"--root": "store", "--runroot": "run", "--tmpdir": "tmp"}
        self.podman = ["podman", *(word for option, name in places.items() for word in (option, str(place / name)))]
        archive = place / "rootfs.tar"
        subprocess.run(["tar", "-C", busybox_root(place / "rootfs"), "-cf", archive, "."], check=True)
        argv = [*self.podman, "import", "--quiet", "--change", "CMD=sh", str(archive), IMAGE]
        subprocess.run(argv, env=self.environment, check=True, capture_output=True)

    def serve(self) -> str:
        """The address of the API, once somebody listens there."""
        socket = self._place / "api"
        argv = [*self.podman, "system", "service", "--time=0", f"unix://{socket}"]
        self._service = subprocess.Popen(
            argv, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while not socket.exists():
            if self._service.poll() is not None:
                raise RuntimeError(f"podman system service ended with {self._service.returncode}")
            time.sleep(0.05)
        return f"unix://{socket}"

    def close(self) -> None:
        if self._service is not None:
            self._service.terminate()
            self._service.wait()
        # Not `system reset`: that takes away what other stores share.
        everything = [*self.podman, "rm", "--all", "--force", "--time=0"]
        subprocess.run(everything, env=self.environment, capture_output=True, check=False)
        self._end_monitors()
        if os.getuid():
            self._leave_namespace()
        subprocess.run(["umount", self._place / "store" / "overlay"], capture_output=True, check=False)

    def _leave_namespace(self) -> None:
        """Without root what images hold belongs to ids that only a namespace of his can touch, and one process waits
        for ever to keep that."""
        away = [*self.podman, "unshare", "rm", "-rf", str(self._place / "store")]
        subprocess.run(away, env=self.environment, capture_output=True, check=False)
        for file in self._place.rglob("pause.pid"):
            with suppress(ProcessLookupError, ValueError):
                os.kill(int(file.read_text()), signal.SIGKILL)

    def _end_monitors(self) -> None:
        """Each command through the API leaves one behind that waits for minutes to clean up after it."""
        mine = os.fsencode(self._place) + b"/"
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"conmon") and any(word.startswith(mine) for word in words):
                    os.kill(int(process.name), signal.SIGKILL)


def busybox_root(root: Path) -> Path:
    program = shutil.which("busybox")
    if program is None:
        raise FileNotFoundError("busybox is missing; as root: apt-get install busybox-static")
    for name in ("bin", "usr", "proc", "dev", "sys", "tmp", "etc"):
        (root / name).mkdir(parents=True)
    shutil.copy(program, root / "bin/busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    for applet in _APPLETS:
        (root / "bin" / applet).symlink_to("busybox")
    return root
