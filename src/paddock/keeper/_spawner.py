"""The spawner (`native/spawner.c`): the small process that every sandbox is cloned from.

A clone shares all memory until one side writes to it, and then that side copies, page by page. A Python process writes
everywhere all the time; the spawner is a native one of some pages. So nobody pays for a birth.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Sequence

from paddock.keeper import _guest_program as guest_program
from paddock.keeper._errors import JailError
from paddock.keeper._house import House
from paddock.linux import cgroups
from paddock.wire.guest import Spawn, Spawned, SpawnFlags

_ANSWER_BYTES = 64


class Spawner:
    """`clone` makes children of the keeper. A spawner that was killed is replaced by the next call.

    That of an ordinary user was executed before his keeper entered its user namespace: the kernel shows what belongs to
    a process that nobody may look into to root of the namespace in which it was executed (proc(5)), and root of the
    keeper's is the user, who runs commands inside. So a keeper whose spawner was killed ends: the next one takes over.
    """

    def __init__(self, house: House) -> None:
        self._house = house
        self._process: guest_program.Spawning | None = None
        self._used = False

    def start(self) -> None:
        """The caller has one thread, and SIGCHLD is not handled."""
        early, house = self._house.spawning, self._house
        if early is not None and self._used:
            print("the process that sandboxes are cloned from has died, and so does this one", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)
        self._used = True
        self._process = early or guest_program.spawn(house.program, house.null)
        names = () if early is None else ("user", "mnt", "uts")
        spaces = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names]
        with contextlib.suppress(ConnectionError):  # it has died: whoever asks it for something is told
            socket.send_fds(self._process.peer, [house.orders], spaces)
        for fd in spaces:
            os.close(fd)

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
            if self._process is None:
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
        assert self._process is not None
        try:
            socket.send_fds(self._process.peer, [order], fds)
            return self._process.peer.recv(_ANSWER_BYTES)
        except ConnectionError:
            return b""

    def close(self) -> None:
        if self._process is not None:
            self._process.peer.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            os.waitpid(self._process.pid, 0)
            self._process = None
