"""Reads YAML as plain values, with their positions: the subset of YAML 1.2 that all readers understand alike.

`no` and `on` are words, and `22:22` isn't a number. A key appears once. The reader supports neither merges nor tags
that make objects.
"""

from __future__ import annotations

import re
from typing import TypeAlias, cast

import msgspec
import yaml

from paddock.errors import PolicyInvalidError

MOST_BYTES = 8 << 20
_MOST_NODES = 2_000_000
"""Most values in a document. The reader copies aliases, so a few nested ones make very many."""

Path: TypeAlias = tuple[str | int, ...]
Places: TypeAlias = dict[Path, "Position"]

_WORDS: dict[str, object] = {"true": True, "false": False, "null": None, "~": None, "": None}
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_DECIMAL = re.compile(r"-?\d{1,17}\.\d{1,17}")
_STANDARD = "tag:yaml.org,2002:"
_TAGS = frozenset(_STANDARD + name for name in ("str", "int", "float", "bool", "null", "map", "seq"))
_IMPLICIT = frozenset(_STANDARD + name for name in ("timestamp", "merge", "value"))  # words, to us


class Position(msgspec.Struct, frozen=True):
    """Both count from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.line}:{self.column}"


def parse(text: str) -> tuple[object, Places]:
    """Return the values, and the position of each.

    `(…, key, "#")` is the position of a key. Raises PolicyInvalidError.
    """
    if len(text) > MOST_BYTES:
        raise PolicyInvalidError(f"the document has more than {MOST_BYTES >> 20} MiB")
    try:
        node = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(error, text) from None
    except (yaml.YAMLError, ValueError) as error:
        raise PolicyInvalidError(f"not YAML: {error}") from None
    except RecursionError:
        raise PolicyInvalidError("the document is nested too deeply") from None
    if node is None:
        return {}, {(): Position(1, 1)}
    reading = _Reading()
    return reading.value(node, ()), reading.places


class _Reading:
    def __init__(self) -> None:
        self.places: Places = {}
        self._nodes = 0
        self._open: set[int] = set()

    def value(self, node: yaml.Node, path: Path) -> object:
        place = self.places[path] = _place(node)
        self._nodes += 1
        if self._nodes > _MOST_NODES or len(path) > 100 or id(node) in self._open:
            raise invalid("aliases make the document endless, or nearly", place)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node, place)
        _check_tag(node, place)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                items = cast("list[yaml.Node]", node.value)
                return [self.value(item, (*path, index)) for index, item in enumerate(items)]
            return self._mapping(cast("list[tuple[yaml.Node, yaml.Node]]", node.value), path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, items: list[tuple[yaml.Node, yaml.Node]], path: Path) -> dict[str, object]:
        result: dict[str, object] = {}
        for key_node, node in items:
            place = _place(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                raise invalid("a key is one word", place)
            key = cast("str", key_node.value)
            if key in result:
                first = self.places[(*path, key, "#")]
                raise invalid(f"{key!r} stands here a second time; the first is at {first}", place, "keep one of them")
            if key == "<<":
                raise invalid(
                    "keys are not merged", place, "write out what is meant, or use an alias for a whole value"
                )
            self.places[(*path, key, "#")] = place
            result[key] = self.value(node, (*path, key))
        return result


def _scalar(node: yaml.ScalarNode, place: Position) -> object:
    _check_tag(node, place)
    text = cast("str", node.value)
    if node.style:  # quoted, or a block
        return text
    value: object = text
    if text in _WORDS:
        value = _WORDS[text]
    elif _INTEGER.fullmatch(text):
        value = int(text)
    elif _DECIMAL.fullmatch(text):
        value = float(text)
    return text if node.tag == _STANDARD + "str" else value


def _check_tag(node: yaml.Node, place: Position) -> None:
    if node.tag not in _TAGS and not (node.tag in _IMPLICIT and isinstance(node, yaml.ScalarNode)):
        tag = node.tag.replace(_STANDARD, "!!")
        raise invalid(f"the tag {tag!r} means nothing here", place, "leave it out")


def _place(node: yaml.Node) -> Position:
    mark = node.start_mark
    return Position(mark.line + 1, mark.column + 1)


def invalid(message: str, place: Position, hint: str | None = None, **details: object) -> PolicyInvalidError:
    return PolicyInvalidError(f"{place}: {message}", hint=hint, line=place.line, column=place.column, **details)


def _not_yaml(error: yaml.MarkedYAMLError, text: str) -> PolicyInvalidError:
    mark = error.problem_mark or error.context_mark
    place = Position(1, 1) if mark is None else Position(mark.line + 1, mark.column + 1)
    problem = error.problem or "it ends too early"
    line = next(iter(text.splitlines()[place.line - 1 : place.line]), "")
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return invalid("a tab stands where YAML wants blanks", place, "indent with blanks")
    if error.context:
        problem = f"{error.context}: {problem}"
    return invalid(f"not YAML: {problem}", place)
