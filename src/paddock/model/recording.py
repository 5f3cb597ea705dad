"""What inspected requests of a sandbox were answered, as a cassette."""

from __future__ import annotations

import msgspec

from .action import Action
from .policy import Recorded


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """`exchanges` in the order of their answers' ends, as the sandbox saw them: without values of secrets, and
    with `paddock-secret-` and the name of one in the place of its placeholder. `omitted`: those that
    are not there, and why."""

    exchanges: tuple[Recorded, ...] = ()
    omitted: tuple[str, ...] = ()


class StartRecording(Action[None], frozen=True, tag="recording.start"):
    """From now on, and from the beginning if it was under way."""

    sandbox: str


class TakeRecording(Action[Recording], frozen=True, tag="recording.take"):
    """And ends it. InvalidState: nothing was being recorded, or the gateway that did has died."""

    sandbox: str
