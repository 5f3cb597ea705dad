"""The spawner (`native/spawner.c`): the small process that every sandbox is cloned from.

A clone shares all memory until one side writes to it, and then that side copies, page by page. A Python process writes
everywhere all the time; the spawner is a native one of some pages. So nobody pays for a birth.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Sequence

from paddock.keeper import _guest_program as guest_program
from paddock.keeper._errors import JailError
from paddock.keeper._house import House
from paddock.linux import cgroups
from paddock.wire.guest import Spawn, Spawned, SpawnFlags

_ANSWER_BYTES = 64


class Spawner:
    """`clone` makes children of the keeper. A spawner that was killed is replaced by the next call."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._pid = 0
        self._peer: socket.socket | None = None

    def start(self) -> None:
        """The caller has one thread, and SIGCHLD is not handled."""
        peer, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            try:
                guest_program.become_spawner(self._house.program, theirs.fileno(), self._house.null)
            finally:
                os._exit(1)
        theirs.close()
        self._pid, self._peer = pid, peer
        with contextlib.suppress(ConnectionError):  # it has died: whoever asks it for something is told
            peer.send(self._house.orders)

    def clone(
        self,
        sync: socket.socket,
        listeners: Sequence[int],
        joining: cgroups.Joining,
        *,
        base: int | None,
        fault: str,
    ) -> int:
        """The pid of a new child of the keeper, on its way to become a sandbox. JailError.

        `listeners` in the order of `listener_names`. `base` owns its user namespace; None: the keeper does.
        """
        flags = SpawnFlags(0)
        fds = [sync.fileno(), *listeners, *joining.tasks]
        if joining.clone_into is not None:
            fds.append(joining.clone_into)
            flags |= SpawnFlags.CGROUP
        if base is not None:
            flags |= SpawnFlags.OWNED
        order = Spawn(flags=flags, owner=base or 0, fault=fault.encode()).pack()
        for _ in range(2):
            if self._peer is None:
                self.start()
            answer = self._ask(order, fds)
            if answer:
                spawned = Spawned.unpack(answer)
                if spawned.pid:
                    return spawned.pid
                raise JailError(f"at the clone: {os.strerror(spawned.errno)}", spawned.errno)
            self.close()
        raise JailError("the process that sandboxes are cloned from died twice in a row")

    def _ask(self, order: bytes, fds: Sequence[int]) -> bytes:
        assert self._peer is not None
        try:
            socket.send_fds(self._peer, [order], fds)
            return self._peer.recv(_ANSWER_BYTES)
        except ConnectionError:
            return b""

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
