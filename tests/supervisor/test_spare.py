"""What a spare says, however it ends."""

from __future__ import annotations

import errno
import socket

import pytest

from paddock.supervisor._errors import Died, JailError
from paddock.supervisor._spare import read_report
from paddock.wire.guest import Report


def test_what_a_child_said_is_heard_although_it_ended_with_a_message_unread() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        ours.setblocking(False)
        theirs.send(Report(failed=1, errno=errno.ENFILE, step=b"its step").pack())
        ours.send(b"m")
        theirs.close()  # now the first thing that the kernel says is ECONNRESET
        with pytest.raises(JailError, match="at step 'its step': Too many open files in system"):
            read_report(ours)
        with pytest.raises(Died):
            read_report(ours)
