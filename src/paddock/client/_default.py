"""Where a client finds paddock when it is told nothing. The composition root fills this in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from paddock.errors import NotConfigured

if TYPE_CHECKING:
    from ._async.transport import AsyncTransport
    from ._sync.transport import Transport


class Connector(Protocol):
    def connect(self) -> Transport: ...
    def connect_async(self) -> AsyncTransport: ...


_installed: list[Connector] = []


def install(connector: Connector) -> None:
    """The import direction leaves no other way: `client` may not import what builds a service."""
    _installed[:] = [connector]


def default_transport() -> Transport:
    return _connector().connect()


def default_async_transport() -> AsyncTransport:
    return _connector().connect_async()


def _connector() -> Connector:
    if not _installed:
        raise NotConfigured("no transport was given and none is installed", hint="from paddock import Sandbox")
    return _installed[0]
