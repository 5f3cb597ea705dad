from __future__ import annotations

import os
from pathlib import Path

import pytest

from paddock.linux import fsids, mounts, namespaces, prctl
from paddock.linux.namespaces import IdMap

from .child import run_in_child

RANGE = 0x6000_0000
TREE = 0x7000_0000


@pytest.mark.root
def test_files_are_made_as_the_other_and_then_as_oneself_again(tmp_path: Path) -> None:
    def body() -> None:
        prctl.set_secure_bits(prctl.SECBIT_NO_SETUID_FIXUP)  # else nobody's way ends at the first private directory
        with fsids.acting_as(1234, 4321):
            (tmp_path / "theirs").touch()
        (tmp_path / "ours").touch()

    run_in_child(body)
    assert ((tmp_path / "theirs").stat().st_uid, (tmp_path / "theirs").stat().st_gid) == (1234, 4321)
    assert (tmp_path / "ours").stat().st_uid == 0


def test_a_refused_change_is_an_error() -> None:
    def body() -> None:
        if os.getuid() == 0:
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
        with pytest.raises(PermissionError, match="setfsuid 1"), fsids.acting_as(1, 1):
            pass

    run_in_child(body)


@pytest.mark.root
def test_an_overlay_over_id_mapped_layers_is_writable_by_the_range_and_stores_the_ids_of_trees(tmp_path: Path) -> None:
    for name in ("lower", "tree", "tree/up", "tree/work", "root"):
        (tmp_path / name).mkdir()
    for name in ("tree", "tree/up", "tree/work"):
        os.chown(tmp_path / name, TREE, TREE)
    (tmp_path / "lower/file").write_text("below")

    def body() -> None:
        namespaces.unshare(namespaces.NEWNS)
        mounts.make_all_private()
        prctl.set_secure_bits(prctl.SECBIT_NO_SETUID_FIXUP)
        maps = (IdMap(TREE, RANGE, 65536),)
        userns = namespaces.id_mapping_namespace(maps, maps)
        tree = mounts.open_tree(os.fsencode(tmp_path / "tree"))
        mounts.set_attributes(tree, userns_fd=userns)
        up = os.open("up", os.O_PATH, dir_fd=tree)
        work = os.open("work", os.O_PATH, dir_fd=tree)
        lower = mounts.open_tree(os.fsencode(tmp_path / "lower"))
        options: list[mounts.Option] = [("lowerdir+", lower), ("upperdir", up), ("workdir", work)]
        with fsids.acting_as(RANGE, RANGE):
            overlay = mounts.fs_mount("overlay", options, mounts.NODEV)
        mounts.move_mount(overlay, mounts.AT_FDCWD, os.fsencode(tmp_path / "root"))
        os.setresgid(RANGE + 5, RANGE + 5, RANGE + 5)
        os.setresuid(RANGE, RANGE, RANGE)
        (tmp_path / "root/new").write_text("above")

    run_in_child(body)
    made = (tmp_path / "tree/up/new").stat()
    assert (made.st_uid, made.st_gid) == (TREE, TREE + 5)
