"""The network outside: names, connections, and whom to trust there."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


class Outside:
    """The network outside, as this machine sees it."""

    authorities: str | None = None
    """Certificates of the authorities that sign servers, as PEM. None: those that this machine trusts."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(16, thread_name_prefix="resolver")  # few: slow names must not cost more

    async def resolve(self, name: str) -> list[str]:
        """Return the addresses of a name, as `ipaddress` writes them. Raise OSError."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, _resolve, name)

    async def reach(self, address: str, port: int) -> socket.socket:
        """Connect to a port of an address. Raise OSError."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio sets it for IPPROTO_TCP, not for 0
            await asyncio.get_running_loop().sock_connect(sock, (address, port))
        except BaseException:
            sock.close()
            raise
        return sock


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
