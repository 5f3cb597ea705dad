"""One action on each of the sandboxes that are named."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from paddock.errors import PaddockError

from . import _render
from ._values import add_json

if TYPE_CHECKING:
    from paddock.model import Action, Sandbox


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sandboxes", nargs="+", metavar="ID", help="id, unique prefix of one, or name")
    add_json(parser)


def perform(options: argparse.Namespace, action: Callable[[str], Action[Sandbox]]) -> int:
    """Each is tried, whatever becomes of the others."""
    from paddock.client import default_transport

    transport = default_transport()
    done: list[Sandbox] = []
    failed: PaddockError | None = None
    for name in options.sandboxes:
        try:
            done.append(transport.perform(action(name)))
        except PaddockError as error:
            if failed is not None and not options.json:
                _render.failure(failed, as_json=False)
            failed = error
    if options.json and failed is None:
        _render.document(done)
    if not options.json:
        for info in done:
            _render.line(info.id)
    if failed is not None:
        raise failed
    return 0
