"""Ask the daemon, and print what it answers: one JSON document, or something for people."""

from __future__ import annotations

from paddock.errors import PaddockError

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
    options: argparse.Namespace, found: Sequence[R], headings: Sequence[str], row: Callable[[R], Sequence[str]]
) -> int:
    """Print what was found as a document or as a table, which an empty one isn't. Return the exit code."""
    return answer(options, found, lambda: found and _render.table(headings, [row(one) for one in found]))


def add_each(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sandboxes", nargs="+", metavar="ID", help="id, unique prefix of one, or name")


def each(options: argparse.Namespace, action: Callable[[str], model.Action[model.Sandbox]]) -> int:
    """Have `action` done to each of the sandboxes that are named, whatever becomes of the others."""
    done: list[model.Sandbox] = []
    failed: PaddockError | None = None
    for name in options.sandboxes:
        try:
            done.append(perform(action(name)))
        except PaddockError as error:
            if failed is not None and not options.json:
                _render.failure(failed, as_json=False)
            failed = error
    if options.json and failed is None:
        _render.document(done)
    if not options.json:
        _render.lines(info.id for info in done)
    if failed is not None:
        raise failed
    return 0
