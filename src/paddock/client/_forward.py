"""A port of this machine that leads to one inside a sandbox: threads that copy, whichever client asked."""

from __future__ import annotations

import contextlib
import socket
import threading

from paddock.client._command import kind_of
from paddock.errors import InvalidArgumentError, PaddockError
from paddock.model import ConnectPort

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from ._sync.connection import Connection
    from ._sync.transport import Transport

_CHUNK_BYTES = 1 << 16
_BACKLOG = 64


class Forward(str):
    """The URL of a port of this machine, `http://127.0.0.1:41234`, that leads inside until `close`.

    It is a text with `host` and `port`. `sandbox.forward` opens it, and a `with` block closes it.

    Example:
        ```python
        with sandbox.forward(8000) as url:
            print(url.host, url)  # 127.0.0.1 http://127.0.0.1:…
        ```
    """

    host: str
    port: int
    _listener: socket.socket

    @classmethod
    def listen(cls, transport: Transport, sandbox: str, port: int, host: str, local_port: int) -> Forward:
        """Listen here, and connect to the port inside for each connection. `sandbox.forward` calls it.

        Args:
            transport: The sandbox's, for threads.
            sandbox: The sandbox's id.
            port: The port inside.
            host: The address here.
            local_port: The port here. 0 is any free one.

        Returns:
            The URL.

        Raises:
            InvalidArgumentError: The number is outside of 1 to 65535.
            OSError: Another program has the port here.

        Example:
            ```python
            url = Forward.listen(local(), sandbox.id, 8000, "127.0.0.1", 0)
            url.close()
            ```
        """
        if not isinstance(port, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"port is {kind_of(port)}: write a number, such as 8000")
        if not 0 < port < 65536:
            raise InvalidArgumentError(f"port={port} isn't a port: write 1 to 65535", field="port")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, local_port), family=family, backlog=_BACKLOG)
        local_port = listener.getsockname()[1]
        self = cls(f"http://{f'[{host}]' if ':' in host else host}:{local_port}")
        self.host, self.port, self._listener = host, local_port, listener
        threading.Thread(target=_accept, args=(listener, transport, sandbox, port), daemon=True).start()
        return self

    def close(self) -> None:
        """Stop listening. Open connections go on until they end.

        Example:
            ```python
            url = sandbox.forward(8000)
            url.close()
            ```
        """
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def __enter__(self) -> Forward:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_listener"):
            self.close()


def blocking(transport: Any) -> Transport:
    """Return the transport of the same session that threads can use."""
    twin = getattr(transport, "blocking", None)
    return transport if twin is None else twin()


def _accept(listener: socket.socket, transport: Transport, sandbox: str, port: int) -> None:
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:  # it was closed
            return
        threading.Thread(target=_serve, args=(peer, transport, sandbox, port), daemon=True).start()


def _serve(peer: socket.socket, transport: Transport, sandbox: str, port: int) -> None:
    with peer:
        try:
            inside = transport.perform(ConnectPort(sandbox=sandbox, port=port))
        except (OSError, PaddockError):  # nothing listens there: the caller sees a connection that ends
            return
        outward = threading.Thread(target=_outward, args=(inside, peer), daemon=True)
        outward.start()
        try:
            while data := peer.recv(_CHUNK_BYTES):
                inside.write(data)
            inside.write_eof()
        except (OSError, PaddockError):
            with contextlib.suppress(OSError, PaddockError):
                inside.abort()
        outward.join()
        with contextlib.suppress(OSError, PaddockError):
            inside.close()


def _outward(inside: Connection, peer: socket.socket) -> None:
    try:
        while data := inside.read(_CHUNK_BYTES):
            peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
    except (OSError, PaddockError):
        with contextlib.suppress(OSError):
            peer.shutdown(socket.SHUT_RDWR)
