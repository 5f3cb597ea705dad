"""Podman with a store of its own, serving the API on a socket: nothing of the machine's engines is seen or changed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import pytest

_SECONDS = 60.0
NAMESPACE = "PADDOCK_TEST_ENGINE_NAMESPACE"
"""Names a process whose user namespace an ordinary user's engine takes in place of one that newuidmap(1) would map."""


def _configuration() -> str:
    # runc where there is one: crun refuses machines that have both versions of control groups.
    runtime = "runc" if shutil.which("runc", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") else "crun"
    return f'[engine]\nruntime = "{runtime}"\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n'


class PodmanService:
    """`socket` answers when this has been made; OSError or RuntimeError says why it does not."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.socket = place / "api"
        configuration = place / "containers.conf"
        configuration.write_text(_configuration())
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        self._environment = {**os.environ, "CONTAINERS_CONF": str(configuration), "PATH": path}
        self._environment.pop("DOCKER_HOST", None)
        places = {"--root": "store", "--runroot": "run", "--tmpdir": "tmp"}
        self.podman = ["podman", *(word for option, name in places.items() for word in (option, str(place / name)))]
        self.process: subprocess.Popen[bytes] | None = None
        if NAMESPACE in os.environ:
            (place / "tmp").mkdir()
            (place / "tmp/pause.pid").write_text(os.environ[NAMESPACE])
            (place / "tmp/alive").touch()  # without it Podman takes itself for the first since the machine has booted
        self.start()

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        argv = [*self.podman, "system", "service", "--time=0", f"unix://{self.socket}"]
        with open(self.place / "log", "ab") as log:
            self.process = subprocess.Popen(
                argv,
                env=self._environment,
                cwd=self.place,  # where conmon leaves a file named `oom`
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        end = time.monotonic() + _SECONDS
        while not self._listens():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"podman system service: {(self.place / 'log').read_text().strip()[-300:]}")
            time.sleep(0.02)

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as caller:
            return caller.connect_ex(str(self.socket)) == 0  # it is there a moment before that

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def run(self, *words: str) -> str:
        done = subprocess.run(
            [*self.podman, *words],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def containers(self) -> list[str]:
        return self.run("ps", "--all", "--quiet").split()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
            with contextlib.suppress(ProcessLookupError):  # without root there are two, and the first to go is asked
                os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.CalledProcessError):
            self.run("rm", "--all", "--force", "--time=0")
        self._end_monitors()
        if os.getuid():  # what images hold belongs to ids that only a namespace of his can touch
            with contextlib.suppress(subprocess.CalledProcessError):
                self.run("unshare", "rm", "-rf", str(self.place / "store"))
        for file in self.place.rglob("pause.pid"):  # without root one waits for ever, to keep a namespace
            with contextlib.suppress(ProcessLookupError, ValueError):
                if (pid := file.read_text()) != os.environ.get(NAMESPACE):
                    os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["umount", self.place / "store" / "overlay"], capture_output=True, check=False)

    def _end_monitors(self) -> None:
        mine = os.fsencode(self.place) + b"/"
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"conmon") and any(word.startswith(mine) for word in words):
                    os.kill(int(process.name), signal.SIGKILL)


@contextlib.contextmanager
def podman_service() -> Generator[PodmanService]:
    """Skips the test where there can be none."""
    if shutil.which("podman") is None:
        pytest.skip("no podman here: apt-get install --no-install-recommends podman runc")
    place = Path(tempfile.mkdtemp(prefix="pe-"))
    try:
        try:
            service = PodmanService(place)
        except (OSError, RuntimeError) as error:
            pytest.skip(f"podman cannot serve its API here: {error}")
        try:
            yield service
        finally:
            service.close()
    finally:
        shutil.rmtree(place, ignore_errors=True)
