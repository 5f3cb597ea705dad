"""The isolated computer that a caller holds: what it may use, what of the host it sees, the moves of its life."""

from __future__ import annotations

from enum import StrEnum

from .value import Moment, PerhapsMoment, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .ids import SandboxId
    from .policy import PolicyDocument


class Limit(StrEnum):
    """A limit that struck. `ExecResult.limit` and `Sandbox.limit` name it."""

    MEMORY = "memory"
    PROCESSES = "processes"
    OPEN_FILES = "open_files"
    DISK = "disk"
    INODES = "inodes"
    OUTPUT = "output"
    TIME = "time"
    TTL = "ttl"
    RETENTION = "retention"
    """It was paused, and nobody resumed it for as long as paused sandboxes are kept."""


class Limits(Value, forbid_unknown_fields=True):
    """Limits of one sandbox. All are set before its first instruction.

    `cpus` is a share of processor time per wall time (1.5 = one and a half cores);
    `swap_mib` is what it may use beside `memory_mib`; `tmp_mib` is the size of its /tmp and
    counts as memory; `output_mib` is what one exec may print before it is ended.
    """

    cpus: float = 2.0
    memory_mib: int = 2048
    swap_mib: int = 0
    processes: int = 512
    open_files: int = 4096
    disk_mib: int = 4096
    inodes: int = 500_000
    tmp_mib: int = 512
    output_mib: int = 256


class Usage(Value):
    """What a sandbox uses now. None: this machine cannot tell."""

    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    processes: int | None = None
    cpu_seconds: float | None = None
    disk_bytes: int | None = None
    strikes: dict[Limit, int] = {}


class MountMode(StrEnum):
    """COPY_ON_WRITE: what is written stays in the sandbox. READ_WRITE changes the host's own files at once."""

    COPY_ON_WRITE = "cow"
    READ_ONLY = "ro"
    READ_WRITE = "rw"


class Mount(Value, forbid_unknown_fields=True):
    """The directory `source` of the host (absolute), seen at `target`.

    Inside, the files of the directory's owner belong to the template's default user; those of others to nobody.
    """

    source: str
    target: str = "/workspace"
    mode: MountMode = MountMode.COPY_ON_WRITE


class Level(StrEnum):
    """Strength of the isolation, weakest first. `RANK` orders them."""

    PROCESS = "process"
    LANGUAGE = "language"
    WASM = "wasm"
    CONTAINER = "container"
    JAIL = "jail"
    GVISOR = "gvisor"
    MICROVM = "microvm"


RANK: tuple[Level, ...] = tuple(Level)


class State(StrEnum):
    CREATING = "creating"
    RESTORING = "restoring"
    RUNNING = "running"
    PAUSED = "paused"
    KILLED = "killed"
    FAILED = "failed"


# The lifecycle, as data: every legal move and nothing else.
LEGAL: dict[State, frozenset[State]] = {
    State.CREATING: frozenset({State.RUNNING, State.FAILED, State.KILLED}),
    State.RESTORING: frozenset({State.RESTORING, State.RUNNING, State.PAUSED, State.FAILED, State.KILLED}),
    State.RUNNING: frozenset({State.PAUSED, State.RESTORING, State.KILLED, State.FAILED}),
    State.PAUSED: frozenset({State.RUNNING, State.RESTORING, State.KILLED, State.FAILED}),
    State.KILLED: frozenset(),
    State.FAILED: frozenset(),
}


class SandboxSpec(Value, forbid_unknown_fields=True):
    """What a caller asks for.

    `level=None` takes the default level, which is `jail` unless `config.toml` says otherwise (`paddock doctor`).
    `persistent` means: it outlives the program that made it, until `kill` or its TTL.
    `nested` children at most may be made by programs inside it, each with one part in `nested` of its limits.
    With `snapshot` (an id, a unique prefix of one, or a name) it starts with those files, on the template and the
    mounts that they were made on. With `workspace` (an id, a unique prefix of one, or a name) that one is at
    `/workspace`, and no other living sandbox may write it.
    One that nobody has used for `idle_seconds` is paused until somebody does. While it is paused its TTL stands still.
    Without `policy` it has no network; one from a snapshot has the snapshot's.
    """

    template: str = "host"
    level: Level | None = None
    name: str | None = None
    ttl_seconds: float = 300.0
    persistent: bool = False
    limits: Limits = Limits()
    env: dict[str, str] = {}
    labels: dict[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    snapshot: str | None = None
    nested: int = 0
    workspace: str | None = None
    policy: PolicyDocument | None = None
    idle_seconds: float | None = None


class Sandbox(Value):
    """A sandbox as the records know it. Times are seconds since the epoch."""

    id: SandboxId
    spec: SandboxSpec
    state: State
    level: Level
    backend: str
    template: str
    created_at: float
    expires_at: float
    ended_at: float | None = None
    limit: Limit | None = None
    """The limit that ended it, if one did."""
    reason: str | None = None
    """Why it ended or failed, or that it sleeps on disk, in words."""
    owner: str = ""
    origin: str | None = None
    """The sandbox or the snapshot whose files it started with."""
    policy: str | None = None
    """The revision of its policy, which `spec` does not repeat; None: it has no network."""
    kept_until: float | None = None
    """While it is paused: when it ends, unless it is resumed before. `expires_at` says the same."""
    left_seconds: float | None = None
    """While it is paused: what is left of its TTL, which goes on when it is resumed."""
    created = Moment("created_at")
    expires = Moment("expires_at")
    ended = PerhapsMoment("ended_at")
