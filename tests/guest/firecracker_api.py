"""What Firecracker's API document says of what is used here: paths, bodies, and when each may be called.

Source: firecracker-microvm/firecracker, src/firecracker/swagger/firecracker.yaml, version 1.17; when a call is allowed:
src/vmm/src/rpc_interface.rs of the same version, and docs/snapshotting/snapshot-support.md.
"""

from __future__ import annotations

from typing import Any

VERSION = "1.17"

NOT_STARTED, RUNNING, PAUSED = "Not started", "Running", "Paused"
STARTED = (RUNNING, PAUSED)

DEFINITIONS: dict[str, dict[str, Any]] = {
    "BootSource": {
        "required": ("kernel_image_path",),
        "properties": {"boot_args": str, "initrd_path": str, "kernel_image_path": str},
    },
    "Drive": {
        "required": ("drive_id", "is_root_device"),
        "properties": {
            "drive_id": str,
            "partuuid": str,
            "is_root_device": bool,
            "cache_type": ("Unsafe", "Writeback"),
            "is_read_only": bool,
            "path_on_host": str,
            "rate_limiter": dict,
            "io_engine": ("Sync", "Async"),
            "socket": str,
        },
    },
    "MachineConfiguration": {
        "required": ("mem_size_mib", "vcpu_count"),
        "properties": {
            "cpu_template": ("C3", "T2", "T2S", "T2CL", "T2A", "V1N1", "None"),
            "smt": bool,
            "mem_size_mib": int,
            "track_dirty_pages": bool,
            "vcpu_count": range(1, 33),
            "huge_pages": ("None", "Transparent", "2M"),
        },
    },
    "Vsock": {
        "required": ("guest_cid", "uds_path"),
        "properties": {"guest_cid": range(3, 1 << 32), "uds_path": str, "vsock_id": str},
    },
    "EntropyDevice": {"required": (), "properties": {"rate_limiter": dict}},
    "InstanceActionInfo": {
        "required": ("action_type",),
        "properties": {"action_type": ("FlushMetrics", "InstanceStart", "SendCtrlAltDel")},
    },
    "Vm": {"required": ("state",), "properties": {"state": ("Paused", "Resumed")}},
    "SnapshotCreateParams": {
        "required": ("mem_file_path", "snapshot_path"),
        "properties": {"mem_file_path": str, "snapshot_path": str, "snapshot_type": ("Full", "Diff")},
    },
    "SnapshotLoadParams": {
        "required": ("snapshot_path",),
        "properties": {
            "enable_diff_snapshots": bool,
            "track_dirty_pages": bool,
            "mem_file_path": str,
            "mem_backend": "MemoryBackend",
            "snapshot_path": str,
            "resume_vm": bool,
            "network_overrides": list,
            "vsock_override": dict,
            "clock_realtime": bool,
        },
    },
    "MemoryBackend": {
        "required": ("backend_type", "backend_path"),
        "properties": {"backend_type": ("File", "Uffd"), "backend_path": str},
    },
}

# Method and first part of the path: its body, the states in which it is allowed, and whether it is part of a
# configuration that is to boot, after which no snapshot is loaded any more.
CALLS: dict[tuple[str, str], tuple[str, tuple[str, ...], bool]] = {
    ("PUT", "machine-config"): ("MachineConfiguration", (NOT_STARTED,), True),
    ("PUT", "boot-source"): ("BootSource", (NOT_STARTED,), True),
    ("PUT", "drives"): ("Drive", (NOT_STARTED,), True),
    ("PUT", "vsock"): ("Vsock", (NOT_STARTED,), True),
    ("PUT", "entropy"): ("EntropyDevice", (NOT_STARTED,), True),
    ("PUT", "actions"): ("InstanceActionInfo", (NOT_STARTED,), False),
    ("PUT", "snapshot/load"): ("SnapshotLoadParams", (NOT_STARTED,), False),
    ("PUT", "snapshot/create"): ("SnapshotCreateParams", (PAUSED,), False),
    ("PATCH", "vm"): ("Vm", STARTED, False),
}


def faults(name: str, body: Any) -> list[str]:
    """What is wrong with a body, by the document. Nothing that it does not name is taken (serde's
    deny_unknown_fields)."""
    if not isinstance(body, dict):
        return [f"{name} is no object"]
    definition = DEFINITIONS[name]
    found = [f"missing field `{field}`" for field in definition["required"] if field not in body]
    for field, value in body.items():
        kind = definition["properties"].get(field)
        if kind is None:
            found.append(f"unknown field `{field}`")
        elif isinstance(kind, str):
            found += faults(kind, value)
        elif isinstance(kind, (tuple, range)):
            found += [] if type(value) in (str, int) and value in kind else [f"{field}: {value!r}"]
        elif type(value) is not kind:
            found.append(f"{field}: {value!r} is no {kind.__name__}")
    return found
