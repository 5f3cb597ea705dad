"""Changes of files, as people read them. Names and contents come from a sandbox."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import _render

if TYPE_CHECKING:
    from paddock.model import Change

_WIDTH = 40
_LETTERS = {"added": "A", "modified": "M", "deleted": "D", "renamed": "R"}
_COLOURS = {"+": "32", "-": "31", "@": "36"}
_HEADS = ("diff --git ", "index ", "--- ", "+++ ", "old mode", "new mode", "new file", "deleted file", "rename ")


def add_form(parser: argparse.ArgumentParser) -> None:
    """How a difference is shown."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("-p", "--patch", action="store_true", help="what `git apply` takes")
    form.add_argument("--stat", action="store_true", help="lines by file")
    form.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")


def show(options: argparse.Namespace, document: object, changes: Sequence[Change], patch: bytes | None) -> None:
    if options.json:
        _render.document(document)
    elif options.patch:
        show_patch(patch or b"", colour=_coloured(options))
    elif options.stat:
        show_stat(changes, colour=_coloured(options))
    else:
        show_table(changes)


def show_table(changes: Sequence[Change]) -> None:
    if not changes:
        return
    rows = [(_LETTERS[c.kind], _lines(c), _mode(c), _name(c), c.obstacle or "") for c in changes]
    marks = ["missing" if c.obstacle else {"A": "ok", "D": "missing"}.get(_LETTERS[c.kind], "weak") for c in changes]
    hindered = any(c.obstacle for c in changes)
    headings = ("", "LINES", "MODE", "PATH", "NOT PROMOTED, BECAUSE")
    _render.table(headings if hindered else headings[:-1], [row if hindered else row[:-1] for row in rows], marks=marks)


def show_stat(changes: Sequence[Change], *, colour: bool) -> None:
    files = [c for c in changes if c.file != "directory"]
    names = [_render.escape(_name(c)) for c in files]
    width = max(map(len, names), default=0)
    most = max(((c.insertions or 0) + (c.deletions or 0) for c in files), default=0)
    for change, name in zip(files, names, strict=True):
        if change.insertions is None:
            _render.line(f" {name.ljust(width)} | {_render.size(change.size_bytes)}, not counted in lines")
            continue
        deletions = change.deletions or 0
        scale = min(1.0, _WIDTH / most) if most else 1.0
        plus, minus = "+" * round(change.insertions * scale), "-" * round(deletions * scale)
        bar = f"\x1b[32m{plus}\x1b[31m{minus}\x1b[0m" if colour else plus + minus
        _render.line(f" {name.ljust(width)} | {change.insertions + deletions:4} {bar}".rstrip())
    if files:
        more, less = (sum(getattr(c, field) or 0 for c in files) for field in ("insertions", "deletions"))
        _render.line(f" {len(files)} files, {more} lines added, {less} deleted")


def show_patch(patch: bytes, *, colour: bool) -> None:
    """As it is where it goes to a file or a program; on a terminal nothing in it drives the terminal."""
    if not sys.stdout.isatty() and not colour:
        sys.stdout.flush()
        _render.raw(1, patch)
        return
    for text in patch.decode("utf-8", "backslashreplace").split("\n")[:-1]:
        shown = _render.escape(text.replace("\t", "    "))
        code = "1" if text.startswith(_HEADS) else _COLOURS.get(text[:1])
        _render.line(f"\x1b[{code}m{shown}\x1b[0m" if colour and code else shown)


def _coloured(options: argparse.Namespace) -> bool:
    if options.color != "auto":
        return options.color == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _name(change: Change) -> str:
    end = "/" if change.file == "directory" else ""
    return f"{change.renamed_from} → {change.path}" if change.renamed_from else change.path + end


def _lines(change: Change) -> str:
    if change.file != "file":
        return change.file
    if change.insertions is None:
        return _render.size(change.size_bytes)
    return f"+{change.insertions} -{change.deletions}"


def _mode(change: Change) -> str:
    if change.old_mode is None or change.mode is None or change.old_mode == change.mode or change.file == "symlink":
        return ""
    return f"{change.old_mode:o} → {change.mode:o}"
