"""Asks the process resolver which process made a connection: one question of each sandbox at a time, in turn."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from paddock.audit import AuditLog, redact_secrets
from paddock.errors import UnrecordedError
from paddock.linux import sock_diag

from .process_resolver import MOST_BYTES, First, unknown

MOST_WAITING = 64
ANSWER_SECONDS = 10.0
News = Callable[[str, str, dict[str, Any]], None]
"""Reports an event: its name, the sandbox, and the details."""


class ConnectionOwners:
    """Ask within one event loop. Once the process resolver has ended, every owner is unknown.

    `news` hears of watched processes.
    """

    def __init__(self, process_resolver: socket.socket, news: News) -> None:
        self._process_resolver, self._news = process_resolver, news
        self._turns: dict[str, asyncio.Lock] = {}
        self._waiting: Counter[str] = Counter()
        """Questions of each sandbox, of which one is under way."""
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._watched: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._why = ""
        """Why nothing answers any more."""
        process_resolver.setblocking(False)
        asyncio.get_running_loop().add_reader(process_resolver, self._heard)

    async def who(
        self, diag: socket.socket, sock: socket.socket, remote: tuple[str, int], sandbox: str, first: First
    ) -> dict[str, Any]:
        """Return the process that made the connection `sock` to `remote`, or the reason why it isn't known.

        `first` is pid 1 of the sandbox.
        """
        try:
            local = sock.getpeername()[:2]
        except OSError:
            return unknown("it has gone")
        try:
            inode = sock_diag.inode_of(diag, local, remote)
        except OSError as error:
            return unknown(f"the kernel does not say whose it is: {error.strerror}")
        if inode == 0:
            return unknown("it was closed as soon as it was made")
        if self._waiting[sandbox] >= MOST_WAITING:
            return unknown("too many connections at once")
        self._waiting[sandbox] += 1
        try:
            async with self._turns.setdefault(sandbox, asyncio.Lock()):
                return await self._ask({"sandbox": sandbox, "first": first, "inode": inode})
        finally:
            self._waiting[sandbox] -= 1
            if not self._waiting[sandbox]:
                del self._waiting[sandbox], self._turns[sandbox]

    async def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        if self._why:
            return unknown(self._why)
        number = next(self._numbers)
        answered = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._process_resolver.send(json.dumps({"n": number, **question}).encode())
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answered
        except TimeoutError:
            return unknown("the process resolver did not answer in time")
        except OSError:  # it has died, or can't keep up
            return unknown("the process resolver does not take questions")
        finally:
            del self._asked[number]

    async def watch(self, sandbox: str, instance_id: int, first: First | None) -> None:
        """Report processes of a sandbox from when this returns, or stop reporting them: without `first`."""
        found = await self._ask({"sandbox": sandbox, "instance_id": instance_id, "watch": first})
        if "watched" not in found:
            if first is None:
                return
            found = {"watched": False, "why": found["why"]}
        if found["watched"]:
            self._watched[sandbox] = instance_id
        self._news("process.watch", sandbox, {"instance_id": instance_id, **found})

    def close(self, why: str = "there is no process resolver") -> None:
        if self._why:
            return
        self._why = why
        asyncio.get_running_loop().remove_reader(self._process_resolver)
        self._process_resolver.close()
        for answered in self._asked.values():
            if not answered.done():
                answered.set_result(unknown(why))

    def _died(self) -> None:
        """Record for each watched sandbox that its processes aren't reported any more."""
        self.close("the process resolver has died")
        for sandbox, instance_id in self._watched.items():
            self._news("process.watch", sandbox, {"instance_id": instance_id, "watched": False, "why": self._why})

    def _heard(self) -> None:
        try:
            data = self._process_resolver.recv(MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            return self._died()
        answer = json.loads(data)
        if "what" in answer:
            return self._news(answer["what"], answer["sandbox"], answer["detail"])
        answered = self._asked.get(answer["n"])
        if answered is not None and not answered.done():
            answered.set_result(answer["answer"])


def tell(log: AuditLog, what: str, sandbox: str, detail: dict[str, Any]) -> None:
    """Record an event of a process inside. If the log is full, the record is missing."""
    if "argv" in detail:
        detail = {**detail, "argv": redact_secrets(detail["argv"])}
    with suppress(UnrecordedError):
        log.event(what, sandbox=sandbox, **detail)
