"""The daemon's side of the gateway: finds it, starts it where there is none, orders."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from paddock.errors import GatewayUnavailableError, NotConfiguredError, PaddockError
from paddock.linux import local_sockets
from paddock.linux.python import module_path
from paddock.model import ApprovalAnswer, ApprovalRequest, ApprovalState, codec
from paddock.supervisor import layout
from paddock.wire import Frame, Kind, WireError, close_all
from paddock.wire.duplex import Attempt, Duplex, NoAnswer, NotSent, OtherVersion, greet

from .control import VERSION, Hello, Order, Welcome

START_SECONDS = 30.0
# The program of the daemon's child: `python -I -S -c BOOTSTRAP`, with {"path", "state", "listener"} as JSON on stdin.
BOOTSTRAP = (
    "import sys,json;o=json.load(sys.stdin);sys.path[:0]=o['path'];from paddock.gateway.main import main;main(o)"
)
_KEPT = ("SSL_CERT_FILE", "SSL_CERT_DIR", "LANG", "LC_ALL", "TZ")
Approver = Callable[[ApprovalRequest], ApprovalAnswer]
"""Answers requests for approval. It may take as long as a database query, because it runs in the loop."""


class GatewayClient:
    """The only control connection, which the first use opens.

    `on_lost()` runs when the gateway has died.

    `approve` answers its requests for approval.
    """

    def __init__(self, state_dir: Path, *, on_lost: Callable[[], None], approve: Approver) -> None:
        self._state, self._on_lost, self._approve = state_dir, on_lost, approve
        self._connection: Duplex | None = None
        self._attempt = Attempt()
        self.pid = 0

    async def connect(self, *, start: bool = True) -> bool:
        """Connect. Return False without a gateway if `start` is False. Raise NotConfiguredError if it can't start."""
        if self._connection is not None:
            return True
        try:
            if await self._attempt.join(partial(self._connect, start)):
                return True
        except NoAnswer as error:
            raise GatewayUnavailableError(
                f"the gateway hangs: {error}",
                hint=f"kill -9 {error.pid}; paddock starts the next one, which gets all rules",
            ) from None
        return start and await self.connect()  # the attempt that was joined starts none

    async def _connect(self, start: bool, on_silence: Callable[[NoAnswer], object]) -> bool:
        if await self._greet(on_silence):
            return True
        if not start:
            return False
        await asyncio.to_thread(self._start)
        if await self._greet(on_silence):
            return True
        log = self._state / layout.GATEWAY_LOG
        text = log.read_text(errors="replace").strip() or "it died"
        raise NotConfiguredError(
            f"the gateway could not start: {text.splitlines()[-1]}",
            hint=f"see {log}; without a policy a sandbox needs none",
        )

    async def order(self, order: Order, descriptors: tuple[int, ...] = ()) -> bytes:
        """Send an order and return its answer. Close `descriptors`. Raise GatewayUnavailableError, NotConfiguredError,
        or the gateway's own error."""
        try:
            await self.connect()
            if self._connection is None:
                raise GatewayUnavailableError("the gateway went away")
        except BaseException:
            close_all(descriptors)
            raise
        try:
            answer = await self._connection.ask(codec.encode(order), descriptors)
        except ConnectionError as error:
            raise GatewayUnavailableError(f"the gateway went away: {error}") from error
        if answer.kind is Kind.ERROR:
            raise codec.decode_error(answer.body)
        return answer.body

    def close(self) -> None:
        self._attempt.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def _greet(self, on_silence: Callable[[NoAnswer], object]) -> bool:
        connect = partial(local_sockets.connect, self._state, layout.GATEWAY_SOCKET)
        try:
            hello = codec.encode(Hello(version=VERSION))
            greeting = await greet(connect, hello, self._on_frame, self._lost, on_silence)
            if greeting is None:
                return False
            connection, answer = greeting
            if answer.kind is Kind.ERROR:
                connection.close()
                raise codec.decode_error(answer.body)
        except OtherVersion as error:
            raise NotConfiguredError(
                f"the gateway of another version of paddock serves this state directory (process {error.pid})",
                hint=f"end it, and paddock starts its own: kill {error.pid}",
            ) from None
        self._connection, self.pid = connection, codec.decode(answer.body, Welcome).pid
        return True

    def _on_frame(self, connection: Duplex, frame: Frame) -> None:
        close_all(frame.descriptors)
        try:
            request = codec.decode(frame.body, ApprovalRequest)
        except codec.Malformed as error:
            raise WireError(f"not a request for approval: {error}") from None
        try:
            answer = self._approve(request)
        except PaddockError:
            reason = "the daemon failed when it was asked"
            answer = ApprovalAnswer(granted=False, state=ApprovalState.DENIED, reason=reason)
        with contextlib.suppress(NotSent):
            connection.send(Kind.REPLY, frame.channel, codec.encode(answer))

    def _lost(self, connection: Duplex) -> None:
        if self._connection is connection:
            self._connection = None
            self._on_lost()

    def _start(self) -> None:
        """Start the gateway with the listening socket. It listens from its first moment to its last, so every
        connection meets it."""
        log = os.open(self._state / layout.GATEWAY_LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with local_sockets.listen(self._state, layout.GATEWAY_SOCKET) as listener:
                options = {"path": module_path(), "state": str(self._state.absolute()), "listener": listener.fileno()}
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", BOOTSTRAP],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    env=_environment(),
                    cwd="/",
                    start_new_session=True,
                    pass_fds=(listener.fileno(),),
                )
        finally:
            os.close(log)
        process.communicate(json.dumps(options).encode(), START_SECONDS)


def _environment() -> dict[str, str]:
    """Return the daemon's variables that the gateway gets: where the certificates are that it trusts."""
    return {name: value for name in _KEPT if (value := os.environ.get(name))}
