"""Whose a connection is: by the kernel's answer about one network, and by the descriptors of processes below one."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Generator

import pytest

from paddock.linux import namespaces, sock_diag
from paddock.linux.processes import Search, TooMany, is_below

from .child import run_in_child

_HOLDS = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); print(flush=True); input()"
_BELOW = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_HOLDS!r}, sys.argv[1]], check=True)"


class Pair:
    def __init__(self, family: int) -> None:
        self.server = socket.create_server(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0), family=family)
        self.client = socket.create_connection(self.server.getsockname()[:2])
        self.accepted, _ = self.server.accept()

    def close(self) -> None:
        for one in (self.server, self.client, self.accepted):
            one.close()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_kernel_says_the_inode_of_exactly_the_end_that_is_asked_for(family: int) -> None:
    pair = Pair(family)
    try:
        ends = pair.client.getsockname()[:2], pair.server.getsockname()[:2]
        with sock_diag.open_here() as diag:
            assert sock_diag.inode_of(diag, *ends) == os.fstat(pair.client.fileno()).st_ino
            assert sock_diag.inode_of(diag, *reversed(ends)) == os.fstat(pair.accepted.fileno()).st_ino
    finally:
        pair.close()


def test_an_end_that_was_closed_is_nobodys_and_one_that_never_was_is_an_error() -> None:
    pair = Pair(socket.AF_INET)
    try:
        ends = pair.client.getsockname(), pair.server.getsockname()
        pair.client.close()
        with sock_diag.open_here() as diag:
            assert sock_diag.inode_of(diag, *ends) == 0
            with pytest.raises(OSError) as raised:
                sock_diag.inode_of(diag, ("127.0.0.1", 1), ("127.0.0.1", 2))
            assert raised.value.errno == errno.ENOENT
    finally:
        pair.close()


@pytest.fixture
def family() -> Generator[tuple[int, int]]:
    """A process whose child holds a connection, and the connection's inode."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        above = subprocess.Popen(
            [sys.executable, "-c", _BELOW, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert above.stdout is not None
        try:
            accepted, caller = server.accept()
            above.stdout.readline()
            with accepted, sock_diag.open_here() as diag:
                yield above.pid, sock_diag.inode_of(diag, caller, accepted.getsockname())
        finally:
            above.communicate(b"\n")


def test_the_holder_is_found_below_and_nowhere_else(family: tuple[int, int]) -> None:
    above, inode = family
    holder = Search().holder(above, inode)
    assert holder is not None
    assert holder != above
    assert is_below(holder, above)
    assert not is_below(above, holder)
    assert Search().holder(above, inode, likely=holder) == holder
    assert Search().holder(holder, inode, likely=above) == holder
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        assert Search().holder(stranger.pid, inode, likely=holder) is None
        stranger.communicate(b"\n")


def test_a_search_is_bounded(family: tuple[int, int]) -> None:
    above, inode = family
    with pytest.raises(TooMany, match="processes"):
        Search(processes=1).holder(above, inode)
    with pytest.raises(TooMany, match="descriptors"):
        Search(descriptors=2).holder(above, inode)


@pytest.mark.root  # for a network of its own
def test_what_unix_sockets_hold_is_seen_wherever_they_are() -> None:
    def body() -> None:
        namespaces.unshare(namespaces.NEWNET)
        diag = sock_diag.open_here().detach()
        assert sock_diag.unix_bytes(diag) == 0
        size = 100_000
        one, other = socket.socketpair()
        one.send(bytes(size))
        assert size <= sock_diag.unix_bytes(diag) < 3 * size
        carrier = socket.socketpair()
        socket.send_fds(carrier[0], [b"x"], [other.fileno()])
        other.close()
        assert sock_diag.unix_bytes(diag) >= size, "it is under way in a message"
        one.close()
        assert sock_diag.unix_bytes(diag) >= size, "its sender is gone"
        for end in carrier:
            end.close()
        assert sock_diag.unix_bytes(diag) == 0
        for kind in (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
            one, other = socket.socketpair(socket.AF_UNIX, kind)
            one.send(bytes(size))
            one.close()
            assert sock_diag.unix_bytes(diag) >= size
            other.close()

    run_in_child(body)
