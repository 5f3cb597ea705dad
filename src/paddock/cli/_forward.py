"""`paddock forward`: a port of this machine that leads to one inside a sandbox."""

from __future__ import annotations

import argparse
import threading

from paddock import client

from . import _render
from ._usage import argument, usage
from ._values import SANDBOX


def _ports(text: str) -> tuple[int, int]:
    """`8000`, `8080:80`: the port here, 0 for any free one, and the port inside."""
    here, colon, inside = text.rpartition(":")
    if not inside.isdecimal() or (colon and not here.isdecimal()) or not 0 < int(inside) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} isn't a port: write 8000, or 8080:80 for port 8080 of this machine")
    return int(here or 0), int(inside)


@usage(
    SANDBOX,
    argument("ports", type=_ports, metavar="[LOCAL:]PORT", help="the port inside; LOCAL is the one of this machine"),
    argument("--host", default="127.0.0.1", metavar="ADDRESS", help="of this machine (default: 127.0.0.1)"),
)
def verb_forward(options: argparse.Namespace) -> int:
    """Have a port of this machine lead to a port that a program inside listens on, until Ctrl-C. Prints the URL."""
    local_port, port = options.ports
    with client.Sandbox.connect(options.sandbox).forward(port, local_port=local_port, host=options.host) as url:
        if options.json:
            _render.document({"url": str(url), "host": url.host, "port": url.port})
        else:
            _render.line(url)
        _render.flush()
        threading.Event().wait()
    return 0
