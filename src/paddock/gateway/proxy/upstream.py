"""Connections to servers. It resolves a name once, connects to the checked address, and verifies the certificate."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from paddock.gateway.protocols.refusal import Refused
from paddock.model.egress import Target, Verdict

from .stream import Lost, ProxyStream

DIAL_SECONDS = 10.0
MOST_ADDRESSES = 8

Resolver = Callable[[str], Awaitable[list[str]]]
"""Addresses of a name, as `ipaddress` writes them. OSError."""

Reach = Callable[[str, int], Awaitable[socket.socket]]
"""A connection to a port of an address. OSError."""

Check = Callable[[str], Verdict]
"""Tells whether the gateway may connect to an address, and records it. Raises UnrecordedError."""


_threads = ThreadPoolExecutor(16, thread_name_prefix="resolver")
"""Few: one sandbox's slow names must not cost more."""


async def resolve_here(name: str) -> list[str]:
    """Resolve a name by the machine's own resolver."""
    return await asyncio.get_running_loop().run_in_executor(_threads, _resolve, name)


def _resolve(name: str) -> list[str]:
    """Resolve a name. A final dot excludes search domains. The hosts file comes first, as in the resolver."""
    found = _in_hosts_file(name)
    if not found:
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(f"{name}.", None, type=socket.SOCK_STREAM)]
    return list(dict.fromkeys(found))


def _in_hosts_file(name: str) -> list[str]:
    try:
        lines = Path("/etc/hosts").read_text(encoding="ascii", errors="replace").lower().splitlines()
    except OSError:
        return []
    entries = [line.partition("#")[0].split() for line in lines]
    return [entry[0] for entry in entries if name in entry[1:] and "%" not in entry[0]]


async def over_tcp(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, (address, port))
    except BaseException:
        sock.close()
        raise
    return sock


class Dialer:
    """Makes upstreams. A gateway has one. `trust` verifies servers' certificates, `reach` connects."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        scratch: memoryview,
        resolver: Resolver,
        trust: Callable[[], ssl.SSLContext],
        reach: Reach = over_tcp,
    ) -> None:
        self._loop, self._scratch, self._resolver, self._make_trust = loop, scratch, resolver, trust
        self._reach = reach
        self._trust: dict[bool, ssl.SSLContext] = {}

    async def dial(
        self, target: Target, *, literal: str | None, tls: bool, check: Check, h2: bool = False
    ) -> ProxyStream:
        """Connect to a target.

        `literal`: use this address. `h2`: offer HTTP/2. Raise Refused with the reason of a failure.
        """
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                addresses = [literal] if literal else await self._resolve(target.host)
                verdicts = {address: check(address) for address in addresses[:MOST_ADDRESSES]}
                allowed = [address for address, verdict in verdicts.items() if verdict.allowed]
                if not allowed:
                    why = next(iter(verdicts.values())).reason if verdicts else "it has none"
                    raise Refused(f"no address of {target.host} may be connected to: {why}", rule="address")
                stream = await self._connect(allowed, target)
                if tls:
                    await self._shake(stream, target, h2=h2)
        except TimeoutError:
            raise Refused(
                f"{target.host}:{target.port} did not answer within {DIAL_SECONDS:.0f} s", status=504, rule="upstream"
            ) from None
        return stream

    async def _resolve(self, name: str) -> list[str]:
        try:
            return await self._resolver(name)
        except (OSError, UnicodeError) as error:
            raise Refused(f"{name} can't be resolved: {_words(error)}", status=502, rule="upstream") from None

    async def _connect(self, addresses: list[str], target: Target) -> ProxyStream:
        why: OSError | None = None
        for address in addresses:
            sock: socket.socket | None = None
            try:
                sock = await self._reach(address, target.port)
                stream = ProxyStream(self._loop, self._scratch, address)
                await stream.attach(sock)
                return stream
            except BaseException as error:
                if sock is not None:
                    sock.close()
                if not isinstance(error, OSError):
                    raise
                why = error
        raise Refused(
            f"{target.host}:{target.port} can't be reached: {_words(why)}", status=502, rule="upstream"
        ) from None

    async def _shake(self, stream: ProxyStream, target: Target, *, h2: bool) -> None:
        if h2 not in self._trust:
            self._trust[h2] = self._make_trust()
            self._trust[h2].set_alpn_protocols(["h2", "http/1.1"] if h2 else ["http/1.1"])
        try:
            await stream.shake(self._trust[h2], name=target.host)
        except (ssl.SSLError, Lost) as error:
            stream.reset()
            raise Refused(
                f"TLS with {target.host}:{target.port} failed: {_words(error)}", status=502, rule="upstream"
            ) from None
        except BaseException:
            stream.reset()
            raise


def system_trust() -> ssl.SSLContext:
    """Return a context with this machine's certificate authorities."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _words(error: Exception | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate can't be trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error).lower().replace("_", " ")
    if isinstance(error, OSError) and error.errno in errno.errorcode:
        return str(error.strerror).lower()
    return str(error)
