"""The reader of zstd gives what the zstandard library gives, or refuses."""

from __future__ import annotations

import ctypes
import io
import random
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from paddock.errors import NotConfiguredError
from paddock.storage.templates.images import _zstd
from paddock.storage.templates.images._zstd import ZstdError, ZstdReader

CONTENT = random.Random(3).randbytes(70_000) + bytes(600_000) + random.Random(4).randbytes(70_000)


def read(packed: bytes, size: int) -> bytes:
    reader = ZstdReader(io.BytesIO(packed))
    return b"".join(iter(lambda: reader.read(size), b""))


def skippable(data: bytes) -> bytes:
    return b"\x50\x2a\x4d\x18" + len(data).to_bytes(4, "little") + data


@pytest.mark.parametrize("level", [1, 3, 19])
@pytest.mark.parametrize("size", [1000, 1 << 18, 1 << 20])
def test_content_is_the_same_at_any_size_of_reads(level: int, size: int) -> None:
    assert read(zstandard.ZstdCompressor(level=level).compress(CONTENT), size) == CONTENT


@given(st.lists(st.binary(max_size=2000), max_size=4), st.integers(1, 3000), st.binary(max_size=20))
def test_frames_follow_each_other_and_skippable_ones_are_skipped(parts: list[bytes], size: int, note: bytes) -> None:
    compress = zstandard.ZstdCompressor(write_checksum=True).compress
    packed = b"".join(skippable(note) + compress(part) for part in parts)
    assert read(packed, size) == b"".join(parts)


@given(st.binary(min_size=1, max_size=3000), st.data(), st.sampled_from([1, 77, 1 << 18]))
def test_damage_is_refused_or_read_as_the_library_reads_it(content: bytes, data: st.DataObject, size: int) -> None:
    packed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(content))
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= data.draw(st.integers(1, 255))
    expected: bytes | None
    try:
        expected = zstandard.ZstdDecompressor().stream_reader(bytes(packed), read_across_frames=True).read()
    except zstandard.ZstdError:
        expected = None
    try:
        assert read(bytes(packed), size) == expected
    except ZstdError:
        assert expected != content


@pytest.mark.parametrize("cut", [1, 5, 1000])
def test_a_frame_that_is_cut_short_is_refused(cut: int) -> None:
    packed = zstandard.ZstdCompressor().compress(CONTENT)
    with pytest.raises(ZstdError, match="ends inside a frame"):
        read(packed[:-cut], 1 << 18)
    with pytest.raises(ZstdError, match="ends inside a frame"):
        read(packed[:cut], 1 << 18)


def test_a_window_above_128_mib_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=28, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = compressor.compress(b"x" * 1000) + compressor.flush()
    with pytest.raises(ZstdError, match="memory"):
        read(packed, 1000)


def test_a_machine_without_libzstd_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise OSError(f"{name}: cannot open shared object file")

    library: Callable[[], object] = _zstd._library.__wrapped__  # type: ignore[attr-defined]
    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(NotConfiguredError, match="no libzstd") as failed:
        library()
    assert "apt-get install libzstd1" in (failed.value.hint or "")
