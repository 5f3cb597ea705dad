"""`paddock inspect`: all that is known of a sandbox."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import _render
from ._values import add_json, add_sandbox

if TYPE_CHECKING:
    from paddock.model import Inspection, Usage


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "What it was made from, its limits and what it uses of them, its times, its state and the reason for that, and"
        " its walls as the kernel shows them at this moment. Exit code 1 if one of those is not as it should be."
    )
    add_sandbox(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import InspectSandbox

    known = default_transport().perform(InspectSandbox(sandbox=options.sandbox))
    if options.json:
        _render.document(known)
    else:
        _render.facts(tuple(_facts(known)))
        if known.posture:
            _render.line("")
            rows = [(check.status, check.name, check.detail) for check in known.posture]
            _render.table(("WALLS", "", ""), rows, marks=[row[0] for row in rows])
    return 1 if any(check.status == "missing" for check in known.posture) else 0


def _facts(known: Inspection) -> Iterator[tuple[str, str]]:
    box = known.sandbox
    spec, now = box.spec, time.time()
    yield "id", box.id
    if spec.name:
        yield "name", spec.name
    yield (
        "state",
        box.state + (f": {box.reason}" if box.reason else "") + (f" ({box.limit} limit)" if box.limit else ""),
    )
    yield "level", f"{box.level}, by {box.backend}"
    yield "template", box.template
    yield "owner", box.owner
    yield "made", f"{_render.when(box.created_at)}, {_render.span(now - box.created_at)} ago"
    if box.ended_at is not None:
        yield "ended", f"{_render.when(box.ended_at)}, after {_render.span(box.ended_at - box.created_at)}"
    elif box.kept_until is not None:
        yield "kept until", f"{_render.when(box.kept_until)}, unless it is resumed before"
        yield "ttl", f"{_render.span(box.left_seconds or 0)} left when it is resumed"
    else:
        yield "ends", f"{_render.when(box.expires_at)}, in {_render.span(box.expires_at - now)}"
    yield "persistent", "yes" if spec.persistent else "no: it ends with the program that made it"
    for mount in spec.mounts:
        yield "mount", f"{mount.source} at {mount.target} ({mount.mode})"
    for name, value in spec.labels.items():
        yield "label", f"{name}={value}"
    for name in spec.env:
        yield "variable", f"{name} (its value: --json)"
    yield from _limits(known)


def _limits(known: Inspection) -> Iterator[tuple[str, str]]:
    limits, usage = known.sandbox.spec.limits, known.usage

    def held(name: str) -> str:
        if usage is None or name in known.enforced:
            return ""
        return "  (this machine does not enforce it: paddock doctor)"

    yield "cpus", f"{limits.cpus:g}" + (f", {usage.cpu_seconds:.1f} s used" if usage and usage.cpu_seconds else "")
    memory = _of(usage and usage.memory_bytes, limits.memory_mib << 20)
    peak = f", at most {_render.size(usage.memory_peak_bytes)}" if usage and usage.memory_peak_bytes else ""
    yield "memory", memory + peak + held("memory")
    yield "swap", _render.size(limits.swap_mib << 20)
    processes = f"{usage.processes} of " if usage and usage.processes is not None else ""
    yield "processes", f"{processes}{limits.processes}" + held("processes")
    yield "disk", _of(usage and usage.disk_bytes, limits.disk_mib << 20) + held("disk")
    yield "files", f"at most {limits.inodes}" + held("inodes")
    yield "open files", f"at most {limits.open_files} by a process"
    yield "/tmp", f"{_render.size(limits.tmp_mib << 20)}, counts as memory"  # noqa: S108 (that of the sandbox)
    yield "output", f"{_render.size(limits.output_mib << 20)} by a command"
    if usage is not None and usage.strikes:
        yield "struck", _strikes(usage)


def _strikes(usage: Usage) -> str:
    return ", ".join(f"{limit} {count} times" for limit, count in usage.strikes.items())


def _of(used: int | None, most: int) -> str:
    return f"at most {_render.size(most)}" if used is None else f"{_render.size(used)} of {_render.size(most)}"
