"""Conversations of a guest, damaged at random: bytes changed, left out, doubled, moved. A fixed number, by seed."""

from __future__ import annotations

import contextlib
import random
import resource

import pytest

from paddock.errors import PaddockError
from paddock.guest._frames import MAX_PAYLOAD, Decoder, Kind, ProtocolError, pack, pack_close, pack_credit, pack_eof
from paddock.model import DownloadTree, FindFiles, GrepFiles, ListFiles, ReadFile, StatFile, WatchFiles, WriteFile
from tests.backends.test_hostile_guest import EXIT, HELLO, INFO, against, data, reply, run_exec, run_file

EXAMPLES = 400
LINE = b'{"path":"/x","kind":"file","size_bytes":1,"mode":1,"uid":0,"gid":0,"modified_at":1.5,"target":null}\n'
EXEC = HELLO + reply(pid=3) + data(b"out" * 50) + data(b"err", stream=2) + pack_credit(1, 0, 4096) + pack_eof(1, 1)
EXEC += pack_eof(1, 2) + pack(Kind.EXIT, 1, EXIT) + pack_close(1)
LINES = HELLO + reply() + data(LINE * 5) + data(LINE[:40]) + data(LINE[40:]) + pack_eof(1, 1)
LINES += pack(Kind.EXIT, 1, {"truncated": False}) + pack_close(1)
TALKS = {
    "exec": (EXEC, run_exec),
    "exec with stdin": (EXEC, lambda c: run_exec(c, stdin=True)),
    "stat": (HELLO + reply(**INFO) + pack_close(1), lambda c: run_file(c, StatFile)),
    "list": (LINES, lambda c: run_file(c, ListFiles)),
    "find": (LINES, lambda c: run_file(c, FindFiles, name="*")),
    "grep": (LINES, lambda c: run_file(c, GrepFiles, pattern="x")),
    "watch": (HELLO + reply() + data(b'{"armed":true}\n' + LINE) + pack_close(1), lambda c: run_file(c, WatchFiles)),
    "read": (HELLO + reply(size_bytes=9) + data(b"123456789") + pack_close(1), lambda c: run_file(c, ReadFile)),
    "download": (HELLO + reply() + data(bytes(1024)) + pack_close(1), lambda c: run_file(c, DownloadTree)),
    "write": (HELLO + reply() + pack(Kind.EXIT, 1, INFO) + pack_close(1), lambda c: run_file(c, WriteFile)),
}
_TELLING = (b"\0", b"\xff" * 4, bytes(4), b"\x80", b"{", b"[" * 9, b'"', b"\n", b"\\ud800", b"1e999", b"9" * 30)


def damaged(wire: bytes, choose: random.Random) -> bytes:
    work = bytearray(wire)
    for _ in range(choose.choice((1, 1, 1, 2, 3, 8))):
        at = choose.randrange(len(work) + 1)
        length = choose.choice((1, 1, 2, 4, 9, 40))
        match choose.randrange(6):
            case 0:
                work[at : at + 1] = bytes([choose.randrange(256)])
            case 1:
                del work[at : at + length]
            case 2:
                work[at:at] = work[at : at + length]
            case 3:
                work[at:at] = choose.choice(_TELLING)
            case 4:
                piece, to = work[at : at + length], choose.randrange(len(work) + 1)
                work[to:to] = piece
            case _:
                work[at : at + 4] = choose.choice((b"\0\0\0\1", b"\0\4\0\x40", b"\x7f\xff\xff\xff"))
    return bytes(work)


@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("descriptors", [False, True])
def test_a_damaged_conversation_ends_in_a_result_or_an_error_of_ours(talk: str, descriptors: bool) -> None:
    wire, doing = TALKS[talk]
    choose = random.Random(f"{talk} {descriptors}")
    for _ in range(EXAMPLES // 10):
        with contextlib.suppress(PaddockError, BrokenPipeError):
            against(damaged(wire, choose), doing, descriptors=descriptors)


def test_damaged_frames_are_read_or_refused_in_little_memory() -> None:
    choose = random.Random("frames")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wires = [wire for wire, _ in TALKS.values()]
    for _ in range(20_000):
        decoder = Decoder()
        wire = damaged(choose.choice(wires), choose)
        step = choose.choice((1, 7, 100, 1 << 16))
        with contextlib.suppress(ProtocolError):
            for at in range(0, len(wire), step):
                decoder.feed(wire[at : at + step])
        assert decoder.pending_bytes <= MAX_PAYLOAD + 9
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
