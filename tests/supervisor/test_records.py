"""What the supervisor writes down about sandboxes."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from paddock.supervisor.records import Records, remove_directory


@pytest.fixture
def places(tmp_path: Path) -> Generator[tuple[int, int]]:
    """Descriptors of `run` and of where directories come from and go to."""
    fds: list[int] = []
    for name in ("run", "spares"):
        (tmp_path / name).mkdir()
        fds.append(os.open(tmp_path / name, os.O_RDONLY | os.O_DIRECTORY))
    yield fds[0], fds[1]
    for fd in fds:
        os.close(fd)


def test_a_directory_comes_with_what_is_in_it_and_goes_as_a_whole(tmp_path: Path, places: tuple[int, int]) -> None:
    run, spares = places
    (tmp_path / "spares/gr_1").mkdir()
    (tmp_path / "spares/gr_1/user.sock").touch()
    records = Records(run)
    records.adopt("sb_x", spares, "gr_1")
    assert os.listdir(tmp_path / "run/sb_x") == ["user.sock"]
    records.retire("sb_x", spares, "sb_x.7")
    records.retire("sb_x", spares, "sb_x.7")  # nothing is there any more
    assert os.listdir(run) == []
    remove_directory(spares, "sb_x.7")
    assert os.listdir(spares) == []


def test_no_sandbox_takes_the_directory_of_another(tmp_path: Path, places: tuple[int, int]) -> None:
    run, spares = places
    (tmp_path / "spares/gr_1").mkdir()
    (tmp_path / "run/sb_x").mkdir()
    (tmp_path / "run/sb_x/state.json").touch()
    with pytest.raises(OSError) as refused:
        Records(run).adopt("sb_x", spares, "gr_1")
    assert refused.value.errno in (errno.ENOTEMPTY, errno.EEXIST)
