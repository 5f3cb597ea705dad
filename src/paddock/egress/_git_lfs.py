"""Git LFS: tell a batch request that only downloads from all others. Pure.

A server may read a body in other ways than paddock: it may take the last of two keys, or ignore the case of a key.
So a body is a download only if no reader can take it for anything else.
"""

from __future__ import annotations

import json
from typing import cast

from ._http1 import Fields

MOST_BYTES = 256 << 10
_MOST_OBJECTS = 1000
_KINDS = frozenset({b"application/vnd.git-lfs+json", b"application/vnd.git-lfs+json;charset=utf-8"})


def is_download(fields: Fields, body: bytes) -> bool:
    """Whether this `objects/batch` request asks for nothing but downloads."""
    kinds: list[bytes] = []
    for name, value in fields:
        lower = name.lower().replace(b"_", b"-")
        if lower == b"content-encoding":
            return False
        if lower == b"content-type":
            kinds.append(value.lower().replace(b" ", b""))
    if len(kinds) != 1 or kinds[0] not in _KINDS or len(body) > MOST_BYTES:
        return False
    try:
        found: object = json.loads(body.decode(), object_pairs_hook=_unambiguous)
    except (ValueError, RecursionError):
        return False
    if not isinstance(found, dict):
        return False
    batch = cast("dict[str, object]", found)
    objects = batch.get("objects")
    if not isinstance(objects, list) or len(cast("list[object]", objects)) > _MOST_OBJECTS:
        return False
    return batch.get("operation") == "download"


def _unambiguous(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """ValueError: one key twice, in any case."""
    if len({key.casefold() for key, _ in pairs}) != len(pairs):
        raise ValueError("one key twice")
    return dict(pairs)
