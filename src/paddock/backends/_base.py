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
)
from paddock.supervisor.layout import RETENTION_SECONDS

from ._stillness import Stillness

R = TypeVar("R")
FROZEN = ".frozen"
"""In the root of a tree: where a level keeps the memory that it has saved. It means nothing to any other."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend can do here. A caller that needs more gets a sentence, not less."""

    isolation: bool
    enforced: frozenset[Limit] = frozenset()
    """Limits that hold and are reported when they strike."""
    watched: frozenset[Limit] = frozenset()
    """Limits that are kept by looking now and then: soft, but reported when they strike."""
    pty: bool = True
    root_user: bool = False
    """`user="root"` works inside."""
    adopt: bool = False
    """A later service finds what an earlier one left running."""
    freeze: bool = False
    """It can be stopped for an instant, and its files are in the tree of its plan."""
    memory: bool = False
    """What is copied then goes on where it stood, memory and all, and at this level only: its tree is no directory of
    files for others."""
    mounts: bool = False
    """Directories of the host can be seen inside."""
    nested: bool = False
    """A sandbox ends at once when its plan's `parent` does."""
    exits: bool = False
    """Programs inside can reach the gateway's sockets, and nothing else."""
    pause: bool = False
    """It can be stopped until it is resumed, whoever lives meanwhile."""
    idle: bool = False
    """It is paused by itself when its plan's `idle_seconds` are over and nobody keeps it awake."""
    sleep: bool = False
    """While it is paused it holds no memory."""
    trees: bool = False
    """Other trees of the pool, and repositories, can be seen inside."""

    def require(self, feature: str, backend: str) -> None:
        if not getattr(self, feature):
            raise UnsupportedError(
                f"backend {backend!r} cannot do {feature!r} here", hint="paddock doctor", feature=feature
            )


