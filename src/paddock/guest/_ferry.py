"""A line over connections that break: each side keeps what the other has not acknowledged, and says it again on the
next one. So a line outlives its connections, as a port of a machine does; who speaks on it sees one stream.

A virtual machine's vsock loses all its connections whenever the machine is copied, in the one that goes on as well.

A connection begins with one greeting from each side: who I am, whom I spoke to last, and how much I have had of him.
Two who know each other go on there. For two who do not, the stream begins anew, and `_mark` says where.
Then come heads: data, or how much has been passed on in all.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from struct import Struct

from ._loop import IN, OUT, Loop

_GREETING = Struct("!4s16s16sQ")
_MAGIC = b"pdk1"
_NOBODY = bytes(16)
_HEAD = Struct("!BQ")
_DATA, _PASSED_ON = 0, 1
_PIECE = 64 * 1024
_MOST = 256 * 1024
"""Bytes kept for the other side beyond which nothing more is taken from this one."""
_SAY_AFTER = 32 * 1024


class Broken(Exception):
    """The other side says what cannot be."""


class Ferry:
    """`shore` is this side's end of the line. `lost()`: it has ended, or the other side lies; nothing is carried any
    more. `adrift()`: there is no connection, and somebody has to make one and call `cross`."""

    def __init__(
        self, loop: Loop, shore: socket.socket, lost: Callable[[], None], adrift: Callable[[], None] = lambda: None
    ) -> None:
        self._loop, self._shore, self._lost, self._adrift = loop, shore, lost, adrift
        self._me, self._other = os.urandom(16), _NOBODY
        self._kept = bytearray()  # sent, and not acknowledged
        self._acknowledged = self._received = self._passed_on = self._said = 0
        self._landing = bytearray()  # received, and not passed on
        self._carrier: socket.socket | None = None
        self._greeted = False
        self._in, self._out = bytearray(), bytearray()
        self._closed = False
        shore.setblocking(False)

    @property
    def crossing(self) -> bool:
        return self._carrier is not None

    def cross(self, carrier: socket.socket) -> None:
        """From here on by this connection; an earlier one is over, whether or not it has heard of that."""
        self._leave()
        if self._closed:
            carrier.close()
            return
        carrier.setblocking(False)
        self._carrier, self._greeted = carrier, False
        self._in.clear()
        self._out[:] = _GREETING.pack(_MAGIC, self._me, self._other, self._received)
        self._watch()

    def leave(self) -> None:
        """The connection is no good any more."""
        if self._carrier is not None:
            self._leave()
            self._adrift()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._leave()
            self._loop.unwatch(self._shore.fileno())
            self._shore.close()

    def _leave(self) -> None:
        if self._carrier is not None:
            self._loop.unwatch(self._carrier.fileno())
            self._carrier.close()
            self._carrier = None
        if not self._closed:
            self._watch()

    def _end(self) -> None:
        if not self._closed:
            self.close()
            self._lost()

    def _watch(self) -> None:
        takes = self._carrier is not None and self._greeted and max(len(self._kept), len(self._out)) < _MOST
        wanted = (IN if takes else 0) | (OUT if self._landing else 0)
        if wanted:
            self._loop.watch(self._shore.fileno(), wanted, self._on_shore)
        else:
            self._loop.unwatch(self._shore.fileno())
        if self._carrier is not None:
            wanted = (IN if len(self._landing) < _MOST else 0) | (OUT if self._out else 0)
            self._loop.watch(self._carrier.fileno(), wanted, self._at_sea)

    # this side

    def _on_shore(self, events: int) -> None:
        try:
            if self._landing:
                self._land()
            if events & ~OUT and self._greeted:
                data = self._shore.recv(_PIECE)
                if not data:
                    return self._end()
                self._kept += data
                self._out += _HEAD.pack(_DATA, len(data)) + data
        except BlockingIOError:
            pass
        except OSError:
            return self._end()
        self._send()

    def _land(self) -> None:
        sent = self._shore.send(self._landing)
        del self._landing[:sent]
        self._passed_on += sent
        if self._passed_on - max(self._said, 0) >= _SAY_AFTER and self._greeted:
            self._said = self._passed_on
            self._out += _HEAD.pack(_PASSED_ON, self._passed_on)

    # the other

    def _at_sea(self, events: int) -> None:
        carrier = self._carrier
        assert carrier is not None
        try:
            if events & ~OUT:
                data = carrier.recv(_PIECE)
                if not data:
                    return self.leave()
                self._in += data
                while self._understand():
                    pass
        except BlockingIOError:
            pass
        except OSError:
            return self.leave()
        except Broken:
            return self._end()
        self._send()

    def _send(self) -> None:
        if self._carrier is not None and self._out:
            try:
                del self._out[: self._carrier.send(self._out)]
            except BlockingIOError:
                pass
            except OSError:
                return self.leave()
        self._watch()

    def _understand(self) -> bool:
        """Whether there may be more."""
        if not self._greeted:
            return self._meet()
        if len(self._in) < _HEAD.size:
            return False
        kind, number = _HEAD.unpack_from(self._in)
        if kind == _PASSED_ON:
            self._acknowledge(number)
            del self._in[: _HEAD.size]
            return True
        if kind != _DATA or not 0 < number <= _PIECE:
            raise Broken
        end = _HEAD.size + number
        if len(self._in) < end:
            return False
        self._landing += self._in[_HEAD.size : end]
        self._received += number
        del self._in[:end]
        return True

    def _meet(self) -> bool:
        if len(self._in) < _GREETING.size:
            return False
        magic, other, known, received = _GREETING.unpack_from(self._in)
        del self._in[: _GREETING.size]
        if magic != _MAGIC or other == _NOBODY:
            raise Broken
        # Whom we know and who does not know us has had nothing of us: our greeting was lost.
        strangers = known != self._me and self._acknowledged + self._received > 0
        if other != self._other or strangers:
            self._begin_with(other)
        elif known == self._me:
            self._acknowledge(received)
        self._greeted = True
        for start in range(0, len(self._kept), _PIECE):
            piece = self._kept[start : start + _PIECE]
            self._out += _HEAD.pack(_DATA, len(piece)) + piece
        return True

    def _begin_with(self, other: bytes) -> None:
        """What was for somebody else is nobody's; what he sent, and is not passed on, still is."""
        self._other = other
        self._kept.clear()
        self._acknowledged = self._received = 0
        self._passed_on = self._said = -len(self._landing)

    def _acknowledge(self, number: int) -> None:
        new = number - self._acknowledged
        if new > len(self._kept):
            raise Broken
        if new > 0:
            del self._kept[:new]
            self._acknowledged = number
