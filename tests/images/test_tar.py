"""The reader of archives: what tarfile writes, it reads the same; what is damaged or odd, it refuses."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.wire.tar import Entry, Reader, TarError
from tests.images.layouts import layer, member


class Slow:
    """Gives as little at a time as it may."""

    def __init__(self, data: bytes, step: int = 1 << 16) -> None:
        self._stream, self._step = io.BytesIO(data), step

    def read(self, size: int, /) -> bytes:
        return self._stream.read(min(size, self._step))


def read(data: bytes, step: int = 1 << 16) -> list[tuple[Entry, bytes]]:
    reader = Reader(most_bytes=1 << 20, most_records=1 << 20)
    found: list[tuple[Entry, bytes]] = []
    for at in range(0, len(data), step):
        for event in reader.feed(data[at : at + step]):
            if isinstance(event, Entry):
                found.append((event, b""))
            else:
                found[-1] = (found[-1][0], found[-1][1] + event)
    reader.end()
    return found


def archive(infos: list[tuple[tarfile.TarInfo, bytes]], form: int) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        for info, content in infos:
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


names = st.text(st.characters(exclude_characters="\0/", exclude_categories=("Cs",)), min_size=1, max_size=180)
contents = st.binary(max_size=1500)
members = st.lists(
    st.builds(
        lambda name, content, mode, uid, gid, mtime: member(name, content, mode=mode, uid=uid, gid=gid, mtime=mtime),
        names,
        contents,
        st.integers(0, 0o7777),
        st.integers(0, 65535),
        st.integers(0, 1 << 40),
        st.integers(0, 1 << 36) | st.floats(0, 1 << 33, allow_nan=False),
    ),
    max_size=6,
)


@given(members, st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]), st.sampled_from([7, 511, 1 << 16]))
def test_what_tarfile_writes_is_read_as_tarfile_reads_it(
    infos: list[tuple[tarfile.TarInfo, bytes]], form: int, step: int
) -> None:
    data = archive(infos, form)
    with tarfile.open(fileobj=io.BytesIO(data)) as oracle:
        expected = oracle.getmembers()
    found = read(data, step)
    assert [content for _, content in found] == [content for _, content in infos]
    for (entry, _), info in zip(found, expected, strict=True):
        # tarfile takes slashes off the end of any name, and makes a directory of an old file that has them
        assert entry.name.rstrip(b"/") == info.name.encode("utf-8", "surrogateescape").rstrip(b"/")
        assert (entry.mode, entry.uid, entry.gid, entry.size) == (info.mode, info.uid, info.gid, info.size)
        assert abs(entry.mtime / 10**9 - info.mtime) < 1


@given(st.data())
def test_no_bytes_make_it_fail_in_another_way_or_give_more_than_there_is(data: st.DataObject) -> None:
    raw = bytearray(layer(member("a" * 120, b"content", pax_headers={"SCHILY.xattr.user.x": "y"}), member("b")))
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    except TarError:
        return
    assert sum(len(content) for _, content in found) <= len(raw)


@given(st.binary(max_size=4096))
def test_noise_is_refused_or_empty(noise: bytes) -> None:
    try:
        assert all(not content for _, content in read(noise))
    except TarError:
        pass


def pax(records: bytes, *, size: int | None = None) -> bytes:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, len(records) if size is None else size
    return info.tobuf(tarfile.GNU_FORMAT) + records + bytes(-len(records) % 512) + member("x")[0].tobuf()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (pax(b"", size=2 << 20), "header of 2097152 bytes"),
        (pax(b"", size=-5), "header of -5 bytes"),
        (pax(b"99 path=x\n"), "extended header"),
        (pax(b"0 path=x\n"), "extended header"),
        (pax(b"9 path=xy\n"), "extended header"),
        (pax(b"11 size=-1\n"), "size of -1"),
        (pax(b"13 uid=1e300\n"), "number"),
        (pax(b"24 GNU.sparse.major=1.0\n"[:24]), "extended header|sparse"),
        (member("x", kind=b"S")[0].tobuf(), "sparse"),
        (member("x", kind=b"Z")[0].tobuf(), "kind"),
        (layer(member("x", b"long enough"))[:520], "in the middle"),
        (layer(member("x"))[:300], "in the middle"),
        (pax(b"10 path=x\n")[:1024] , "extended header"),
    ],
)  # fmt: skip
def test_what_is_no_archive_is_refused_with_the_reason(data: bytes, why: str) -> None:
    with pytest.raises(TarError, match=why):
        read(data)


def test_a_damaged_header_is_not_taken_for_the_end() -> None:
    data = bytearray(layer(member("first"), member("second")))
    data[512 + 10] ^= 1
    with tarfile.open(fileobj=io.BytesIO(bytes(data))) as lenient:
        assert lenient.getnames() == ["first"], "as tarfile does"
    with pytest.raises(TarError, match="checksum"):
        read(bytes(data))


def test_names_are_bytes_and_the_last_extended_header_holds() -> None:
    data = pax(b"18 path=caf\xe9/\xff\xfe/x\n") + b""
    (found,) = read(data)
    assert found[0].name == b"caf\xe9/\xff\xfe/x"
