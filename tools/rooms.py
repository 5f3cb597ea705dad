"""Draw docs/rooms.svg: the rooms of `src/paddock` by layer, and which imports which. `--check` compares only.

The layers are those of import-linter's contract in pyproject.toml, the arrows are the imports in the sources. An arrow
that follows from others is left out.
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "rooms.svg"
WIDTH, BOX, HEIGHT, GAP = 820, 150, 40, 34
ASIDE = (-200, 60, 200, -60)
"""How far a room that is alone in its layer stands from the middle, in turns: lines stay visible."""
SAYS = {
    "__main__": "python -m paddock",
    "agents": "loop, best of N, search",
    "audit": "hash-chained log",
    "backends": "the levels of isolation",
    "cli": "the command line",
    "client": "the SDK",
    "daemon": "decides, records, acts",
    "errors": "one tree",
    "eval": "attacks, played",
    "gateway": "the egress proxy",
    "linux": "the kernel, by concept",
    "model": "nouns, actions, results",
    "policy": "pure decisions",
    "storage": "trees, templates, git",
    "supervisor": "power over the kernel",
    "vmm": "runsc and QEMU, inside",
    "wire": "frames",
}
LEFT_OUT = {"server", "_renamed", "__main__"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is there")
    drawn = draw()
    if not parser.parse_args().check:
        TARGET.write_text(drawn)
    elif TARGET.read_text() != drawn:
        print("docs/rooms.svg differs: run tools/rooms.py")
        return 1
    return 0


def draw() -> str:
    rows = layers()
    places = {
        room: (
            (WIDTH - len(row) * (BOX + 60)) / 2
            + 30
            + column * (BOX + 60)
            + (ASIDE[number % 4] if len(row) == 1 else 0),
            20 + number * (HEIGHT + GAP),
        )
        for number, row in enumerate(rows)
        for column, room in enumerate(row)
    }
    height = 20 + len(rows) * (HEIGHT + GAP)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        "  <title>The rooms of paddock: imports only point down</title>",
        f'  <rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for upper, lower in sorted(reduced(imports(set(places)))):
        (x, y), (to_x, to_y) = places[upper], places[lower]
        x, to_x, y = x + BOX / 2, to_x + BOX / 2, y + HEIGHT
        bend = (to_y - y) / 2
        path = f"M{x:.0f} {y:.0f} C{x:.0f} {y + bend:.0f} {to_x:.0f} {to_y - bend:.0f} {to_x:.0f} {to_y:.0f}"
        out.append(f'  <path d="{path}" fill="none" stroke="#9ab" stroke-width="1.5"/>')
    for room, (x, y) in places.items():
        out += [
            f'  <rect x="{x:.0f}" y="{y:.0f}" width="{BOX}" height="{HEIGHT}" rx="4" fill="#eef3f8" stroke="#567"/>',
            f'  <text x="{x + 8:.0f}" y="{y + 17:.0f}" font-size="14" font-weight="bold">{room}</text>',
            f'  <text x="{x + 8:.0f}" y="{y + 33:.0f}" font-size="11" fill="#345">{SAYS[room]}</text>',
        ]
    return "\n".join([*out, "</svg>"]) + "\n"


def layers() -> list[list[str]]:
    """Return the rooms that the contract names, highest layer first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    named = next(contract["layers"] for contract in contracts if contract["name"] == "One direction")
    rows = [[room.strip() for room in layer.split("|") if room.strip() not in LEFT_OUT] for layer in named]
    return [row for row in rows if row]


def imports(rooms: set[str]) -> set[tuple[str, str]]:
    """Return (importer, imported) of the rooms."""
    graph = grimp.build_graph("paddock", cache_dir=None, exclude_type_checking_imports=True)
    found: set[tuple[str, str]] = set()
    for module in graph.modules:
        upper = module.split(".")[1] if "." in module else ""
        for other in graph.find_modules_directly_imported_by(module):
            lower = other.split(".")[1] if "." in other else ""
            if upper != lower and {upper, lower} <= rooms:
                found.add((upper, lower))
    return found


def reduced(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Leave out an edge where another way leads to the same room."""

    def reaches(start: str, end: str, without: tuple[str, str]) -> bool:
        pending, seen = [start], set[str]()
        while pending:
            room = pending.pop()
            if room == end:
                return True
            if room not in seen:
                seen.add(room)
                pending += [lower for upper, lower in edges if upper == room and (upper, lower) != without]
        return False

    return {edge for edge in edges if not reaches(*edge, without=edge)}


if __name__ == "__main__":
    raise SystemExit(main())
