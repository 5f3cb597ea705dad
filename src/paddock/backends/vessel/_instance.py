"""A live vessel: its jail, which is asked all that a jail knows, and the guest behind the wall, by way of the pilot."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from paddock.backends._base import Ending
from paddock.backends._guest import GuestConnection
from paddock.backends.jail._backend import JailInstance
from paddock.errors import PaddockError, SandboxDied, SandboxError
from paddock.model import Noun, SandboxId, Template, mint
from paddock.storage._kit import COMMAND

from ._orders import Orders

if TYPE_CHECKING:
    from ._backend import VesselBackend

T = TypeVar("T")
_PILOT = "paddock_pilot"
_LAST_WORDS_SECONDS = 2.0
_MOST_WORDS = 2000
_TRIES = 200
_PAUSE_SECONDS = 0.005


class _Farewell(msgspec.Struct, frozen=True):
    code: int | None
    signal: int | None
    log: str = ""
    words: str = ""

    def sentence(self, what: str) -> str:
        how = f"was ended by signal {self.signal}" if self.signal is not None else f"ended with code {self.code}"
        return f"its {what} {how}{_printable(': ', self.words)}{_printable('; the last that it said: ', self.log)}"


def _printable(before: str, text: str) -> str:
    # It comes from behind the wall: for people to read, and nothing else.
    said = "".join(char if char.isprintable() else " " for char in text[-_MOST_WORDS:]).strip()
    return before + said if said else ""


class _Log(msgspec.Struct, frozen=True):
    log: str


class VesselInstance(JailInstance):
    def __init__(self, backend: VesselBackend, id: SandboxId, template: Template, incarnation: int) -> None:
        super().__init__(backend, id, template, incarnation)
        self._level = backend
        self._agent: GuestConnection | None = None
        self._control: GuestConnection | None = None
        self._guest_init: GuestConnection | None = None
        self._farewell: _Farewell | None = None
        self._listening: asyncio.Task[None] | None = None

    async def turn_to(self) -> None:
        """There is nobody yet."""

    async def init_call(self, request: dict[str, object], type: type[T]) -> T:
        """Asks the guest's init."""
        return await (await self._init()).open(request).call(type)

    async def control_call(self, request: dict[str, object], type: type[T]) -> T:
        """Asks the pilot: `ping`, `log`, `marks`, and what the level's course knows."""
        return await (await self.control()).open(request).call(type)

    async def control(self) -> GuestConnection:
        """The connection with the pilot itself. SandboxDied."""
        if self._control is None or self._control.closed:
            try:
                self._control = await self._handed("control")
            except OSError:
                raise self.lost_error() from None
        return self._control

    async def dial(self, identity: str) -> GuestConnection:
        try:
            return await self._handed(identity)
        except OSError:
            await self._hear_out()
            raise

    async def embark(self, orders: Orders, identities: tuple[str, ...]) -> None:
        """Starts the pilot and waits until the guest has greeted. SandboxDied with its last words, SandboxError."""
        agent = await self._jail_agent()
        config: dict[str, Any] = {"name": _PILOT, "identities": identities, "marks": orders.marks}
        if orders.course is not None:
            config |= {"course": orders.course, "options": orders.options}
        else:
            config["child"] = msgspec.to_builtins(orders.child)
        ours, theirs = socket.socketpair()
        with theirs:
            self._control = GuestConnection(ours)
            self._control.descriptors = False
            argv = [*COMMAND, json.dumps({"pilot": config})]
            request = {"op": "exec", "id": mint(Noun.EXEC), "argv": argv, "cwd": "/", "stdin": True}
            channel = agent.open({**request, "background": True, "vital": True}, fds=[theirs.fileno()])
        await channel.call(dict)
        self.listen()
        greeted = asyncio.ensure_future(self._greeted())
        listening = self._listening
        assert listening is not None
        try:
            await asyncio.wait((greeted, listening), timeout=orders.greeting_seconds, return_when="FIRST_COMPLETED")
            if greeted.done() and greeted.exception() is None:
                return
            if listening.done() or greeted.done():
                await self._hear_out()
                raise self.lost_error()
            log = await self.control_call({"op": "log"}, _Log)
        finally:
            greeted.cancel()
            with contextlib.suppress(asyncio.CancelledError, PaddockError, OSError):
                await greeted
        words = f"nobody answered behind the wall of {self.id} within {orders.greeting_seconds:g} s"
        raise SandboxError(words + _printable("; the last that it said: ", log.log), hint="paddock doctor")

    def listen(self) -> None:
        """For the pilot's last words."""
        if self._listening is None:
            self._listening = self._level.start(self._listen())

    def lost_error(self) -> PaddockError:
        if self._farewell is None:
            return super().lost_error()
        return SandboxDied(f"sandbox {self.id} has died: {self._farewell.sentence(self._level.name)}")

    async def wait_ended(self) -> Ending:
        ending = await super().wait_ended()
        await self._hear_out()
        if self._farewell is None or ending.limit is not None or not ending.reason.startswith("its "):
            return ending
        return Ending(limit=None, reason=self._farewell.sentence(self._level.name))

    def close_connections(self) -> None:
        super().close_connections()
        for connection in (self._agent, self._control, self._guest_init):
            if connection is not None:
                connection.close()

    async def _greeted(self) -> None:
        await self.control_call({"op": "ping"}, dict)  # then the pilot has opened its door
        channel = (await self._init()).open({"op": "ping"})
        await channel.reply(dict)  # it may take long, and nobody is asked meanwhile whether he is still there

    async def _init(self) -> GuestConnection:
        """The guest's, which is none of the identities that serve commands."""
        if self._guest_init is None or self._guest_init.closed:
            try:
                self._guest_init = await self.dial("init")
            except OSError:
                raise self.lost_error() from None
        return self._guest_init

    async def _listen(self) -> None:
        with contextlib.suppress(PaddockError):
            channel = (await self.control()).open({"op": "end"})
            self._farewell = await channel.result(_Farewell)

    async def _hear_out(self) -> None:
        """Until the pilot has said how its child ended, if it is at its end."""
        if self._listening is not None:
            await asyncio.wait((self._listening,), timeout=_LAST_WORDS_SECONDS)

    async def _jail_agent(self) -> GuestConnection:
        if self._agent is None or self._agent.closed:
            self._agent = await self.reach("root" if self._level.as_root and self._level.whole else "user")
        return self._agent

    async def _handed(self, say: str) -> GuestConnection:
        """A connection whose other end the pilot has been given. OSError: there is no pilot."""
        for _ in range(_TRIES):
            ours, theirs = socket.socketpair()
            try:
                with theirs:
                    agent = await self._jail_agent()
                    await agent.open({"op": "hand", "to": _PILOT, "say": say}, fds=[theirs.fileno()]).call(dict)
                connection = GuestConnection(ours)
                connection.descriptors = False
                return connection
            except PaddockError as error:
                ours.close()
                if error.details.get("errno") != "EAGAIN":
                    raise OSError(errno.ECONNREFUSED, error.message) from None
            except BaseException:
                ours.close()
                raise
            await asyncio.sleep(_PAUSE_SECONDS)  # its queue is full
        raise OSError(errno.ETIMEDOUT, "the pilot takes nothing")
