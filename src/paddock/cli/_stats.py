"""`paddock stats`: the sandboxes' consumption over time."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from paddock import model
from paddock.errors import SandboxError

from . import _render
from ._answer import perform
from ._usage import argument, usage
from ._values import seconds

_HEADINGS = ("ID", "NAME", "CPU", "MEMORY", "OF", "PIDS", "OF", "DISK", "OF", "LIMITS HIT")
_FIRST_SECONDS = 0.5


class Sample(NamedTuple):
    """A sample of one sandbox.

    `cpu` is a share of one core since the previous sample. None: there was none, or no counter.
    """

    at: float
    sandbox: model.Sandbox
    usage: model.Usage
    cpu: float | None


@usage(
    argument("sandboxes", nargs="*", metavar="ID", help="id, unique prefix of one, or name; default: all"),
    argument("--once", action="store_true", help="one look, over half a second"),
    argument("--every", type=seconds, default=2.0, metavar="TIME", help="between looks (default: 2)"),
)
def verb_stats(options: argparse.Namespace) -> int:
    """Show a live table of the sandboxes' consumption (default: all), until Ctrl-C or until the last one has ended.

    If stdout isn't a terminal, show it once. With --json, print one line for each sandbox and sample.

    Examples:
        paddock stats box
    """
    once = options.once or not (options.json or sys.stdout.isatty())
    looks = _looks(options, once=once)
    with contextlib.suppress(KeyboardInterrupt):  # that is how it is ended
        if options.json:
            for sample in itertools.chain.from_iterable(looks):
                _render.json_line(_document(sample))
        elif once:
            for samples in looks:
                if samples:
                    _render.table(_HEADINGS, [_row(sample) for sample in samples])
                else:
                    _render.note("no sandboxes run: paddock create makes one")
        else:
            _render.live_table(_HEADINGS, ([_row(sample) for sample in samples] for samples in looks))
    return 0


def _looks(options: argparse.Namespace, *, once: bool) -> Iterator[list[Sample]]:
    before = _look(options.sandboxes, {})
    time.sleep(min(_FIRST_SECONDS, options.every))
    while before or not options.sandboxes:
        samples = _look(options.sandboxes, {sample.sandbox.id: sample for sample in before})
        yield samples
        if once or (options.sandboxes and not samples):
            return
        before = samples
        time.sleep(options.every)


def _look(names: list[str], before: dict[str, Sample]) -> list[Sample]:
    """Sample the sandboxes, except ended ones. Raises NotFoundError for an unknown name."""
    boxes = [perform(model.GetSandbox(sandbox=name)) for name in names] or perform(model.ListSandboxes())
    return [
        sample
        for box in boxes
        if box.state is model.State.RUNNING and (sample := _sample(box, before.get(box.id))) is not None
    ]


def _sample(box: model.Sandbox, before: Sample | None) -> Sample | None:
    try:
        usage = perform(model.GetUsage(sandbox=box.id))
    except SandboxError:
        return None
    at = time.time()
    cpu = None
    if before is not None and usage.cpu_seconds is not None and before.usage.cpu_seconds is not None:
        cpu = max(0.0, usage.cpu_seconds - before.usage.cpu_seconds) / max(at - before.at, 1e-3)
    return Sample(at, box, usage, cpu)


def _row(sample: Sample) -> tuple[str, ...]:
    box, usage = sample.sandbox, sample.usage
    limits = box.spec.limits
    return (
        box.id,
        box.spec.name or "",
        "?" if sample.cpu is None else f"{sample.cpu:.0%}",
        _render.size(usage.memory_bytes),
        _render.size(limits.memory_mib << 20),
        "?" if usage.processes is None else str(usage.processes),
        str(limits.processes),
        _render.size(usage.disk_bytes),
        _render.size(limits.disk_mib << 20),
        " ".join(f"{limit}:{count}" for limit, count in usage.strikes.items()),
    )


def _document(sample: Sample) -> dict[str, object]:
    box = sample.sandbox
    named = {"at": sample.at, "sandbox": box.id, "name": box.spec.name}
    return {**named, "cpu": sample.cpu, "usage": sample.usage, "limits": box.spec.limits}
