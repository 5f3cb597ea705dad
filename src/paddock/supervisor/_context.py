"""Open at start all that the creates of a supervisor share."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, cast

from paddock.linux import (
    btrfs,
    cgroups,
    mountinfo,
    mounts,
    namespaces,
    overlay,
    pidfd,
    prctl,
    proc,
    subordinate_ids,
)
from paddock.linux.descriptors import closing
from paddock.linux.subordinate_ids import SubordinateIds
from paddock.supervisor import _dev, _orders, _sizes, _spawner, layout
from paddock.supervisor._namespaces import open_of
from paddock.supervisor._signaller import Signaller
from paddock.supervisor._slots import Slots
from paddock.supervisor.layout import DEFAULT_SPARES, ORDINARY_ID, TREE_ID_BASE
from paddock.supervisor.pool import open_pool
from paddock.supervisor.records import Records, remove_directory

MOST_SPARES = 64
IDLE_SECONDS, WATCH_SECONDS, MOST_SECONDS = 10.0, 2.0, 3600.0
PLACES = "supervisor"  # below the state directory: for the supervisor and its spares alone


class SupervisorContext:
    """Hold what all jails of this supervisor share. It opens its descriptors once and keeps them."""

    def __init__(self, state: Path, program: int, config: dict[str, Any], groups: cgroups.Base) -> None:
        """Enter the supervisor's own namespaces and open everything. `program` is the native guest. Raises OSError."""
        pool_config = cast("dict[str, Any]", config["pool"])
        ids = pool_config.get("subordinate_ids")
        self.root_mode = os.getuid() == 0
        self.whole = self.root_mode or ids is not None
        """Whether a sandbox has all the user ids of a system. Otherwise it has one, the supervisor's own."""
        self.state = os.path.realpath(state)
        self.boot = proc.boot_id()
        self.held, self.missing = groups.enforced, groups.missing()
        """The limits that control groups enforce here, and one sentence for each limit that they don't."""
        self.groups = groups if self.held else None
        """None if control groups enforce no limit: an ordinary user without a delegated tree."""
        if not self.held:
            groups.close()
        self.spare_count = _spare_count(config)
        self.idle_seconds = _seconds(config, "idle_seconds", IDLE_SECONDS)
        """Seconds that the supervisor stays after its last sandbox and daemon."""
        self.watch_seconds = _seconds(config, "watch_seconds", WATCH_SECONDS)
        """Seconds between two measurements of a sandbox's disk use and number of files."""
        self.program = program
        self.null = _open_null()
        self.spawning = None if self.root_mode else _spawner.spawn(program, self.null)
        """The spawner of an ordinary user, started before the supervisor enters its namespaces: see `_spawner.py`."""
        self.host_mounts: int | None = None
        """The mount namespace that the supervisor came from; None if it still has all its mounts."""
        self._signaller: Signaller | None = None
        """The process that may signal what an earlier supervisor left; None if this supervisor may itself."""
        if self.root_mode:
            self.host_mounts = open_of("self", "mnt")
            namespaces.unshare(namespaces.NEWNS)
        elif ids is not None:
            self._signaller = Signaller()
            _enter(SubordinateIds(*ids))
        else:
            # Of all that the supervisor leaves to go into a sandbox, it must own what it comes back to.
            namespaces.unshare_as(0, namespaces.NEWNS | namespaces.NEWUTS)
        if self.whole:
            # So that an overlay may be mounted with an id of the sandbox's: a change of fsuid keeps capabilities.
            prctl.set_secure_bits(prctl.SECBIT_NO_SETUID_FIXUP)
        mounts.make_all_private()
        places = state / PLACES
        for name in ("dev", "dev_more", "usr/local", *(f"stage/{name}" for name in _orders.STAGED)):
            (places / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.stage, self.dev_tree = (os.fsencode(places / name) for name in ("stage", "dev"))
        _dev.build(self.dev_tree, root_mode=self.root_mode)
        _sizes.build(self.stage + b"/told")
        self.pool = open_pool(str(state), pool_config)
        self.copies = pool_config["driver"] == "copy"
        """Whether each tree is a full copy of its template."""
        run = state / layout.RUN
        run.mkdir(mode=0o700, exist_ok=True)
        self.sizes = _sizes.Sizes(os.fspath(places / "sizes"), self.groups)
        limits = self.root_mode and btrfs.is_btrfs(self.pool) and btrfs.quota_mode(self.pool) != "off"
        self.quotas = btrfs.open_quotas(self.pool) if limits else None
        """The quota groups of the pool's file system; None if it doesn't limit the bytes of each tree."""
        if self.root_mode:
            _slim(state)
        self.hostnames = self.root_mode or _may_set_hostname()
        """Whether a sandbox can have a host name: a container's seccomp filter may refuse sethostname."""
        detached = overlay.takes_detached_layers()
        usr = os.fsencode(places / "usr")
        below = mounts.open_tree(usr) if detached else os.open(usr, os.O_PATH | os.O_CLOEXEC)
        empty = os.open(b"local", os.O_PATH | os.O_CLOEXEC, dir_fd=below)
        self.slots = Slots(self.pool, None if detached else os.fsencode(places / "views"), empty, below)
        self.records = Records(os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        self.spares = _clear(places / "spares")
        self.home = _home()
        self.orders = _orders.shared(self)
        """The first message to the spawner."""
        self.own_namespaces = proc.namespaces() if self.root_mode else None

    def signal(self, process: int, number: int) -> None:
        """Send signal `number` to the process of a pidfd. Raises ProcessLookupError if it has ended, and OSError."""
        try:
            pidfd.send_signal(process, number)
        except PermissionError:
            if self._signaller is None:
                raise
            self._signaller.send(process, number)

    def base(self, slot: int | None) -> int | None:
        """Return the uid that the supervisor sees for a sandbox's root. None if the sandbox has one uid, the
        supervisor's."""
        if slot is not None:
            return self.slots.base(slot)
        return 0 if self.whole else None

    def stored(self, slot: int | None) -> int | None:
        """Return the uid on disk of files that belong to a sandbox's root."""
        return TREE_ID_BASE if slot is not None else self.base(None)


def open_context(state: Path, guest: str) -> SupervisorContext:
    """Read the configuration and open the context. Raises OSError, and ValueError for a damaged supervisor.json.
    `guest` is the path of the native guest."""
    config = _read_config(state)
    program = _spawner.open_program(guest)
    groups = cgroups.Base.open(f"paddock_{hashlib.sha256(os.fsencode(state)).hexdigest()[:12]}")
    try:
        return SupervisorContext(state, program, config, groups)
    except BaseException:
        with contextlib.suppress(OSError):  # an earlier supervisor's sandboxes live in it: it stays
            groups.remove()
        raise


def _may_set_hostname() -> bool:
    """Try it with the name that the supervisor's own namespace already has."""
    try:
        namespaces.set_hostname(os.uname().nodename.encode())
    except PermissionError:
        return False
    return True


def _enter(ids: SubordinateIds) -> None:
    """Enter a user namespace with all subordinate ids. Files that the supervisor leaves for entering a sandbox must
    belong to its user."""
    with closing(subordinate_ids.open_namespace(ids, ORDINARY_ID)) as namespace:
        namespaces.setns(namespace, namespaces.NEWUSER)
    namespaces.unshare(namespaces.NEWNS | namespaces.NEWUTS)


def _clear(directory: Path) -> int:
    """Empty the directory of spares: those of an earlier supervisor died with it. Return its descriptor."""
    directory.mkdir(mode=0o700, exist_ok=True)
    spares = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in os.listdir(spares):
        remove_directory(spares, name)
    return spares


def _home() -> int:
    """Return the supervisor's own mount namespace. Raises ValueError if entering it leads to another root directory."""
    home, before = open_of("self", "mnt"), os.stat("/")
    namespaces.setns(home, namespaces.NEWNS)
    if not os.path.samestat(before, os.stat("/")):
        raise ValueError("the root directory is not that of the mount namespace (chroot): no sandbox can be made here")
    return home


def _read_config(state: Path) -> dict[str, Any]:
    config = json.loads((state / layout.SUPERVISOR_CONFIG).read_bytes())
    if config.get("version") != 1:
        raise ValueError(
            f"{state / layout.SUPERVISOR_CONFIG} has version {config.get('version')!r}; this supervisor knows 1"
        )
    return cast("dict[str, Any]", config)


def _spare_count(config: dict[str, Any]) -> int:
    count = config.get("spares", DEFAULT_SPARES)
    if type(count) is not int or not 0 <= count <= MOST_SPARES:
        raise ValueError(f"supervisor.json: spares must be a number from 0 to {MOST_SPARES}, not {count!r}")
    return count


def _seconds(config: dict[str, Any], name: str, usual: float) -> float:
    seconds = config.get(name, usual)
    if type(seconds) not in (int, float) or not 0 < seconds <= MOST_SECONDS:
        raise ValueError(f"supervisor.json: {name} must be a number above 0, at most {MOST_SECONDS:g}, not {seconds!r}")
    return float(seconds)


def _open_null() -> int:
    fd = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    if not stat.S_ISCHR(os.fstat(fd).st_mode):
        raise OSError("/dev/null is not a device")
    return fd


def _slim(state: Path) -> None:
    """Unmount what no sandbox needs: every clone copies each mount."""
    keep = {b"/", b"/proc", b"/dev"}
    own = os.fsencode(state)
    for mount in reversed([info.mount_point for info in mountinfo.read()]):
        inside_state = mount == own or mount.startswith(own + b"/")
        above_state = own.startswith(mount + b"/")
        of_usr = mount == b"/usr" or mount.startswith(b"/usr/")
        if mount not in keep and not (inside_state or above_state or of_usr):
            try:
                mounts.umount(mount, detach=True)
            except OSError:
                continue  # hidden below another mount, or gone with the one above it
