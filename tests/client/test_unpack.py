"""An archive from inside a sandbox is an attacker's."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.client._pack import Packer
from paddock.client._unpack import _METADATA_BYTES, _MOST_RECORDS, Links, Unpacker
from paddock.errors import AlreadyExistsError, GuestProtocolError, InvalidArgumentError
from paddock.wire.tar import Entry, Reader, TarError

Member = tuple[str, bytes, str | bytes]
FILE, DIR, SYM, HARD, PIPE, CHAR = (
    tarfile.REGTYPE,
    tarfile.DIRTYPE,
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.FIFOTYPE,
    tarfile.CHRTYPE,
)


def archive(*members: Member, mode: int = 0o644, format: int = tarfile.PAX_FORMAT) -> bytes:
    result = bytearray()
    for name, kind, content in members:
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.mtime = kind, mode, 1_000_000
        if isinstance(content, str):
            info.linkname, content = content, b""
        info.size = len(content)
        result += info.tobuf(format, "utf-8", "surrogateescape") + content + bytes(-len(content) % 512)
    return bytes(result) + bytes(1024)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A new directory's name; nothing but it may appear around it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    yield tmp_path / "out"
    assert {path.name for path in tmp_path.iterdir()} <= {"outside", "out"}
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"secret": "secret"}


def unpack(
    place: Path, data: bytes, *, step: int = 1 << 20, skip_unsafe: bool = False, **bounds: int
) -> tuple[str, ...]:
    bounds = {"max_bytes": 1 << 20, "max_files": 1000} | bounds
    with contextlib.closing(Unpacker(place, skip_unsafe=skip_unsafe, **bounds)) as unpacker:
        for start in range(0, len(data), step):
            unpacker.feed(data[start : start + step])
        return unpacker.finish().skipped


HOSTILE = {
    "absolute path": [("/tmp/evil", FILE, b"x")],
    "path upwards": [("../evil", FILE, b"x")],
    "path upwards, hidden": [("a/b/../../../outside/evil", FILE, b"x")],
    "path upwards, harmless": [("a/../b", FILE, b"x")],
    "NUL in a pax path": [("a" * 200 + "\0b", FILE, b"x")],
    "path too long": [("a/" * 3000 + "b", FILE, b"x")],
    "path too deep": [("a/" * 1500 + "b", FILE, b"x")],
    "name too long": [("a" * 300, FILE, b"x")],
    "the directory itself as a file": [(".", FILE, b"x")],
    "absolute link": [("link", SYM, "/etc/passwd")],
    "link out": [("link", SYM, "../outside/secret")],
    "link out from below": [("a/link", SYM, "../../outside")],
    "link out through a link": [("a/b/l", SYM, "../.."), ("m", SYM, "a/b/l/../outside")],
    "link out through a later link": [("m", SYM, "z/../outside"), ("z", SYM, ".")],
    "empty link": [("link", SYM, "")],
    "links in a circle": [("a", SYM, "b"), ("b", SYM, "a")],
    "file through a link": [("link", SYM, "outside"), ("link/evil", FILE, b"x")],
    "file through a link, out": [("link", SYM, "../outside"), ("link/evil", FILE, b"x")],
    "file over a link": [("link", SYM, "target"), ("link", FILE, b"x")],
    "link over a file": [("link", FILE, b"x"), ("link", SYM, "target")],
    "link twice": [("link", SYM, "a"), ("link", SYM, "b")],
    "file twice": [("a", FILE, b"x"), ("a", FILE, b"y")],
    "file over a directory": [("a/b", FILE, b"x"), ("a", FILE, b"y")],
    "directory over a file": [("a", FILE, b"x"), ("a/b", FILE, b"y")],
    "hard link out": [("a", HARD, "../outside/secret")],
    "hard link to an absolute path": [("a", HARD, "/etc/passwd")],
    "hard link to a directory": [("d", DIR, b""), ("a", HARD, "d")],
    "hard link to a symbolic link": [("l", SYM, "../outside/secret"), ("a", HARD, "l")],
    "hard link to nothing": [("a", HARD, "nothing")],
    "device": [("null", CHAR, b"")],
    "pipe": [("pipe", PIPE, b"")],
}


@pytest.mark.parametrize("members", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_entries_are_refused_and_nothing_is_left(place: Path, members: list[Member]) -> None:
    with pytest.raises(GuestProtocolError):
        unpack(place, archive(("fine", FILE, b"fine"), *members))
    assert not place.exists()


@pytest.mark.parametrize("members", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_entries_can_be_passed_over_and_are_reported(place: Path, members: list[Member]) -> None:
    skipped = unpack(place, archive(*members, ("zz", FILE, b"fine")), skip_unsafe=True)
    assert skipped
    assert (place / "zz").read_bytes() == b"fine"
    for path in place.rglob("*"):
        assert path.resolve().is_relative_to(place)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1024],
        lambda data: b"",
        lambda data: b"x" * 2048,
        lambda data: b"\x1f\x8b" + data,
        lambda data: data[:100] + b"7" + data[101:],
    ],
    ids=["cut", "no end", "empty", "junk", "gzip", "checksum"],
)  # fmt: skip
def test_what_is_no_whole_archive_is_refused(place: Path, damage) -> None:
    with pytest.raises(GuestProtocolError):
        unpack(place, damage(archive(("a", FILE, b"x" * 5000), ("b", FILE, b"y"))))
    assert not place.exists()


def test_sparse_and_unknown_entries_are_refused(place: Path) -> None:
    for kind in (tarfile.GNUTYPE_SPARSE, b"V", b"Z"):
        with pytest.raises(GuestProtocolError, match=r"sparse|not known"):
            unpack(place, archive(("a", kind, b"")), skip_unsafe=True)


def test_a_negative_size_is_refused(place: Path) -> None:
    info = tarfile.TarInfo("a")
    info.size = -512
    with pytest.raises(GuestProtocolError):
        unpack(place, info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))


def test_bounds_hold_before_anything_is_written(place: Path) -> None:
    info = tarfile.TarInfo("huge")
    info.size = 1 << 40
    with pytest.raises(GuestProtocolError, match="more than 1048576 bytes"):
        unpack(place, info.tobuf(tarfile.GNU_FORMAT))
    with pytest.raises(GuestProtocolError, match="more than 1048576 bytes"):
        unpack(place, archive(*((str(n), FILE, b"x" * 300_000) for n in range(5))))
    with pytest.raises(GuestProtocolError, match="more than 10 entries"):
        unpack(place, archive(*((str(n), FILE, b"") for n in range(11))), max_files=10)
    with pytest.raises(GuestProtocolError, match="more than 10 entries"):
        unpack(place, archive(("a/b/c/d/e/f/g/h/i/j/k/l", FILE, b"")), max_files=10)


def test_endless_metadata_is_refused(place: Path) -> None:
    info = tarfile.TarInfo("a" * 300)
    header = info.tobuf(tarfile.PAX_FORMAT)[:-512]
    with pytest.raises(GuestProtocolError):
        unpack(place, header * 5000, max_bytes=1000)
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 1 << 30
    with pytest.raises(GuestProtocolError, match="extended header"):
        unpack(place, info.tobuf(tarfile.GNU_FORMAT))


def guest_reader() -> Reader:
    """Return a reader with the limits of what a guest sends."""
    return Reader(most_bytes=_METADATA_BYTES, most_records=_MOST_RECORDS)


def extended(content: bytes) -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, len(content)
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def test_an_extended_header_says_few_things(place: Path) -> None:
    unpack(place, extended(b"5 a=\n" * 64) + archive(("a", FILE, b"x")))
    assert (place / "a").read_bytes() == b"x"
    for content in (b"5 a=\n" * 65, b"9" * 20 + b" a=\n", b"0 a=\n", b"3 a\n", b"5 a=", b"6 a=b"):
        reader = guest_reader()
        with pytest.raises(TarError, match="cannot be read"):
            list(reader.feed(extended(content)))


def test_what_extended_headers_say_is_not_gathered() -> None:
    records = (b"1001 %07d=%s\n" % (number, b"x" * 987) for number in range(1000))
    with pytest.raises(TarError, match="extended header of 66066 bytes"):
        list(guest_reader().feed(b"".join(map(extended, records))))


def test_a_header_is_read_once_however_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    reader = guest_reader()
    take = reader.headers.take

    def counted(block: bytes) -> Entry | None:
        read.append(block)
        return take(block)

    monkeypatch.setattr(reader.headers, "take", counted)
    for byte in extended(b"60010 path=" + b"x" * 59_998 + b"\n"):
        assert not list(reader.feed(bytes((byte,))))
    assert len(read) == 2, "the header, and what it announces"


@pytest.mark.parametrize("target", ["./" * 1500 + "l{next}", "a/" * 2000, "l{next}/" + "a/" * 2000])
def test_links_that_take_too_long_to_check_are_refused(target: str) -> None:
    links = Links()
    for n in range(4000):
        links.add((f"l{n}",), target.format(next=n + 1))
    with pytest.raises(GuestProtocolError, match="too long"):
        [link for link, _ in links.items() if links.leads_out(link)]


def test_owner_setuid_and_unreadable_directories_do_not_come_along(place: Path) -> None:
    unpack(place, archive(("d", DIR, b""), ("d/a", FILE, b"x"), mode=0o7000))
    assert stat.S_IMODE((place / "d").stat().st_mode) == 0o700
    assert stat.S_IMODE((place / "d" / "a").stat().st_mode) == 0
    assert (place / "d" / "a").stat().st_uid == os.getuid()


def test_nothing_gets_a_mode_that_the_callers_umask_forbids(place: Path) -> None:
    before = os.umask(0o027)
    try:
        unpack(place, archive(("d", DIR, b""), ("d/a", FILE, b"x"), mode=0o777))
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (place, place / "d", place / "d" / "a")]
    assert modes == [0o750, 0o750, 0o750]


def test_what_is_there_is_never_written_over(place: Path) -> None:
    place.mkdir()
    (place / "mine").write_text("mine")
    with pytest.raises(AlreadyExistsError):
        unpack(place, archive(("mine", FILE, b"x")))
    with pytest.raises(InvalidArgumentError):
        unpack(place / "no" / "parent", archive())
    assert (place / "mine").read_text() == "mine"


def test_what_appears_meanwhile_is_not_written_over(place: Path) -> None:
    with contextlib.closing(Unpacker(place, max_bytes=10, max_files=10, skip_unsafe=False)) as unpacker:
        unpacker.feed(archive(("a", FILE, b"x")))
        place.symlink_to("outside")
        with pytest.raises(AlreadyExistsError):
            unpacker.finish()


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("step", [1, 511, 512, 513, 1 << 20])
def test_good_trees_arrive_whole_however_the_bytes_are_cut(place: Path, step: int, format: int) -> None:
    long = "d/" + "n" * (90 if format == tarfile.USTAR_FORMAT else 200)
    members: list[Member] = [
        ("./", DIR, b""),
        ("./a", FILE, b"x" * 513),
        ("d/e/f", FILE, b"y" * 1024),
        ("d/empty", FILE, b""),
        ("d/hard", HARD, "./a"),
        ("d/up", SYM, "../a"),
        ("d/nowhere", SYM, "../later/b"),
        (long, FILE, b"long"),
    ]
    place.mkdir()
    assert unpack(place, archive(*members, format=format) + b"what follows is ignored", step=step) == ()
    assert (place / "a").read_bytes() == b"x" * 513
    assert (place / "d/e/f").read_bytes() == b"y" * 1024
    assert (place / "d/empty").read_bytes() == b""
    assert (place / "d/hard").samefile(place / "a")
    assert (place / "d/up").read_bytes() == b"x" * 513
    assert os.readlink(place / "d/nowhere") == "../later/b"
    assert (place / long).read_bytes() == b"long"
    assert (place / "a").stat().st_mtime == 1_000_000


@given(st.binary(max_size=2000), st.integers(min_value=1, max_value=700))
def test_the_reader_never_fails_but_by_saying_so(noise: bytes, step: int) -> None:
    whole = bytearray(archive(("a" * 150, FILE, b"x" * 700), ("b", SYM, "a")))
    for at, byte in enumerate(noise):
        whole[(at * 257 + byte) % len(whole)] ^= byte
    reader = guest_reader()
    with contextlib.suppress(TarError):
        for start in range(0, len(whole), step):
            for _ in reader.feed(bytes(whole[start : start + step])):
                pass


def test_a_packed_tree_is_what_tarfile_reads_and_links_are_not_followed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub" / ".git").mkdir(parents=True)
    (tree / "sub" / "data").write_bytes(b"z" * 100_000)
    (tree / "sub" / ".git" / "secret").write_text("no")
    (tree / ("ü" * 120)).write_text("long")
    os.mkfifo(tree / "pipe")
    (tree / "link").symlink_to("/etc")
    (tree / "up").symlink_to("..")
    packer = Packer(tree, exclude=(".git",))
    data = b"".join(packer)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == ["link", "sub", "up", "ü" * 120, "sub/data"]
        assert tar.getmember("link").linkname == "/etc"
        content = tar.extractfile("sub/data")
        assert content
        assert content.read() == b"z" * 100_000
        assert {(member.uid, member.uname) for member in tar} == {(0, "")}
    report = packer.report()
    assert (report.entries, report.total_bytes, report.skipped) == (5, 100_004, ("pipe",))
