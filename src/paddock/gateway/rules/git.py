"""Parses a request to a git repository: the commands of a push, and batches of LFS, strictly.

Pure.

It refuses messages that no honest client sends, so that a server reads the same commands. The commands don't show
whether an update needs force. The server decides about that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from paddock.gateway.protocols.http1 import Fields

MOST_PUSH_BYTES = 64 << 10
MOST_UPDATES = 256
PROBE_BYTES = 4
"""Before a large push, git sends this request without commands as a probe."""

_MOST_NAME = 1024
_SIZE = re.compile(rb"[0-9A-Fa-f]{4}")
_OID = rb"[0-9a-f]{40}|[0-9a-f]{64}"
_COMMAND = re.compile(rb"(" + _OID + rb") (" + _OID + rb") ([^\0]+)(?:\0([\x20-\x7e]*))?")
_SHALLOW = re.compile(rb"shallow (?:" + _OID + rb")")
_NOT_IN_NAMES = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(?:/|$)|[/.]$")


class BadPush(ValueError):
    """The bytes aren't the commands of a push as git writes them, or are too many."""


class Update(msgspec.Struct, frozen=True):
    """One ref, by its full name. All zeros: there was none, or there shall be none."""

    ref: str
    old: str
    new: str

    @property
    def deletes(self) -> bool:
        return not self.new.strip("0")

    def __str__(self) -> str:
        return f"{self.ref} {self.old}..{self.new}"


class PushReader:
    """Reads the body of a push in pieces of any size, until it is `done`. The pack follows."""

    def __init__(self) -> None:
        self._buffer, self._at = bytearray(), 0
        self.updates: list[Update] = []
        self.done = False

    def feed(self, data: bytes) -> bool:
        """Read on. Return whether all commands have come. Raise BadPush."""
        self._buffer += data
        while not self.done and (line := self._line()) is not None:
            self._read(line)
        return self.done

    def _line(self) -> bytes | None:
        """Return the next line, b"" at the end of the commands, or None if the data is incomplete."""
        start = self._at + 4
        if len(self._buffer) < start:
            return None
        size = self._buffer[self._at : start]
        if not _SIZE.fullmatch(size):
            raise BadPush("the length of a line is malformed")
        length = int(size, 16)
        if length == 0:
            self._at = start
            return b""
        if length <= 4:
            raise BadPush("a line that no push has")
        end = self._at + length
        if end > MOST_PUSH_BYTES - 4:
            raise BadPush(f"commands of more than {MOST_PUSH_BYTES} bytes")
        if len(self._buffer) < end:
            return None
        self._at = end
        return bytes(self._buffer[start:end])

    def _read(self, line: bytes) -> None:
        if not line:
            self.done = True
            if len({update.ref for update in self.updates}) != len(self.updates):
                raise BadPush("one ref twice")
            return
        line = line.removesuffix(b"\n")
        if _SHALLOW.fullmatch(line) and not self.updates:
            return
        if line.startswith(b"push-cert"):
            raise BadPush("signed pushes are not authorized")
        match = _COMMAND.fullmatch(line)
        if match is None or len(match[1]) != len(match[2]):
            raise BadPush("a command is malformed")
        if match[4] is not None:
            self._check_capabilities(match[4])
        update = Update(_name(match[3]), match[1].decode(), match[2].decode())
        if self.updates and len(self.updates[0].old) != len(update.old):
            raise BadPush("object names of two kinds")
        self.updates.append(update)
        if len(self.updates) > MOST_UPDATES:
            raise BadPush(f"more than {MOST_UPDATES} refs at once")

    def _check_capabilities(self, words: bytes) -> None:
        if self.updates:
            raise BadPush("capabilities behind another than the first command")
        named = {word.partition(b"=")[0] for word in words.split()}
        if b"push-options" in named:
            raise BadPush("push options are not authorized: what they make the server do is not known here")
        if b"push-cert" in named:
            raise BadPush("signed pushes are not authorized")


def _name(raw: bytes) -> str:
    """Check a name by the rules of `git check-ref-format`, and that it is readable as text."""
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        raise BadPush("the name of a ref is not UTF-8") from None
    if len(raw) > _MOST_NAME or not name.startswith("refs/") or _NOT_IN_NAMES.search(name) or not name.isprintable():
        raise BadPush("the name of a ref is malformed")
    return name


def check_fields(fields: Fields) -> None:
    """Check the fields of a push. Raises BadPush if its body isn't in git's own type, or has an encoding."""
    kinds = _content_types(fields)
    if kinds is None:
        raise BadPush("a push whose commands are compressed")
    if kinds != [b"application/x-git-receive-pack-request"]:
        raise BadPush("a push that is not of git's own content type")


def _content_types(fields: Fields) -> list[bytes] | None:
    """Return the content types, or None if the body has an encoding.

    A CGI server doesn't distinguish an underscore from a hyphen, so neither does this.
    """
    known = [(name.lower().replace(b"_", b"-"), value.lower()) for name, value in fields]
    if any(name == b"content-encoding" for name, _ in known):
        return None
    return [value for name, value in known if name == b"content-type"]


def refusal(updates: Sequence[Update], may_push: Callable[[str], bool], rule: str) -> str | None:
    """Return why the policy refuses the whole push, or None. One refused ref suffices."""
    for update in updates:
        if update.deletes:
            return f"it deletes {update.ref}: refs are not deleted from inside"
        if not may_push(update.ref):
            return f"{rule} allows no push to {update.ref}"
    return None


def is_push(path: str) -> bool:
    """Tell whether a normal path with its query is a push, in either reading of an escaped slash."""
    return path.partition("?")[0].replace("%2F", "/").endswith("/git-receive-pack")


def is_lfs_batch(path: str) -> bool:
    """Tell whether only the body shows the meaning of a request to this path. `path` is normal, with its query."""
    return path.endswith("/info/lfs/objects/batch")


MOST_BATCH_BYTES = 256 << 10
_MOST_OBJECTS = 1000
_KINDS = frozenset({b"application/vnd.git-lfs+json", b"application/vnd.git-lfs+json;charset=utf-8"})


def is_download(fields: Fields, body: bytes) -> bool:
    """Tell whether this `objects/batch` request asks for nothing but downloads, to any reader: a server may take the
    last of two keys, or ignore the case of a key."""
    kinds = _content_types(fields) or ()
    if len(kinds) != 1 or kinds[0].replace(b" ", b"") not in _KINDS or len(body) > MOST_BATCH_BYTES:
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
