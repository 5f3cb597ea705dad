"""An archive is unpacked below one directory, whatever is in it."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddock.errors import PlatformError
from paddock.storage._removal import remove
from paddock.storage._unpack import unpack_tar

Member = tuple[str, bytes, str]


def archive(*members: Member, change: Callable[[tarfile.TarInfo], None] | None = None) -> io.BytesIO:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = kind, target, 0o755
            content = b"content" if kind == tarfile.REGTYPE else b""
            info.size = len(content)
            if change is not None:
                change(info)
            tar.addfile(info, io.BytesIO(content))
    stream.seek(0)
    return stream


def unpack(stream: io.BytesIO, root: Path, base: int | None = None) -> None:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    with tempfile.TemporaryFile() as file:
        file.write(stream.getvalue())
        file.seek(0)
        try:
            unpack_tar(file.fileno(), fd, base)
        finally:
            os.close(fd)


@pytest.mark.parametrize(
    "members",
    [
        [("../out", tarfile.REGTYPE, "")],
        [("a/../../out", tarfile.REGTYPE, "")],
        [("link", tarfile.SYMTYPE, ".."), ("link/out", tarfile.REGTYPE, "")],
        [("link", tarfile.SYMTYPE, ".."), ("link", tarfile.REGTYPE, "")],
        [("link", tarfile.SYMTYPE, "../out"), ("link", tarfile.REGTYPE, "")],
        [("link", tarfile.SYMTYPE, ".."), ("link", tarfile.DIRTYPE, "")],
        [("hard", tarfile.LNKTYPE, "../outside/precious")],
        [("link", tarfile.SYMTYPE, ".."), ("hard", tarfile.LNKTYPE, "link/outside/precious")],
        [("hard", tarfile.LNKTYPE, ".")],
        [("twice", tarfile.REGTYPE, ""), ("twice", tarfile.REGTYPE, "")],
        [("no/parent", tarfile.REGTYPE, "")],
    ],
)
def test_an_archive_that_leads_outside_is_refused(tmp_path: Path, members: list[Member]) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/precious").write_text("mine")
    (tmp_path / "root").mkdir()
    with pytest.raises((PlatformError, OSError)):
        unpack(archive(*members), tmp_path / "root")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["outside", "root"]
    assert (tmp_path / "outside/precious").stat().st_nlink == 1


def test_files_come_out_as_they_went_in_and_devices_do_not(tmp_path: Path) -> None:
    stream = archive(
        ("./", tarfile.DIRTYPE, ""),
        ("./dir", tarfile.DIRTYPE, ""),
        ("/dir/file", tarfile.REGTYPE, ""),
        ("hard", tarfile.LNKTYPE, "./dir/file"),
        ("soft", tarfile.SYMTYPE, "/etc/passwd"),
        ("device", tarfile.CHRTYPE, ""),
        ("disk", tarfile.BLKTYPE, ""),
        ("fifo", tarfile.FIFOTYPE, ""),
    )
    unpack(stream, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"dir", "hard", "soft", "fifo"}
    assert (tmp_path / "hard").read_bytes() == b"content"
    assert (tmp_path / "hard").samefile(tmp_path / "dir/file")
    assert stat.S_IMODE((tmp_path / "dir/file").stat().st_mode) == 0o755
    assert os.readlink(tmp_path / "soft") == "/etc/passwd"


def test_links_between_many_directories_come_out_right(tmp_path: Path) -> None:
    members: list[Member] = []
    for number in range(200):
        members += [(f"d{number}", tarfile.DIRTYPE, ""), (f"d{number}/file", tarfile.REGTYPE, "")]
    members += [(f"d{199 - number}/link", tarfile.LNKTYPE, f"d{number}/file") for number in range(200)]
    unpack(archive(*members), tmp_path)
    for number in range(200):
        assert (tmp_path / f"d{199 - number}/link").samefile(tmp_path / f"d{number}/file")


@pytest.mark.root
def test_an_owner_outside_the_range_is_refused(tmp_path: Path) -> None:
    def take(info: tarfile.TarInfo) -> None:
        info.uid = 0x1_0000

    with pytest.raises(PlatformError, match="owner"):
        unpack(archive(("file", tarfile.REGTYPE, ""), change=take), tmp_path, 0x7000_0000)


_NAMES = st.lists(st.sampled_from(["a", "b", "..", ".", "", "link"]), min_size=1, max_size=4).map("/".join)
_KINDS = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])


@given(st.lists(st.tuples(_NAMES, _KINDS, _NAMES), max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
def test_no_archive_changes_anything_outside(tmp_path: Path, members: list[Member]) -> None:
    top = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    remove(top, "case")
    os.close(top)
    root = tmp_path / "case/a/root"
    root.mkdir(parents=True)
    (tmp_path / "case/b").write_text("mine")
    (tmp_path / "case/a/link").write_text("mine")
    with contextlib.suppress(PlatformError, OSError):
        unpack(archive(*members), root)
    assert sorted(os.listdir(tmp_path / "case")) == ["a", "b"]
    assert sorted(os.listdir(tmp_path / "case/a")) == ["link", "root"]
    for path in (tmp_path / "case/b", tmp_path / "case/a/link"):
        assert (path.read_text(), path.stat().st_nlink) == ("mine", 1)
