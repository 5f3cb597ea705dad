"""Signed heads: one chain over all segments. See docs/design/evidence.md.

A line of the file `heads` is JSON, its signature last, over everything before it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from paddock.linux.descriptors import closing

from ._log import HEADS
from ._parts import PART_BYTES, Part, chains, close_part, first, last, last_line, lines, parts, size
from ._record import GENESIS, Broken, link
from ._signing import SigningKey, is_signed

_CONTEXT = b"paddock audit head 1\n"
_SIGNATURE = b',"signature":"'
_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW

Mark = tuple[int, str, int]
"""A position in a segment: the number of the last record, its digest, and the bytes up to its end."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    n: int
    time: int
    heads: dict[str, Mark]
    prev: str
    key: str
    removed: dict[str, list[tuple[int, str]]] = {}
    """Numbers and digests of the last records that retention removed, by segment and for `heads`.

    An interrupted removal ended at one of them.
    """


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Head).decode


def seal_head(head: Head, key: SigningKey) -> bytes:
    body = _encode(head)
    signature = base64.b64encode(key.sign(_CONTEXT + body))
    return body[:-1] + _SIGNATURE + signature + b'"}\n'


def unseal_head(line: bytes) -> tuple[Head, bytes]:
    """Return the head and the public key that signed it. Raises Broken. The caller checks the chain."""
    body, found, rest = line.rpartition(_SIGNATURE)
    if not found or not rest.endswith(b'"}\n'):
        raise Broken("not a signed head")
    body += b"}"
    try:
        head = _decode(body)
        public, signature = (base64.b64decode(text, validate=True) for text in (head.key, rest[:-3]))
    except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
        raise Broken(f"not a signed head: {error}") from None
    if not is_signed(public, signature, _CONTEXT + body):
        raise Broken("its signature is not that of its content")
    return head, public


def line_digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


class HeadSigner:
    """The only signer of `directory`: signs the heads of new records. Several threads can use it at once."""

    def __init__(self, directory: Path, key: Callable[[], SigningKey]) -> None:
        self.directory, self._key = directory, key
        self._signing = threading.Lock()
        self.broken: dict[str, str] = {}
        """The segments that don't continue the last signed head, each with the cause."""

    def sign(self, remove: Sequence[Part] = ()) -> Head | None:
        """Return a new signed head, or None if there is nothing new.

        paddock removes the parts of `remove`, the oldest of their chains, only after a head names them. If it dies
        before, all of them are there. Raises OSError and NotConfiguredError.
        """
        with self._signing, closing(os.open(self.directory / HEADS, _APPEND, 0o600)) as fd:
            line, end = last_line(fd)
            if end < os.fstat(fd).st_size:
                os.ftruncate(fd, end)  # its signer died in it: it has vouched for nothing
            head = self._sign(fd, line or last(self.directory, HEADS), end, remove)
            for part in remove:
                part.file.unlink(missing_ok=True)
            if (length := os.fstat(fd).st_size) >= PART_BYTES:
                closed = parts(self.directory, HEADS)
                close_part(self.directory, HEADS, closed[-1].end if closed else 0, length, None)
            return head

    def _sign(self, fd: int, line: bytes, end: int, remove: Sequence[Part]) -> Head | None:
        before = peek_head(line) if line else None
        old = {} if before is None else before.heads
        new = self._marks(old)
        removed = {} if before is None else dict(before.removed)
        for name in {part.name for part in remove}:
            removed[name] = _boundaries(self.directory, name, remove)
        if not remove and all(old.get(name) == mark for name, mark in new.items()):
            return None
        key = self._key()
        head = Head(
            n=0 if before is None else before.n + 1,
            time=time.time_ns(),
            heads=new,
            prev=line_digest(line) if line else GENESIS,
            key=base64.b64encode(key.public).decode(),
            removed=removed,
        )
        sealed = seal_head(head, key)
        if os.write(fd, sealed) != len(sealed):
            os.ftruncate(fd, end)
            raise OSError("the signed head was not written whole")
        if remove:
            os.fdatasync(fd)
        return head

    def _marks(self, old: dict[str, Mark]) -> dict[str, Mark]:
        new: dict[str, Mark] = {}
        for name in chains(self.directory):
            mark = old.get(name, (-1, GENESIS, 0))
            if size(self.directory, name) != mark[2]:
                mark, problem = read_on(self.directory, name, mark)
                if problem is not None:
                    self.broken[name] = problem
            if mark[0] >= 0:
                new[name] = mark
        return new


def read_on(directory: Path, name: str, mark: Mark) -> tuple[Mark, str | None]:
    """Read on while whole records follow each other. Return the new mark, and the fault of the next whole record."""
    seq, head, end = mark
    if size(directory, name) < end:
        return mark, f"line {seq + 2}: records that were signed are gone"
    for after, line in lines(directory, name, end):
        if not line.endswith(b"\n"):
            break
        try:
            number, prev, own = link(line)
        except Broken as error:
            return (seq, head, end), f"line {seq + 2}: {error}"
        removed = after - len(line) > end  # by retention, before anything was signed
        if not removed and (number != seq + 1 or prev != head):
            return (seq, head, end), f"line {seq + 2}: it does not follow the record before it"
        seq, head, end = number, own, after
    return (seq, head, end), None


def _boundaries(directory: Path, name: str, remove: Sequence[Part]) -> list[tuple[int, str]]:
    """Return where the chain begins after earlier removals, and where each part of `remove` ends."""
    number, prev, _ = _link(name, first(directory, name))
    found = [(number - 1, prev)] if number else []
    for part in remove:
        if part.name == name:
            number, _, own = _link(name, part.last())
            found.append((number, own))
    return found


def _link(name: str, line: bytes) -> tuple[int, str, str]:
    """Return number, `prev` and digest of a line of a chain, be it of records or of heads. Raises Broken."""
    if name != HEADS:
        return link(line)
    head = peek_head(line)
    return head.n, head.prev, line_digest(line)


def peek_head(line: bytes) -> Head:
    """Read a head without a check of its signature. Raises Broken."""
    try:
        return _decode(line.rpartition(_SIGNATURE)[0] + b"}")
    except msgspec.MsgspecError as error:
        raise Broken(f"the last signed head cannot be read: {error}") from None
