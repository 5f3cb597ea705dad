"""Pages of registries as they were read, for whoever asks next by the same rule: see docs/design/package-cache.md."""

from __future__ import annotations

import hashlib
import re
import struct
import time
from collections.abc import Callable

import msgspec

from ._http1 import Response
from ._package_store import Entry, NoRoom, PackageStore
from ._registry_page import Page
from ._registry_protocols import Answer

FRESH_SECONDS = 60.0
JUDGED_SECONDS = 600.0
_LENGTH = struct.Struct("=I")
_MOST_BYTES = 64 << 20
OF_SOMEBODY = frozenset({b"authorization", b"cookie", b"x-api-key", b"private-token"})
"""Fields by which an answer depends on who asks; without them it is asked for in the gateway's own words."""
_MAX_AGE = re.compile(rb"\bmax-age=([0-9]{1,9})", re.IGNORECASE)
_NEVER, _ASK = re.compile(rb"\b(private|no-store)\b", re.IGNORECASE), re.compile(rb"\bno-cache\b", re.IGNORECASE)


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """What a page was, in seconds since 1970: `content` is the digest of what came, of type `kind`; `until` then it
    need not be asked for again."""

    kind: str
    content: bytes
    etag: bytes | None
    judged_at: float
    until: float
    answer: Answer


class Remembered(msgspec.Struct, frozen=True):
    read: Read
    body: bytes
    address: str


class PageMemory:
    def __init__(self, store: PackageStore, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock

    def find(self, page: Page, item: int, accept: str) -> Remembered | None:
        """What still holds: a cooldown goes on while nobody looks."""
        copy = self._store.find(*_place(page, item, accept))
        if copy is None:
            return None
        try:
            content = copy.read(0, copy.entry.size)
        except OSError:
            return None
        finally:
            copy.close()
        hasher = copy.entry.hasher()
        hasher.update(content)
        if not copy.entry.is_of(hasher) or len(content) < _LENGTH.size:
            self._store.drop(copy.entry.key)
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(content)[0]
        try:
            read = _decode(content[_LENGTH.size : end])
        except msgspec.MsgspecError:
            return None  # of another version
        age = self._clock() - read.judged_at
        if age < 0 or (page.rule.cooldown_days is not None and age > JUDGED_SECONDS):
            return None
        return Remembered(read, content[end:], copy.entry.address)

    def is_fresh(self, found: Remembered) -> bool:
        return found.read.judged_at <= self._clock() <= found.read.until

    def keep(
        self, page: Page, item: int, accept: str, response: Response, read: Read, body: bytes, address: str
    ) -> None:
        """As `response` allows; where there is no room nothing is kept."""
        control = response.get(b"cache-control") or b""
        if _NEVER.search(control) or response.get(b"set-cookie") is not None or len(body) > _MOST_BYTES:
            return
        given = _MAX_AGE.search(control)
        seconds = 0.0 if _ASK.search(control) else min(FRESH_SECONDS, float(given[1]) if given else FRESH_SECONDS)
        meta = _encode(msgspec.structs.replace(read, until=self._clock() + seconds))
        url, name = _place(page, item, accept)
        content = b"".join((_LENGTH.pack(len(meta)), meta, body))
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        entry = Entry(url=url, digest=digest, size=len(content), address=address, fields=[], name=name)
        try:
            draft = self._store.begin(entry)
        except NoRoom:
            return
        try:
            draft.write(content)
            draft.keep()
        except OSError:
            draft.discard()
        finally:
            draft.close()


def _place(page: Page, item: int, accept: str) -> tuple[str, str]:
    """All that decides what is seen of a page, but for what the index says and when."""
    asked = _encode((msgspec.structs.replace(page, now=0.0), item, accept))
    return f"{page.scheme}://{page.host}:{page.port}{page.path}", f"page:{hashlib.sha256(asked).hexdigest()}"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Read).decode
