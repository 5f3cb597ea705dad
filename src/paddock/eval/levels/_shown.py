"""A comparison as a table, as Markdown, and as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

import msgspec

from paddock.errors import InvalidArgument

from ._compare import ORDER, Comparison, LevelResult

_WIDTH, _LABELS, _RIGHT, _BAR, _GAP, _HEAD = 900, 120, 90, 15, 4, 26
_COLOURS = ("#b9b4a7", "#2f6f4f", "#3c6e9f", "#a0522d", "#6b5b95", "#888")
FORMATS = ("json", "md", "svg")


def headings(found: Comparison) -> tuple[str, ...]:
    return ("", *(one.level.upper() for one in found.levels))


def rows(found: Comparison) -> list[tuple[str, ...]]:
    """A line for each figure, and the last for the attacks."""
    units = {figure.name: figure.unit for one in found.levels for figure in one.figures}
    names = [name for name in ORDER if name in units]
    lines = [(_label(name, units[name]), *(_cell(one, name) for one in found.levels)) for name in names]
    return [*lines, ("attacks that got through", *(_contained(one) for one in found.levels))]


def notes(found: Comparison) -> list[str]:
    """What the table has no room for."""
    said = [f"{one.level}: {one.detail}" for one in found.levels if one.detail]
    for one in found.levels:
        said += [f"{one.level}: no {figure.name}: {figure.why}" for figure in one.figures if figure.why]
        if one.through:
            said.append(f"{one.level}: got through: {', '.join(one.through)}")
        said += [f"{one.level}: not tried: {v.attack}: {v.why}" for v in one.attacks if v.verdict == "not tried"]
    said += [f"{level} is not here: {why}" for level, why in found.absent.items()]
    said.append(
        f"medians of {found.rounds} in turns on {found.processors} processors beside a load of {found.load:.1f}, "
        f"Linux {found.kernel}; x: times what it takes outside; attacks are made by root inside where there is one"
    )
    return said


def as_json(found: Comparison) -> bytes:
    return msgspec.json.format(msgspec.json.encode(found))


def as_markdown(found: Comparison) -> str:
    head = headings(found)
    lines = [head, ("---",) * len(head), *rows(found)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"# Levels\n\n{table}\n\n" + "".join(f"- {note}\n" for note in notes(found))


def write(found: Comparison, file: Path) -> None:
    """JSON, Markdown or SVG, by its name. InvalidArgument."""
    kind = check_name(file)
    text = {"json": lambda: as_json(found).decode(), "md": lambda: as_markdown(found), "svg": lambda: as_svg(found)}
    file.write_text(text[kind]())


def check_name(file: Path) -> str:
    kind = file.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise InvalidArgument(f"{file} is no name of a report", hint=f"end it in {', '.join('.' + k for k in FORMATS)}")
    return kind


def as_svg(found: Comparison) -> str:
    """Bars on a logarithmic scale, one group for each figure: times, and work as a multiple of outside."""
    units = {figure.name: figure.unit for one in found.levels for figure in one.figures}
    groups = [
        (_label(name, units[name]), [(one.level, _median(one, name)) for one in found.levels])
        for name in ORDER
        if name in units
    ]
    values = [value for _, bars in groups for _, value in bars if value]
    low, high = (min(values) / 2, max(values)) if values else (1.0, 10.0)
    height = 50 + sum(_HEAD + len(bars) * (_BAR + _GAP) for _, bars in groups)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="12"><rect width="{_WIDTH}" height="{height}" fill="#fff"/>'
        f'<text x="12" y="24" font-size="15" font-weight="bold">levels: medians, logarithmic scale</text>'
    ]
    top = 40
    for label, bars in groups:
        parts.append(f'<text x="12" y="{top + 16}" font-weight="bold">{escape(label)}</text>')
        top += _HEAD
        for number, (level, value) in enumerate(bars):
            share = math.log(value / low) / math.log(high / low) if value else 0.0
            length = (_WIDTH - _LABELS - _RIGHT) * share
            parts.append(
                f'<text x="{_LABELS - 8}" y="{top + 12}" text-anchor="end">{escape(level)}</text>'
                f'<rect x="{_LABELS}" y="{top}" width="{length:.1f}" height="{_BAR}" fill="{_colour(number)}"/>'
                f'<text x="{_LABELS + length + 6:.1f}" y="{top + 12}">{_number(value)}</text>'
            )
            top += _BAR + _GAP
    return "\n".join([*parts, "</svg>"]) + "\n"


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _label(name: str, unit: str) -> str:
    return f"{name} ({'x outside' if unit == 'x' else unit})"


def _median(one: LevelResult, name: str) -> float | None:
    return next((figure.median for figure in one.figures if figure.name == name), None)


def _cell(one: LevelResult, name: str) -> str:
    return _number(_median(one, name))


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _contained(one: LevelResult) -> str:
    tried: Sequence[object] = [verdict for verdict in one.attacks if verdict.verdict != "not tried"]
    return f"{len(one.through)} of {len(tried)}"
