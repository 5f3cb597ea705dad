"""Asks the process resolver which process made a connection. Each sandbox has one question at a time."""

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
Report = Callable[[str, str, dict[str, Any]], None]
"""Reports an event: its name, the sandbox, and the details."""


class ConnectionOwners:
    """The owners of connections, for one event loop. Once the process resolver has ended, every owner is unknown.

    `report` gets the events of watched processes.
    """

    def __init__(self, process_resolver: socket.socket, report: Report) -> None:
        self._process_resolver, self._report = process_resolver, report
        self._turns: dict[str, asyncio.Lock] = {}
        self._waiting: Counter[str] = Counter()
        """The number of each sandbox's questions, pending and under way."""
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._watched: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._reason = ""
        """Why the process resolver no longer answers. Empty while it does."""
        process_resolver.setblocking(False)
        asyncio.get_running_loop().add_reader(process_resolver, self._heard)

    async def owner_of(
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
        if self._reason:
            return unknown(self._reason)
        number = next(self._numbers)
        reply = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            self._process_resolver.send(json.dumps({"n": number, **question}).encode())
            async with asyncio.timeout(ANSWER_SECONDS):
                return await reply
        except TimeoutError:
            return unknown("the process resolver did not answer in time")
        except OSError:  # it has died, or can't keep up
            return unknown("the process resolver does not take questions")
        finally:
            del self._pending[number]

    async def watch(self, sandbox: str, instance_id: int, first: First | None) -> None:
        """Report processes of a sandbox from when this returns, or stop reporting them: without `first`."""
        result = await self._ask({"sandbox": sandbox, "instance_id": instance_id, "watch": first})
        if "watched" not in result:
            if first is None:
                return
            result = {"watched": False, "why": result["why"]}
        if result["watched"]:
            self._watched[sandbox] = instance_id
        self._report("process.watch", sandbox, {"instance_id": instance_id, **result})

    def close(self, why: str = "there is no process resolver") -> None:
        if self._reason:
            return
        self._reason = why
        asyncio.get_running_loop().remove_reader(self._process_resolver)
        self._process_resolver.close()
        for reply in self._pending.values():
            if not reply.done():
                reply.set_result(unknown(why))

    def _died(self) -> None:
        """Record for each watched sandbox that its processes aren't reported any more."""
        self.close("the process resolver has died")
        for sandbox, instance_id in self._watched.items():
            self._report("process.watch", sandbox, {"instance_id": instance_id, "watched": False, "why": self._reason})

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
            return self._report(answer["what"], answer["sandbox"], answer["detail"])
        reply = self._pending.get(answer["n"])
        if reply is not None and not reply.done():
            reply.set_result(answer["answer"])


def record_event(log: AuditLog, what: str, sandbox: str, detail: dict[str, Any]) -> None:
    """Record an event of a process inside. If the log is full, the record is missing."""
    if "argv" in detail:
        detail = {**detail, "argv": redact_secrets(detail["argv"])}
    with suppress(UnrecordedError):
        log.event(what, sandbox=sandbox, **detail)
