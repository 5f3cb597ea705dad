"""The sandbox: its limits, its mounts of the host's directories, and its states."""

from __future__ import annotations

from enum import StrEnum

from .value import DatetimeField, OptionalDatetimeField, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .ids import SandboxId
    from .policy import PolicyDocument


class Limit(StrEnum):
    """A limit that a sandbox exceeded. `ExecResult.limit` and `Sandbox.limit` name it."""

    MEMORY = "memory"
    PROCESSES = "processes"
    OPEN_FILES = "open_files"
    DISK = "disk"
    INODES = "inodes"
    OUTPUT = "output"
    TIME = "time"
    TTL = "ttl"
    RETENTION = "retention"
    """It stayed paused for longer than paddock keeps paused sandboxes."""


class Limits(Value, forbid_unknown_fields=True):
    """Limits of one sandbox, which hold from its first instruction on.

    `cpus` is a share of processor time (1.5 is one and a half cores). `swap_mib` comes on top of `memory_mib`.
    `tmp_mib` is the size of its /tmp, which counts as memory. A command that prints more than `output_mib` ends.

    Example:
        ```python
        with Sandbox.create(limits=Limits(memory_mib=512, processes=64)) as other:
            print(other.info.spec.limits.memory_mib)  # 512
        ```
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
    """The resources that a sandbox uses now. None: this machine can't tell.

    `strikes` counts how often it exceeded each limit.

    Example:
        ```python
        usage = sandbox.usage()
        print(usage.memory_bytes, usage.cpu_seconds, usage.disk_bytes)
        ```
    """

    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    processes: int | None = None
    cpu_seconds: float | None = None
    disk_bytes: int | None = None
    strikes: dict[Limit, int] = {}


class MountMode(StrEnum):
    """The effect of writes to a mount.

    COPY_ON_WRITE keeps them in the sandbox. READ_WRITE changes the host's own files at once.
    """

    COPY_ON_WRITE = "cow"
    READ_ONLY = "ro"
    READ_WRITE = "rw"


class Mount(Value, forbid_unknown_fields=True):
    """The directory `source` of the host, seen at `target`.

    Inside, files of the directory's owner belong to the template's default user. Files of others belong to user 65534.

    Example:
        ```python
        with Sandbox.create(mounts=[Mount(source="./project", mode=MountMode.READ_ONLY)]) as other:
            print(other.exec("ls").stdout)  # README.md
        ```
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
    """The state of a sandbox. `killed` and `failed` are final."""

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
    """A request for a sandbox.

    `level=None` takes the default level, which is `jail` unless `config.toml` says otherwise (`paddock doctor`). A
    `persistent` sandbox outlives the program that made it, until `kill` or its TTL. Programs inside may make at most
    `nested` children, each with an equal part of its limits.

    `snapshot` and `workspace` are an id, a unique prefix of one, or a name. With `snapshot` the sandbox starts with
    those files, and on the same template and mounts. With `workspace`, that workspace is at `/workspace`, and no other
    living sandbox may write it.

    After `idle_seconds` without use, paddock pauses the sandbox until the next use. During a pause its TTL doesn't run.
    Without `policy` it has no network. A sandbox from a snapshot has the snapshot's policy.
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
    """The record of a sandbox. Times are seconds since the epoch.

    Example:
        ```python
        info = sandbox.info
        print(info.state, info.level, info.spec.template)  # running jail host
        ```
    """

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
    """The revision of its policy, which `spec` doesn't repeat. None: it has no network."""
    policy: str | None = None
    """The revision of its policy, which `spec` doesn't repeat. None: it has no network."""
    kept_until: float | None = None
    """The end of a paused sandbox, unless a caller resumes it before. `expires_at` has the same value."""
    left_seconds: float | None = None
    """The rest of a paused sandbox's TTL, which continues when it resumes."""
    created = DatetimeField("created_at")
    expires = DatetimeField("expires_at")
    ended = OptionalDatetimeField("ended_at")
