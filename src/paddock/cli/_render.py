"""The only module that prints. It escapes texts of sandboxes and records for a terminal."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

from paddock.errors import PaddockError

_COLUMNS = 80
_UNNAMED = {"usage", PaddockError.code}
"""Codes that docs/errors.md has no section for."""


def escape(text: str) -> str:
    """Escape all characters that move a cursor, change a colour or reorder text."""
    return "".join(character if character.isprintable() else _visible(character) for character in text)


def line(text: str = "") -> None:
    print(escape(text))


def lines(texts: Iterable[str]) -> None:
    for text in texts:
        line(text)


def plain(text: str) -> None:
    """Print several lines, or coloured ones. The caller has escaped texts of sandboxes and records."""
    print(text)


def flush() -> None:
    """Flush stdout, for a person who watches."""
    sys.stdout.flush()


def said(text: str) -> None:
    """Print a line of a command beside the output."""
    print(escape(text), file=sys.stderr, flush=True)


def note(text: str) -> None:
    """Print a message for a person on stderr."""
    print(f"paddock: {escape(text)}", file=sys.stderr, flush=True)


def notes(texts: Iterable[str]) -> None:
    for text in texts:
        note(text)


def failure(error: PaddockError, *, as_json: bool) -> None:
    problem(error.code, error.message, error.hint, as_json=as_json)


def failures(errors: Mapping[str, PaddockError], done: Sequence[object], *, as_json: bool) -> None:
    """Report the failures of some of several objects, by name; `done` are the results of the others."""
    if not as_json:
        for error in errors.values():
            failure(error, as_json=False)
        return
    shown = {name: _problem(error.code, error.message, error.hint) for name, error in errors.items()}
    more = {"errors": shown, "done": done} if len(shown) + len(done) > 1 else {}
    document({"error": next(iter(shown.values())), **more})


def problem(code: str, message: str, hint: str | None, *, as_json: bool) -> None:
    if as_json:
        document({"error": _problem(code, message, hint)})
        return
    note(message if code in _UNNAMED else f"{message} [{code}]")
    if hint:
        print(f"  try: {escape(hint)}", file=sys.stderr, flush=True)


def _problem(code: str, message: str, hint: str | None) -> dict[str, str | None]:
    return {"code": code, "message": message, "hint": hint}


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def document(value: object) -> None:
    """One JSON document."""
    sys.stdout.write(as_json(value, indent=2) + "\n")


def json_line(value: object) -> None:
    """Print one JSON document on a line, at once."""
    sys.stdout.write(as_json(value) + "\n")
    sys.stdout.flush()


def as_json(value: object, indent: int | None = None) -> str:
    import json

    from paddock.model.codec import plain

    separators = (",", ": " if indent else ":")
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, default=plain)
    return _escaped_json(text)


def _escaped_json(encoded: str) -> str:
    """Escape the characters of a document that control a terminal: DEL, the controls of C1, marks of direction.

    It also escapes lone surrogates, from names that aren't UTF-8.
    """
    if encoded.isascii() and "\x7f" not in encoded:
        return encoded
    return "".join(one if one.isprintable() or one == "\n" else _units(one) for one in encoded)


def _units(character: str) -> str:
    """Escape a character in UTF-16, as JSON requires."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(units[at : at + 2]):04x}" for at in range(0, len(units), 2))


