"""A section as a picture: bars for medians on a logarithmic scale, whiskers for quartiles. SVG, written by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from bench.figures import Summary, summarize
from bench.report import Section

_WIDTH, _LABELS, _RIGHT, _LINE, _BAR, _TOP = 960, 330, 90, 26, 14, 64
_OURS, _THEIRS, _INK = "#2f6f4f", "#b9b4a7", "#222"


def write(section: Section, directory: Path) -> Path:
    """`directory/<name>.svg`; parts are left out, as they are parts of a bar that is there."""
    bars = [(row.label, summarize(row.values)) for row in section.rows if row.values and not row.part]
    file = directory / f"{section.name.replace(' ', '-')}.svg"
    file.write_text(draw(f"{section.name}: {section.title}", section.unit, bars))
    return file


def draw(title: str, unit: str, bars: Sequence[tuple[str, Summary]]) -> str:
    height = _TOP + _LINE * len(bars) + 20
    positive = [value for _, s in bars for value in (s.p25, s.p75, s.median) if value > 0]
    if not positive:
        return f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"/>\n'
    low = 10 ** math.floor(math.log10(min(positive)))
    high = max(10 ** math.ceil(math.log10(max(positive))), low * 10)

    def x(value: float) -> float:
        share = math.log(max(value, low) / low) / math.log(high / low)
        return _LABELS + share * (_WIDTH - _LABELS - _RIGHT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
        f' font-family="sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="12" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    tick = low
    while tick <= high * 1.001:
        at = f"{x(tick):.1f}"
        parts.append(f'<line x1="{at}" x2="{at}" y1="{_TOP - 8}" y2="{height - 16}" stroke="#e6e3dc"/>')
        parts.append(f'<text x="{at}" y="{_TOP - 14}" text-anchor="middle" fill="#777">{tick:g} {escape(unit)}</text>')
        tick *= 10
    for number, (label, s) in enumerate(bars):
        top = _TOP + number * _LINE
        middle = top + _BAR / 2
        colour = _OURS if label.startswith(("paddock", "inside")) else _THEIRS
        end = x(s.median)
        parts += [
            f'<text x="{_LABELS - 10}" y="{middle + 4:.1f}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{_LABELS}" y="{top}" width="{max(end - _LABELS, 1):.1f}" height="{_BAR}" fill="{colour}"/>',
            f'<line x1="{x(s.p25):.1f}" x2="{x(s.p75):.1f}" y1="{middle}" y2="{middle}" stroke="{_INK}"/>',
            f'<text x="{max(end, x(s.p75)) + 6:.1f}" y="{middle + 4:.1f}">{s.median:.3g}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"
