"""Answers a program's open of one path with a descriptor of ours.

QEMU before 9.0 opens the file of a machine's memory for writing, even for a private mapping without writes. Many
machines share that file, and none may write it. So this one call doesn't reach the kernel, and gets a descriptor for
reading. This isn't isolation: all other calls go on to the kernel unchanged. Facts: seccomp_unotify(2),
linux/seccomp.h.
"""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import suppress
from struct import Struct

from paddock.linux.descriptors import closing

from ._loop import IN, Loop
from .process import install_filter

_NOTICE, _ANSWER, _LOAN = Struct("=QIIiIQ6Q"), Struct("=QqiI"), Struct("=QIIII")
_RECEIVE, _SEND, _ADD = 0xC050_2100, 0xC018_2101, 0x4018_2103
_GO_ON, _ADD_AND_SEND = 1, 2


class OpenResponder:
    """Answers an open of `path` for reading and writing with `fd`, which stays ours. `filter` notifies us of opens.

    The parent creates it. The child calls `ask` before it executes the program.
    """

    def __init__(self, loop: Loop, path: str, fd: int, filter: str) -> None:
        self._loop, self._path, self._fd, self._filter = loop, os.fsencode(path) + b"\0", fd, filter
        self._ours, self._theirs = socket.socketpair()
        self._listener = -1

    def ask(self) -> None:
        """Install the filter in the child, and send its listener to the parent."""
        socket.send_fds(self._theirs, [b"\0"], [install_filter(self._filter, listener=True)])

    def begin(self) -> None:
        """Note that the child is on its way."""
        self._theirs.close()
        self._loop.watch(self._ours.fileno(), IN, self._came)

    def _came(self, events: int) -> None:
        self._loop.unwatch(self._ours.fileno())
        _, descriptors, _, _ = socket.recv_fds(self._ours, 1, 1, socket.MSG_CMSG_CLOEXEC)
        self._ours.close()
        if descriptors:  # else the child has died before
            self._listener = descriptors[0]
            self._loop.watch(self._listener, IN, self._asked)

    def _asked(self, events: int) -> None:
        if not events & IN:  # no process is left that could ask
            self._loop.unwatch(self._listener)
            return
        notice = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, notice)
        except OSError:  # who asked has died
            return
        number, pid, *_ = fields = _NOTICE.unpack(notice)
        place = fields[7]  # the second argument
        with suppress(OSError):
            if self._names_it(pid, place):
                fcntl.ioctl(self._listener, _ADD, _LOAN.pack(number, _ADD_AND_SEND, self._fd, 0, os.O_CLOEXEC))
            else:
                fcntl.ioctl(self._listener, _SEND, _ANSWER.pack(number, 0, 0, _GO_ON))

    def _names_it(self, pid: int, place: int) -> bool:
        with suppress(OSError), closing(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)) as memory:
            return os.pread(memory, len(self._path), place) == self._path
        return False
