"""A service's side of the gateway: finds it, starts it where there is none, orders."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from paddock.errors import BY_CODE, GatewayUnavailable, InternalError, NotConfigured, PaddockError
from paddock.keeper import layout
from paddock.linux import local_sockets

from ._channel import Channel
from ._control import VERSION, Answer, Claim, Claimed, Close, Hello, Message, Open, Record, Revise, Secret

ATTEMPTS = 50
START_SECONDS = 30.0
S = TypeVar("S", Hello, Open, Revise, Secret, Record, Close)
Judge = Callable[[Claim], Claimed]
"""May be slow by a database's standards, and no slower: it runs in the loop."""


class GatewayClient:
    """One connection, made when first needed. `on_lost()` when the gateway has gone; `judge` answers its claims."""

    def __init__(self, state_dir: Path, *, on_lost: Callable[[], None], judge: Judge) -> None:
        self._state, self._on_lost, self._judge = state_dir, on_lost, judge
        self._channel: Channel | None = None
        self._waiting: dict[int, tuple[asyncio.Future[Answer], Channel]] = {}
        self._numbers = itertools.count(1)
        self._connecting = asyncio.Lock()
        self.doors: dict[str, int] = {}
        """What the gateway had open when it was connected to."""

    async def connect(self, *, start: bool = True) -> bool:
        """False where there is none and none was to be started. NotConfigured: it can't be started, and why."""
        async with self._connecting:
            for _ in range(ATTEMPTS):
                if self._channel is not None or await self._try_connect():
                    return True
                if not start:
                    return False
                await asyncio.shield(asyncio.to_thread(self._start))
        raise NotConfigured("the gateway does not answer", hint=f"see {self._state / layout.GATEWAY_LOG}")

    async def order(self, message: S, sockets: Sequence[socket.socket] = ()) -> Answer:
        """Its number is given here. GatewayUnavailable, NotConfigured, or what the gateway says is wrong."""
        try:
            if self._channel is None:
                await self.connect()
            if (channel := self._channel) is None or channel.closed:
                raise GatewayUnavailable("the gateway went away")
        except BaseException:
            for one in sockets:
                one.close()
            raise
        return await self._exchange(channel, message, sockets)

    async def aclose(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    async def _exchange(self, channel: Channel, message: S, sockets: Sequence[socket.socket] = ()) -> Answer:
        number = next(self._numbers)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (future, channel)
        try:
            channel.send(msgspec.structs.replace(message, n=number), sockets)
            answer = await future
        except ConnectionError as error:
            raise GatewayUnavailable(f"the gateway went away: {error}") from error
        finally:
            self._waiting.pop(number, None)
        if answer.error is not None:
            raise BY_CODE.get(answer.kind or "", InternalError)(answer.error)
        return answer

    async def _try_connect(self) -> bool:
        peer = local_sockets.connect(self._state, layout.GATEWAY_SOCKET)
        if peer is None:
            return False

        def heard(message: Message, _: list[int]) -> None:
            self._heard(channel, message)

        channel = Channel(peer, heard, lambda: self._lost(channel))
        try:
            answer = await self._exchange(channel, Hello(n=0, version=VERSION))
        except GatewayUnavailable:
            return False  # it was just leaving
        except BaseException:
            channel.close()
            raise
        if channel.closed:
            return False
        # Not before it has answered: one that is being killed is still connected to, and nobody's order goes there.
        self._channel, self.doors = channel, dict(answer.doors)
        return True

    def _heard(self, channel: Channel, message: Message) -> None:
        if isinstance(message, Claim):
            self._answer(channel, message)
        elif isinstance(message, Answer):
            future, _ = self._waiting.get(message.n, (None, None))
            if future is not None and not future.done():
                future.set_result(message)

    def _answer(self, channel: Channel, claim: Claim) -> None:
        try:
            answer = self._judge(claim)
        except PaddockError:
            answer = Claimed(n=0, state="denied", reason="the service that was asked failed")
        with contextlib.suppress(ConnectionError):
            channel.send(msgspec.structs.replace(answer, n=claim.n))

    def _lost(self, channel: Channel) -> None:
        for future, asked in self._waiting.values():
            if asked is channel and not future.done():
                future.set_exception(GatewayUnavailable("the gateway went away before it answered"))
        if self._channel is channel:
            self._channel = None
            self._on_lost()

    def _start(self) -> None:
        """Starts one and waits until it is ready or gone. That another one holds the lock is no error, whatever that
        one has written to the log."""
        from ._process import BOOTSTRAP, READY, TAKEN, environment

        here = str(Path(__file__).parents[2])
        path = [here, *(entry for entry in sys.path if os.path.isabs(entry) and entry != here)]
        options: dict[str, Any] = {"path": path, "state": str(self._state.absolute())}
        log = os.open(self._state / layout.GATEWAY_LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", BOOTSTRAP],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(),
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
            begun = process.stdout.read(len(READY)) in (READY, TAKEN)
        process.wait(START_SECONDS)
        text = (self._state / layout.GATEWAY_LOG).read_text(errors="replace").strip()
        if not begun and text:
            raise NotConfigured(
                f"the gateway could not start: {text.splitlines()[-1]}",
                hint=f"see {self._state / layout.GATEWAY_LOG}; without a policy a sandbox needs none",
            )
