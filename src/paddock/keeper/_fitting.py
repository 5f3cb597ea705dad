"""Fitting a spare out with its tree of mounts, from outside: the keeper goes in, works, and comes out again.

What runs inside at that moment are two processes of ours that wait. The tree itself may have been written by an
earlier sandbox, so no place in it is found through a link.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import nullcontext, suppress
from typing import NamedTuple

from paddock.keeper import _places, _trust_places
from paddock.keeper._door import visit
from paddock.keeper._errors import Steps
from paddock.keeper._house import House
from paddock.keeper._places import PLACE, move
from paddock.keeper._plan import JAIL, JailPlan
from paddock.keeper._sizes import Told
from paddock.keeper._spare import Spare
from paddock.linux import fsids, mounts, namespaces
from paddock.linux.descriptors import closing

_HOSTS_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK
_OTHER_HOSTS = b"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
_NAMED = b"\t# this sandbox\n"
_MOST_HOSTS = 1 << 16


class Layers(NamedTuple):
    """Detached mounts: the root, the machine's /usr, those of the plan with their targets, the certificates, a /dev
    that is not everybody's, and what tells it its size."""

    root: int
    usr: int | None
    mounts: list[tuple[str, int]]
    trust: tuple[int, ...] = ()
    dev: int | None = None
    told: Told | None = None


def fit_out(house: House, plan: JailPlan, spare: Spare, layers: Layers, steps: Steps, orders: bytes) -> None:
    """Makes `layers` the tree of the spare's processes, and puts in place what is on its stage.

    They get their `orders` when they have their root; while the agent goes on, the kernel lets go of the old one.
    """
    with visit(house.home, spare.door.mounts, spare.door.names):
        with steps("attach"):
            if house.hostnames or plan.hostname != plan.id.replace("_", "-"):  # a name that a caller chose is needed
                namespaces.set_hostname(plan.hostname.encode())
            with closing(os.open(house.mount_point, PLACE)) as place:
                mounts.move_mount(layers.root, place)
            os.fchdir(layers.root)
            if plan.kind == JAIL:  # any other has the sandbox's tree below its own, and the guest in there does it
                _name(plan, house.base(spare.slot))
            if layers.usr is not None:
                _attach_usr(layers.usr)
        with steps("stage"):
            if layers.dev is None:
                _take(house, plan, b"dev", b"shm", plan.tmp_bytes // 2)
            else:
                move(layers.dev, b"dev")
                _take(house, plan, b"dev/pts")
                _take(house, plan, b"dev/shm", b"", plan.tmp_bytes // 2)
            _take(house, plan, b"proc")
            _take(house, plan, b"tmp", b"", plan.tmp_bytes)
            if layers.told is not None:
                _tell(layers.told)
            if layers.trust:
                _trust_places.attach(layers.trust)
        if layers.mounts:
            with steps("places"):
                _places.attach(house.base(spare.slot), layers.mounts)
        if plan.protect:
            with steps("protect"):
                _places.protect(plan.protect)
        with steps("pivot"):
            mounts.pivot()
        with steps("send"), suppress(ConnectionError):  # the child has failed already; why, it has said
            spare.sync.send(orders)
        with steps("detach"):
            mounts.detach_old_root()


def _name(plan: JailPlan, base: int | None) -> None:
    """Make the sandbox's own host name resolve. In a tree that has no place for that, or no room, it doesn't."""
    acting = nullcontext() if base is None else fsids.acting_as(base, base)
    with suppress(OSError), acting, closing(_places.find(b"etc/hosts", _HOSTS_FLAGS, 0o644)) as file:
        _name_in(file, plan.hostname)


def _name_in(hosts: int, name: str) -> None:
    """Make `name` resolve by the file `hosts`, in place of the name of the sandbox that the file was copied from.

    A file that is missing gets its usual lines as well. What isn't a file, or has more than 64 KiB, stays as it is.
    """
    status = os.fstat(hosts)
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_HOSTS:
        return
    if not status.st_size:
        os.fchmod(hosts, 0o644)  # whatever the umask is
    before = os.pread(hosts, _MOST_HOSTS, 0)
    kept = [line for line in (before or _OTHER_HOSTS).splitlines(keepends=True) if not line.endswith(_NAMED)]
    after = b"".join(kept).removesuffix(b"\n") + b"\n127.0.0.1\t" + name.encode() + _NAMED
    if after != before:
        os.pwrite(hosts, after, 0)
        os.ftruncate(hosts, len(after))


def _attach_usr(usr: int) -> None:
    """The machine's /usr, with the tree's own /usr/local in it."""
    with closing(_places.find(b"usr/local", PLACE)) as place:
        local = mounts.open_tree(b"", place)
    with closing(local):
        move(usr, b"usr")
        move(local, b"usr/local")


def _tell(told: Told) -> None:
    """Put files over those of /proc; and /sys, where the tree has a place for it."""
    for name, file in told.proc:  # found as root of what was mounted a moment ago
        mounts.move_mount(file, mounts.AT_FDCWD, b"proc/" + name)
    try:
        move(told.sys, b"sys")
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return
    for name, group in told.groups:
        mounts.move_mount(group, told.sys, name)


def _take(house: House, plan: JailPlan, name: bytes, tmpfs: bytes | None = None, size: int = 0) -> None:
    """Moves a mount from the stage to its place, and sets the size of the tmpfs at `tmpfs` below it."""
    with closing(os.open(house.stage + b"/" + name, PLACE)) as fd:
        if tmpfs is not None:
            with closing(os.open(tmpfs, PLACE, dir_fd=fd) if tmpfs else os.dup(fd)) as where:
                mounts.reconfigure(where, "tmpfs", (("size", str(size)), ("nr_inodes", str(plan.inodes))))
        move(fd, name)
