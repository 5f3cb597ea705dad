"""What `native/share.c` does in a virtual machine, on this one: exports are mounted, and one process carries messages
between the kernel and a socket.

The process does not look into what it carries but for lengths. It never waits for one side while the other has
something for it, so that the kernel's answers are always taken. Told to pause, it takes no more requests, and says so
when all that it had taken are answered: then nothing is under way anywhere, and the machine may be stopped and copied.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import stat
import time
from collections import deque
from typing import NamedTuple, NoReturn

from paddock.vmm import _fuse_wire as wire
from paddock.vmm._loop import report

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND = 1, 2, 4, 32, 4096
_PR_SET_IO_FLUSHER = 57
_GONE = (errno.ENODEV, errno.ECONNABORTED)
_PIECE = 64 * 1024
_UNCONNECTED_SECONDS = 0.01

_libc = ctypes.CDLL(None, use_errno=True)
_text = ctypes.c_char_p
_libc.mount.argtypes = (_text, _text, _text, ctypes.c_ulong, _text)


class Share(NamedTuple):
    """An export of this name appears at `target`."""

    name: bytes
    target: bytes
    writable: bool


def is_mounted(top: bytes) -> bool:
    with open("/proc/self/mountinfo", "rb") as file:
        return any(line.split(b" ", 5)[4] == top for line in file)


def mount_shares(port: int, shares: tuple[Share, ...], top: bytes) -> int:
    """Mounts the exports at `top` and at their targets. The relay's pid: `port` is its own from now on."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    os.makedirs(top, mode=0o700, exist_ok=True)
    options = b"fd=%d,rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other,max_read=%d"
    _mount(b"paddock", top, b"fuse", _MS_NOSUID | _MS_NODEV, options % (device, wire.MAX_DATA))
    pid = os.fork()
    if pid == 0:
        _relay(device, port)
    os.close(device)
    for share in shares:
        os.makedirs(share.target, exist_ok=True)
        _mount(top + b"/" + share.name, share.target, b"", _MS_BIND, b"")
        if not share.writable:
            _mount(b"", share.target, b"", _MS_BIND | _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV, b"")
    return pid


def _mount(source: bytes, target: bytes, kind: bytes, flags: int, options: bytes) -> None:
    if _libc.mount(source, target, kind, flags, options) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fsdecode(target))


def _relay(device: int, port: int) -> NoReturn:
    status = 1
    try:
        protect()
        Relay(device, port).run()
        status = 0
    except BaseException as error:
        report(error)
    os._exit(status)


def protect() -> None:
    """Memory that is short must not wait for us while we wait for memory, nor take us."""
    _libc.prctl(_PR_SET_IO_FLUSHER, ctypes.c_ulong(1), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("-1000")
    except OSError:
        pass  # where only less is allowed, an ordinary chance to be taken is left


class Relay:
    def __init__(self, device: int, port: int) -> None:
        self._device, self._port = device, port
        # A port of a machine reads as ended while nobody is at its other side: after it was stopped, until it is again.
        self._waits = stat.S_ISCHR(os.fstat(port).st_mode)
        os.set_blocking(device, False)
        os.set_blocking(port, False)
        self._poll = select.poll()
        self._answers = wire.Splitter(16)
        self._unsent: deque[memoryview] = deque()
        self._open = 0  # requests that are not answered
        self._paused = False
        self._running = True

    def run(self) -> None:
        """Until it is unmounted, or the port has no other side any more."""
        request, answer = bytearray(wire.MAX_MESSAGE), bytearray(_PIECE)
        watched: tuple[bool, bool] | None = None
        while self._running:
            now = (bool(self._unsent), self._paused)
            if now != watched:
                self._watch()
                watched = now
            for fd, events in self._poll.poll():
                if fd == self._device:
                    if not self._paused:  # the port may have said so in the same turn
                        self._take(request)
                elif events & ~select.POLLOUT:
                    self._give(answer)
                elif self._unsent:
                    self._send()

    def _watch(self) -> None:
        self._poll.register(self._port, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        if self._unsent or self._paused:
            self._poll.register(self._device, 0)
        else:
            self._poll.register(self._device, select.POLLIN)

    def _take(self, buffer: bytearray) -> None:
        """A request of the kernel's, to the port."""
        try:
            length = os.readv(self._device, [buffer])
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):  # the request was taken back meanwhile
                return
            if error.errno in _GONE:
                self._running = False
                return
            raise
        if wire.parse(memoryview(buffer)[:length]).opcode not in wire.UNANSWERED:
            self._open += 1
        self._queue(bytes(memoryview(buffer)[:length]))

    def _queue(self, message: bytes) -> None:
        self._unsent.append(memoryview(message))
        self._send()

    def _send(self) -> None:
        while self._unsent:
            try:
                sent = os.write(self._port, self._unsent[0])
            except BlockingIOError:
                return
            if sent == len(self._unsent[0]):
                self._unsent.popleft()
            else:
                self._unsent[0] = self._unsent[0][sent:]

    def _give(self, buffer: bytearray) -> None:
        """What came from the port, to the kernel."""
        try:
            got = os.readv(self._port, [buffer])
        except BlockingIOError:
            return
        if got == 0:
            if not self._waits:
                self._running = False
            else:
                time.sleep(_UNCONNECTED_SECONDS)
            return
        for message in self._answers.feed(memoryview(buffer)[:got]):
            said = wire.control_value(message)
            if said is None:
                self._open -= 1
                self._answer(message)
            else:
                self._paused = said == wire.PAUSE
        if self._paused and self._open == 0:
            self._queue(wire.control_message(wire.PAUSED))

    def _answer(self, message: memoryview) -> None:
        try:
            os.write(self._device, message)
        except OSError as error:
            if error.errno in _GONE:
                self._running = False
            elif error.errno not in (errno.ENOENT, errno.EINTR):  # whoever asked has been killed
                report(error)
