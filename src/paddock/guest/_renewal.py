"""Renewal: what a guest is told first when it was copied or slept, so that no two are the same.

Each part is done where it may be; where it may not, that is said and the rest is done.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable

from . import _hosts as hosts
from . import _requests as requests
from ._frames import Json


def renew(request: Json) -> Json:
    """Does what a request says, and answers with `done` and `failed`, by name: `hostname`; `hosts`, the name that
    resolves to the sandbox itself."""
    done: list[str] = []
    failed: dict[str, str] = {}
    for name, part in _PARTS.items():
        if request.get(name) is None:
            continue
        try:
            part(request)
            done.append(name)
        except OSError as error:
            failed[name] = errno.errorcode.get(error.errno or 0, "?")
    return {"done": done, "failed": failed}


def _hostname(request: Json) -> None:
    socket.sethostname(requests.text(request, "hostname"))


def _hosts(request: Json) -> None:
    file = os.open("/" + hosts.PATH, hosts.FLAGS, 0o644)
    try:
        hosts.name_sandbox(file, requests.text(request, "hosts"))
    finally:
        os.close(file)


_PARTS: dict[str, Callable[[Json], None]] = {"hostname": _hostname, "hosts": _hosts}
