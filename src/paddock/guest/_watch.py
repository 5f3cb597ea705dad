"""Changes of files, as inotify(7) tells them. Lines of JSON; the first says that the watch is armed. In a worker."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from struct import Struct

from . import _requests as requests
from ._config import AgentConfig
from ._faults import Fault, show
from ._frames import MAX_PATH, Json, dump_json
from ._kernel import inotify_add_watch, inotify_init
from ._paths import locate, tidy
from ._worker import Streams, Work

_EVENT = Struct("iIII")
_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _OVERFLOW, _IGNORED = 0x400, 0x800, 0x4000, 0x8000
_ONLYDIR, _DONT_FOLLOW, _EXCL_UNLINK, _ISDIR = 0x0100_0000, 0x0200_0000, 0x0400_0000, 0x4000_0000
_WANTED = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _EXCL_UNLINK
_KINDS = {
    _MODIFY: "modified",
    _ATTRIB: "modified",
    _MOVED_FROM: "moved_from",
    _MOVED_TO: "moved_to",
    _CREATE: "created",
    _DELETE: "removed",
    _DELETE_SELF: "removed",
    _MOVE_SELF: "moved_from",
    _OVERFLOW: "overflow",
}


def watch(request: Json, config: AgentConfig) -> Work:
    name = requests.path(request, "path", config)
    place = locate(name, config)
    recursive = requests.flag(request, "recursive")

    def work(streams: Streams) -> Json:
        try:
            watcher = _Watcher(place, tidy(name).rstrip(b"/"), recursive)
        except OSError as error:
            raise Fault.of(error, name) from None
        try:
            _write(streams.output, [{"armed": True}])
            poll = select.poll()
            poll.register(watcher.fd, select.POLLIN)
            while watcher.alive:
                poll.poll()
                _write(streams.output, list(watcher.read()))
        except BrokenPipeError:  # the host has had enough
            pass
        return {}

    return work


def _write(fd: int, items: list[Json]) -> None:
    view = memoryview(b"".join(dump_json(item) + b"\n" for item in items))
    while view:
        view = view[os.write(fd, view) :]


class _Watcher:
    def __init__(self, place: bytes, name: bytes, recursive: bool) -> None:
        self.fd = inotify_init()
        self._recursive = recursive
        self._directories: dict[int, tuple[bytes, bytes]] = {}
        self._root = self._add(place, name, 0)
        if recursive and os.path.isdir(place):
            for _ in self._add_below(place, name):
                pass

    @property
    def alive(self) -> bool:
        return self._root in self._directories

    def _add(self, place: bytes, name: bytes, flags: int) -> int:
        number = inotify_add_watch(self.fd, place, _WANTED | flags)
        self._directories[number] = (place, name)
        return number

    def _add_below(self, place: bytes, name: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Watches every directory below; gives all that is there, for it may have come before the watch did."""
        stack = [(place, name)]
        while stack:
            here, known = stack.pop()
            try:
                entries = list(os.scandir(here))
            except OSError:
                continue
            for entry in entries:
                inner = known + b"/" + entry.name
                yield entry.path, inner
                if entry.is_dir(follow_symlinks=False):
                    try:
                        self._add(entry.path, inner, _ONLYDIR | _DONT_FOLLOW)
                    except (FileNotFoundError, NotADirectoryError, PermissionError):
                        continue
                    stack.append((entry.path, inner))

    def read(self) -> Iterator[Json]:
        data = os.read(self.fd, 65536)
        position, last = 0, None
        while position < len(data):
            number, mask, _, length = _EVENT.unpack_from(data, position)
            start = position + _EVENT.size
            entry = data[start : start + length].rstrip(b"\0")
            position = start + length
            for change in self._changes(number, mask, entry):
                # A file that is written in small pieces is told of once; what no call can name, not at all.
                if change != last and len(change["path"]) < MAX_PATH:
                    yield change
                last = change

    def _changes(self, number: int, mask: int, entry: bytes) -> Iterator[Json]:
        if mask & _OVERFLOW:
            yield {"path": show(self._name_of(self._root)), "kind": "overflow"}
            return
        if number not in self._directories:
            return
        place, name = self._directories[number]
        if mask & _IGNORED:
            del self._directories[number]
            return
        if mask & (_DELETE_SELF | _MOVE_SELF) and number != self._root:
            return  # its parent tells
        path = name + b"/" + entry if entry else name
        for bit, kind in _KINDS.items():
            if mask & bit:
                yield {"path": show(path or b"/"), "kind": kind}
        if self._recursive and mask & _ISDIR and mask & (_CREATE | _MOVED_TO):
            yield from self._adopt(place + b"/" + entry, path)

    def _adopt(self, place: bytes, name: bytes) -> Iterator[Json]:
        try:
            self._add(place, name, _ONLYDIR | _DONT_FOLLOW)
        except OSError:
            return
        for _, inner in self._add_below(place, name):
            yield {"path": show(inner), "kind": "created"}

    def _name_of(self, number: int) -> bytes:
        return self._directories.get(number, (b"", b"/"))[1] or b"/"
