"""The writer of the audit log.

The daemon and the gateway each hold a segment, by a lock on its file. A later writer continues a free segment, so that
there are only as many segments as there were writers at once. When the file of a segment is long, the writer closes it
and continues the segment in another one.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paddock.errors import UnrecordedError
from paddock.linux.files import reserve
from paddock.model import Action, Decision, Principal

from ._digest import Hide, describe
from ._parts import PART_BYTES, SUFFIX, begun, chains, close_part, last, last_line, parts
from ._record import GENESIS, Broken, Record, link, seal

HEADS = "heads"
_KEPT_BYTES = 64 << 10
_AHEAD_BYTES = 256 << 10
_ENDS = frozenset({"sandbox.kill", "sandbox.ended", "audit.open", "audit.close"})


class AuditLog:
    """Appends records to one segment of `directory`.

    Every method that writes raises UnrecordedError if it can't. Then the caller must not go on. A record survives the
    death of every process: it is in the page cache when the effect begins.

    The log reserves disk space for the ends of sandboxes, so that paddock can kill and record them on a full disk. It
    refuses records of new work before it uses that space.
    """

    def __init__(self, directory: Path, *, wall: Callable[[], int] = time.time_ns) -> None:
        self.directory = directory
        self.writer = f"{os.getpid()}-{os.urandom(6).hex()}"
        self._pid = os.getpid()
        self.hide: Hide = list
        self._wall = wall
        self._lock = threading.Lock()
        self._fd = -1
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd, self.segment, self._seq, self._head, self._size = _take_segment(directory)
            closed = parts(directory, self.segment)
            self._begin = closed[-1].end if closed else 0
            """The segment's bytes before this file. `_size` counts the ones in the file."""
            self._room = 0.0
            """The end of the bytes that the file system has reserved for this segment."""
            seen: dict[str, object] = {"heads": _heads(directory, self.segment)}
            if (signed := last_signed(directory)) is not None:
                seen["signed"] = signed
        except (OSError, Broken) as error:
            self._abandon()
            why = getattr(error, "strerror", None) or error
            raise UnrecordedError(
                f"the audit log in {directory} cannot be opened: {why}", hint=_hint(error, directory)
            ) from error
        self._append("event", "audit.open", detail={"pid": self._pid, "uid": os.getuid(), **seen})

    def decision(self, principal: Principal, action: Action[Any], verdict: Decision) -> int:
        """Return the number that the outcome refers to."""
        detail = describe(action, hide=self.hide)
        return self._append(
            "decision",
            action.TAG,
            principal=principal.id,
            allowed=verdict.allowed,
            rule=verdict.rule,
            reason=verdict.reason,
            sandbox=detail.get("sandbox"),
            detail=detail,
        )

    def verdict(
        self, name: str, *, allowed: bool, rule: str, reason: str, sandbox: str, detail: dict[str, object]
    ) -> int:
        """Record a decision on an action that the sandbox began by itself, and return its number, like `decision`."""
        return self._append("decision", name, allowed=allowed, rule=rule, reason=reason, sandbox=sandbox, detail=detail)

    def outcome(
        self,
        of: int,
        action: str,
        *,
        ok: bool,
        error: str | None = None,
        message: str | None = None,
        sandbox: str | None = None,
        detail: dict[str, object] | None = None,
    ) -> int:
        """Record the outcome of decision `of`.

        `error` is a code of `paddock.errors`, "cancelled", or the name of a Python class.
        """
        return self._append(
            "outcome", action, of=of, ok=ok, error=error, message=message, sandbox=sandbox, detail=detail or {}
        )

    def event(self, name: str, *, sandbox: str | None = None, message: str | None = None, **detail: object) -> int:
        """Record an event without a request: a sandbox that ended by itself, or the result of a clean-up."""
        return self._append("event", name, sandbox=sandbox, message=message, detail=detail)

    def close(self) -> None:
        """Release the segment. Idempotent. It writes the last record if it can."""
        if self._fd < 0:
            return
        try:
            if os.getpid() == self._pid:
                self._append("event", "audit.close")
        except UnrecordedError:
            pass
        finally:
            self._abandon()

    def _append(self, kind: str, action: str, **fields: Any) -> int:
        with self._lock:
            if self._fd < 0:
                raise UnrecordedError("the audit log is closed")
            if os.getpid() != self._pid:
                # A fork shares the descriptor and the lock, and two writers would break the chain.
                raise UnrecordedError(
                    "this audit log belongs to the process that opened it", hint="open one after the fork"
                )
            seq = self._seq
            record = Record(
                seq=seq,
                time=self._wall(),
                boottime=time.clock_gettime_ns(time.CLOCK_BOOTTIME),
                writer=self.writer,
                kind=kind,
                action=action,
                prev=self._head,
                **fields,
            )
            try:
                line, own = seal(record)
            except (TypeError, ValueError, RecursionError) as error:
                raise UnrecordedError(f"a record of {action} cannot be encoded: {error}") from error
            if self._size >= PART_BYTES:
                self._rotate()
            self._write(line, last=action in _ENDS)
            self._seq, self._head, self._size = seq + 1, own, self._size + len(line)
            return seq

    def _write(self, line: bytes, *, last: bool) -> None:
        """Write a line at once, and remove it again if the kernel took only a part.

        `last`: it may use the space reserved for ends.
        """
        written = 0
        try:
            if self._size + len(line) + _KEPT_BYTES > self._room:
                self._make_room(len(line), last)
            written = os.write(self._fd, line)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            try:
                os.ftruncate(self._fd, self._size)
            except OSError:
                if written:
                    self._abandon()  # half a line lies there: nothing may follow it
            why = error.strerror or str(error)
            raise UnrecordedError(
                f"the audit log cannot be written: {why}", hint=_hint(error, self.directory)
            ) from error

    def _rotate(self) -> None:
        """Go on in a new file, with its room on the disk. If that can't be had, this one grows, and the next record
        tries again."""
        path, fresh = self.directory / self.segment, begun(self.directory, self.segment)
        try:
            fd = os.open(fresh, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if math.isfinite(self._room):
                reserve(fd, 0, _AHEAD_BYTES)
            os.ftruncate(self._fd, self._size)  # gives its room back
            close_part(self.directory, path.name, self._begin, self._size, fresh)
        except OSError:
            os.close(fd)
            if not (path.exists() and os.path.samestat(path.stat(), os.fstat(self._fd))):
                self._abandon()  # the segment is another file's: nothing may follow here
            return
        os.close(self._fd)
        self._fd, self._begin, self._size = fd, self._begin + self._size, 0
        self._room = min(self._room, _AHEAD_BYTES) if math.isfinite(self._room) else self._room

    def _make_room(self, size: int, last: bool) -> None:
        try:
            reserve(self._fd, self._size, size + _AHEAD_BYTES)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                if not last:
                    raise
            elif error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM):
                self._room = math.inf  # this file system promises nothing: writes show what it has
            else:
                raise
        else:
            self._room = self._size + size + _AHEAD_BYTES

    def _abandon(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _hint(error: Exception, directory: Path) -> str:
    rule = "paddock does nothing that it cannot record"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"free space on the disk of {directory}: {rule}"
    return rule


def _take_segment(directory: Path) -> tuple[int, str, int, str, int]:
    """Descriptor, name, next number, head and size of a segment's file that is now ours."""
    while True:
        fresh = directory / f"{time.time_ns():020d}-{os.urandom(4).hex()}{SUFFIX}"
        for path in (*sorted(directory.glob(f"*{SUFFIX}"), reverse=True), fresh):
            create = os.O_CREAT if path is fresh else 0
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | create, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                size, still = os.fstat(fd).st_size, path.exists() and os.path.samestat(path.stat(), os.fstat(fd))
                # Empty: it is new, or its writer died before the first record, in it or in this file of it.
                found = last_record(fd, size) if size else _numbered(last(directory, path.name)) or (-1, GENESIS)
                if found is not None and still:
                    return fd, path.name, found[0] + 1, found[1], size
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    os.close(fd)
                    raise
            os.close(fd)  # another writer's, closed meanwhile, or torn: what is torn is left, for `verify` to tell


def last_record(fd: int, size: int) -> tuple[int, str] | None:
    """Return number and digest of the last line, if the segment ends with a whole and sound one."""
    line, end = last_line(fd)
    return _numbered(line) if end == size else None


def _numbered(line: bytes) -> tuple[int, str] | None:
    try:
        seq, _, own = link(line)
    except Broken:
        return None
    return seq, own


def _heads(directory: Path, own: str) -> dict[str, tuple[int, str]]:
    """Return number and digest of the last whole record of every other segment."""
    heads: dict[str, tuple[int, str]] = {}
    for name in chains(directory):
        # A head vouches for the last whole record, so this skips a torn last line.
        if name != own and (head := _numbered(last(directory, name))) is not None:
            heads[name] = head
    return heads


def last_signed(directory: Path) -> tuple[int, str] | None:
    """Return number and digest of the last signed head. `verify` checks that it is sound."""
    try:
        line = last(directory, HEADS)
    except FileNotFoundError:
        return None
    number = line[5 : line.find(b",")]
    return (int(number), hashlib.sha256(line).hexdigest()) if number.isdigit() else None
