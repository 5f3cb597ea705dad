"""What the gateway's process is made of."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from socket import socket

from paddock.audit import AuditLog
from paddock.keeper import layout

from ._approvals import Approvals
from ._gateway import Gateway
from ._handler import HandlerHost
from ._journal import AuditJournal
from ._malware import Lists
from ._open_door import Pages
from ._origins import Origins
from ._package_cache import PackageCache
from ._package_store import PackageStore
from ._plane import Plane
from ._registry_reader import Reader
from ._upstream import over_tcp, system_trust
from ._world import World

PACKAGE_CACHE_MIB = "PADDOCK_PACKAGE_CACHE_MIB"
DEFAULT_CACHE_MIB = 4096
_SPARE_BYTES = 1 << 30


async def make_plane(
    state: Path,
    approvals: Approvals,
    *,
    reader: Reader,
    witness: socket | None = None,
    handlers: HandlerHost | None = None,
) -> Plane:
    """Opens what it needs of the state directory; the process gives up its powers after that."""
    log = AuditLog(state / layout.AUDIT)
    journal = AuditJournal(log)
    world = World.of(state)
    if world is not None:
        log.event("egress.world", message=f"{layout.WORLD_SOCKET} answers in the place of everybody outside")
    gateway = Gateway(
        resolver=None if world is None else world.resolve,
        reach=over_tcp if world is None else world.reach,
        trust=system_trust if world is None else world.trust,
        origins=None if witness is None else Origins(witness, journal.process),
        handlers=handlers,
        pages=Pages(reader=reader, known=Lists(state / layout.MALWARE), packages=_packages(state)),
    )
    return Plane(gateway, journal, approvals)


def _packages(state: Path) -> PackageCache | None:
    """Without a cache all goes on, only slower: what is wrong with it is said in the gateway's log."""
    given = os.environ.get(PACKAGE_CACHE_MIB, str(DEFAULT_CACHE_MIB))
    if not given.isdecimal():
        print(f"{PACKAGE_CACHE_MIB}={given!r} is no number: packages are not kept", file=sys.stderr, flush=True)
        return None
    if not int(given):
        return None
    try:
        store = PackageStore(state / layout.PACKAGES, most_bytes=int(given) << 20, spare_bytes=_SPARE_BYTES)
    except OSError as error:
        print(f"packages are not kept: {error}", file=sys.stderr, flush=True)
        return None
    return PackageCache(store)
