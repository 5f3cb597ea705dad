"""Check what a caller asks for, before anything is made. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paddock.daemon.store.trees import REPOSITORY, WORKSPACE
from paddock.errors import InvalidArgumentError
from paddock.model import Action, ExecSpec, IdPrefix, Limits, Mount, OpenWorkspace, SandboxSpec, check_name
from paddock.model.ids import is_id

if TYPE_CHECKING:
    from paddock.daemon.store.database import SnapshotRow

MAX_TTL_SECONDS = 30 * 86_400
MIN_IDLE_SECONDS = 1.0
_MAX_ARGUMENT_BYTES = 2 << 20  # the kernel's own limit is a quarter of the stack: 2 MiB
_MAX_ENVIRONMENT = 150_000  # what the supervisor takes
_MAX_LABELS = 64
_MAX_KEY_CHARS = 255
_MAX_MOUNTS = 16
MAX_CHILDREN = 64
_NOT_MOUNTED_OVER = frozenset({"proc", "sys", "dev", ".paddock", ".vessel", ".baked", ".frozen"})


def check_spec(spec: SandboxSpec) -> None:
    check_ttl(spec.ttl_seconds)
    check_limits(spec.limits)
    check_name(spec.name, IdPrefix.SANDBOX)
    if not spec.template or "\0" in spec.template:
        raise InvalidArgumentError("template must be a name", field="template")
    check_env(spec.env)
    if (size := sum(len(name) + len(value) for name, value in spec.env.items())) > _MAX_ENVIRONMENT:
        raise InvalidArgumentError(
            f"env has {size} characters, and a sandbox takes {_MAX_ENVIRONMENT}", hint="write a file", field="env"
        )
    if len(spec.labels) > _MAX_LABELS or any(len(k) > 255 or len(v) > 4096 for k, v in spec.labels.items()):
        raise InvalidArgumentError(f"at most {_MAX_LABELS} labels of 255 and 4096 characters", field="labels")
    check_mounts(spec.mounts)
    check_range("max_children", spec.nested, 0, MAX_CHILDREN)
    if spec.workspace is not None:
        _check_workspace(spec)
    if spec.idle_seconds is not None:
        check_range("idle_timeout", spec.idle_seconds, MIN_IDLE_SECONDS, MAX_TTL_SECONDS)


def check_mounts(mounts: tuple[Mount, ...]) -> None:
    """Check what words can tell; whether there is such a directory, the backend says."""
    if len(mounts) > _MAX_MOUNTS:
        raise InvalidArgumentError(f"at most {_MAX_MOUNTS} mounts", field="mounts")
    targets = [mount.target for mount in mounts]
    for mount in mounts:
        if not mount.source.startswith("/") or "\0" in mount.source:
            raise InvalidArgumentError(
                f"the source of a mount is an absolute path, not {mount.source!r}", field="mounts"
            )
        parts = mount.target.split("/")
        if parts[0] or not all(parts[1:]) or {".", ".."} & set(parts) or "\0" in mount.target:
            raise InvalidArgumentError(
                f"the target of a mount is an absolute path without `.`, `..` and a last `/`, not {mount.target!r}",
                field="mounts",
            )
        if parts[1] in _NOT_MOUNTED_OVER:
            raise InvalidArgumentError(
                f"nothing can be mounted at {mount.target!r}: /{parts[1]} is paddock's", field="mounts"
            )
        if targets.count(mount.target) > 1:
            raise InvalidArgumentError(f"two mounts have the target {mount.target!r}", field="mounts")


def _check_workspace(spec: SandboxSpec) -> None:
    if not spec.workspace or "\0" in spec.workspace:
        raise InvalidArgumentError("workspace must be an id or a name", field="workspace")
    if spec.snapshot is not None:
        raise InvalidArgumentError(
            "a sandbox from a snapshot has the workspace as it was then", hint="leave workspace out", field="workspace"
        )
    for mount in spec.mounts:
        if mount.target in (WORKSPACE, REPOSITORY):
            raise InvalidArgumentError(
                f"the workspace is at {mount.target!r}: give the mount another target", field="mounts"
            )


def check_workspace(action: OpenWorkspace) -> None:
    check_name(action.name, IdPrefix.WORKSPACE)
    check_name(action.name, IdPrefix.SANDBOX)  # which has the task's name too
    if action.url is None and (action.branch is not None or action.ref is not None):
        raise InvalidArgumentError("a branch or a ref is one of a repository: give its url too", field="url")
    if not 0 <= action.max_age_seconds < math.inf:
        raise InvalidArgumentError(
            f"max_age_seconds={action.max_age_seconds:g} must be 0 or more", field="max_age_seconds"
        )
    if action.disk_mib is not None and action.disk_mib < 1:
        raise InvalidArgumentError(f"disk_mib={action.disk_mib} must be at least 1", field="disk_mib")


def check_ttl(seconds: float) -> None:
    check_range("ttl", seconds, 1, MAX_TTL_SECONDS, " (30 days)")


def check_limits(limits: Limits) -> None:
    for field in Limits.__fields__:
        value = getattr(limits, field)
        least = {"swap_mib": 0, "cpus": 0.01, "memory_mib": 4, "inodes": 16, "open_files": 16}.get(field, 1)
        if not (isinstance(value, int) or math.isfinite(value)) or not value >= least:
            raise InvalidArgumentError(f"limits.{field}={value!r} must be at least {least}", field=f"limits.{field}")


def check_env(env: dict[str, str]) -> None:
    for key, value in env.items():
        if not key or "=" in key or "\0" in key or "\0" in value:
            raise InvalidArgumentError(
                f"environment variable {key!r}: a name has one character or more, no `=`, and no NUL anywhere",
                field="env",
            )


def check_exec(spec: ExecSpec) -> None:
    if not spec.argv or not spec.argv[0]:
        raise InvalidArgumentError("argv must name a program", field="argv")
    if any("\0" in argument for argument in spec.argv):
        raise InvalidArgumentError("argv cannot hold a NUL", field="argv")
    # Characters, not bytes: the kernel has the last word, this one is only cheap and early.
    if sum(map(len, spec.argv)) + sum(len(k) + len(v) for k, v in spec.env.items()) > _MAX_ARGUMENT_BYTES:
        raise InvalidArgumentError("argv and env are over 2 MiB", field="argv", hint="pass it on stdin or as a file")
    check_env(spec.env)
    if spec.timeout_seconds is not None and not 0 < spec.timeout_seconds < math.inf:
        raise InvalidArgumentError(f"timeout={spec.timeout_seconds:g} must be above 0", field="timeout")
    if spec.cwd is not None and (not spec.cwd or "\0" in spec.cwd):
        raise InvalidArgumentError("cwd must be a path", field="cwd")
    if spec.pty is not None and not (0 < spec.pty.rows < 65_536 and 0 < spec.pty.columns < 65_536):
        raise InvalidArgumentError("rows and columns of a pty must be 1 to 65535", field="pty")


def check_file(action: Action[object]) -> None:
    """Paths, offsets and ports; everything else about files only the sandbox knows."""
    for field in ("path", "source", "destination", "name", "pattern"):
        value = getattr(action, field, None)
        if isinstance(value, str) and (not value or "\0" in value):
            raise InvalidArgumentError(f"{field} cannot be empty or hold a NUL", field=field)
    for field, least, most in (
        ("offset", 0, 1 << 62),
        ("length", 0, 1 << 62),
        ("limit", 1, 1_000_000),
        ("depth", 1, 256),
        ("port", 1, 65_535),
    ):
        if (value := getattr(action, field, None)) is not None:
            check_range(field, value, least, most)


def check_key(key: str) -> None:
    if not 1 <= len(key) <= _MAX_KEY_CHARS:
        raise InvalidArgumentError(f"an idempotency key has 1 to {_MAX_KEY_CHARS} characters", field="idempotency_key")


def check_exec_id(text: str) -> None:
    """Check an id, which becomes a part of a path."""
    if not is_id(text) or not text.startswith(IdPrefix.EXEC):
        raise InvalidArgumentError(
            f"{text[:64]!r} is not the id of a command", hint="`paddock logs ID` lists them", field="exec"
        )


def check_range(field: str, value: float, least: float, most: float, unit: str = "") -> None:
    if not least <= value <= most:  # NaN is not
        raise InvalidArgumentError(f"{field}={value:.10g} must be {least:.10g} to {most:.10g}{unit}", field=field)


def required_capabilities(spec: SandboxSpec, source: SnapshotRow | None) -> list[str]:
    """Return the capabilities without which there can be no such sandbox."""
    workspace, policy = spec.workspace is not None, spec.policy is not None
    if source is not None:
        workspace, policy = workspace or source.workspace is not None, policy or source.snapshot.policy is not None
    asked = {"mounts": bool(spec.mounts), "nested": bool(spec.nested), "trees": workspace, "exits": policy}
    asked["idle"] = spec.idle_seconds is not None
    return [name for name, wanted in asked.items() if wanted]
