"""Describe one jail by plain values, checked where they arrive."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from paddock.supervisor.layout import RETENTION_SECONDS

_NAME = re.compile(r"[a-z]{2}_[a-z0-9_]{1,60}\Z")
_KIND = re.compile(r"[a-z]{1,16}(-waiting)?\Z")
_HOSTNAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}\Z")

_LARGEST_ENVIRONMENT = 150_000  # bytes: the record holds it

JAIL = "jail"
WAITING = "-waiting"
"""The end of a kind that belongs to no sandbox yet (`_late.py`)."""
CLAIM = "claim:"
"""The beginning of a plan's fault that happens at its claim."""
KVM = "kvm"
_WITH_DEVICES = {KVM: ("microvm", "gvisor", "oven")}
"""The kinds that may have a device of the host: never a sandbox itself."""


LATE = frozenset({"deadline", "env", "fault", "idle_seconds", "parent", "retention_seconds", "trace"})
"""Fields of a plan that nothing inside depends on: a complete spare gets them when it becomes a sandbox."""


class PlanError(Exception):
    """The supervisor refuses a plan. The message says which field and why."""


class User(NamedTuple):
    name: str
    uid: int
    gid: int
    home: str


class Mount(NamedTuple):
    """Show the directory `source` of the host at `target`. `mode` is cow, ro or rw. `seen` has its device and inode as
    a local caller sees them."""

    source: str
    target: str
    mode: str
    seen: Sequence[int] | None = None


class Tree(NamedTuple):
    """Show the pool's tree `name` over the trees `layers` (topmost first) at `target`; or the repository of that name.

    The watch measures `disk_bytes` if the pool itself enforces no limit.
    """

    name: str
    target: str
    writable: bool
    layers: tuple[str, ...] = ()
    disk_bytes: int | None = None


class JailPlan(NamedTuple):
    """Describe one jail.

    `tree` and `layers` are names in the pool, topmost layer first; without layers the tree is whole. The jail ends with
    the sandbox `parent`, if there is one. `deadline` is in seconds of CLOCK_BOOTTIME. The record keeps `template`,
    unread, for the daemon that adopts the sandbox. `instance_id` distinguishes sandboxes with the same id.

    `exits`: it has sockets of the gateway; otherwise it has no network at all. `protect`: absolute paths that stay as
    they are, if they exist. It is paused after `idle_seconds` without use; 0: never. While paused it is kept for
    `retention_seconds`.

    `kind` is `jail` for the sandbox itself. Any other kind holds another level, and ends with the first of its agents.
    `file_bytes`: the largest file that its processes may make, where that level keeps memory in a file; 0: as large as
    the disk. `devices`: devices of the host beside the usual ones. `fault` and `trace` are for tests and benchmarks:
    the step at which to fail or die, and whether the reply has the time of each step.
    """

    id: str
    hostname: str
    tree: str
    layers: tuple[str, ...]
    host_usr: bool
    users: tuple[User, ...]
    default_user: str
    workdir: str
    env: dict[str, str]
    template: str
    deadline: float
    cpus: float
    memory_bytes: int
    swap_bytes: int
    processes: int
    open_files: int
    disk_bytes: int
    inodes: int
    tmp_bytes: int
    mounts: tuple[Mount, ...] = ()
    parent: str = ""
    trees: tuple[Tree, ...] = ()
    instance_id: int = 0
    exits: bool = False
    protect: tuple[str, ...] = ()
    idle_seconds: float = 0.0
    retention_seconds: float = RETENTION_SECONDS
    kind: str = JAIL
    file_bytes: int = 0
    devices: tuple[str, ...] = ()
    trace: bool = False
    fault: str = ""

    @property
    def user(self) -> User:
        return next(u for u in self.users if u.name == self.default_user)

    @property
    def written(self) -> dict[str, int | None]:
        """Return the other trees that it writes, and their limits in bytes."""
        return {tree.name: tree.disk_bytes for tree in self.trees if tree.writable}

    @property
    def recorded(self) -> dict[str, Any]:
        """Return the fields that its record takes (`records.Record`)."""
        names = ("id", "kind", "deadline", "tree", "template", "instance_id", "parent", "idle_seconds")
        return {name: getattr(self, name) for name in (*names, "retention_seconds", "env")} | {"trees": self.written}

    def changed(self, **changes: Any) -> JailPlan:
        """Return this plan with other values in fields that are `LATE`. PlanError."""
        if wrong := changes.keys() - LATE:
            raise PlanError(f"a complete spare has these already: {', '.join(sorted(wrong))}")
        plan = self._replace(**changes)
        _check(plan)
        return plan

    def to_message(self) -> dict[str, Any]:
        message = self._asdict()
        for name in ("users", "mounts", "trees"):
            message[name] = [part._asdict() for part in message[name]]
        return message

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> JailPlan:
        """Check a message and return its plan. Raises PlanError for anything missing, unknown or of the wrong type."""
        if unknown := message.keys() - set(cls._fields):
            raise PlanError(f"unknown fields: {', '.join(sorted(unknown))}")
        try:
            values = dict(message)
            values["layers"] = tuple(cast("list[str]", message["layers"]))
            values["protect"] = tuple(cast("list[str]", message.get("protect", ())))
            values["devices"] = tuple(cast("list[str]", message.get("devices", ())))
            values["users"] = tuple(User(**user) for user in cast("list[dict[str, Any]]", message["users"]))
            values["mounts"] = tuple(Mount(**mount) for mount in cast("list[dict[str, Any]]", message["mounts"]))
            values["trees"] = tuple(_tree(**tree) for tree in cast("list[dict[str, Any]]", message["trees"]))
            plan = cls(**values)
        except (TypeError, KeyError) as error:
            raise PlanError(f"not a plan: {error}") from None
        _check(plan)
        return plan


