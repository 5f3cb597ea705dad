"""All of a directory into another one: what the archive says is there, and nothing else. Hostile archives."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from paddock.wire.guest import Download, DownloadFlags, Op, Upload, UploadFlags
from tests.native.driver import Connection, GuestError
from tests.native.filing import Operation


def member(
    name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, link, len(content), 0o755
    info.uid, info.gid = os.getuid(), os.getgid()
    return info, content


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


TOP = member("top", tarfile.DIRTYPE)


def stamp(path: Path, nanoseconds: int) -> None:
    os.utime(path, ns=(nanoseconds, nanoseconds))


def packed(host: Connection, path: Path, *left_out: bytes) -> bytes:
    request = Download(flags=DownloadFlags.WHOLE, path=bytes(path), left_out=left_out)
    return Operation(host, Op.DOWNLOAD, request).finish().out


def unpacked(host: Connection, path: Path, data: bytes, *left_out: bytes, owner: tuple[int, ...] = ()) -> None:
    request = Upload(flags=UploadFlags.EXACT, path=bytes(path), left_out=left_out, owner=owner)
    Operation(host, Op.UPLOAD, request).finish(data)


def look(top: Path) -> dict[bytes, tuple[object, ...]]:
    seen: dict[bytes, tuple[object, ...]] = {}
    for place, directories, files in os.walk(bytes(top)):
        for name in [b"", *directories, *files]:
            path = os.path.join(place, name)
            is_ = os.lstat(path)
            row: list[object] = [oct(is_.st_mode), is_.st_uid, is_.st_gid, is_.st_nlink]
            if os.path.islink(path):
                row += [os.readlink(path)]
            else:
                row += [is_.st_mtime_ns]
            if os.path.isfile(path) and not os.path.islink(path):
                row += [Path(os.fsdecode(path)).read_bytes()]
                row += [(key, os.getxattr(path, key)) for key in os.listxattr(path) if key.startswith("user.")]
            seen[os.path.relpath(path, bytes(top))] = tuple(row)
    return seen


@pytest.fixture
def source(tmp_path: Path) -> Path:
    top = tmp_path / "source"
    (top / "a/b").mkdir(parents=True)
    file = top / "a/b/file"
    file.write_bytes(b"content")
    file.chmod(0o640)
    try:
        os.setxattr(file, "user.note", b"\x00\xff\n=")
    except OSError:
        pass  # this file system has none
    os.link(file, top / "a/hard")
    (top / "a/link").symlink_to("../nowhere")
    os.mkfifo(top / "a/fifo", 0o600)
    (top / "set").write_bytes(b"x")
    (top / "set").chmod(0o6755)
    (top / "empty").write_bytes(b"")
    (top / "large").write_bytes(os.urandom(700_000))
    os.close(os.open(bytes(top) + b"/\xff name\n", os.O_CREAT, 0o600))
    if os.getuid() == 0:
        os.chown(file, 12345, 3_000_000_000)
        os.lchown(top / "a/link", 7, 7)
    stamp(file, 1_500_000_000_123_456_789)
    stamp(top / "set", -1_500_000_000)
    stamp(top / "a/b", 1_400_000_000_000_000_001)
    (top / "a").chmod(0o750)
    return top


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("untouched")
    top = tmp_path / "target"
    (top / "gone/with/all").mkdir(parents=True)
    (top / "before").write_text("before")
    (top / "a").symlink_to("../outside")
    (top / "set").mkdir()
    (top / "set" / "in").write_text("")
    (top / "large").write_bytes(bytes(700_000))
    return top


def test_a_directory_becomes_another_one(host: Connection, source: Path, target: Path) -> None:
    unpacked(host, target, packed(host, source))
    assert look(target) == look(source)
    assert (target.parent / "outside" / "file").read_text() == "untouched"
    (source / "large").write_bytes((source / "large").read_bytes()[:-1] + b"x")
    (source / "empty").unlink()
    before = (target / "a/b/file").stat().st_ino
    unpacked(host, target, packed(host, source))
    assert look(target) == look(source)
    assert (target / "a/b/file").stat().st_ino == before, "what is the same is not written"


def test_what_is_left_out_stays_as_it_is(host: Connection, source: Path, target: Path) -> None:
    (source / "gone").mkdir()
    (source / "gone/new").write_text("new")
    data = packed(host, source, b"a/b", b"gone")
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        names = tar.getnames()
    assert "top/a/hard" in names
    assert not [name for name in names if name.startswith(("top/a/b", "top/gone"))]
    unpacked(host, target, data, b"gone", b"before")
    assert (target / "gone/with/all").is_dir()
    assert not (target / "gone/new").exists()
    assert (target / "before").read_text() == "before"
    assert not (target / "a/b").exists()


def test_a_link_in_place_of_the_directory_is_not_followed(host: Connection, source: Path) -> None:
    (source.parent / "pointer").symlink_to(source)
    with pytest.raises(GuestError, match="open: Not a directory"):
        packed(host, source.parent / "pointer")


@pytest.mark.parametrize(
    "members",
    [
        (member("top/../outside/file", content=b"x"),),
        (member("../outside/file", content=b"x"),),
        (member("/top/x", content=b"x"),),
        (member("top/d/file", content=b"x"),),
        (member("top/l", tarfile.SYMTYPE, link="../outside"), member("top/l/file", content=b"x")),
        (
            member("top/d", tarfile.DIRTYPE),
            member("top/d", tarfile.SYMTYPE, link="../outside"),
            member("top/d/file", content=b"x"),
        ),
        (member("top/h", tarfile.LNKTYPE, link="../outside/file"),),
        (member("top/h", tarfile.LNKTYPE, link="/etc/passwd"),),
        (member("top/h", tarfile.LNKTYPE, link="top/before"),),
        (member("top/.paddock-carried", content=b"x"),),
        (member("top", content=b"a file"),),
        (member("top", tarfile.SYMTYPE, link="/etc"),),
    ],
)
def test_a_strange_archive_is_refused_and_takes_nothing_away(
    host: Connection, target: Path, members: tuple[tuple[tarfile.TarInfo, bytes], ...]
) -> None:
    first = () if members[0][0].name == "top" else (TOP,)
    with pytest.raises(GuestError):
        unpacked(host, target, archive(*first, *members))
    assert (target / "before").read_text() == "before"
    assert os.listdir(target.parent / "outside") == ["file"]
    assert (target.parent / "outside" / "file").read_text() == "untouched"


def test_all_belongs_to_the_owner_without_devices_and_set_id_bits(host: Connection, target: Path) -> None:
    owner = (12345, 54321) if os.getuid() == 0 else (os.getuid(), os.getgid())
    program = member("top/program", content=b"#!/bin/sh\n")
    program[0].mode, program[0].uid = 0o6755, 7
    link = member("top/link", tarfile.SYMTYPE, link="program")
    unpacked(host, target, archive(TOP, member("top/null", tarfile.CHRTYPE), program, link), owner=owner)
    assert sorted(os.listdir(target)) == ["link", "program"]
    assert (target / "program").stat().st_mode & 0o7777 == 0o755
    for path in (target, target / "link", target / "program"):
        assert (path.lstat().st_uid, path.lstat().st_gid) == owner
    with pytest.raises(GuestError):
        unpacked(host, target, archive(TOP), owner=(1,))


def test_directories_that_keep_their_owner_out_are_filled(host: Connection, target: Path) -> None:
    for content in (b"first", b"other"):
        closed, inner = member("top/closed", tarfile.DIRTYPE), member("top/closed/inner", tarfile.DIRTYPE)
        closed[0].mode, inner[0].mode = 0o500, 0
        unpacked(host, target, archive(TOP, closed, inner, member("top/closed/inner/file", content=content)))
        assert (target / "closed").stat().st_mode & 0o7777 == 0o500
        assert (target / "closed/inner").stat().st_mode & 0o7777 == 0
    unpacked(host, target, archive(TOP))
    assert os.listdir(target) == []


def test_half_an_archive_takes_nothing_away(host: Connection, source: Path, target: Path) -> None:
    whole = packed(host, source)
    for data in (b"", whole[:50_000]):
        with pytest.raises(GuestError):
            unpacked(host, target, data)
        assert (target / "before").read_text() == "before"
        assert (target / "gone/with/all").is_dir()


def test_a_link_that_was_there_is_replaced_and_not_followed(host: Connection, target: Path) -> None:
    (target / "file").symlink_to("../outside/file")
    directory = member("top/a", tarfile.DIRTYPE)
    unpacked(
        host, target, archive(TOP, directory, member("top/a/file", content=b"in"), member("top/file", content=b"in"))
    )
    assert (target / "a/file").read_text() == (target / "file").read_text() == "in"
    assert (target.parent / "outside" / "file").read_text() == "untouched"


def test_an_archive_of_pythons_says_the_same(host: Connection, source: Path, target: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(source, "top")
    unpacked(host, target, out.getvalue())
    assert look(target).keys() == look(source).keys()
    with tarfile.open(fileobj=io.BytesIO(packed(host, source))) as tar:
        assert {one.name for one in tar} >= {"top", "top/a/b/file", "top/a/fifo"}
