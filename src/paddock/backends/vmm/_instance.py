"""A live VMM: its jail, and the guest inside, which is reached by way of the controller."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from paddock.backends.base import Command, Ending, SandboxPlan
from paddock.backends.guest import PING, EmptyBody, Request, hand, orders, place_of, user_of
from paddock.backends.guest.connection import GuestConnection
from paddock.backends.guest.exec import exec_request, execs, kill_request
from paddock.backends.jail.backend import JailInstance
from paddock.errors import (
    InvalidStateError,
    PaddockError,
    ResourceExhaustedError,
    SandboxDiedError,
    SandboxError,
    UnsupportedError,
    logged,
)
from paddock.model import ExecId, ExecSpec, IdPrefix, SandboxId, SandboxSpec, Template, mint, replace
from paddock.storage.templates.kit import COMMAND
from paddock.supervisor import layout, trust_places
from paddock.vmm.control import pack_orders
from paddock.wire.guest import ExecReply, KillReply, PingReply, Renew, RenewReply
from paddock.wire.guest import PartFlags as Part
from paddock.wire.message import Message

from ._control import Control, Environment, Reply

if TYPE_CHECKING:
    from ._backend import VmmBackend

OWN_VARIABLES = frozenset({"HOME", "USER", "LOGNAME"})  # each agent has its own, with any spec
FOREVER = 1e15  # the supervisor and the jail's pid 1 hold the deadline
_CONTROLLER = "paddock_controller"
_NO_PART = Part(0)
_LAST_WORDS_SECONDS = 2.0
_END_SECONDS = 60.0
_MOST_WORDS = 2000
_TRIES = 200
_PAUSE_SECONDS = 0.005


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """`driver` names the module `vmm/_driver_<driver>.py`, made with `options`, that starts the isolation. `env`: the
    sandbox's own part of its environment, which comes with each command. `waiting`: it ends with the service, until a
    claim."""

    driver: str
    options: dict[str, Any] = {}
    env: dict[str, str] = {}
    waiting: bool = False
    greeting_seconds: float = 60.0
    """How long the guest may take until it says its first word."""


def nobodys(spec: SandboxSpec) -> SandboxSpec:
    """Return `spec` without the parts of one sandbox, for a VMM that any create of its kind may take."""
    return replace(spec, mounts=(), env={}, idle_seconds=None)


def plan_of_nobody(plan: SandboxPlan) -> SandboxPlan:
    return replace(plan, instance_id=0, parent=None, trees=(), protect=(), spec=nobodys(plan.spec))


class _ExitReport(Reply, frozen=True):
    code: int | None
    signal: int | None
    log: str = ""
    words: str = ""

    def sentence(self, what: str) -> str:
        how = f"was ended by signal {self.signal}" if self.signal is not None else f"ended with code {self.code}"
        return f"its {what} {how}{_printable(': ', self.words)}{_printable('; the last that it said: ', self.log)}"


def _printable(before: str, text: str) -> str:
    # It comes from behind the isolation: for people to read, and nothing else.
    printable = "".join(char if char.isprintable() else " " for char in text[-_MOST_WORDS:]).strip()
    return before + printable if printable else ""


class _Log(Reply, frozen=True):
    log: str


class _PingReply(Reply, frozen=True):
    restored: bool


class VmmInstance(JailInstance):
    def __init__(
        self, backend: VmmBackend, id: SandboxId, template: Template, instance_id: int, env: Mapping[str, str]
    ) -> None:
        super().__init__(backend, id, template, instance_id, env)
        self._level = backend
        self._agent: GuestConnection | None = None
        self._control: Control | None = None
        self._guest_init: GuestConnection | None = None
        self._exit_report: _ExitReport | None = None
        self._environment: dict[str, str] | None = None
        """The environment for each command. Of a VMM that an earlier daemon made, the controller knows it."""
        self._listening: asyncio.Task[None] | None = None
        self._trusted: tuple[int, int] | None = None
        """The stamp of the certificates that its programs trust."""
        self._resumptions = 0
        """How often a caller has asked for a resume."""
        self.copying = asyncio.Lock()
        """One copy at a time: the state is saved for one alone."""

    async def turn_to(self) -> None:
        """Do nothing: no agent runs yet."""

    async def start(self, spec: ExecSpec, *, id: ExecId, background: bool) -> Command:
        """Start a command with the sandbox's own environment, which a guest that was started for any sandbox doesn't
        know."""
        await self._trust()
        if self._environment is None:
            self._environment = (await (await self.control()).call("environment", Environment)).env
        if self._environment:
            spec = replace(spec, env={**self._environment, **spec.env})
        return await super().start(spec, id=id, background=background)

    async def _trust(self) -> None:
        """Copy the certificates into the guest if the daemon has changed them (`access/_trust`). A jail sees changes
        at once."""
        directory = self._level.directory / layout.RUN / self.id
        try:
            info = (directory / layout.TRUST).stat()
        except FileNotFoundError:  # it has no network access
            return
        stamp = (info.st_mtime_ns, info.st_size)
        if info.st_size and stamp != self._trusted:
            for name, place, systems in trust_places.KINDS:
                over = [f"/{path.decode()}" for path in systems]
                await self.order(orders.trust(f"/{place}", over, (directory / name).read_bytes()))
            self._trusted = stamp

    async def run(self, spec: ExecSpec) -> None:
        """Run a command to its end, and ignore its result."""
        handle = await self.start(spec, id=ExecId(mint(IdPrefix.EXEC)), background=False)
        try:
            await handle.wait()
        finally:
            await handle.aclose()

    async def begin(self) -> None:
        """Tells pid 1 which agents it is to have."""
        for name in self._level.identities:
            if name != "init":
                user = user_of(name, self.template)
                await self.order(orders.identity(name, user, tells=self._level.tells, filter=b""))
        await self.order(orders.begin(deadline=FOREVER, idle=0.0, retention=0.0, limits={}))

    async def end_copies(self) -> None:
        """End the commands that clients held in the sandbox that this memory comes from. No client holds them here.
        Raises SandboxError if they don't end."""
        try:
            async with asyncio.timeout(_END_SECONDS):
                for identity in await self._serving():
                    connection = await self.connection(identity)
                    for info in await execs(connection):
                        if not info.background and info.status is None:
                            await connection.open(kill_request(info.id)).call(KillReply)
        except TimeoutError:
            words = f"the commands that {self.id} was copied with did not end within {_END_SECONDS:g} s"
            raise SandboxError(words, hint="end them, and copy it again") from None

    async def order(self, order: Request) -> None:
        """To the guest's pid 1."""
        await (await self._init()).open(order).call(EmptyBody)

    async def tell(self, renewal: Renew, *, may_fail: Part = _NO_PART) -> Part:
        """Return what it is from here on; what of that is done. InvalidState."""
        answer = await (await self._init()).open(orders.renew(renewal)).call(RenewReply)
        if failed := Part(answer.failed) & ~may_fail:
            names = ", ".join(sorted(str(part.name).lower() for part in failed))
            raise InvalidStateError(
                f"the guest of {self.id} was not renewed: {names}", hint="make it from its template"
            )
        return Part(answer.done)

    async def control(self) -> Control:
        """Return the connection with the controller itself. SandboxDied."""
        if self._control is None or self._control.closed:
            try:
                self._control = Control(await self._handed("control"), self.pause_clock)
            except OSError:
                raise self.lost_error() from None
        return self._control

    async def connect(self, identity: str) -> GuestConnection:
        place = place_of(identity, self.template, self.template.env, self._level.oom_score)
        try:
            connection = GuestConnection(await self._handed(identity), place)
        except OSError:
            await self._hear_out()
            raise
        connection.descriptors = False
        connection.tells = self._level.tells
        return connection

    async def start_vmm(self, launch: Orders) -> None:
        """Start the controller and wait until the guest has begun. SandboxDiedError with its last words,
        SandboxError."""
        self._environment = launch.env
        config = {**msgspec.structs.asdict(launch), "name": _CONTROLLER, "identities": self._level.identities}
        self._control = await self._set_out(config)
        self.listen()
        greeted = asyncio.ensure_future(self._greeted())
        listening = self._listening
        assert listening is not None
        try:
            await asyncio.wait((greeted, listening), timeout=launch.greeting_seconds, return_when="FIRST_COMPLETED")
            if greeted.done() and greeted.exception() is None:
                return
            if listening.done() or greeted.done():
                raise await self._early_end(greeted)
            log = await (await self.control()).call("log", _Log)
        finally:
            greeted.cancel()
            with contextlib.suppress(asyncio.CancelledError), logged("hear the guest's greeting", self.id):
                await greeted
        words = f"the guest of {self.id} did not answer within {launch.greeting_seconds:g} s"
        hint = "paddock doctor; or try again when the machine is less busy"
        raise SandboxError(words + _printable("; the last that it said: ", log.log), hint=hint)

    async def _early_end(self, greeted: asyncio.Future[None]) -> PaddockError:
        """By the controller's last words, the supervisor's, or what kept the guest from greeting."""
        await self._hear_out()
        if self._exit_report is None:
            ending = self._level.ending(self.id, self._instance_id)
            await asyncio.wait((ending,), timeout=_LAST_WORDS_SECONDS)
            if ending.done():
                return SandboxDiedError(f"sandbox {self.id} has died: {ending.result().reason}")
            if greeted.done() and isinstance(error := greeted.exception(), PaddockError):
                return error
        return self.lost_error()

    async def _set_out(self, config: dict[str, Any]) -> Control:
        """Start the controller, and send its configuration over a socket that no other process reads. SandboxDied."""
        spec, place = ExecSpec(argv=COMMAND, cwd="/", stdin=True), (await self._jail_agent()).place
        request = exec_request(place, spec, ExecId(mint(IdPrefix.EXEC)), None, background=True, vital=True)
        async with self._passed(request, ExecReply) as stream:
            stream.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_sendall(stream, pack_orders(config))
            except OSError:
                raise self.lost_error() from None
        return Control(stream, self.pause_clock)

    @contextlib.asynccontextmanager
    async def _passed(self, request: Request, reply: type[Message]) -> AsyncGenerator[socket.socket]:
        """Yield a socket whose other end goes to the jail's agent with the request. Close it if the block fails."""
        agent = await self._jail_agent()
        ours, theirs = socket.socketpair()
        try:
            await agent.open(request, fds=[theirs.detach()]).call(reply)
            yield ours
        except BaseException:
            ours.close()
            raise

    def take_over(self, other: VmmInstance) -> None:
        """All that `other` holds of this VMM, whose name was another until now."""
        if other._listening is not None:
            other._listening.cancel()
        self._agent, self._control, self._guest_init = other._agent, other._control, other._guest_init
        other._agent = other._control = other._guest_init = None
        if self._control is not None:
            self._control.pause_clock = self.pause_clock
        self.inherit(other)

    async def claim(self, env: dict[str, str]) -> None:
        """Has the controller know that it is a sandbox's: it outlives this service from now on."""
        await (await self.control()).call("claim", env=env)
        self._environment = env
        self.listen()

    @contextlib.asynccontextmanager
    async def kept_awake(self, idle_seconds: float | None) -> AsyncGenerator[None]:
        """Keep its idle time from starting before a caller can use it: its start may take longer than that."""
        let_go = None if idle_seconds is None else await self.stay_awake()
        try:
            yield
        finally:
            if let_go is not None:
                let_go()

    async def resume(self) -> float:
        self._resumptions += 1
        return await super().resume()

    async def stay_awake(self) -> Callable[[], None]:
        self._resumptions += 1
        return await super().stay_awake()

    @contextlib.asynccontextmanager
    async def roused(self) -> AsyncGenerator[None]:
        """Let the controller of a paused sandbox go on while the block runs. It is paused with the rest."""
        stood, resumptions = self.pause_clock.now, self._resumptions
        if stood:
            await super().resume()
        try:
            yield
        finally:
            if stood and resumptions == self._resumptions:  # else a caller uses it by now
                with contextlib.suppress(SandboxDiedError):  # the next call gets the error
                    await self.pause()

    @contextlib.asynccontextmanager
    async def saved(self, *, fds: Sequence[int] = (), **fields: Any) -> AsyncGenerator[None]:
        """All stands, and its memory is saved, while the block runs. UnsupportedError: it cannot be saved."""
        control = await self.control()
        try:
            try:
                await control.call("freeze", seconds=None, fds=fds, **fields)
            except UnsupportedError:
                raise
            except PaddockError as error:
                if error.details.get("errno") == "ENOSPC":
                    hint = "`paddock gc` makes room; df -h; paddock doctor --storage"
                    raise ResourceExhaustedError(error.message, hint=hint) from None
                raise (await self.last_words() or error) from None  # that it has died says more
            yield
        finally:
            with logged("thaw", self.id):  # the next who copies it finds it running
                if self.pause_clock.now:  # paused in the block, the controller doesn't answer
                    control.tell("thaw")
                else:
                    await control.call("thaw")

    def listen(self) -> None:
        """For the controller's last words."""
        if self._listening is None:
            self._listening = self._level.start(self._listen())

    def lost_error(self) -> PaddockError:
        if self._exit_report is None:
            return super().lost_error()
        return SandboxDiedError(f"sandbox {self.id} has died: {self._exit_report.sentence(self._level.name)}")

    async def _explain(self, identity: str, lost: GuestConnection) -> PaddockError:
        error = await super()._explain(identity, lost)
        return (await self.last_words()) or error if isinstance(error, SandboxDiedError) else error

    async def last_words(self) -> PaddockError | None:
        """None: it lives."""
        await self._hear_out()
        return None if self._exit_report is None else self.lost_error()

    async def wait_ended(self) -> Ending:
        ending = await super().wait_ended()
        await self._hear_out()
        if self._exit_report is None or ending.limit is not None or not ending.reason.startswith("its "):
            return ending
        return Ending(limit=None, reason=self._exit_report.sentence(self._level.name))

    def close_connections(self) -> None:
        super().close_connections()
        for connection in (self._agent, self._control, self._guest_init):
            if connection is not None:
                connection.close()

    async def _greeted(self) -> None:
        # The controller may make disks first, which may take long on a busy machine: this wait has no timeout.
        pinged = await (await self.control()).call("ping", _PingReply, seconds=None)  # then it listens
        await (await self._init()).open(PING).reply(PingReply)
        if not pinged.restored:
            await self.begin()

    async def _init(self) -> GuestConnection:
        """Return the guest's, which is none of the identities that serve commands."""
        if self._guest_init is None or self._guest_init.closed:
            try:
                self._guest_init = await self.connect("init")
            except OSError:
                raise self.lost_error() from None
        return self._guest_init

    async def _listen(self) -> None:
        with logged("hear the end", self.id):
            self._exit_report = await (await self.control()).call("end", _ExitReport, seconds=None)

    async def _hear_out(self) -> None:
        """Until the controller has said how its child ended, if it is at its end."""
        if self._listening is not None:
            await asyncio.wait((self._listening,), timeout=_LAST_WORDS_SECONDS)

    async def _jail_agent(self) -> GuestConnection:
        if self._agent is None or self._agent.closed:
            self._agent = await self.reach(self._jail_identity)
        return self._agent

    @property
    def _jail_identity(self) -> str:
        return "root" if self._level.whole else "user"

    async def _handed(self, say: str) -> socket.socket:
        """Return a socket whose other end the controller has. Raises OSError without a controller."""
        for _ in range(_TRIES):
            try:
                async with self._passed(hand(_CONTROLLER, say), EmptyBody) as stream:
                    return stream
            except PaddockError as error:
                if error.details.get("errno") != "EAGAIN":
                    raise OSError(errno.ECONNREFUSED, error.message) from None
            await asyncio.sleep(_PAUSE_SECONDS)  # its queue is full
        raise OSError(errno.ETIMEDOUT, "the controller takes nothing")
