"""Which requests are work for a forked worker, and what they need."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from . import _archive as archive
from . import _requests as requests
from . import _trees as trees
from . import _walk as walk
from . import _watch as watch
from ._config import AgentConfig
from ._connection import Channel, Handler
from ._frames import Json
from ._worker import Work, Workers


class _Kind(NamedTuple):
    """`make` checks the request, in the agent, and gives the work, for the worker."""

    make: Callable[[Json, AgentConfig], Work]
    reads: bool = False
    writes: bool = False


WORK: dict[str, _Kind] = {
    "list": _Kind(walk.list_files, writes=True),
    "find": _Kind(walk.find_files, writes=True),
    "grep": _Kind(walk.grep_files, writes=True),
    "copy": _Kind(trees.copy),
    "move_tree": _Kind(trees.move),
    "remove_tree": _Kind(trees.remove),
    "upload": _Kind(archive.upload, reads=True),
    "download": _Kind(archive.download, writes=True),
    "watch": _Kind(watch.watch, writes=True),
}


def start_work(
    workers: Workers, config: AgentConfig, channel: Channel, request: Json, descriptors: list[int]
) -> Handler:
    kind = WORK[requests.text(request, "op")]
    work = kind.make(request, config)
    return workers.start(channel, work, reads=kind.reads, writes=kind.writes, descriptors=descriptors)
