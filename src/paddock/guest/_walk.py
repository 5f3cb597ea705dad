"""Walks that only look: list, find, grep. Their results are lines of JSON. They run in a worker."""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator

from . import _requests as requests
from ._config import AgentConfig
from ._faults import Fault, encode, show
from ._files import info_of
from ._frames import MAX_RESULT_BYTES, Json, dump_json
from ._paths import locate, tidy
from ._worker import Streams, Work

MAX_DEPTH = 256
"""Directories in directories that a walk goes down; below that it says `truncated`."""
MAX_LINE = 2000
_LINE_BYTES = 64 * 1024
_PROBE_BYTES = 8192
_FLUSH_BYTES = 64 * 1024


class _Lines:
    """Writes results until one of their limits is reached."""

    def __init__(self, fd: int, limit: int) -> None:
        self._fd = fd
        self._limit = limit
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._room = MAX_RESULT_BYTES
        self.truncated = False

    def add(self, item: Json) -> bool:
        """False: no more."""
        line = dump_json(item) + b"\n"
        if self._limit <= 0 or len(line) > self._room:
            self.truncated = True
            return False
        self._limit -= 1
        self._room -= len(line)
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        if self._waiting_bytes >= _FLUSH_BYTES:
            self.flush()
        return True

    def flush(self) -> None:
        view = memoryview(b"".join(self._waiting))
        self._waiting.clear()
        self._waiting_bytes = 0
        while view:
            view = view[os.write(self._fd, view) :]

    def result(self) -> Json:
        self.flush()
        return {"truncated": self.truncated}


class Walk:
    """Everything below a directory, in order of names, links not followed. What vanishes meanwhile is passed over."""

    def __init__(self, place: bytes, name: bytes, depth: int) -> None:
        self._place = place
        self._name = name.rstrip(b"/")
        self._depth = min(depth, MAX_DEPTH)
        self._asked = depth
        self.truncated = False

    def __iter__(self) -> Iterator[tuple[bytes, bytes, os.stat_result]]:
        """Where it is, what the sandbox calls it, and its status."""
        stack = [(self._place, self._name, iter(_names(self._place)))]
        while stack:
            place, name, names = stack[-1]
            entry = next(names, None)
            if entry is None:
                stack.pop()
                continue
            inner, inner_name = place + b"/" + entry, name + b"/" + entry
            try:
                status = os.lstat(inner)
            except OSError:
                continue
            yield inner, inner_name, status
            if stat.S_ISDIR(status.st_mode):
                if len(stack) < self._depth:
                    try:
                        stack.append((inner, inner_name, iter(_names(inner))))
                    except OSError:  # not ours to read, or a path too long for the kernel
                        self.truncated = self.truncated or len(inner) > 4000
                elif self._asked > MAX_DEPTH:
                    self.truncated = True


def _names(place: bytes) -> list[bytes]:
    return sorted(os.listdir(place))


def _require_directory(request: Json, config: AgentConfig) -> tuple[bytes, bytes]:
    name = requests.path(request, "path", config)
    place = locate(name, config)
    try:
        os.close(os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        raise Fault.of(error, name) from None
    return place, name


def list_files(request: Json, config: AgentConfig) -> Work:
    place, name = _require_directory(request, config)
    depth = requests.number(request, "depth", 1, low=1)

    def work(streams: Streams) -> Json:
        lines = _Lines(streams.output, 1 << 62)
        walk = Walk(place, name, depth)
        for where, known, status in walk:
            if not lines.add(info_of(status, where, known)):
                break
        lines.truncated = lines.truncated or walk.truncated
        return lines.result()

    return work


def find_files(request: Json, config: AgentConfig) -> Work:
    place, name = _require_directory(request, config)
    limit = requests.number(request, "limit", 10_000)
    wanted = requests.text(request, "name", "*")
    encode(wanted)

    def work(streams: Streams) -> Json:
        matches = re.compile(fnmatch.translate(wanted)).match
        lines = _Lines(streams.output, limit)
        for where, known, status in Walk(place, name, MAX_DEPTH):
            if matches(show(os.path.basename(where))) and not lines.add(info_of(status, where, known)):
                break
        return lines.result()

    return work


def grep_files(request: Json, config: AgentConfig) -> Work:
    name = requests.path(request, "path", config)
    place = locate(name, config)
    limit = requests.number(request, "limit", 1_000)
    wanted = requests.text(request, "name", "*")
    text = requests.text(request, "pattern")
    try:
        is_directory = stat.S_ISDIR(os.stat(place).st_mode)
    except OSError as error:
        raise Fault.of(error, name) from None

    def work(streams: Streams) -> Json:
        try:
            pattern = re.compile(text)
        except (re.error, RecursionError, OverflowError) as error:
            raise Fault("invalid_argument", f"not a regular expression: {error}") from None
        matches = re.compile(fnmatch.translate(wanted)).match
        lines = _Lines(streams.output, limit)
        found = Walk(place, name, MAX_DEPTH) if is_directory else [(place, name, os.stat(place))]
        for where, known, status in found:
            if stat.S_ISREG(status.st_mode) and matches(show(os.path.basename(where))):
                for number, line in _matching(where, pattern):
                    hit = {"path": show(tidy(known)), "line_number": number, "line": line[:MAX_LINE]}
                    if not lines.add(hit):
                        return lines.result()
        return lines.result()

    return work


def _matching(place: bytes, pattern: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    try:
        fd = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode) or b"\0" in file.peek(_PROBE_BYTES)[:_PROBE_BYTES]:
            return
        number = 1
        while piece := file.readline(_LINE_BYTES):
            line = piece.rstrip(b"\r\n") if piece.endswith(b"\n") else piece
            text = line.decode("utf-8", "surrogateescape")
            if pattern.search(text):
                yield number, text
            if piece.endswith(b"\n"):
                number += 1
