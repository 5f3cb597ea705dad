"""A simulated network for an evaluation: see docs/design/injection.md.

In a state directory with one, the gateway resolves, connects and trusts only through it. Without an answer from it,
connections fail.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import cast

from paddock.supervisor import layout

from .outside import Outside


class EvaluationNetwork(Outside):
    def __init__(self, directory: int, authorities: str) -> None:
        """Keep `directory`, a descriptor of the state directory, whose path may be longer than a socket's."""
        self._directory, self.authorities = directory, authorities

    @classmethod
    def of(cls, state: Path) -> EvaluationNetwork | None:
        """Return the simulated network of a state directory, if either of its files exists.

        With one file all connections fail, so the gateway never uses the real network.
        """
        trust = state / layout.WORLD_TRUST
        if not trust.exists() and not os.path.lexists(state / layout.WORLD_SOCKET):
            return None
        return cls(os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), trust.read_text(encoding="ascii"))

    async def resolve(self, name: str) -> list[str]:
        reader, writer = await asyncio.open_unix_connection(sock=await self._ask({"resolve": name}))
        try:
            answer = json.loads(await reader.readline() or b"null")
        except ValueError:
            answer = None
        finally:
            writer.close()
        if not isinstance(answer, list):
            raise OSError(f"{name} has no address here")
        return [str(address) for address in cast("list[object]", answer)]

    async def reach(self, address: str, port: int) -> socket.socket:
        return await self._ask({"dial": [address, port]})

    async def _ask(self, question: dict[str, object]) -> socket.socket:
        """Send a question. The answer, or the connection itself, follows on the socket."""
        loop, sock = asyncio.get_running_loop(), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, f"/proc/self/fd/{self._directory}/{layout.WORLD_SOCKET}")
            await loop.sock_sendall(sock, json.dumps(question).encode() + b"\n")
        except BaseException:
            sock.close()
            raise
        return sock
