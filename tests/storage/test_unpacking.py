"""What mmdebstrap prints becomes a tree. That no archive reaches outside of one: tests/images/test_layer.py."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import tempfile
from pathlib import Path

from paddock.storage.templates import _debian

Member = tuple[str, bytes, str]


def archive(*members: Member) -> io.BytesIO:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = kind, target, 0o755
            content = b"content" if kind == tarfile.REGTYPE else b""
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    stream.seek(0)
    return stream


def unpack(stream: io.BytesIO, root: Path) -> None:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    with tempfile.TemporaryFile() as file:
        file.write(stream.getvalue())
        file.seek(0)
        try:
            _debian.unpack(file.fileno(), fd, None)
        finally:
            os.close(fd)


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
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
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
