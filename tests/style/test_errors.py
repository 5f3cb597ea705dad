"""The tree that is drawn at the top of `errors.py` is the tree of its classes."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from paddock import errors
from paddock.cli._verbs import VERBS

_SENT = re.compile(r'(?:hint|fix)=f?"(?:[^"]*`)?paddock ([a-z]+)\b')
_LINE = re.compile(r"^( *)[*+-] (\w+)", re.MULTILINE)


def drawn() -> dict[str, str | None]:
    """Class name to the name of its base, by indentation."""
    assert errors.__doc__
    bases: dict[str, str | None] = {}
    above: list[tuple[int, str]] = []
    for match in _LINE.finditer(errors.__doc__):
        indent, name = len(match[1]), match[2]
        while above and above[-1][0] >= indent:
            above.pop()
        bases[name] = above[-1][1] if above else None
        above.append((indent, name))
    return bases


def test_the_drawing_is_the_tree() -> None:
    classes = {cls.__name__: cls.__base__.__name__ for cls in errors.BY_CODE.values() if cls.__base__}
    assert drawn() == {"PaddockError": None, **classes}


@pytest.mark.parametrize("code", sorted(errors.BY_CODE))
def test_every_error_crosses_a_border_as_itself(code: str) -> None:
    error = errors.BY_CODE[code]("it broke", hint="mend it", path="/x")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.hint, again.details) == ("it broke (mend it)", "mend it", {"path": "/x"})


def test_no_two_errors_share_a_code() -> None:
    with pytest.raises(TypeError, match="duplicate error code"):
        type("Second", (errors.PaddockError,), {}, code="not_found")


@pytest.mark.parametrize("error", [errors.NotFoundError("no tree"), OSError(5, "I/O error"), TimeoutError("too long")])
def test_an_error_that_does_not_stop_the_work_is_in_the_log(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with errors.logged("delete the tree", "sb-1"):
        raise error
    assert caplog.messages == [f"could not delete the tree (sb-1): {error!r}"]


def test_a_mistake_of_the_program_is_not_logged_but_raised() -> None:
    with pytest.raises(KeyError), errors.logged("delete the tree", "sb-1"):
        raise KeyError("id")


def test_every_error_says_what_http_shall_say() -> None:
    assert all(400 <= cls.status < 600 for cls in errors.BY_CODE.values())


def test_every_verb_that_an_error_sends_to_exists() -> None:
    sources = Path(errors.__file__).parent.rglob("*.py")
    named = {word for path in sources for word in _SENT.findall(path.read_text())}
    assert named
    assert named <= set(VERBS)
