"""What a sandbox may use, and what it has used."""

from __future__ import annotations

from enum import StrEnum

from .value import Value


class Limit(StrEnum):
    """A ceiling that struck. `ExecResult.limit` and `Sandbox.limit` name it."""

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
    """Ceilings of one sandbox. All are set before its first instruction.

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
