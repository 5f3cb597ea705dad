"""What is said of a container's end, at whatever moment its engine is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from paddock.backends.container._engine import Engine
from paddock.backends.container._engine_state import ending_of
from paddock.errors import PlatformError

T = TypeVar("T")
_BROKEN = PlatformError("it does not exist in database", engine_status=500)


class Told(Engine):
    """Says one thing after the other; what is no state is raised, None stands for no container."""

    def __init__(self, *answers: dict[str, object] | PlatformError | None) -> None:
        super().__init__(Path("nowhere"))
        self.answers = list(answers)

    async def get(self, path: str, kind: type[T], **query: str) -> T | None:
        answer = self.answers.pop(0)
        if isinstance(answer, PlatformError):
            raise answer
        return None if answer is None else msgspec.convert({"State": answer}, kind)


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([_BROKEN, None], "removed by somebody else"),
        ([{"Status": "running", "Running": True}, {"Status": "stopping"}, None], "removed by somebody else"),
        ([{"Status": "removing"}, None], "removed by somebody else"),
        ([{"Status": "stopping"}, {"Status": "exited", "ExitCode": 3}], "its pid 1 ended with 3"),
        ([{"Status": "stopped", "ExitCode": 137}], "killed from outside: by somebody else"),
        ([{"Status": "stopped", "ExitCode": 137, "OOMKilled": True}], "its memory was used up"),
    ],
)
def test_an_engine_is_asked_until_it_knows(
    answers: list[dict[str, object] | PlatformError | None], reason: str
) -> None:
    engine = Told(*answers)
    assert reason in asyncio.run(ending_of(engine, "one")).reason
    assert engine.answers == []


def test_an_engine_that_goes_on_failing_says_so() -> None:
    with pytest.raises(PlatformError):
        asyncio.run(ending_of(Told(_BROKEN, _BROKEN), "one"))
