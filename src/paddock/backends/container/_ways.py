"""The only way out of a container: sockets of the gateway's in its network, which an emissary makes there
(`supervisor/_emissary.py`); the engine itself gives it none."""

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

from paddock.backends._base import Exits
from paddock.errors import PlatformError, UnsupportedError
from paddock.linux.descriptors import closing
from paddock.supervisor import _emissary, layout

from ._options import HOST
from ._records import BIRTH, Record, Records

TRUSTED = f"{HOST}/{layout.TRUST}"
"""Whom programs inside are to trust, where their environment says so."""
_SOURCE = str(Path(__file__).parents[3])
_SECONDS = 60.0
_MOST_SOCKETS = 8


def show_trust(place: Path) -> None:
    """Files that whoever holds the authority fills, in a directory that is seen inside and written by nobody there."""
    for name in (layout.TRUST, layout.TRUST_JAVA, layout.TRUST_CHROMIUM):
        with suppress(FileExistsError):
            made = os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            os.fchmod(made, 0o644)  # whoever reads it inside is another one, whatever the umask
            os.close(made)


class Ways:
    """Those of one container, as long as this process has them. `late`: it was given them while it ran, and its
    environment says nothing of certificates."""

    def __init__(self, *, late: bool = False) -> None:
        self.late = late
        self._sockets: list[socket.socket] = []

    async def furnish(
        self, pid: int, mounts: Mapping[str, int], protect: Sequence[str], *, exits: bool, again: bool = False
    ) -> None:
        """Make all that a container has from its birth: detached mounts by their targets, paths that nobody inside
        changes, and the sockets if it is to have `exits`. PlatformError.

        `again`: rules and certificates are there. No sockets come if an earlier service's gateway has them.
        """
        orders = {"pid": pid, "shown": HOST, "exits": exits, "again": again}
        orders |= {"protect": list(protect), "mounts": list(mounts)}
        self._sockets = await asyncio.to_thread(_send, pid, orders, tuple(mounts.values()))

    async def exits(self, records: Records, record: Record, *, make: bool) -> Exits | None:
        """Return copies to whoever has the sandbox's lock. None: an earlier service's gateway has the sockets.
        PlatformError, UnsupportedError, ProcessLookupError."""
        if not record.exits:
            if not make:
                raise UnsupportedError(f"sandbox {record.id} was made without a way out", hint="give it a policy")
            show_trust(records.place(record.id) / BIRTH)
        if not self._sockets:
            await self.furnish(record.pid, {}, (), exits=True, again=record.exits)
        if not record.exits:
            if not self._sockets:
                raise PlatformError("a program inside listens at a port that the gateway needs", hint="end it")
            records.change(record.id, record.incarnation, exits=True, late=True)
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


def _send(pid: int, orders: object, mounts: tuple[int, ...]) -> list[socket.socket]:
    """An emissary; empty if somebody has the ports. PlatformError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.settimeout(_SECONDS)
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            raise PlatformError("the container ended before it had a way out", hint="try again") from None
        with closing(process):
            socket.send_fds(ours, [json.dumps(orders).encode()], [process, *mounts])
        argv = [sys.executable, "-I", "-S", "-c", _emissary.START, _SOURCE]
        with subprocess.Popen(argv, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env={}, cwd="/") as emissary:
            theirs.close()
            try:
                said, fds, _, _ = socket.recv_fds(ours, _emissary.MOST_BYTES, _MOST_SOCKETS)
            except OSError as error:
                emissary.kill()
                said, fds = str(error).encode(), []
    made = [socket.socket(fileno=fd) for fd in fds]
    if said == _emissary.MADE or said == _emissary.TAKEN:
        return made
    words = said.decode("utf-8", "replace") or "it died"
    raise PlatformError(f"the container could not be furnished: {words}", hint="paddock doctor")
