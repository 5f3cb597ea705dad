"""The gateway's data plane: the networks of sandboxes, and their shared resources."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

from paddock.gateway.mocks.handler import HandlerHost
from paddock.gateway.processes.connection_owner import ConnectionOwners
from paddock.gateway.registries.malware import MalwareIndexes
from paddock.gateway.registries.package_cache import PackageStore
from paddock.gateway.registries.reader import Reader

from .network import Limits, SandboxNetwork
from .stream import SCRATCH_BYTES
from .upstream import Dialer, Reach, Resolver, over_tcp, resolve_here, system_trust

_TICK_SECONDS = 0.5
_SO_ORIGINAL_DST = 80  # linux/netfilter_ipv4.h; the same number for IPv6, at its own level

Destination = Callable[[socket.socket], tuple[str, int]]
"""Returns the original destination of an accepted connection. Raises OSError."""


def original_destination(sock: socket.socket) -> tuple[str, int]:
    """Return where an accepted connection wanted to go. OSError: it was not redirected."""
    if sock.family == socket.AF_INET:
        name = sock.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)
        return socket.inet_ntop(socket.AF_INET, name[4:8]), int.from_bytes(name[2:4], "big")
    name = sock.getsockopt(socket.IPPROTO_IPV6, _SO_ORIGINAL_DST, 28)
    return socket.inet_ntop(socket.AF_INET6, name[8:24]), int.from_bytes(name[2:4], "big")


class Gateway:
    """Used within one event loop. `close_all` ends everything that it began."""

    def __init__(
        self,
        *,
        resolver: Resolver = resolve_here,
        trust: Callable[[], ssl.SSLContext] = system_trust,
        reach: Reach = over_tcp,
        destination: Destination = original_destination,
        limits: Limits | None = None,
        reader: Reader | None = None,
        malware: MalwareIndexes | None = None,
        packages: PackageStore | None = None,
        handlers: HandlerHost | None = None,
        owners: ConnectionOwners | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.dialer = Dialer(self.loop, self.scratch, resolver, trust, reach)
        self.destination, self.limits, self.owners = destination, limits or Limits(), owners
        self.reader, self.malware, self.packages, self.handlers = reader, malware, packages, handlers
        self.networks: dict[str, SandboxNetwork] = {}
        """The open networks, by sandbox."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticker: asyncio.TimerHandle | None = None

    async def open(self, network: SandboxNetwork) -> None:
        """Serve a network. Close an open one of the same sandbox first."""
        await self.close(network.sandbox)
        network.listen()
        self.networks[network.sandbox] = network
        if self._ticker is None:
            self._tick()

    async def close(self, sandbox: str) -> None:
        """Cut the connections of a network, and close its sockets. Idempotent."""
        network = self.networks.pop(sandbox, None)
        if network is not None:
            await network.close()

    async def close_all(self) -> None:
        for sandbox in list(self.networks):
            await self.close(sandbox)
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self.owners is not None:
            self.owners.close()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Serve a connection."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # ours: the connection was ended all the same
            self.loop.call_exception_handler({"message": "a connection failed", "exception": error, "task": task})

    def _tick(self) -> None:
        now = self.loop.time()
        for network in list(self.networks.values()):
            network.tick(now)
        self._ticker = self.loop.call_later(_TICK_SECONDS, self._tick)