def raw(descriptor: int, data: bytes) -> None:
    """Write a command's own bytes, as they are, at once."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # another user of it made it so
            select.select((), (descriptor,), ())


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, marks: Sequence[str] = (), beside: bool = False
) -> None:
    """Print a table. `marks` colours the first column: ok, weak or missing per row. `beside` the output: on stderr."""
    stream = sys.stderr if beside else sys.stdout
    width = _width(stream.fileno()) if stream.isatty() else None
    for text in _table(headings, [[escape(cell) for cell in row] for row in rows], width, marks):
        print(text, file=stream)


def _table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None,
    marks: Sequence[str] = (),
    *,
    below: int = 0,
) -> list[str]:
    """Return the lines of a table. With a `width` it wraps the widest columns so that the lines fit, between words
    only, so that you can copy an id. The last columns that don't fit even so stand below each row, and the last `below`
    always."""
    from textwrap import wrap

    columns = list(zip(headings, *rows, strict=True))[: len(headings) - below]
    widths = [max(map(len, column)) for column in columns]
    if width is not None:
        words = [max(map(len, " ".join(column).split()), default=1) for column in columns]
        while len(words) > 1 and sum(words) + 2 * (len(words) - 1) > width:
            words.pop()
        widths = widths[: len(words)]
        while sum(widths) + 2 * (len(widths) - 1) > width and widths != words:
            widths[max(range(len(words)), key=lambda n: widths[n] if widths[n] > words[n] else 0)] -= 1
    lines: list[str] = []
    for row, mark in zip((headings, *rows), ("", *marks, *[""] * (len(rows) - len(marks))), strict=True):
        parts = [wrap(cell, size, break_on_hyphens=False) or [""] for cell, size in zip(row, widths, strict=False)]
        for number in range(max(map(len, parts))):
            cells = [part[number] if number < len(part) else "" for part in parts]
            text = "  ".join(map(str.ljust, cells, widths)).rstrip()
            lines.append(text.replace(cells[0], _coloured(cells[0], mark), 1) if width and mark and cells[0] else text)
        if row is not headings:
            others = zip(headings[len(widths) :], row[len(widths) :], strict=True)
            lines += [f"  {heading} {cell}" for heading, cell in others if cell]
    return lines


def checklist(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of a status, names, a detail and a fix, as wide as the terminal, or 80 columns.

    The fix stands below the others, in one piece, so that you can copy it.
    """
    cells = [[escape(cell) for cell in row] for row in rows]
    width = _width(1) if sys.stdout.isatty() else _COLUMNS
    for text in _table((*headings, "fix:"), cells, width, [row[0] for row in cells], below=1):
        print(text)


def _width(descriptor: int) -> int:
    try:
        return os.get_terminal_size(descriptor).columns or _COLUMNS
    except OSError:
        return _COLUMNS


def _coloured(text: str, mark: str) -> str:
    colour = {"ok": 32, "weak": 33, "missing": 31}.get(mark)
    if colour is None or not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{colour}m{text}\x1b[0m"


def facts(rows: Sequence[tuple[str, str]]) -> None:
    """Names and values below each other."""
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{escape(name).ljust(width)}  {escape(value)}")


def live_table(headings: Sequence[str], looks: Iterable[Sequence[Sequence[str]]]) -> None:
    """One table that changes in its place, on a terminal."""
    shown = 0
    for rows in looks:
        size = os.get_terminal_size(1)
        lines = _table(headings, [[escape(cell) for cell in row] for row in rows], size.columns or _COLUMNS)
        # A line that has scrolled away can't be written over. One that the terminal wraps counts as two.
        lines = [text[: size.columns or _COLUMNS] for text in lines[: max(size.lines - 1, 1)]]
        back = f"\x1b[{shown}F\x1b[J" if shown else ""  # up so many lines, and clear from there (ECMA-48: CPL, ED)
        sys.stdout.write(back + "".join(f"{text}\n" for text in lines))
        sys.stdout.flush()
        shown = len(lines)


def span(seconds: float) -> str:
    seconds = max(0, round(seconds))
    if seconds < 120:
        return f"{seconds} s"
    return f"{round(seconds / 60)} min" if seconds < 7200 else f"{round(seconds / 3600)} h"


def when(seconds: float | None) -> str:
    """Format a time as local time, or None as ""."""
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def size(number: float | None) -> str:
    if number is None:
        return "?"
    for unit in ("B", "KiB", "MiB"):
        if abs(number) < 1024:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 10 else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"


def _visible(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
