"""The gateway's side of the witness: one question of each sandbox at a time, in turn, and never a connection held for
long."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from paddock.errors import Unrecorded
from paddock.linux import sock_diag

from ._witness import MOST_BYTES, First, unknown

PATIENCE_SECONDS = 2.0


class Maker:
    """`record(decision, origin)` raises Unrecorded; `lost` is called where that happens and nobody else hears of it."""

    def __init__(self, record: Callable[[int, dict[str, Any]], None], lost: Callable[[], None]) -> None:
        self._record, self._lost = record, lost
        self._known = asyncio.Event()
        self._origin: dict[str, Any] | None = None
        self._decision: int | None = None

    def told(self, origin: dict[str, Any]) -> None:
        self._origin = origin
        self._known.set()
        if self._decision is not None:
            try:
                self._record(self._decision, origin)
            except Unrecorded:
                self._lost()

    def decided(self, number: int) -> None:
        """Unrecorded: then nothing may happen."""
        self._decision = number
        if self._origin is not None:
            self._record(number, self._origin)

    async def known(self) -> None:
        """A program that waits for its answer is still there when it is looked for: it gets none before this returns,
        which is soon, whoever does not answer."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._known.wait()
        except TimeoutError:
            return


MOST_WAITING = 64
WATCH_SECONDS = 10.0
Told = Callable[[dict[str, Any]], None]
News = Callable[[str, str, int, dict[str, Any]], None]
"""What came to pass, in which sandbox and incarnation, and what is known of it."""


class Origins:
    """Within one event loop. `witness` is where it is asked; None: there is none. `news` hears of watched processes."""

    def __init__(self, witness: socket.socket | None, news: News | None = None) -> None:
        self._witness, self._news = witness, news
        self._lines: dict[str, deque[tuple[bytes, int, Told]]] = {}
        """Questions of each sandbox; the first is under way."""
        self._asked: dict[int, str] = {}
        self._watching: dict[str, asyncio.Future[None]] = {}
        self._watched: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._why = "there is no witness"
        if witness is not None:
            witness.setblocking(False)
            asyncio.get_running_loop().add_reader(witness, self._heard)

    def ask(
        self,
        diag: socket.socket,
        local: tuple[str, int],
        remote: tuple[str, int],
        sandbox: str,
        first: First,
        told: Told,
    ) -> None:
        """Who made the connection between these ends, as the one who made it sees them; `told`, once, now or later.
        `first` is pid 1 of the sandbox."""
        try:
            inode = sock_diag.inode_of(diag, local, remote)
        except OSError as error:
            return told(unknown(f"the kernel does not say whose it is: {error.strerror}"))
        if inode == 0:
            return told(unknown("it was closed as soon as it was made"))
        line = self._lines.setdefault(sandbox, deque())
        if len(line) >= MOST_WAITING:
            return told(unknown("too many connections at once"))
        number = next(self._numbers)
        question = {"n": number, "sandbox": sandbox, "first": first, "inode": inode}
        line.append((json.dumps(question).encode(), number, told))
        if len(line) == 1:
            self._send(sandbox)

    async def watch(self, sandbox: str, incarnation: int, first: First | None) -> None:
        """Has processes of a sandbox told of from when this returns, or not any more: without `first`."""
        question = {"sandbox": sandbox, "incarnation": incarnation, "watch": first}
        self._watched.pop(sandbox, None)
        answered = self._watching[sandbox] = asyncio.get_running_loop().create_future()
        try:
            if self._witness is None:
                raise ConnectionError
            self._witness.send(json.dumps(question).encode())
            async with asyncio.timeout(WATCH_SECONDS):
                await answered
        except (OSError, TimeoutError):
            if first is not None and self._news is not None:
                self._news("process.watch", sandbox, incarnation, {"watched": False, "why": self._why})
        finally:
            if self._watching.get(sandbox) is answered:
                del self._watching[sandbox]

    def close(self) -> None:
        if self._witness is not None:
            asyncio.get_running_loop().remove_reader(self._witness)
            self._witness.close()
            self._witness = None
        self._give_up()

    def _died(self) -> None:
        """From now on nobody looks: where somebody did, that is said."""
        watched, self._watched = self._watched, {}
        for sandbox, incarnation in watched.items():
            if self._news is not None:
                self._news("process.watch", sandbox, incarnation, {"watched": False, "why": self._why})
        self.close()

    def _send(self, sandbox: str) -> None:
        question, number, _ = self._lines[sandbox][0]
        if self._witness is None:
            return self._give_up()
        self._asked[number] = sandbox
        try:
            self._witness.send(question)
        except OSError:  # it has died, or can't keep up
            self._answered(number, unknown("the witness does not take questions"))

    def _heard(self) -> None:
        assert self._witness is not None
        try:
            data = self._witness.recv(MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._why = "the witness has died"
            return self._died()
        answer = json.loads(data)
        if "what" in answer:
            return self._heard_of(answer["what"], answer["sandbox"], answer["incarnation"], answer["detail"])
        self._answered(answer["n"], answer["origin"])

    def _heard_of(self, what: str, sandbox: str, incarnation: int, detail: dict[str, Any]) -> None:
        if self._news is not None:
            self._news(what, sandbox, incarnation, detail)
        if what != "process.watch":
            return
        if detail["watched"]:
            self._watched[sandbox] = incarnation
        else:
            self._watched.pop(sandbox, None)
        waits = self._watching.get(sandbox)
        if waits is not None and not waits.done():
            waits.set_result(None)

    def _answered(self, number: int, origin: dict[str, Any]) -> None:
        sandbox = self._asked.pop(number, None)
        if sandbox is None:
            return
        line = self._lines[sandbox]
        _, _, told = line.popleft()
        if line:
            self._send(sandbox)
        else:
            del self._lines[sandbox]
        told(origin)

    def _give_up(self) -> None:
        lines, self._lines, self._asked = self._lines, {}, {}
        for line in lines.values():
            for _, _, told in line:
                told(unknown(self._why))
