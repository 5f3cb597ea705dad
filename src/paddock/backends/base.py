"""The contract of a backend. `tests.conformance` checks every promise made here."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from paddock.errors import UnsupportedError
from paddock.model import (
    Action,
    ByteReader,
    ByteStream,
    Check,
    ExecHandle,
    ExecId,
    ExecInfo,
    ExecSpec,
    Level,
    Limit,
    Process,
    SandboxId,
    SandboxSpec,
    Template,
    Usage,
    User,
)
from paddock.supervisor.layout import RETENTION_SECONDS
from paddock.wire import close_all

from .pause_clock import PauseClock

R = TypeVar("R")
FROZEN = ".frozen"
"""In the root of a tree: where a level keeps the memory that it has saved. It means nothing to any other."""

_FEATURES = {
    "exits": "network policies",
    "freeze": "snapshots, forks and rollbacks",
    "idle": "idle timeouts",
    "nested": "sandboxes inside",
    "pause": "pausing",
    "pty": "terminals",
    "trees": "workspaces",
}


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """State what a backend can do here. A request for more gets an error, never less than it asked for."""

    isolation: bool
    enforced: frozenset[Limit] = frozenset()
    """Limits that the kernel enforces. The result names one that was exceeded."""
    watched: frozenset[Limit] = frozenset()
    """Limits that paddock enforces by measuring now and then: soft, but the result names one that was exceeded."""
    pty: bool = True
    root_user: bool = False
    """`user="root"` works inside."""
    adopt: bool = False
    """A later service finds what an earlier one left running."""
    freeze: bool = False
    """It can stop for an instant, and its files are in the tree of its plan."""
    memory: bool = False
    """A copy continues with its memory, at this level alone: no other level can use its tree as files."""
    mounts: bool = False
    """It can mount directories of the host."""
    nested: bool = False
    """A sandbox ends at once when its plan's `parent` does."""
    exits: bool = False
    """Programs inside can reach the gateway's sockets, and nothing else."""
    pause: bool = False
    """It can be paused until a resume. The daemon's end doesn't resume it."""
    idle: bool = False
    """It pauses itself after its plan's `idle_seconds` without use."""
    trees: bool = False
    """It can mount other trees of the pool, and repositories."""

    def require(self, feature: str, backend: str) -> None:
        if not getattr(self, feature):
            raise UnsupportedError(
                f"level {backend!r} doesn't support {_FEATURES.get(feature, feature)} here",
                hint="paddock doctor",
                feature=feature,
            )


class Paused(msgspec.Struct, frozen=True):
    """Describe a paused sandbox: `left_seconds` of its TTL, which stops too, and until when it is kept, in seconds of
    CLOCK_BOOTTIME. None: its TTL goes on and ends at `kept_until`."""

    left_seconds: float | None
    kept_until: float


class TreeMount(msgspec.Struct, frozen=True, kw_only=True):
    """The pool's tree of that name at `target`, over the trees `layers` (topmost first).

    `rp_…` is the repository of that id, which lies outside the pool and is never writable.
    """

    tree: str
    target: str
    writable: bool
    layers: tuple[str, ...] = ()
    disk_bytes: int | None = None
    """A limit for its content, which the backend measures if the pool enforces none."""


class SandboxPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a backend needs to make one sandbox: decided, resolved, nothing left to look up.

    `tree` names a tree in the pool that storage has made and that is this sandbox's own.
    `deadline` is in seconds of CLOCK_BOOTTIME, which no clock change moves.
    """

    id: SandboxId
    hostname: str
    spec: SandboxSpec
    template: Template
    tree: str
    deadline: float
    instance_id: int = 0
    """The number of this sandbox among those with its id: a restored one has a higher number."""
    parent: SandboxId | None = None
    """A living sandbox that this one does not outlive. Needs the capability `nested`."""
    trees: tuple[TreeMount, ...] = ()
    """Seen inside beside it and the mounts of the spec. Needs the capability `trees`."""
    exits: bool = False
    """It has sockets of the gateway, its only network access; otherwise it has none. Needs the capability `exits`."""
    begun: bool = False
    """Its tree may have files already: it is a fork, comes from a snapshot, or was rolled back."""
    protect: tuple[str, ...] = ()
    """Absolute paths that stay as they are, if they exist. Needs the capability `exits`, too."""
    retention_seconds: float = RETENTION_SECONDS
    """Seconds that it is kept while paused. Then it ends, by Limit.RETENTION."""


class Exits(NamedTuple):
    """The sockets, of this process, where the calls of a sandbox to anywhere arrive: `linux.nft` says how.

    Connections, one socket for each version of IP, which know by SO_ORIGINAL_DST where they were to go; then questions
    for a resolver, by datagram and by connection. The last one tells whose a connection is (`linux.sock_diag`).
    `process` is a pidfd of pid 1 of the sandbox, `first` its pid and its start time in ticks since boot.
    """

    sockets: tuple[socket.socket, ...]
    process: int
    first: tuple[int, int]

    def detach(self) -> tuple[int, ...]:
        """All descriptors, in this order. They are the caller's from now on."""
        return (*(one.detach() for one in self.sockets), self.process)

    def close(self) -> None:
        close_all(self.detach())


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How an instance ended: the limit that did it, if one did, and words."""

    limit: Limit | None
    reason: str


class BackendState(NamedTuple):
    """The sandboxes of a backend at one moment."""

    living: Mapping[SandboxId, Ending | None]
    """None for a living one, and the end of one that has ended and was not forgotten yet."""
    paused: Mapping[SandboxId, Paused]
    """The paused ones among the living, as the kernel says."""


class KeptExec(NamedTuple):
    """A command that outlives its daemon: in which sandbox it runs, and for whom (`SessionProcess.name`)."""

    sandbox: SandboxId
    owner: str


class Command(ExecHandle, Protocol):
    """A command as its backend holds it."""

    async def keep(self, timeout_seconds: float | None) -> None:
        """Let it outlive this daemon, if this level can do that; another daemon continues with `take_up`. Call it
        before anything is read. Without a daemon it ends after so many seconds."""
        ...

    async def feed(self, data: bytes) -> None:
        """Write `data` to its stdin, and end that."""
        ...

    async def leave(self) -> None:
        """Let go of it: a kept command continues, any other is killed."""
        ...


class Instance(Protocol):
    """A live sandbox as its backend holds it. Every method may raise SandboxDied."""

    @property
    def id(self) -> SandboxId: ...
    async def start(self, spec: ExecSpec, *, id: ExecId, background: bool) -> Command:
        """Start a command. Raises RequestError subclasses: NotFoundError (no such program, cwd or user),
        InvalidArgumentError, UnsupportedError.

        The backend enforces the timeout of a background command, with or without a daemon, and its status then says
        Limit.TIME. The caller enforces that of a foreground command, which ends with its connection.
        """
        ...

    async def user(self, name: str | None) -> User:
        """Return a user of the template, or one that a command inside has added since. NotFoundError, and
        UnsupportedError if it needs ids that the sandbox doesn't have."""
        ...

    async def attach(self, exec: ExecId) -> Command:
        """NotFoundError: no such background command."""
        ...

    async def take_up(self, exec: ExecId) -> Command:
        """Return a command that an earlier daemon kept. Its output comes again from the first kept byte. Raises
        NotFoundError if it isn't kept, or is forgotten."""
        ...

    async def output(self, exec: ExecId, stream: int) -> ByteReader:
        """Return what a background command has printed until now on stdout (1) or stderr (2). NotFoundError: no such
        one."""
        ...

    async def execs(self) -> tuple[ExecInfo, ...]: ...
    async def signal_exec(self, exec: ExecId, number: int) -> None: ...
    async def file(self, action: Action[R]) -> R:
        """Any action whose tag starts with `file.`, `tree.` or `port.`; FileError with the errno's name."""
        ...

    async def accept(self, path: str) -> ByteStream:
        """Return the next connection of a program inside to the unix socket `path`. The socket exists while a caller
        waits or is served. Raises FileError if it can't be made."""
        ...

    async def processes(self) -> tuple[Process, ...]:
        """Return every process inside, as the kernel shows them outside: it asks nothing inside."""
        ...

    async def posture(self) -> tuple[Check, ...]:
        """Check the isolation at this moment, from outside: one line for each fact."""
        ...

    async def set_deadline(self, deadline: float) -> None: ...
    async def usage(self) -> Usage: ...
    def strikes(self) -> Mapping[Limit, int] | None:
        """Return the exceeded limits of `usage` at once; None if only `usage` knows them, or the sandbox is gone."""
        ...

    @property
    def template(self) -> Template:
        """Return the template that it was made from, as it was then."""
        ...

    def frozen(self) -> AbstractAsyncContextManager[None]:
        """While the block lasts no process of it runs. Leaving it raises InvalidStateError if that did not hold
        throughout.

        Needs the capability `freeze`.
        """
        ...

    async def pause(self) -> Paused:
        """Wait until none of its processes runs. It stays paused, and so does its TTL, until `resume`, `stay_awake` or
        its end. Idempotent. Needs the capability `pause`. A paused sandbox can be frozen, inspected and killed."""
        ...

    async def resume(self) -> float:
        """Return the deadline from now on. Idempotent."""
        ...

    async def stay_awake(self) -> Callable[[], None]:
        """Resume it if it is paused. Its idle time starts when the caller calls the result, or this process has ended,
        and no other holder keeps it awake. Needs the capability `idle`."""
        ...

    @property
    def pause_clock(self) -> PauseClock:
        """Return the clock of its pauses since this instance exists."""
        ...

    async def kill(self) -> None:
        """Wait until no process of the sandbox is left. Idempotent. A later sandbox with its id lives on."""
        ...

    async def wait_ended(self) -> Ending:
        """Wait until this one has died, of any cause. Another with the same id doesn't count."""
        ...

    async def aclose(self) -> None:
        """Lets go of the sandbox, which lives on."""
        ...


