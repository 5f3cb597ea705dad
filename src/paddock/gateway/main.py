"""The gateway's process. There is one for each state directory. See docs/design/egress.md."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import socket
import ssl
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any, cast

from paddock.audit import AuditLog
from paddock.linux import children, local_sockets, seccomp, seccomp_profile
from paddock.linux import confine as process
from paddock.model.config import read_config
from paddock.supervisor import layout

from .evaluation_network import EvaluationNetwork
from .mocks.handler import HandlerHost, start_host
from .outside import Outside
from .processes import process_resolver
from .processes.connection_owner import ConnectionOwners, record_event
from .proxy.network import Gateway
from .registries.malware import MalwareIndexes
from .registries.package_cache import PackageStore
from .registries.reader import Reader
from .server import Server

_SPARE_BYTES = 1 << 30
_OF_THE_RESOLVER = ("resolv.conf", "hosts", "nsswitch.conf", "gai.conf", "host.conf", "services", "localtime")
_OF_CERTIFICATES = ("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/usr/share/ca-certificates")


def main(options: dict[str, Any]) -> None:
    """Serve the state directory, at the socket that the daemon has made."""
    children.detach(umask=0o077)
    try:
        _serve(options)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _serve(options: dict[str, Any]) -> None:
    state = Path(cast("str", options["state"]))
    listener = socket.socket(fileno=cast("int", options["listener"]))
    listener.set_inheritable(False)
    listener.listen(local_sockets.BACKLOG)  # once more: a client sees this process as its peer, not the one before
    lock = os.open(state / layout.GATEWAY_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # by this a daemon knows whose the audit segment is; one before may be dying
    gc.collect()
    gc.freeze()  # no collection here or in the processes below then writes to memory that they all share
    handlers = start_host()  # before anything is opened that a handler may not have
    reader = Reader()
    malware = state / layout.MALWARE
    malware.mkdir(mode=0o700, exist_ok=True)
    resolver = process_resolver.start()
    with asyncio.Runner() as runner:
        server = runner.run(make_server(state, listener, reader=reader, process_resolver=resolver, handlers=handlers))
        confine(readable=(malware,), writable=(state / layout.AUDIT, state / layout.PACKAGES))
        runner.run(server.serve())
    os.close(lock)


def confine(*, readable: tuple[Path, ...], writable: tuple[Path, ...]) -> None:
    """Confine the process: no core dump, tracer, capability, other program, or unnecessary file.

    Print a missing protection.
    """
    calls = seccomp.Filter(seccomp_profile.build(os.uname().machine, foreign_targets=False))
    places = (*process.code(), *_system(), *map(str, readable))
    if not process.confine(readable=places, writable=(*map(str, writable), "/dev/null"), calls=calls):
        print("this kernel has no Landlock: the gateway could read every file of its user", file=sys.stderr, flush=True)


def _system() -> tuple[str, ...]:
    links = tuple(os.path.realpath(f"/etc/{name}") for name in _OF_THE_RESOLVER)
    found = ssl.get_default_verify_paths()
    sources = (found.cafile, found.capath, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    named = tuple(path for path in sources if path)
    return (*(f"/etc/{name}" for name in _OF_THE_RESOLVER), *links, *_OF_CERTIFICATES, *named)


async def make_server(
    state: Path,
    listener: socket.socket,
    *,
    reader: Reader,
    process_resolver: socket.socket,
    handlers: HandlerHost | None,
) -> Server:
    """Open the server's files in the state directory. Afterwards the process gives up its privileges."""
    log = AuditLog(state / layout.AUDIT)
    simulated = EvaluationNetwork.of(state)
    if simulated is not None:
        log.event("egress.world", message=f"{layout.WORLD_SOCKET} answers in place of the network outside")
    gateway = Gateway(
        outside=simulated or Outside(),
        owners=ConnectionOwners(process_resolver, partial(record_event, log)),
        handlers=handlers,
        reader=reader,
        malware=MalwareIndexes(state / layout.MALWARE),
        packages=_packages(state),
    )
    return Server(listener, gateway, log, owner=os.stat(state).st_uid)


def _packages(state: Path) -> PackageStore | None:
    """Open the package cache. If that fails, say so in the gateway's log and go on without one."""
    most = read_config(state).package_cache_mib
    if not most:
        return None
    try:
        return PackageStore(state / layout.PACKAGES, most_bytes=most << 20, spare_bytes=_SPARE_BYTES)
    except OSError as error:
        print(f"packages are not kept: {error}", file=sys.stderr, flush=True)
        return None
