"""Setup in a container's namespaces instead of by the engine (`supervisor/namespace_entry.py`): masks of /proc and
/sys, mounts, and the gateway's sockets as the only network access.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from paddock.backends.base import Exits
from paddock.errors import PlatformError, UnsupportedError
from paddock.linux.descriptors import closing
from paddock.linux.python import SOURCE
from paddock.supervisor import layout, namespace_entry
from paddock.wire import send_some

from ._options import HOST
from ._records import BIRTH, Record, Records

TRUSTED = f"{HOST}/{layout.TRUST}"
"""The certificates that programs inside trust through their environment."""
_SECONDS = 60.0
_MOST_SOCKETS = 8


def show_trust(place: Path) -> None:
    """Create files for the certificates in a directory that is read-only inside. The authority's owner fills them."""
    for name in (layout.TRUST, layout.TRUST_JAVA, layout.TRUST_CHROMIUM):
        with suppress(FileExistsError):
            made = os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            os.fchmod(made, 0o644)  # another user reads it inside, with any umask
            os.close(made)


class EgressSockets:
    """The gateway's sockets in one container, while this process has them.

    `late`: they came during its run, so its environment has no certificates.
    """

    def __init__(self, *, late: bool = False) -> None:
        self.late = late
        self._sockets: list[socket.socket] = []

    async def furnish(
        self,
        pid: int,
        mounts: Mapping[str, int],
        protect: Sequence[str],
        *,
        exits: bool,
        again: bool = False,
        masks: Mapping[str, str] = MappingProxyType({}),
        entry: NamespaceEntry | None = None,
    ) -> None:
        """Set up a container at its creation: masks, mounts, protected paths and sockets.

        Raises PlatformError.

        `masks` map a path to the name of the file over it. `mounts` are detached mounts by their targets. `protect` are
        paths that no program inside may change. With `exits` it gets the sockets. Without `entry` one starts now.
        `again`: rules and certificates are there. No sockets come if an earlier daemon's gateway has them.
        """
        orders = {"pid": pid, "shown": HOST, "exits": exits, "again": again, "masks": dict(masks)}
        orders |= {"protect": list(protect), "mounts": list(mounts)}
        entry = entry or await asyncio.to_thread(NamespaceEntry)
        self._sockets = await asyncio.to_thread(entry.send, pid, orders, tuple(mounts.values()))

    async def exits(self, records: Records, record: Record, *, make: bool) -> Exits | None:
        """Return copies of the sockets to the holder of the sandbox's lock.

        None: an earlier daemon's gateway has them.

        Raises PlatformError, UnsupportedError and ProcessLookupError.
        """
        if not record.exits:
            if not make:
                raise UnsupportedError(f"sandbox {record.id} was made without a way out", hint="give it a policy")
            show_trust(records.place(record.id) / BIRTH)
        if not self._sockets:
            await self.furnish(record.pid, {}, (), exits=True, again=record.exits)
        if not record.exits:
            if not self._sockets:
                raise PlatformError("a program inside listens at a port that the gateway needs", hint="end it")
            records.change(record.id, record.instance_id, exits=True, late=True)
        self.late = record.late or not record.exits
        if not self._sockets:
            return None
        process = os.pidfd_open(record.pid)
        if not record.lives():  # that was another process's by now
            os.close(process)
            raise ProcessLookupError
        return Exits(tuple([one.dup() for one in self._sockets]), process, (record.pid, record.start))

    def close(self) -> None:
        for one in self._sockets:
            one.close()
        self._sockets = []


class NamespaceEntry:
    """A process that starts while its container does, and goes into that once. `close` ends one that wasn't sent."""

    def __init__(self) -> None:
        self._peer, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._peer.settimeout(_SECONDS)
        argv = [sys.executable, "-I", "-S", "-c", namespace_entry.START, SOURCE]
        with theirs:
            self._process = subprocess.Popen(argv, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env={}, cwd="/")

    def send(self, pid: int, orders: object, mounts: tuple[int, ...]) -> list[socket.socket]:
        """Return the new sockets, or none if another program has the ports. Raises PlatformError."""
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            self.close()
            raise PlatformError("the container ended before it had a way out", hint="try again") from None
        with closing(process):
            try:
                send_some(self._peer, json.dumps(orders).encode(), [process, *mounts])
                answer, fds, _, _ = socket.recv_fds(self._peer, namespace_entry.MOST_BYTES, _MOST_SOCKETS)
            except OSError as error:
                self._process.kill()
                answer, fds = str(error).encode(), []
            finally:
                self.close()
        made = [socket.socket(fileno=fd) for fd in fds]
        if answer == namespace_entry.MADE or answer == namespace_entry.TAKEN:
            return made
        words = answer.decode("utf-8", "replace") or "it died"
        raise PlatformError(f"the container could not be furnished: {words}", hint="paddock doctor")

    def close(self) -> None:
        self._peer.close()
        self._process.wait()
