"""The vsock of a virtual machine as Firecracker gives it: a unix socket here, where one asks for a port of the machine.

Only the host ever calls: nobody listens where calls of the machine would arrive, and whoever listens in the machine
(`_quay`) takes calls of its host only. So no program in there can stand between.
Protocol: Firecracker, docs/vsock.md, "Host-Initiated Connections".
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable

from ._ferry import Ferry
from ._loop import IN, Loop

_PAUSE_SECONDS = 0.02
_PATIENCE_SECONDS = 5.0
_LONGEST = 32
_OK = re.compile(rb"OK [0-9]{1,10}\n")


class Caller:
    """Has a line cross over `port` of the machine behind the socket `path`, again and again, until it is closed."""

    def __init__(self, loop: Loop, path: str, port: int, shore: socket.socket, lost: Callable[[], None]) -> None:
        self._loop, self._path, self._port = loop, path, port
        self._ferry = Ferry(loop, shore, lost, self._later)
        self._calling: socket.socket | None = None
        self._call = 0
        self._away = True

    def call(self) -> None:
        """The machine runs."""
        self._away = False
        self._dial()

    def rest(self) -> None:
        """It stands, and its connections are over."""
        self._away = True
        self._hang_up()
        self._ferry.leave()

    def close(self) -> None:
        self.rest()
        self._ferry.close()

    def _later(self) -> None:
        self._loop.after(_PAUSE_SECONDS, self._dial)

    def _dial(self) -> None:
        if self._away or self._calling is not None or self._ferry.crossing:
            return
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            stream.connect(self._path)
            stream.send(b"CONNECT %d\n" % self._port)
        except OSError:  # it does not listen yet, or takes nobody now
            stream.close()
            return self._later()
        self._calling = stream
        self._call += 1
        number = self._call
        self._loop.watch(stream.fileno(), IN, self._answered)
        self._loop.after(_PATIENCE_SECONDS, lambda: self._give_up(number))

    def _give_up(self, number: int) -> None:
        if self._calling is not None and self._call == number:
            self._hang_up()
            self._later()

    def _hang_up(self) -> None:
        if self._calling is not None:
            self._loop.unwatch(self._calling.fileno())
            self._calling.close()
            self._calling = None

    def _answered(self, events: int) -> None:
        stream = self._calling
        assert stream is not None
        try:
            said = stream.recv(_LONGEST, socket.MSG_PEEK)
            end = said.find(b"\n") + 1
            if end == 0 and 0 < len(said) < _LONGEST:
                return
            good = _OK.fullmatch(stream.recv(end)) if end else None
        except BlockingIOError:
            return
        except OSError:
            good = None
        if good is None:  # nobody listens in there yet
            self._hang_up()
            return self._later()
        self._loop.unwatch(stream.fileno())
        self._calling = None
        self._ferry.cross(stream)
