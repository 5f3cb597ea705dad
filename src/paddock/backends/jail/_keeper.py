"""The service's side of the keeper: finds it, starts it where there is none, asks it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

from paddock.errors import OUT_OF, InternalError, InvalidArgument, KeeperUnavailable, PaddockError, ResourceExhausted
from paddock.keeper import _wire, layout
from paddock.keeper._bootstrap import BOOTSTRAP, READY
from paddock.linux import local_sockets

ATTEMPTS = 50
START_SECONDS = 20.0
_EXHAUSTED = {"EAGAIN", "EMFILE", "ENFILE", "ENOMEM", "ENOSPC", "EDQUOT", "ENOBUFS", "EUSERS", "EIO"}
_REMEDY = {
    "EUSERS": "every sandbox has a range of ids of its own: kill some, `paddock ls` lists them",
    "EIO": "the disk below could not write; make room there (df -h) and try again; paddock doctor --storage",
}
_REPEATABLE = frozenset(
    {"awake", "deadline", "exits", "forget", "freeze", "kill", "list", "pause", "rest", "resume", "thaw", "usage"}
)
_ERRNO = re.compile(r"\[Errno (\d+)\]")
Message = dict[str, Any]


class KeeperClient:
    """One connection to the keeper of `state_dir`; made when first needed, and again when the keeper was replaced.

    `on_ended(id, incarnation, limit, reason)` is called for each death, `on_rest(id, paused)` for each pause and each
    end of one; `on_lost()` when the keeper has gone;
    `on_replaced()` after a new connection was made in place of a lost one: what was missed can then be listed.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        on_ended: Callable[[str, int, str | None, str], None],
        on_lost: Callable[[], None],
        on_replaced: Callable[[], None],
        on_rest: Callable[[str, bool], None] = lambda id, paused: None,
        for_tests: bool = False,
    ) -> None:
        self._state = state_dir
        self._on_ended = on_ended
        self._on_rest = on_rest
        self._on_lost = on_lost
        self._on_replaced = on_replaced
        self._for_tests = for_tests
        self._peer: socket.socket | None = None
        self._inbox = _wire.Inbox()
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._number = 0
        self._unsent = bytearray()
        self._waits_for_room = False
        self._connecting = asyncio.Lock()
        self._connected = False
        """The keeper of `_peer` has said what it is. Before that only `connect` speaks with it."""
        self._was_connected = False
        self.facts: Message = {}
        self.pool: int | None = None
        """The pool's directory, as the keeper mounted it; this client's own descriptor."""

    async def request(self, operation: str, **fields: object) -> Message:
        """Asks and waits for the answer. KeeperUnavailable, or the PaddockError that fits what the keeper says."""
        if not self._connected:
            await self.connect()
        try:
            return await self._exchange(operation, fields)
        except KeeperUnavailable as error:
            if operation not in _REPEATABLE and not error.details.get("unheard"):
                raise
        # It had died before it was asked, perhaps: its successor knows as much, and asking twice does no harm.
        await self.connect()
        return await self._exchange(operation, fields)

    async def connect(self) -> None:
        async with self._connecting:
            if self._connected:
                return
            for _ in range(ATTEMPTS):
                if await self._try_connect():
                    break
                await _to_its_end(asyncio.to_thread(self._start))
            else:
                raise KeeperUnavailable("the keeper does not answer", hint=f"see {self._state / layout.KEEPER_LOG}")
            self._connected = True
            if self._was_connected:
                self._on_replaced()
            self._was_connected = True

    async def _try_connect(self) -> bool:
        peer = local_sockets.connect(self._state, layout.KEEPER_SOCKET)
        if peer is None:
            return False
        self._peer, self._inbox = peer, _wire.Inbox()
        asyncio.get_running_loop().add_reader(peer.fileno(), self._readable)
        try:
            self.facts = await self._exchange("hello", {"version": _wire.VERSION})
        except KeeperUnavailable:
            return False  # it was just leaving
        except BaseException:
            self._lost()  # the next one begins anew, and is told of what ended meanwhile
            raise
        if self._peer is not peer:
            return False  # it answered, and left
        if self._inbox.descriptors:
            if self.pool is not None:
                os.close(self.pool)
            self.pool = self._inbox.descriptors.pop(0)
        return True

    async def _exchange(self, operation: str, fields: Message) -> Message:
        if self._peer is None:
            raise KeeperUnavailable("the keeper went away", unheard=True)
        self._number += 1
        number = self._number
        self._send({"op": operation, "n": number, **fields})
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            answer = await future
        finally:
            self._waiting.pop(number, None)
        if "error" in answer:
            raise _error(answer)
        return answer

    def _send(self, message: Message) -> None:
        unheard = not self._unsent  # then a socket that refuses has taken no byte of this one
        self._unsent += _wire.encode(message)
        try:
            self._write()
        except OSError as error:
            self._lost()
            raise KeeperUnavailable(f"the keeper went away: {error}", unheard=unheard) from error

    def _write(self) -> None:
        """Sends what the socket takes now; the rest when it takes more. OSError."""
        assert self._peer is not None
        loop = asyncio.get_running_loop()
        try:
            del self._unsent[: self._peer.send(self._unsent)]
        except BlockingIOError:
            pass
        if self._unsent:
            self._waits_for_room = True
            loop.add_writer(self._peer.fileno(), self._writable)
        elif self._waits_for_room:
            self._waits_for_room = False
            loop.remove_writer(self._peer.fileno())

    def _writable(self) -> None:
        try:
            self._write()
        except OSError:
            self._lost()

    def _readable(self) -> None:
        assert self._peer is not None
        try:
            alive = self._inbox.receive(self._peer)
            messages = self._inbox.messages()
        except BlockingIOError:
            return
        except (OSError, _wire.WireError):
            alive, messages = False, []
        for message in messages:
            if message.get("event") == "ended":
                limit = cast("str | None", message["limit"])
                self._on_ended(str(message["id"]), int(message["incarnation"]), limit, str(message["reason"]))
                continue
            if (event := message.get("event")) is not None:
                self._on_rest(str(message["id"]), event == "paused")
                continue
            future = self._waiting.get(cast("int", message.get("re")))
            if "fds" in message:
                self._take_descriptors(message, keep=future is not None and not future.done())
            if future is not None and not future.done():
                future.set_result(message)
        if not alive:
            self._lost()

    def _take_descriptors(self, message: Message, *, keep: bool) -> None:
        """Puts those that came with it in the place of their number; nobody may be there to take them any more."""
        number = int(message["fds"])
        taken, self._inbox.descriptors = self._inbox.descriptors[:number], self._inbox.descriptors[number:]
        message["fds"] = taken
        if not keep:
            for descriptor in taken:
                os.close(descriptor)

    def _lost(self) -> None:
        if self._peer is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._peer.fileno())
        loop.remove_writer(self._peer.fileno())
        self._peer.close()
        was_connected, self._peer, self._connected = self._connected, None, False
        self._unsent.clear()
        self._inbox.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(KeeperUnavailable("the keeper went away before it answered", lost=True))
        if was_connected:
            self._on_lost()

    def _start(self) -> None:
        """Starts a keeper and waits until it is ready or gone: gone is no error, another one may hold the lock."""
        source = str(Path(__file__).parents[3])
        options = {"source": source, "state": str(self._state.absolute()), "for_tests": self._for_tests}
        from paddock.backends.jail import _scope

        own_group = _scope.prefix()
        ran, ready = self._launch(*own_group, options) if own_group is not None else (False, False)
        if not ran:
            _, ready = self._launch([], {}, options)
        text = (self._state / layout.KEEPER_LOG).read_text(errors="replace").strip()
        if not ready and text:
            from paddock.backends.jail import _probe

            if (reason := _probe.unusable()) is not None:
                raise KeeperUnavailable(reason, hint=_probe.remedy(reason))
            raise _could_not_start(text)

    def _launch(self, prefix: list[str], environment: dict[str, str], options: Message) -> tuple[bool, bool]:
        """Whether the program ran, and whether it is the keeper now."""
        log = os.open(self._state / layout.KEEPER_LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            process = subprocess.Popen(
                [*prefix, sys.executable, "-I", "-S", "-c", BOOTSTRAP],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(log)
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(json.dumps(options).encode())
        with process.stdout:
            ready = process.stdout.read(len(READY)) == READY
        return process.wait(START_SECONDS) == 0, ready

    async def aclose(self) -> None:
        if self._connected and self._peer is not None and not self._unsent:
            with contextlib.suppress(OSError):
                self._peer.send(_wire.encode({"op": "bye"}))
        self._connected = False  # it is not lost
        self._lost()
        if self.pool is not None:
            os.close(self.pool)
            self.pool = None


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """What runs in a thread can't be cancelled, only be forgotten, and then starts a keeper that nobody wants."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise


def _error(answer: Message) -> PaddockError:
    text, number = str(answer["error"]), answer.get("errno")
    name = errno.errorcode.get(number) if isinstance(number, int) else None
    if name in _EXHAUSTED:
        hint = _REMEDY.get(name, "paddock doctor")
        return ResourceExhausted(f"the sandbox could not be made: {text}", hint=hint, errno=name)
    if answer.get("kind") in ("PlanError", "MountError"):
        return InvalidArgument(text)
    return InternalError(f"the keeper failed: {text}", hint="paddock doctor", errno=name)


def _could_not_start(text: str) -> PaddockError:
    """By what its log ends with."""
    words = f"the keeper could not start: {text.splitlines()[-1]}"
    if (found := _ERRNO.search(text)) and int(found[1]) in (*OUT_OF, errno.EAGAIN):
        return ResourceExhausted(words, hint="paddock doctor", errno=errno.errorcode[int(found[1])])
    return KeeperUnavailable(words, hint="paddock doctor")
