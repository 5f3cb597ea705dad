"""What a hostile archive does when it is laid: nothing outside of its target, and nothing there before it was whole."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from paddock.backends.container import _lay


def member(
    name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, link, len(content), 0o755
    return info, content


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


TOP = member("workspace", tarfile.DIRTYPE)


def lay(target: Path, data: bytes) -> subprocess.CompletedProcess[bytes]:
    program = Path(_lay.__file__).read_text()
    owner = (str(os.getuid()), str(os.getgid()))
    argv = [sys.executable, "-I", "-S", "-c", program, str(target), *owner]
    return subprocess.run(argv, input=data, capture_output=True, check=False, timeout=60)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("untouched")
    place = tmp_path / "target"
    place.mkdir()
    (place / "before").write_text("before")
    return place


@pytest.mark.parametrize(
    "members",
    [
        (member("workspace/../outside/file", content=b"x"),),
        (member("../outside/file", content=b"x"),),
        (member("workspace/d/file", content=b"x"),),
        (member("workspace/l", tarfile.SYMTYPE, link="../outside"), member("workspace/l/file", content=b"x")),
        (
            member("workspace/d", tarfile.DIRTYPE),
            member("workspace/d", tarfile.SYMTYPE, link="../outside"),
            member("workspace/d/file", content=b"x"),
        ),
        (member("workspace/h", tarfile.LNKTYPE, link="../outside/file"),),
        (member("workspace/h", tarfile.LNKTYPE, link="/etc/passwd"),),
        (member("workspace/.paddock-carried", content=b"x"),),
        (member("workspace", content=b"a file"),),
        (member("workspace", tarfile.SYMTYPE, link="/etc"),),
    ],
)
def test_a_strange_archive_is_refused_and_takes_nothing_away(
    target: Path, members: tuple[tuple[tarfile.TarInfo, bytes], ...]
) -> None:
    first = () if members[0][0].name == "workspace" else (TOP,)
    done = lay(target, archive(*first, *members))
    assert done.returncode != 0
    assert (target / "before").read_text() == "before"
    assert os.listdir(target.parent / "outside") == ["file"]
    assert (target.parent / "outside" / "file").read_text() == "untouched"


def test_an_absolute_name_is_taken_below_the_target(target: Path) -> None:
    done = lay(
        target, archive(TOP, member("/workspace/etc", tarfile.DIRTYPE), member("/workspace/etc/x", content=b"x"))
    )
    assert done.returncode == 0, done.stderr
    assert (target / "etc" / "x").read_bytes() == b"x"


def test_half_an_archive_takes_nothing_away(target: Path) -> None:
    whole = archive(TOP, member("workspace/new", content=bytes(100_000)))
    assert lay(target, whole[:50_000]).returncode != 0
    assert (target / "before").read_text() == "before"
    assert lay(target, b"").returncode != 0
    assert (target / "before").read_text() == "before"


def test_a_link_that_was_there_is_replaced_and_not_followed(target: Path) -> None:
    (target / "before").unlink()
    (target / "before").symlink_to(target.parent / "outside")
    (target / "file").symlink_to(target.parent / "outside" / "file")
    done = lay(
        target,
        archive(
            TOP,
            member("workspace/before", tarfile.DIRTYPE),
            member("workspace/before/file", content=b"in"),
            member("workspace/file", content=b"in"),
        ),
    )
    assert done.returncode == 0, done.stderr
    assert (target / "before" / "file").read_text() == "in"
    assert (target / "file").read_text() == "in"
    assert (target.parent / "outside" / "file").read_text() == "untouched"


def test_devices_are_left_out_and_set_id_bits_taken_off(target: Path) -> None:
    device = member("workspace/null", tarfile.CHRTYPE)
    program = member("workspace/program", content=b"#!/bin/sh\n")
    program[0].mode = 0o6755
    done = lay(target, archive(TOP, device, program))
    assert done.returncode == 0, done.stderr
    assert os.listdir(target) == ["program"]
    assert (target / "program").stat().st_mode & 0o7777 == 0o755
