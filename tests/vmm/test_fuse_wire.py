"""The codec of the files' stream: whatever arrives, and in whatever pieces, it gives whole messages or refuses."""

from __future__ import annotations

import errno
import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.vmm import _fuse_wire as wire
from tests.vmm.fuse_client import message

bodies = st.binary(max_size=300)
messages = st.lists(st.builds(message, st.integers(0, 60), st.integers(0, 9), bodies), max_size=8)


@given(messages, st.lists(st.integers(1, 64), min_size=1, max_size=50))
def test_messages_come_out_as_they_went_in_however_they_are_cut(sent: list[bytes], sizes: list[int]) -> None:
    splitter, stream, got = wire.Splitter(), b"".join(sent), list[bytes]()
    while stream:
        size = sizes[len(got) % len(sizes)]
        got += [bytes(one) for one in splitter.feed(stream[:size])]
        stream = stream[size:]
    assert got == sent
    assert not splitter._pending


@given(st.binary(max_size=200))
def test_what_is_no_message_is_refused_or_waited_for(data: bytes) -> None:
    splitter = wire.Splitter()
    try:
        for one in splitter.feed(data):
            assert wire.control_value(one) is not None or len(one) >= 40
    except wire.BadMessage:
        return
    assert not splitter._pending or len(data) < wire.MAX_MESSAGE


@pytest.mark.parametrize("length", [0, 7, 9, 39, wire.MAX_MESSAGE + 1, 0xFFFF_FFFF])
def test_a_length_that_no_message_has_ends_the_stream(length: int) -> None:
    with pytest.raises(wire.BadMessage):
        wire.Splitter().feed(struct.pack("=I", length) + bytes(36))


def test_words_of_ours_pass_between_the_kernels_messages() -> None:
    got = wire.Splitter().feed(message(1, 1) + wire.control_message(wire.PAUSE) + message(3, 1))
    assert [wire.control_value(one) for one in got] == [None, wire.PAUSE, None]


@given(st.integers(0, (1 << 63) - 1), st.integers(-(10**18), 10**19), st.integers(0, 0xFFFF))
def test_attributes_have_the_kernels_layout(ino: int, time: int, mode: int) -> None:
    fields = [mode, ino, 0, 1, 0, 0, 5, 0, 0, 0]
    status = os.stat_result([*fields, 0.0, 0.0, 0.0, time, time, time, 4096, 8, 0][: os.stat_result.n_fields])
    packed = wire.attributes(status, ino)
    assert len(packed) == 88
    assert struct.unpack_from("=QQ", packed) == (ino, 5)
    assert struct.unpack_from("=q", packed, 24)[0] * 10**9 + struct.unpack_from("=I", packed, 48)[0] == time
    assert struct.unpack_from("=I", packed, 60)[0] == mode


def test_a_kernel_that_cannot_do_without_opening_is_refused() -> None:
    old = message(wire.INIT, 0, struct.pack("=4I", 7, 31, 1 << 17, 0))
    with pytest.raises(OSError, match="a kernel before") as refused:
        wire.greeting(wire.parse(memoryview(old)), shared=False)
    assert refused.value.errno == errno.EPROTO


@pytest.mark.parametrize("body", [b"", b"name", b"name\0other", b"\0"])
def test_names_without_an_end_are_refused(body: bytes) -> None:
    request = wire.parse(memoryview(message(wire.RENAME, 1, body)))
    with pytest.raises(OSError, match="end"):
        request.names(0, 2)
