"""What a session knows is taken up by another one over a copy of the files: what a fork with memory goes on with."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from paddock.vmm._fuse_server import load_state, save_state
from tests.vmm.fuse_client import Client, Refused, export


def handed_over(parent: Client, scratch: Path, copy: Path, **changes: object) -> tuple[Client, int]:
    """A session over a copy of `scratch`/work that took up what `parent` knew, and how many files were lost."""
    saved = scratch / "saved"
    saved.mkdir()
    place = os.open(saved, os.O_RDONLY)
    lost = save_state(parent.nodes, place)
    shutil.copytree(scratch / "work", copy, symlinks=True)
    if changes:
        known = json.loads((saved / "files.json").read_text())
        (saved / "files.json").write_text(json.dumps(known | changes))
    child = Client(export(copy))
    try:
        load_state(child.nodes, place)
    finally:
        os.close(place)
    return child, lost


@pytest.fixture
def parent(tmp_path: Path) -> Client:
    (tmp_path / "work").mkdir()
    return Client(export(tmp_path / "work"))


def test_every_node_leads_to_the_copy_and_the_parent_lives_on(parent: Client, tmp_path: Path) -> None:
    root = parent.root()
    directory = parent.mkdir(root, b"directory")
    file = parent.make(directory, b"fi\xffle")
    parent.write(file, b"before")
    second = parent.link(root, b"second", file)
    assert second == file
    parent.rename(root, b"directory", root, b"renamed")
    child, lost = handed_over(parent, tmp_path, tmp_path / "copy")
    assert lost == 0
    child.write(file, b"after!")
    assert parent.read(file) == b"before"
    assert child.read(file) == b"after!"
    child.make(directory, b"new")
    assert sorted(os.listdir(tmp_path / "copy/renamed")) == ["fi\udcffle", "new"]
    assert sorted(os.listdir(tmp_path / "work/renamed")) == ["fi\udcffle"]
    assert child.find(root, b"renamed") == directory
    assert child.make(root, b"another") not in (root, directory, file)
    child.close()
    parent.close()


def test_a_file_that_has_no_name_any_more_goes_along_with_its_content(parent: Client, tmp_path: Path) -> None:
    root = parent.root()
    file = parent.make(root, b"file")
    parent.write(file, b"x" * 100_000)
    parent.setattr(file, 1, mode=0o640)
    parent.unlink(root, b"file")
    child, lost = handed_over(parent, tmp_path, tmp_path / "copy")
    assert lost == 0
    assert child.read(file, size=200_000) == b"x" * 100_000
    child.write(file, b"child")
    assert parent.read(file, size=5) == b"xxxxx"
    assert child.nodes.status(child.nodes.node(file)).st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path / "saved") == []
    child.close()
    parent.close()


def test_a_file_that_lost_one_of_its_names_is_the_one_in_the_copy(parent: Client, tmp_path: Path) -> None:
    root = parent.root()
    directory = parent.mkdir(root, b"directory")
    file = parent.make(directory, b"file")
    parent.write(file, b"before")
    parent.link(root, b"second", file)
    parent.unlink(root, b"second")
    child, lost = handed_over(parent, tmp_path, tmp_path / "copy")
    assert lost == 0
    child.write(file, b"after!")
    assert (tmp_path / "copy/directory/file").read_bytes() == b"after!"
    assert (tmp_path / "work/directory/file").read_bytes() == b"before"
    child.close()
    parent.close()


def test_a_directory_that_has_no_name_any_more_is_lost_and_that_is_said(parent: Client, tmp_path: Path) -> None:
    root = parent.root()
    directory = parent.mkdir(root, b"directory")
    parent.unlink_directory(root, b"directory")
    child, lost = handed_over(parent, tmp_path, tmp_path / "copy")
    assert lost == 1
    with pytest.raises(Refused) as refused:
        child.make(directory, b"file")
    assert refused.value.errno == errno.ESTALE
    child.close()
    parent.close()


def test_the_state_of_other_files_is_refused(parent: Client, tmp_path: Path) -> None:
    parent.root()
    with pytest.raises(OSError, match="another session"):
        handed_over(parent, tmp_path, tmp_path / "copy", exports=["other"])
    parent.close()


def test_a_state_that_was_tampered_with_leads_nowhere_else(parent: Client, tmp_path: Path) -> None:
    """It lies in a tree of the sandbox: names in it are looked up like all others."""
    root = parent.root()
    (tmp_path / "outside").mkdir()
    forged = [
        [2, 0, "work", 0o040000, 1, 0, 0],
        [3, 2, "../outside", 0o040000, 1, 0, 0],
        [4, 2, "..", 0o040000, 1, 0, 0],
    ]
    child, _ = handed_over(parent, tmp_path, tmp_path / "copy", nodes=forged)
    for node in (3, 4):
        with pytest.raises(Refused):
            child.make(node, b"file")
    assert child.make(root, b"file")
    assert os.listdir(tmp_path / "outside") == []
    child.close()
    parent.close()
