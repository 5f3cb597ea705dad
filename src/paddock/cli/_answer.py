"""Sends an action to the daemon, and prints the result: one JSON document, or text for people."""

from __future__ import annotations

from paddock.errors import PaddockError

from . import _render
from ._main import FAILED

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, TypeVar

    from paddock import model

    R = TypeVar("R")


def perform(action: model.Action[R]) -> R:
    """Have the daemon of this state directory do it."""
    from paddock.client import default_transport

    return default_transport().perform(action)


def ask(kind: type[model.Action[R]], options: argparse.Namespace, **more: Any) -> R:
    """Have the daemon do it. A field that `more` doesn't have is the option of the same name, if there is one."""
    values = {name: value for name, value in vars(options).items() if name in kind.__fields__}
    return perform(kind(**{**values, **more}))


def each(
    options: argparse.Namespace,
    names: Sequence[str],
    action: Callable[[str], model.Action[R]],
    shown: Callable[[R], Sequence[str]] = lambda result: (),
) -> int:
    """Perform `action` on each of `names`, and print the results, as lines or as a document. Return the exit code.

    A failure doesn't stop the others. The name stands for a missing result.
    """
    done: list[object] = []
    lines: list[str] = []
    failed: dict[str, PaddockError] = {}
    for name in names:
        try:
            result = perform(action(name))
        except PaddockError as error:
            failed[name] = error
        else:
            done.append(name if result is None else result)
            lines += shown(result)
    if not failed or not options.json:
        answer(options, done, *lines)
    if failed:
        _render.failures(failed, done, as_json=options.json)
    return FAILED if failed else 0


def answer(
    options: argparse.Namespace,
    value: object,
    *lines: str,
    show: Callable[[], object] = lambda: None,
    notes: Iterable[str] = (),
) -> int:
    """Print `value` as a document. Or call `show`, and print lines, and notes on stderr. Return the exit code."""
    if options.json:
        _render.document(value)
    else:
        show()
        _render.lines(lines)
        _render.notes(notes)
    return 0


def listing(
    options: argparse.Namespace,
    found: Sequence[R],
    headings: str,
    row: Callable[[R], Sequence[str]],
    empty: str = "",
    marks: Sequence[str] = (),
) -> int:
    """Print results as a document or as a table; say `empty` on stderr if there are none. Return the exit code."""
    if not found:
        return answer(options, found, notes=filter(None, (empty,)))
    rows = [row(one) for one in found]
    return answer(options, found, show=lambda: _render.table(headings.split(", "), rows, marks=marks))
