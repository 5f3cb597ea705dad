"""Levels side by side: in turns, with the same programs, under the same attacks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from paddock.client import Sandbox, Transport, default_transport
from paddock.errors import InvalidArgument, LevelUnavailable
from paddock.keeper import layout
from paddock.model import Diagnose, Diagnosis, Level

from ._attacks import Verdict, attack
from ._figures import WORK, Figure, Taken, outside
from ._lure import lure

ROUNDS = 5
_WORK_ROUNDS = 3
_TTL_SECONDS = 1800.0
_RULING = (
    *("/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock"),
    *("/run/dbus/system_bus_socket", "/run/systemd/private"),
)


class LevelResult(msgspec.Struct, frozen=True, kw_only=True):
    """`detail`: what makes the wall here."""

    level: str
    detail: str
    figures: tuple[Figure, ...]
    attacks: tuple[Verdict, ...]

    @property
    def through(self) -> tuple[str, ...]:
        return tuple(one.attack for one in self.attacks if one.verdict == "through")


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """`absent`: levels that this machine has not got, and why. `load` is that of the machine before it began."""

    kernel: str
    processors: int
    load: float
    rounds: int
    levels: tuple[LevelResult, ...]
    absent: dict[str, str]


def compare(
    names: Sequence[str] = (),
    *,
    rounds: int = ROUNDS,
    template: str = "host",
    transport: Transport | None = None,
    on_step: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """The levels of these names, or all that this machine has and that isolate; weakest first.

    InvalidArgument (no such level, rounds), LevelUnavailable (one that was named), and whatever keeps sandboxes from
    being made.
    """
    if rounds < 1:
        raise InvalidArgument(f"rounds={rounds} must be 1 or more", field="rounds")
    transport = transport or default_transport()
    diagnosis = transport.perform(Diagnose())
    levels, absent = _choose(names, diagnosis)
    load = os.getloadavg()[0]
    taken = {level: Taken(_maker(level, template, transport)) for level in levels}
    for level in levels:
        on_step(f"{level}: a first sandbox")  # which may have to make a template
        _maker(level, template, transport)().kill()
    for number in range(rounds):
        on_step(f"lives, round {number + 1} of {rounds}")
        for one in taken.values():
            one.life()
    with tempfile.TemporaryDirectory(prefix="paddock-bench-") as scratch:
        for name in WORK:
            on_step(name)
            for _ in range(min(rounds, _WORK_ROUNDS)):
                beside = outside(name, scratch)
                for one in taken.values():
                    one.work(name, beside)
    results: list[LevelResult] = []
    detail = {report.level: report.detail for report in diagnosis.levels}
    for level, one in taken.items():
        on_step(f"{level}: attacks")
        verdicts = _attacked(level, template, transport, Path(diagnosis.state_dir))
        results.append(LevelResult(level=level, detail=detail.get(level, ""), figures=one.figures(), attacks=verdicts))
    return Comparison(
        kernel=os.uname().release,
        processors=os.cpu_count() or 1,
        load=load,
        rounds=rounds,
        levels=tuple(results),
        absent=absent,
    )


def _choose(names: Sequence[str], diagnosis: Diagnosis) -> tuple[tuple[str, ...], dict[str, str]]:
    known = {report.level: report for report in reversed(diagnosis.levels)}
    for name in names:
        if name not in set(Level):
            raise InvalidArgument(f"no level {name!r}: there are {', '.join(Level)}", hint="paddock doctor")
        if name != Level.PROCESS and (name not in known or known[name].status == "missing"):
            why = known[name].detail if name in known else "no backend of that level is installed"
            raise LevelUnavailable(f"level {name!r} is not available here: {why}", hint="paddock doctor")
    absent = {name: one.detail for name, one in known.items() if one.status == "missing"}
    return tuple(dict.fromkeys(names)) or tuple(name for name in known if name not in absent), absent


def _maker(level: str, template: str, transport: Transport) -> Callable[[], Sandbox]:
    return lambda: Sandbox.create(template, level=level, ttl_seconds=_TTL_SECONDS, transport=transport)


def _attacked(level: str, template: str, transport: Transport, state: Path) -> tuple[Verdict, ...]:
    doors = [state / layout.KEEPER_SOCKET, state / layout.GATEWAY_SOCKET, *map(Path, _RULING)]
    with lure(doors) as host, _maker(level, template, transport)() as sandbox:
        return attack(sandbox, host)