def _tree(*, layers: list[str], **rest: Any) -> Tree:
    return Tree(layers=tuple(layers), **rest)


def _check(plan: JailPlan) -> None:
    for name in (plan.id, plan.tree, *plan.layers, *filter(None, (plan.parent,))):
        if not is_name(name):
            raise PlanError(f"not an id: {name!r}")
    if not _KIND.match(plan.kind):
        raise PlanError(f"not a kind of sandbox: {plan.kind!r}")
    if not _HOSTNAME.match(plan.hostname):
        raise PlanError(f"not a host name: {plan.hostname!r}")
    if (size := sum(len(name) + len(value) for name, value in plan.env.items())) > _LARGEST_ENVIRONMENT:
        raise PlanError(f"its environment has {size} bytes, {_LARGEST_ENVIRONMENT} at most")
    if not any(user.name == plan.default_user for user in plan.users):
        raise PlanError(f"the default user {plan.default_user!r} is not among the users")
    for user in plan.users:
        if not (0 <= user.uid < 65536 and 0 <= user.gid < 65536):
            raise PlanError(f"user {user.name!r}: ids must lie in 0..65535")
    for field in ("cpus", "memory_bytes", "processes", "open_files", "tmp_bytes", "disk_bytes", "inodes"):
        if not getattr(plan, field) > 0:
            raise PlanError(f"{field} must be positive, not {getattr(plan, field)!r}")
    if not plan.idle_seconds >= 0:
        raise PlanError(f"idle_seconds must not be negative, not {plan.idle_seconds!r}")
    if not plan.retention_seconds > 0:
        raise PlanError(f"retention_seconds must be positive, not {plan.retention_seconds!r}")
    for mount in plan.mounts:
        _check_mount(mount)
    for tree in plan.trees:
        _check_tree(tree)
    for path in plan.protect:
        _check_target(path)
    for device in plan.devices:
        if plan.kind.removesuffix(WAITING) not in _WITH_DEVICES.get(device, ()):
            raise PlanError(f"a sandbox of kind {plan.kind!r} has no device {device!r}")


def _check_mount(mount: Mount) -> None:
    if mount.mode not in ("cow", "ro", "rw"):
        raise PlanError(f"mode {mount.mode!r} of a mount is none of cow, ro and rw")
    if not mount.source.startswith("/") or "\0" in mount.source:
        raise PlanError(f"the source of a mount is an absolute path, not {mount.source!r}")
    _check_target(mount.target)


def _check_tree(tree: Tree) -> None:
    for name in (tree.name, *tree.layers):
        if not is_name(name):
            raise PlanError(f"not an id: {name!r}")
    if is_repository(tree.name) and (tree.writable or tree.layers):
        raise PlanError(f"{tree.name} is a repository: it has no layers, and nothing inside may write it")
    _check_target(tree.target)


def _check_target(target: str) -> None:
    parts = target.split("/")
    if parts[0] or not all(parts[1:]) or {".", ".."} & set(parts) or "\0" in target:
        raise PlanError(f"the target of a mount is an absolute path without `.` and `..`, not {target!r}")


def is_name(text: object) -> bool:
    """Tell whether it may be a directory's name in the state directory: an id, never a user's text."""
    return isinstance(text, str) and _NAME.match(text) is not None


def is_repository(name: str) -> bool:
    """Tell whether it names a repository, which lies beside the pool."""
    return name.startswith("rp_")