class SpareStock(Protocol):
    """Complete sandboxes that a backend has made ahead."""

    def take(self, plan: SandboxPlan) -> SandboxId | None:
        """Return the id of a spare that can become the sandbox of `plan`, if that takes its id. Its tree exists, and it
        belongs to the caller: `create`, `give_back` or `forget` follows. Return None without such a spare."""
        ...

    def give_back(self, id: SandboxId) -> None:
        """Put back a spare that was taken and not used."""
        ...


class Backend(Protocol):
    @property
    def spares(self) -> SpareStock | None:
        """None where a level keeps none, or takes them by itself."""
        ...

    @property
    def name(self) -> str: ...
    @property
    def level(self) -> Level: ...
    @property
    def capabilities(self) -> Capabilities: ...
    def probe(self) -> str | None:
        """Return None if it works here, else one sentence with the reason and the fix. Cheap: it makes no sandbox."""
        ...

    def checks(self) -> tuple[Check, ...]:
        """Lines for `doctor`."""
        ...

    async def create(self, plan: SandboxPlan) -> Instance:
        """Make a sandbox. If it raises, nothing of the sandbox is left but its tree."""
        ...

    async def adopt(self, id: SandboxId) -> Instance | None:
        """Return the live instance of that id, made by whichever service; None if there is none."""
        ...

    async def exits(self, id: SandboxId, instance_id: int, *, make: bool = False) -> Exits | None:
        """Return the exits of a living one, as the caller's own copies. None if the gateway of an earlier daemon still
        listens there. `make` gives exits to one that has none. Raises SandboxDiedError. Needs the capability `exits`,
        and a plan with them or `make`."""
        ...

    async def state(self) -> BackendState: ...

    async def kept(self) -> Mapping[ExecId, KeptExec]:
        """Commands that an earlier daemon kept."""
        ...

    async def forget(self, id: SandboxId) -> None:
        """Drop what is known about an ended sandbox."""
        ...

    async def aclose(self) -> None: ...
