"""Sends an action to the daemon, and prints the result: one JSON document, or text for people."""

from __future__ import annotations

from . import _render

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from paddock import model

    R = TypeVar("R")


def perform(action: model.Action[R]) -> R:
    """Have the daemon of this state directory do it."""
    from paddock.client import default_transport

    return default_transport().perform(action)


def answer(options: argparse.Namespace, value: object, show: Callable[[], object] = lambda: None) -> int:
    """Print `value` as a document, or call `show`. Return the exit code."""
    if options.json:
        _render.document(value)
    else:
        show()
    return 0


def listing(
    options: argparse.Namespace,
    found: Sequence[R],
    headings: Sequence[str],
    row: Callable[[R], Sequence[str]],
    empty: str = "",
) -> int:
    """Print results as a document or as a table; say `empty` on stderr if there are none. Return the exit code."""

    def show() -> None:
        if found:
            _render.table(headings, [row(one) for one in found])
        else:
            _render.note(empty)

    return answer(options, found, show)
