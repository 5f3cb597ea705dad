"""A fault in a document, and its position."""

from __future__ import annotations

from difflib import get_close_matches

from paddock.errors import PolicyInvalidError

from ._yaml import Path, Places, Position, invalid


class Problem(Exception):
    """`{other}` in the message is where `other` is."""

    def __init__(self, path: Path, message: str, hint: str | None = None, *, other: Path | None = None) -> None:
        super().__init__(message)
        self.path, self.message, self.hint, self.other = path, message, hint, other

    def error(self, places: Places | None) -> PolicyInvalidError:
        """Make an error with the places of a text, or with the paths of a document that has none."""
        message = self.message
        if self.other is not None:
            message = message.replace("{other}", _where(self.other, places))
        at = dotted(self.path)
        message = f"{at}: {message}" if at else message
        if places is None:
            return PolicyInvalidError(message, hint=self.hint, at=at)
        return invalid(message, place_of(self.path, places), self.hint, at=at)


def place_of(path: Path, places: Places) -> Position:
    """Return the place of a path, or of the part that it is missing from."""
    while path not in places and path:
        path = path[:-1]
    return places.get(path, Position(1, 1))


def dotted(path: Path) -> str:
    """Write a path, such as `egress.allow[3].host`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text.removesuffix(".#")


def nearest(word: str, known: list[str], cutoff: float = 0.6) -> str | None:
    return next(iter(get_close_matches(word, known, n=1, cutoff=cutoff)), None)


def _where(path: Path, places: Places | None) -> str:
    return dotted(path) if places is None else f"{dotted(path)} (line {place_of(path, places).line})"
