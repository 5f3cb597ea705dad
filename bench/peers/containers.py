"""Container runtimes and other sandboxes that are commands, over a root file system of busybox."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from bench.peers.podman import IMAGE, Store, busybox_root
from bench.peers.table import NODE
from bench.worker import TOTAL

_CLONE_NEWNS, _MS_PRIVATE_REC, _MNT_DETACH = 0x00020000, 0x44000, 2


class Tool:
    """One life is one or more commands. `program` is asked for its version."""

    program: ClassVar[str]
    package: ClassVar[str]

    def __init__(self) -> None:
        os.environ["PATH"] = f"{NODE}:{os.environ['PATH']}:/usr/sbin"  # this process is the peer's
        if shutil.which(self.program) is None:
            raise FileNotFoundError(f"{self.program} is missing; as root: apt-get install {self.package}")
        self._directory = tempfile.TemporaryDirectory(prefix="pb-", dir="/var/tmp", ignore_cleanup_errors=True)
        self.place = Path(self._directory.name)
        self.environment: Mapping[str, str] = os.environ
        said = subprocess.run([self.program, "--version"], capture_output=True, text=True, check=False).stdout
        found = re.search(r"\d+\.\d[\w.~+-]*", said)
        self.version = found[0] if found else None
        self.prepare()

    def prepare(self) -> None: ...

    def command(self) -> Sequence[str]:
        """A whole life."""
        raise NotImplementedError

    def once(self) -> dict[str, float]:
        start = time.perf_counter()
        self.run(self.command())
        return {TOTAL: time.perf_counter() - start}

    def run(self, argv: Sequence[str]) -> str:
        done = subprocess.run(
            argv, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            lines = (done.stderr.strip() or f"it ended with {done.returncode}").splitlines()
            raise RuntimeError(lines[-1][-300:])
        return done.stdout.strip()

    def close(self) -> None:
        self._directory.cleanup()


class Firejail(Tool):
    program, package = "firejail", "firejail"

    def command(self) -> Sequence[str]:
        return ["firejail", "--quiet", "--noprofile", "--private", "--net=none", "--", "true"]


class Nspawn(Tool):
    program, package = "systemd-nspawn", "systemd-container"

    def prepare(self) -> None:
        self._root = busybox_root(self.place / "rootfs")

    def command(self) -> Sequence[str]:
        options = ["--quiet", "--register=no", "--keep-unit", "--private-network", "--as-pid2"]
        return ["systemd-nspawn", *options, "--directory", str(self._root), "/bin/true"]


class Runc(Tool):
    """A bundle as `runc spec` makes it, without its terminal."""

    program, package = "runc", "runc"
    options: ClassVar[Sequence[str]] = ()

    def prepare(self) -> None:
        self._bundle = self.place / "bundle"
        busybox_root(self._bundle / "rootfs")
        spec = "runc" if shutil.which("runc") else self.program
        subprocess.run([spec, "spec"], cwd=self._bundle, check=True)
        file = self._bundle / "config.json"
        config: dict[str, Any] = json.loads(file.read_text())
        config["process"].update(terminal=False, args=["true"])
        config["process"].pop("rlimits", None)  # 1024 files are more than some roots may ask for
        file.write_text(json.dumps(config))
        self._count = 0

    def command(self) -> Sequence[str]:
        self._count += 1
        options = ["--root", str(self.place / "run"), *self.options]
        return [self.program, *options, "run", "--bundle", str(self._bundle), f"b{os.getpid()}-{self._count}"]


class Crun(Runc):
    program, package = "crun", "crun"
    options = ("--cgroup-manager=disabled",)

    def prepare(self) -> None:
        super().prepare()
        if Path("/sys/fs/cgroup/unified").exists():  # crun refuses both versions side by side: it is shown only one
            _see_one_cgroup_tree()


class Runsc(Runc):
    program, package = "runsc", "runsc"
    options = ("--ignore-cgroups", "--network=none")


class PodmanRun(Tool):
    program, package = "podman", "podman"

    def prepare(self) -> None:
        store = Store(self.place)
        self.environment, self.podman = store.environment, store.podman
        self._store = store

    def command(self) -> Sequence[str]:
        return [*self.podman, "run", "--rm", "--network=none", IMAGE, "true"]

    def close(self) -> None:
        self._store.close()
        super().close()


class PodmanLife(PodmanRun):
    """As an agent's platform would use it: a container that waits, commands in it, its end."""

    def __init__(self, warm: bool = False) -> None:
        self._warm = warm
        super().__init__()

    def prepare(self) -> None:
        super().prepare()
        self._living = self._start() if self._warm else None

    def once(self) -> dict[str, float]:
        start = time.perf_counter()
        if self._living is not None:
            self.run([*self.podman, "exec", self._living, "true"])
            return {TOTAL: time.perf_counter() - start}
        id = self._start()
        created = time.perf_counter()
        self.run([*self.podman, "exec", id, "true"])
        executed = time.perf_counter()
        self.run([*self.podman, "rm", "--force", "--time=0", id])
        end = time.perf_counter()
        return {
            TOTAL: end - start,
            "create": created - start,
            "first exec": executed - created,
            "destroy": end - executed,
        }

    def _start(self) -> str:
        return self.run([*self.podman, "run", "--detach", "--network=none", IMAGE, "sleep", "900"])

    def close(self) -> None:
        if self._living is not None:
            self.run([*self.podman, "rm", "--force", "--time=0", self._living])
        super().close()


def _see_one_cgroup_tree() -> None:
    """In a mount namespace of its own, this process has version 2 at /sys/fs/cgroup, and nothing else."""
    libc = ctypes.CDLL(None, use_errno=True)
    for result in (
        libc.unshare(_CLONE_NEWNS),
        libc.mount(b"none", b"/", None, _MS_PRIVATE_REC, None),
        libc.umount2(b"/sys/fs/cgroup", _MNT_DETACH),
        libc.mount(b"cgroup2", b"/sys/fs/cgroup", b"cgroup2", 0, None),
    ):
        if result != 0:
            raise OSError(ctypes.get_errno(), "a mount namespace with cgroup version 2 alone")


class SandboxRuntime(Tool):
    """`srt`, from npm: per command, with proxies for the network."""

    program, package = "srt", "ripgrep socat bubblewrap; npm install @anthropic-ai/sandbox-runtime"

    def command(self) -> Sequence[str]:
        return ["srt", "true"]
