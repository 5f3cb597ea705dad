"""Run commands and handle files over connections to a guest: what every level with a guest has in common."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from paddock.backends.base import Command, Paused
from paddock.backends.pause_clock import PauseClock
from paddock.errors import (
    OUT_OF,
    FileError,
    GuestLostError,
    NotFoundError,
    PaddockError,
    SandboxDiedError,
    UnsupportedError,
)
from paddock.linux import subordinate_ids
from paddock.linux.cgroups import Refusals
from paddock.model import (
    Action,
    ByteReader,
    ByteStream,
    ExecId,
    ExecInfo,
    ExecSpec,
    Limit,
    ReadFile,
    SandboxId,
    Template,
    User,
)
from paddock.wire import close_all

from . import orders
from ._files import perform
from ._streams import accept
from .connection import GuestConnection
from .exec import attach, execs, output, signal_exec, start_background, start_foreground, take_up

if TYPE_CHECKING:
    from paddock.backends.jail import DescriptorStore

R = TypeVar("R")
_VERDICT_SECONDS = 10.0
_MOST_TEXT_BYTES = 1 << 20


class GuestInstance:
    """Serve the part of `Instance` that the guest does."""

    def __init__(self, id: SandboxId, template: Template, *, root_user: bool) -> None:
        self.id = id
        self.template = template
        self._root_user = root_user
        self._connections: dict[str, GuestConnection] = {}
        self._connecting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._closings = 0
        self.pause_clock = PauseClock()
        self._refusals: Refusals | None = None
        self.descriptor_store: DescriptorStore | None = None
        """Keeps commands that outlive the daemon, if this level can."""

    async def connect(self, identity: str) -> GuestConnection:
        """Return a new connection to the agent of an identity, `user` (the template's default user) or `root`, or to
        pid 1: `init`. OSError: the sandbox is gone."""
        raise NotImplementedError

    def lost_error(self) -> PaddockError:
        """Return the exception for what was under way when the sandbox died. Backends that know better say more."""
        return SandboxDiedError(f"sandbox {self.id} went away", hint="`paddock ls --all` says why")

    def strikes(self) -> Mapping[Limit, int] | None:
        try:
            if self._refusals is None:
                self._refusals = self.refusals()
            memory, processes = self._refusals.counts()
        except OSError:
            return None
        return {Limit.MEMORY: memory, Limit.PROCESSES: processes}

    def refusals(self) -> Refusals:
        """Return the kernel's counters of refused resources. Raises OSError if it has none, or the sandbox is gone."""
        raise OSError(errno.ENOTSUP, "no control group counts for it")

    async def start(self, spec: ExecSpec, *, id: ExecId, background: bool) -> Command:
        identity, user = self.route(await self.user(spec.user))
        connection = await self.connection(identity)
        if background:
            return await start_background(connection, spec, id, user)
        return await start_foreground(connection, spec, id, user, self.descriptor_store)

    async def take_up(self, exec: ExecId) -> Command:
        if self.descriptor_store is None or not (held := await self.descriptor_store.get(exec)):
            raise NotFoundError(f"nothing is kept of {exec}")
        store = self.descriptor_store
        try:
            return await self._first(lambda connection: take_up(connection, exec, store, held))
        except NotFoundError:
            await store.put(exec, ())
            raise
        finally:
            close_all(held)

    async def attach(self, exec: ExecId) -> Command:
        async def attached(connection: GuestConnection) -> Command:
            handle = attach(connection, exec)
            await handle.started()
            return handle

        return await self._first(attached)

    async def output(self, exec: ExecId, stream: int) -> ByteReader:
        return await self._first(lambda connection: output(connection, exec, stream))

    async def execs(self) -> tuple[ExecInfo, ...]:
        found: list[ExecInfo] = []
        for identity in await self._serving():
            found += await execs(await self.connection(identity))
        return tuple(sorted(found, key=lambda info: info.started_at))

    @property
    def _identities(self) -> tuple[str, ...]:
        return ("user", "root") if self._root_user else ("user",)

    async def _serving(self) -> tuple[str, ...]:
        """Return the identities with an agent. Pid 1 knows if an earlier daemon has used root's. To connect would start
        one."""
        if not self._root_user or "root" in self._connections:
            return self._identities
        with contextlib.closing(await self._new_connection("init")) as control:
            return self._identities if await orders.serves(control, "root") else ("user",)

    async def signal_exec(self, exec: ExecId, number: int) -> None:
        await self._first(lambda connection: signal_exec(connection, exec, number))

    async def file(self, action: Action[R]) -> R:
        identity, other = self.route(await self.user(getattr(action, "user", None)))
        if other is not None:
            raise UnsupportedError(
                f"files cannot be touched as {other.name!r}: that is for root and {self.template.default_user!r}",
                hint=f"do it as root and give it to {other.name!r}, or run a command as {other.name!r}",
            )
        return await perform(await self.connection(identity), action)

    async def accept(self, path: str) -> ByteStream:
        return await accept(await self.connection("user"), path)

    async def pause(self) -> Paused:
        raise _restless()

    async def resume(self) -> float:
        raise _restless()

    async def stay_awake(self) -> Callable[[], None]:
        raise _restless()

    def close_connections(self) -> None:
        """Close all connections. Foreground commands of this instance end with them. A connection in the making is
        closed when it is made."""
        self._closings += 1
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._refusals = None

    async def user(self, name: str | None) -> User:
        """Return a user of the template, or one that a command inside has added since. NotFoundError."""
        user = self.template.user(name)
        if user is None:
            from paddock.storage.templates.images import find_user

            try:
                user = find_user(name or "", await self._text("/etc/passwd"), await self._text("/etc/group"))
            except LookupError as error:
                known = ", ".join(user.name for user in self.template.users)
                raise NotFoundError(f"{error} of {self.id}", hint=f"users of its template: {known}") from None
        self.route(user)
        return user

    async def _text(self, path: str) -> str:
        """Return the beginning of a file inside, or nothing if the guest refuses."""
        action = ReadFile(sandbox=self.id, path=path, length=_MOST_TEXT_BYTES)
        try:
            async with contextlib.aclosing(await perform(await self.connection("user"), action)) as reader:
                data = b""
                while more := await reader.read():
                    data += more
        except FileError:
            return ""
        return data.decode("utf-8", "replace")

    def route(self, user: User) -> tuple[str, User | None]:
        """Which agent acts for a user, and whom it must become, if that is not whom it is."""
        if user.uid == 0 and self._root_user:
            return "root", None  # also where an image runs as root: the agent of its default user has no powers
        if user.name == self.template.default_user:
            return "user", None
        if not self._root_user:
            raise UnsupportedError(
                f"nothing can be done as {user.name!r}: it needs a range of ids, which an ordinary user does not have",
                hint="`subordinate_ids = true` in config.toml gives a new state directory one; else"
                f" {subordinate_ids.as_root()} or leave it to {self.template.default_user!r}",
            )
        return "root", None if user.uid == 0 else user

    async def connection(self, identity: str) -> GuestConnection:
        """Return the living connection of an identity, made when there is none."""
        async with self._connecting[identity]:
            known = self._connections.get(identity)
            if known is not None and not known.closed:
                return known
            closings = self._closings
            if known is not None and isinstance(error := await known.why(), SandboxDiedError):
                raise error
            made = await self._new_connection(identity)
            if closings != self._closings:
                made.close()
                raise self.lost_error()
            if made.closed:  # before a caller could ask why: the next call makes another one
                raise await self._explain(identity, made)
            self._hold(identity, made)
            return made

    async def _new_connection(self, identity: str) -> GuestConnection:
        """Return a new connection. Raises SandboxDiedError, or OSError if this process or the machine lacks
        something."""
        try:
            return await self.connect(identity)
        except OSError as error:
            if error.errno in OUT_OF:
                raise  # it is not the sandbox that is at its end
            raise self.lost_error() from None

    def _hold(self, identity: str, connection: GuestConnection) -> None:
        connection.explain = partial(self._explain, identity, connection)
        connection.pause_clock = self.pause_clock
        self._connections[identity] = connection

    def inherit(self, other: GuestInstance) -> None:
        """Take over the living connections of `other`, which has none then."""
        for identity, connection in other._connections.items():
            if not connection.closed:
                self._hold(identity, connection)
        other._connections.clear()

    async def _explain(self, identity: str, lost: GuestConnection) -> PaddockError:
        """Return why a connection was lost. Only pid 1 can tell a dead agent from a dead sandbox, if it answers."""
        try:
            with contextlib.closing(await self._new_connection("init")) as control:
                async with asyncio.timeout(_VERDICT_SECONDS):
                    alive, number = await orders.verdict(control, identity, lost.peer_pid)
        except SandboxDiedError:
            return self.lost_error()
        except TimeoutError:
            return self._agent_lost(identity, "was lost, and its pid 1 does not answer either")
        except OSError as error:
            return self._agent_lost(identity, f"was lost, and why is not known: {error.strerror}")
        except PaddockError as error:
            return error
        if alive:
            return self._agent_lost(identity, "closed the connection")
        how = "ended" if number is None else f"was killed by signal {number}"
        how += ", and all that it had started was ended"
        return self._agent_lost(identity, how, killed=lost.peer_pid is not None)

    def _agent_lost(self, identity: str, how: str, *, killed: bool = False) -> GuestLostError:
        return GuestLostError(
            f"what serves {identity!r} inside sandbox {self.id} {how}",
            hint="the sandbox lives, and what was asked may have been done in part: look, and try again",
            sandbox=self.id,
            killed=killed,
        )

    async def _first(self, attempt: Callable[[GuestConnection], Awaitable[R]]) -> R:
        """Ask the agent that started the command: `user`, or else `root` if that one was ever used."""
        missing: NotFoundError | None = None
        for identity in self._identities:
            try:
                return await attempt(await self.connection(identity))
            except NotFoundError as error:
                missing = missing or error
        raise cast("Any", missing)


def _restless() -> UnsupportedError:
    return UnsupportedError("a sandbox of this level cannot be paused here", hint="paddock doctor")
