"""Signed heads: one chain over all segments. See docs/design/evidence.md.

A line of the file `heads` is JSON, its signature last, over everything before it.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from ._log import HEADS, ROTATE_BYTES, SUFFIX
from ._record import GENESIS, Broken, link
from ._signing import SigningKey, is_signed
from ._tail import last_line

_CONTEXT = b"paddock audit head 1\n"
_SIGNATURE = b',"signature":"'

Mark = tuple[int, str, int]
"""Of a segment: the number of its last record, that one's digest, and the bytes up to its end."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    n: int
    time: int
    heads: dict[str, Mark]
    prev: str
    key: str


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Head).decode


def seal_head(head: Head, key: SigningKey) -> bytes:
    body = _encode(head)
    signature = base64.b64encode(key.sign(_CONTEXT + body))
    return body[:-1] + _SIGNATURE + signature + b'"}\n'


def unseal_head(line: bytes) -> tuple[Head, bytes]:
    """The head and the public key that signed it. Broken; the chain is the caller's."""
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


def marks_of(line: bytes) -> dict[str, Mark]:
    """What a head says, whoever signed it. Broken."""
    return _peek(line).heads


def line_digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


class HeadSigner:
    """Vouches for what is new in `directory`. Any number of processes may; one at a time does."""

    def __init__(
        self, directory: Path, key: Callable[[], SigningKey], *, wall: Callable[[], int] = time.time_ns
    ) -> None:
        self.directory, self._key, self._wall = directory, key, wall
        self.broken: dict[str, str] = {}
        """Segments that do not follow from what was signed before, and where."""

    def sign(self) -> Head | None:
        """A new head, or None: nothing is new. OSError, NotConfigured."""
        fd = os.open(self.directory / HEADS, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            line, end = last_line(fd)
            if end < os.fstat(fd).st_size:
                os.ftruncate(fd, end)  # its signer died in it: it has vouched for nothing
            return self._sign(fd, line, end)
        finally:
            os.close(fd)

    def _sign(self, fd: int, line: bytes, end: int) -> Head | None:
        before = _peek(line) if line else None
        old = {} if before is None else before.heads
        new = self._marks(fd, old)
        if all(old.get(name) == mark for name, mark in new.items()):
            return None
        key = self._key()
        head = Head(
            n=0 if before is None else before.n + 1,
            time=self._wall(),
            heads=new,
            prev=line_digest(line) if line else GENESIS,
            key=base64.b64encode(key.public).decode(),
        )
        sealed = seal_head(head, key)
        if os.write(fd, sealed) != len(sealed):
            os.ftruncate(fd, end)
            raise OSError("the signed head was not written whole")
        return head

    def _marks(self, fd: int, old: dict[str, Mark]) -> dict[str, Mark]:
        """Of the segments that may still grow, and of those that stopped growing since `old`."""
        new: dict[str, Mark] = {}
        for path in sorted(self.directory.glob(f"*{SUFFIX}")):
            mark = old.get(path.name)
            size = path.stat().st_size
            if mark is None and size >= ROTATE_BYTES:
                mark = _find(fd, path.name)
                if mark is not None and mark[2] == size:
                    continue
            mark = mark or (-1, GENESIS, 0)
            if size != mark[2]:
                mark, problem = read_on(path, mark)
                if problem is not None:
                    self.broken[path.name] = problem
            if mark[0] >= 0 and (size < ROTATE_BYTES or mark != old.get(path.name)):
                new[path.name] = mark
        return new


def read_on(path: Path, mark: Mark) -> tuple[Mark, str | None]:
    """As far as whole records follow each other; what is wrong with the next, if it is whole."""
    seq, head, end = mark
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < end:
            return mark, f"line {seq + 2}: records that were signed are gone"
        file.seek(end)
        for line in file:
            if not line.endswith(b"\n"):
                break
            try:
                number, prev, own = link(line)
            except Broken as error:
                return (seq, head, end), f"line {seq + 2}: {error}"
            if number != seq + 1 or prev != head:
                return (seq, head, end), f"line {seq + 2}: it does not follow the record before it"
            seq, head, end = number, own, end + len(line)
    return (seq, head, end), None


def _peek(line: bytes) -> Head:
    try:
        return _decode(line.rpartition(_SIGNATURE)[0] + b"}")
    except msgspec.MsgspecError as error:
        raise Broken(f"the last signed head cannot be read: {error}") from None


def _find(fd: int, name: str) -> Mark | None:
    """What the last head that names the segment says of it. Only for those that stopped growing."""
    found: Mark | None = None
    with open(os.dup(fd), "rb") as file:
        file.seek(0)
        for line in file:
            if name.encode() in line and line.endswith(b"\n"):
                found = _peek(line).heads.get(name) or found
    return found
