"""Pools on this machine, one per driver. For btrfs a child plays the supervisor, in a mount namespace of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

from paddock.linux import mounts, namespaces
from paddock.storage import Pool, PoolConfig, open_pool, prepare
from paddock.supervisor.layout import SUPERVISOR_CONFIG
from paddock.supervisor.pool import open_pool as supervisor_open_pool
from tests.conformance.trees import exit_code

GIB = 1 << 30


class Supervisor:
    """Holds the pool of a state directory mounted, out of our sight, and hands out its directory."""

    def __init__(self, state_dir: Path) -> None:
        ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                ours.close()
                _keep(state_dir, theirs)
                os._exit(0)
            finally:
                os._exit(1)
        theirs.close()
        _, fds, _, _ = socket.recv_fds(ours, 100, 1)
        self._door = ours
        self.fd = fds[0] if fds else -1
        if not fds:
            self.kill()
            raise OSError("the supervisor died")

    def kill(self) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            exit_code(self._pid)
            self._pid = 0

    def close(self) -> None:
        self.kill()
        self._door.close()
        if self.fd != -1:
            os.close(self.fd)
            self.fd = -1


def _keep(state_dir: Path, door: socket.socket) -> None:
    namespaces.unshare(namespaces.NEWNS)
    mounts.make_all_private()
    config = json.loads((state_dir / SUPERVISOR_CONFIG).read_bytes())
    fd = supervisor_open_pool(str(state_dir), config["pool"])
    socket.send_fds(door, [b"pool"], [fd])
    os.close(fd)
    door.recv(1)  # until the test has ended, in whatever way


class DriverHarness:
    """A state directory prepared for one driver."""

    def __init__(self, state_dir: Path, driver: str) -> None:
        self.state_dir = state_dir
        self.config: PoolConfig = prepare(state_dir, driver=driver, image_bytes=GIB)
        self._supervisor = Supervisor(state_dir) if self.config.image else None

    def open(self) -> Pool:
        return open_pool(self.state_dir, self.config, os.dup(self._supervisor.fd) if self._supervisor else None)

    def close(self) -> None:
        if self._supervisor is not None:
            self._supervisor.close()
