"""Undoing the finished steps of an operation that failed half way."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec

P = ParamSpec("P")


class UndoStack:
    """Undo steps, which run last first if the block raises.

    Otherwise they stay, for `unwind` or another block.

        with UndoStack() as undo:
            os.mkdir(path)
            undo.push(os.rmdir, path)
            ...

    A failing undo step doesn't stop the others. Its error becomes a note on the exception under way. Without one,
    `unwind()` raises the first error, with the others as notes.
    """

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def __enter__(self) -> UndoStack:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            for failed in self._run():
                error.add_note(f"undo failed: {failed!r}")

    def push(self, step: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Has `step(*args, **kwargs)` run, before all steps pushed so far."""
        self._steps.append(lambda: step(*args, **kwargs))

    def unwind(self) -> None:
        """Run all steps now. Raises the first error, when all have run."""
        errors = self._run()
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"undo failed: {other!r}")
            raise errors[0]

    def _run(self) -> list[Exception]:
        errors: list[Exception] = []
        while self._steps:
            try:
                self._steps.pop()()
            except Exception as error:
                errors.append(error)
        return errors
