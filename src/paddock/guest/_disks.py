"""The disks of a machine that boots: the view of its template, and an empty one of its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ._control import Json
from ._place import Place
from ._view import Owner, Source, write_view

if TYPE_CHECKING:
    from ._pilot import Pilot


def make(pilot: Pilot, place: Place, wanted: Any) -> None:
    """`sources` of the view, `disk_bytes`, and `format`: a command that makes a file system in a file. OSError."""
    os.makedirs(place.path(""), exist_ok=True)
    sources = tuple(_source(source) for source in wanted["sources"])
    with open(place.path("view"), "wb") as metadata, open(place.path("table"), "wb") as table:
        write_view(sources, metadata, table)
    with open(place.path("disk"), "wb") as file:
        file.truncate(wanted["disk_bytes"])
    command: Json = {"argv": [*wanted["format"], place.path("disk")], "streams": {}}
    _, status = os.waitpid(pilot.spawn(command, {}), 0)
    if status != 0:
        raise OSError("no disk was made")


def _source(fields: Any) -> Source:
    owners = fields.get("owners")
    return Source(
        place=fields["place"],
        path=fields["path"],
        without=frozenset(fields.get("without", ())),
        owners=None if owners is None else {path: Owner(*owner) for path, owner in owners.items()},
        nobody=int(fields.get("nobody", -1)),
    )
