"""The gateway's process, from its first line to its last. One for each state directory; see docs/design/egress.md."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, cast

from paddock.keeper import layout
from paddock.linux import local_sockets

from . import _confine, _server, _witness
from ._compose import PACKAGE_CACHE_MIB, make_plane
from ._handler import start_host
from ._registry_reader import Reader

# What the daemon runs: `python -I -S -c BOOTSTRAP`, with {"path", "state", "listener"} as JSON on stdin.
BOOTSTRAP = (
    "import sys,json;o=json.load(sys.stdin);sys.path[:0]=o['path'];from paddock.egress._process import main;main(o)"
)
_KEPT = ("SSL_CERT_FILE", "SSL_CERT_DIR", "LANG", "LC_ALL", "TZ", PACKAGE_CACHE_MIB)


def main(options: dict[str, Any]) -> None:
    """Serves the state directory, at the socket that the daemon has made."""
    if os.fork():
        os._exit(0)  # nobody's child
    try:
        _serve(options)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def environment() -> dict[str, str]:
    """What of the daemon's the gateway has: where the certificates are that it trusts, and how much it may keep."""
    return {name: value for name in _KEPT if (value := os.environ.get(name))}


def _serve(options: dict[str, Any]) -> None:
    state = Path(cast("str", options["state"]))
    os.umask(0o077)
    os.chdir("/")
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    listener = socket.socket(fileno=cast("int", options["listener"]))
    listener.set_inheritable(False)
    listener.listen(local_sockets.BACKLOG)  # once more: whoever connects is shown this process, not the one before
    lock = os.open(state / layout.GATEWAY_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # by this a daemon knows whose the audit segment is; one before may be dying
    handlers = start_host()  # before anything is opened that a handler may not have
    reader = Reader.start()
    malware = state / layout.MALWARE
    malware.mkdir(mode=0o700, exist_ok=True)
    witness = _witness.start()
    server = _server.Server(listener, owner=os.stat(state).st_uid)
    with asyncio.Runner() as runner:
        plane = runner.run(make_plane(state, server, reader=reader, witness=witness, handlers=handlers))
        writable = (state / layout.AUDIT, state / layout.PACKAGES)
        for line in _confine.confine(readable=(malware,), writable=writable):
            print(line, file=sys.stderr, flush=True)
        gc.collect()
        gc.freeze()
        runner.run(server.serve(plane))
    os.close(lock)
