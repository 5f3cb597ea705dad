"""What a run of an agent came to."""

from __future__ import annotations

import msgspec

from ._budget import Stop, Tokens
from ._messages import Message

SYSTEM = """\
You work in a disposable Linux computer through tools. The project is in {directory}. There is no network unless a \
command shows otherwise. Work in small steps, look at what happened, and check your work. What you see of long output \
is cut in its middle; read_output shows the rest. When you are done, answer without calling a tool.\
"""

CUT = "Your answer reached its greatest length and was cut off. Go on in smaller steps."


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Why it ended, what the model said last, and what it took. `error` says more where `stop` is a failure."""

    stop: Stop
    text: str = ""
    steps: int = 0
    tokens: Tokens = Tokens()
    usd: float | None = None
    """None: nobody said what the model costs."""
    seconds: float = 0.0
    error: str | None = None
    messages: tuple[Message, ...] = ()

    @property
    def ok(self) -> bool:
        return self.stop is Stop.DONE
