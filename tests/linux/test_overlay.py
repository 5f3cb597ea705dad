"""Overlays from descriptors, in each of the ways that kernels of different ages want them."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from paddock.linux import mounts, overlay
from paddock.linux.mounts import Option

from .child import run_in_child
from .test_mounts import in_mount_namespace, path_of

pytestmark = pytest.mark.root


def layers(place: Path) -> list[int]:
    found: list[int] = []
    for name in ("one", "two", "upper", "work"):
        (place / name).mkdir()
        (place / name / f"of-{name}").touch()
        found.append(os.open(place / name, os.O_PATH))
    os.unlink(place / "work/of-work")
    return found


def test_the_topmost_layer_comes_first(tmp_path: Path) -> None:
    def body() -> None:
        one, two, upper, work = layers(tmp_path)
        (tmp_path / "one/both").write_text("one")
        (tmp_path / "two/both").write_text("two")
        shown = overlay.mount([one, two], upper, work)
        assert sorted(os.listdir(path_of(shown))) == ["both", "of-one", "of-two", "of-upper"]
        assert Path(path_of(shown), "both").read_text() == "one"

    in_mount_namespace(body)


def test_a_kernel_that_takes_all_layers_as_one_text_gets_them_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_way = mounts.fs_mount
    asked: list[list[str]] = []

    def old_kernel(fstype: str, options: Sequence[Option] = (), attributes: int = 0) -> int:
        asked.append([name for name, _ in options])
        if "lowerdir+" in asked[-1]:
            raise OSError(errno.EINVAL, "unrecognized mount option")
        return new_way(fstype, options, attributes)

    monkeypatch.setattr(mounts, "fs_mount", old_kernel)

    def body() -> None:
        one, two, upper, work = layers(tmp_path)
        shown = overlay.mount([one, two], upper, work)
        assert sorted(os.listdir(path_of(shown))) == ["of-one", "of-two", "of-upper"]
        assert asked == [["lowerdir+", "lowerdir+", "upperdir", "workdir"], ["lowerdir", "upperdir", "workdir"]]

    in_mount_namespace(body)


def test_what_it_says_of_detached_layers_is_what_the_kernel_does(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    def body() -> None:
        promised = overlay.takes_detached_layers()
        detached = mounts.open_tree(os.fsencode(tmp_path))
        parts = [os.open(name, os.O_PATH, dir_fd=detached) for name in ("a", "b")]
        if promised:
            os.close(overlay.mount(parts, None, None))
            return
        with pytest.raises(OSError) as refused:
            overlay.mount(parts, None, None)
        assert refused.value.errno == errno.EINVAL

    run_in_child(body)
