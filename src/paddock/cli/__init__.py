"""The command line: one file per verb, over the synchronous client. Nothing is imported before it is needed."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: the command's own, 125 where paddock itself failed, 2 for wrong usage."""
    from ._main import run

    return run(arguments)