class Paused(msgspec.Struct, frozen=True):
    """What is said of a sandbox that stands still: `left_seconds` of its TTL, which stands still too, and until when it
    is kept, in seconds of CLOCK_BOOTTIME. None: its TTL goes on, which `kept_until` is then."""

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
    """A limit for what is in it, for whoever has to look because the pool keeps none."""


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
    incarnation: int = 0
    """Which sandbox of that id it is: one that is made again under its id has a higher one."""
    parent: SandboxId | None = None
    """A living sandbox that this one does not outlive. Needs the capability `nested`."""
    trees: tuple[TreeMount, ...] = ()
    """Seen inside beside it and the mounts of the spec. Needs the capability `trees`."""
    exits: bool = False
    """It has sockets of the gateway's for its only way out; without, it has none. Needs the capability `exits`."""
    begun: bool = False
    """Its tree may have files already: it is a fork, of a snapshot, or was taken back to one."""
    protect: tuple[str, ...] = ()
    """Absolute paths that nobody inside may change, of those that are there. Needs the capability `exits`, too."""
    retention_seconds: float = RETENTION_SECONDS
    """For how long it is kept while it is paused; then it ends, by Limit.RETENTION."""


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


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How an instance ended: the limit that did it, if one did, and words."""

    limit: Limit | None
    reason: str


class Kept(NamedTuple):
    """A command that outlives its daemon: in which sandbox it runs, and for whom (`model.caller.PROCESS`)."""

    sandbox: SandboxId
    owner: str


class Command(ExecHandle, Protocol):
    """A command as its backend holds it."""

    async def keep(self, timeout_seconds: float | None) -> None:
        """Have it outlive this daemon, if this level can do that: another one may `take_up` it where this one was.
        Before anything is read of it. Without a daemon it ends when so many seconds are over."""
        ...

    async def feed(self, data: bytes) -> None:
        """Write `data` to its stdin, and end that."""
        ...

    async def leave(self) -> None:
        """Let go of it: if it is kept it goes on, and else it is killed."""
        ...


class Instance(Protocol):
    """A live sandbox as its backend holds it. Every method may raise SandboxDied."""

    @property
    def id(self) -> SandboxId: ...
    async def start(self, spec: ExecSpec, *, id: ExecId, background: bool) -> Command:
        """RequestError subclasses: NotFoundError (no such program, cwd or user), InvalidArgumentError, Unsupported.

        The timeout of a background command is the backend's to keep, whoever lives: its status then says Limit.TIME.
        That of a foreground command, which ends with the one who started it, is the caller's.
        """
        ...

    async def attach(self, exec: ExecId) -> Command:
        """NotFoundError: no such background command."""
        ...

    async def take_up(self, exec: ExecId) -> Command:
        """One that an earlier daemon kept; what it has read comes again. NotFoundError: it is not kept, or is
        forgotten."""
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
        """Return the next one inside who connects to the unix socket `path`, which is there while somebody waits or is
        served.

        FileError if it cannot be made.
        """
        ...

    async def processes(self) -> tuple[Process, ...]:
        """Every process inside, as the kernel shows them outside: nothing in there is asked."""
        ...

    async def posture(self) -> tuple[Check, ...]:
        """How strong its walls are at this moment, read outside: one line for each fact."""
        ...

    async def set_deadline(self, deadline: float) -> None: ...
    async def usage(self) -> Usage: ...
    def strikes(self) -> Mapping[Limit, int] | None:
        """Those of `usage`, read at once. None where only `usage` tells, or the sandbox is gone."""
        ...

    @property
    def template(self) -> Template:
        """What it was made from, as it was then."""
        ...

    def frozen(self) -> AbstractAsyncContextManager[None]:
        """While the block lasts no process of it runs. Leaving it raises InvalidStateError if that did not hold
        throughout.

        Needs the capability `freeze`.
        """
        ...

    async def pause(self) -> Paused:
        """Wait until no process of it runs. So it stays, whoever lives, until `resume`, `stay_awake` or its end; so
        does its TTL. Idempotent. Needs the capability `pause`. What stands still can be frozen, looked at and killed.
        """
        ...

    async def resume(self) -> float:
        """Return the deadline from now on. Idempotent."""
        ...

    async def stay_awake(self) -> Callable[[], None]:
        """Resumes it if it is paused. Its idle time does not begin before the result was called, or this process has
        ended; if others keep it awake, not before they let go. Needs the capability `idle`."""
        ...

    @property
    def stillness(self) -> Stillness:
        """For how long it has been paused while this instance was there."""
        ...

    async def kill(self) -> None:
        """Wait until no process of the sandbox is left. Idempotent. One that was made again under its id lives on."""
        ...

    async def wait_ended(self) -> Ending:
        """Wait until this one has died, of whatever cause: another of the same id is none of its concern."""
        ...

    async def aclose(self) -> None:
        """Lets go of the sandbox, which lives on."""
        ...


class Ahead(Protocol):
    """Complete sandboxes that a backend has made ahead."""

    def take(self, plan: SandboxPlan) -> SandboxId | None:
        """Return the id of one that can become the sandbox of `plan`, if that gets its id. Its tree is there, and it is
        the caller's: `create`, `give_back` or `forget` follows. None: there is no such spare."""
        ...

    def give_back(self, id: SandboxId) -> None:
        """Put back what was taken and not used."""
        ...


class Backend(Protocol):
    @property
    def spares(self) -> Ahead | None:
        """None where a level keeps none, or takes them by itself."""
        ...

    @property
    def name(self) -> str: ...
    @property
    def level(self) -> Level: ...
    @property
    def capabilities(self) -> Capabilities: ...
    def probe(self) -> str | None:
        """None if usable here, else one sentence that says why not and what would fix it. Cheap: no sandbox is made."""
        ...

    def checks(self) -> tuple[Check, ...]:
        """Lines for `doctor`."""
        ...

    async def create(self, plan: SandboxPlan) -> Instance:
        """All or nothing: when it raises, nothing of the sandbox is left but its tree."""
        ...

    async def adopt(self, id: SandboxId) -> Instance | None:
        """Return the live instance of that id, made by whichever service; None if there is none."""
        ...

    async def exits(self, id: SandboxId, incarnation: int, *, make: bool = False) -> Exits | None:
        """Those of a living one, the caller's own copies. None where the gateway of an earlier service still listens
        there. One that was made without is given them if it is to `make` them. SandboxDiedError; needs the capability
        `exits`, and a plan with them or `make`."""
        ...

    async def living(self) -> Mapping[SandboxId, Ending | None]:
        """Return what the backend holds: None for the living; an Ending for what ended and was not forgotten yet."""
        ...

    async def kept(self) -> Mapping[ExecId, Kept]:
        """Commands that an earlier daemon kept."""
        ...

    async def paused(self) -> Mapping[SandboxId, Paused]:
        """Those of the living that are paused, as the kernel says."""
        ...

    async def forget(self, id: SandboxId) -> None:
        """Drop what is kept about an ended sandbox."""
        ...

    async def aclose(self) -> None: ...
