from __future__ import annotations

import pytest

from paddock.linux.undo import UndoStack


def fail(text: str) -> None:
    raise OSError(text)


def test_an_exception_runs_the_steps_last_first() -> None:
    done: list[int] = []

    def operation() -> None:
        with UndoStack() as undo:
            undo.push(done.append, 1)
            undo.push(done.append, 2)
            raise KeyError

    with pytest.raises(KeyError):
        operation()
    assert done == [2, 1]


def test_leaving_in_order_keeps_what_was_made_and_how_to_undo_it() -> None:
    done: list[int] = []
    with UndoStack() as undo:
        undo.push(done.append, 1)
    assert done == []
    undo.unwind()
    assert done == [1]


def test_a_failing_undo_stops_no_other_and_becomes_a_note() -> None:
    done: list[int] = []

    def operation() -> None:
        with UndoStack() as undo:
            undo.push(done.append, 1)
            undo.push(fail, "stuck")
            undo.push(done.append, 2)
            raise KeyError

    with pytest.raises(KeyError) as caught:
        operation()
    assert done == [2, 1]
    assert caught.value.__notes__ == ["undo failed: OSError('stuck')"]


def test_unwind_raises_the_first_failure_with_the_others_as_notes() -> None:
    done: list[int] = []
    undo = UndoStack()
    undo.push(done.append, 1)
    undo.push(fail, "second")
    undo.push(fail, "first")
    with pytest.raises(OSError, match="first") as caught:
        undo.unwind()
    assert caught.value.__notes__ == ["undo failed: OSError('second')"]
    assert done == [1]


def test_steps_pushed_by_a_step_run_too() -> None:
    done: list[int] = []
    undo = UndoStack()
    undo.push(lambda: undo.push(done.append, 1))
    undo.unwind()
    assert done == [1]
