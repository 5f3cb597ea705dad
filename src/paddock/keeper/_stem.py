"""The stem: a small copy of the keeper that every sandbox is cloned from.

A clone shares all memory until one side writes to it, and then that side copies, page by page. The keeper writes
everywhere all the time; the stem does nothing but clone. So the keeper never pays for a birth.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import marshal
import os
import signal
import socket
from collections.abc import Sequence
from typing import NoReturn

from paddock.keeper._errors import JailError
from paddock.keeper._house import House
from paddock.keeper._inside import Inside, become_sandbox, listener_names
from paddock.linux import cgroups, descriptors, fsids, namespaces, prctl

_NULL, _PEER, _PROGRAM = 0, 3, 4  # its descriptors, beside the log; all others are closed
_ORDER_BYTES = 4096
_MOST_DESCRIPTORS = 32


class Stem:
    """`clone` makes children of the keeper. A stem that was killed is replaced by the next call."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._pid = 0
        self._peer: socket.socket | None = None

    def start(self) -> None:
        """The caller has one thread, and SIGCHLD is not handled."""
        keeper = os.getpid()
        peer, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            try:
                prctl.set_parent_death_signal(signal.SIGKILL)
                if os.getppid() == keeper:
                    _serve(self._house, theirs)
            finally:
                os._exit(1)
        theirs.close()
        self._pid, self._peer = pid, peer

    def clone(
        self,
        sync: socket.socket,
        listeners: Sequence[int],
        joining: cgroups.Joining,
        *,
        base: int | None,
        fault: str,
    ) -> int:
        """The pid of a new child of the keeper, on its way to become a sandbox. JailError.

        `listeners` in the order of `listener_names`. `base`: see `fsids.owning_as`.
        """
        fds = [sync.fileno(), *listeners, *joining.tasks]
        if joining.clone_into is not None:
            fds.append(joining.clone_into)
        for _ in range(2):
            if self._peer is None:
                self.start()
            answer = self._ask(marshal.dumps((base, fault, joining.clone_into is not None)), fds)
            if answer:
                pid, number, text = marshal.loads(answer)  # noqa: S302
                if pid:
                    return pid
                raise JailError(text, number)
            self.close()
        raise JailError("the process that sandboxes are cloned from died twice in a row")

    def _ask(self, order: bytes, fds: Sequence[int]) -> bytes:
        assert self._peer is not None
        try:
            socket.send_fds(self._peer, [order], fds)
            return self._peer.recv(_ORDER_BYTES)
        except ConnectionError:
            return b""

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _serve(house: House, peer: socket.socket) -> NoReturn:
    peer = _shed(house, peer)
    count = len(listener_names(house.whole))
    while True:
        data, ancillary, _, _ = peer.recvmsg(
            _ORDER_BYTES, socket.CMSG_SPACE(_MOST_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC
        )
        if not data:
            os._exit(0)  # the keeper is gone
        fds = list(array.array("i", ancillary[0][2]))
        try:
            base, fault, unified = marshal.loads(data)  # noqa: S302
            into = fds.pop() if unified else None
            inside = Inside(
                root_mode=house.root_mode,
                held=house.held,
                sync=socket.socket(fileno=fds[0]),
                listeners=tuple(fds[1 : 1 + count]),
                joining=cgroups.Joining(into, tuple(fds[1 + count :])),
                stage=house.stage,
                dev_tree=house.dev_tree,
                masks=house.masks,
                null=_NULL,
                program=_PROGRAM,
                fault=fault,
            )
            try:
                answer = _clone(inside, base), None, ""
            finally:
                inside.sync.detach()
        except OSError as error:
            answer = 0, error.errno, f"{type(error).__name__} at the clone: {error}"
        descriptors.close_from(_PROGRAM + 1)  # first: else the end of the child would not be seen at once
        peer.send(marshal.dumps(answer))


def _shed(house: House, peer: socket.socket) -> socket.socket:
    """Closes all that the keeper has open, its lock first of all."""
    os.dup2(house.null, _NULL)
    program = fcntl.fcntl(house.program, fcntl.F_DUPFD_CLOEXEC, _PROGRAM + 1)
    os.dup2(peer.detach(), _PEER, inheritable=False)
    os.dup2(program, _PROGRAM, inheritable=False)
    descriptors.close_from(_PROGRAM + 1)
    return socket.socket(fileno=_PEER)


def _clone(inside: Inside, base: int | None) -> int:
    # net, ipc and cgroup follow in the child. Its parent is the keeper, which buries it.
    flags = namespaces.NEWUSER | namespaces.NEWPID | namespaces.NEWNS | namespaces.NEWUTS | namespaces.PARENT
    into = inside.joining.clone_into
    # Owned by an id of its own range: what the kernel counts by owner would else be root's, of the whole machine.
    with contextlib.nullcontext() if base is None else fsids.owning_as(base):
        if into is None:
            pid = namespaces.clone(flags)
        else:
            pid, descriptor = namespaces.clone_into(flags, into)
            if pid:
                os.close(descriptor)
        if pid == 0:
            try:
                become_sandbox(inside)
            finally:
                os._exit(1)
    return pid
