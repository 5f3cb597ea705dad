"""`paddock ps`: the processes inside, as the kernel shows them outside."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from . import _render
from ._values import add_json, add_sandbox

if TYPE_CHECKING:
    from paddock.model import Process

_COMMAND_CHARS = 200


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Every process inside. The kernel is asked, outside: none can hide, and only the command is its own word."
        " Numbers are those inside; 1 and those right below it that are called paddock are the guest's."
    )
    add_sandbox(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import ListProcesses

    found = default_transport().perform(ListProcesses(sandbox=options.sandbox))
    if options.json:
        _render.document(found)
    else:
        headings = ("PID", "PARENT", "UID", "STATE", "THREADS", "CPU", "MEMORY", "AGE", "COMMAND")
        _render.table(headings, [_row(process) for process in found])
    return 0


def _row(process: Process) -> tuple[str, ...]:
    return (
        str(process.pid),
        str(process.parent),
        str(process.uid),
        process.state,
        str(process.threads),
        f"{process.cpu_seconds:.1f} s",
        _render.size(process.memory_bytes),
        _render.span(time.time() - process.started_at),
        " ".join(process.argv)[:_COMMAND_CHARS] or f"[{process.name}]",
    )
