from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from paddock.linux import mountinfo, mounts, namespaces
from paddock.linux.namespaces import IdMap

from .child import run_in_child

pytestmark = pytest.mark.root

RANGE = 0x6000_0000


def in_mount_namespace(body: Callable[[], object]) -> None:
    def child() -> None:
        namespaces.unshare(namespaces.NEWNS)
        mounts.make_all_private()
        body()

    run_in_child(child)


def path_of(fd: int) -> str:
    return f"/proc/self/fd/{fd}"


def test_a_detached_overlay_over_id_mapped_layers_shows_the_ids_of_the_range(tmp_path: Path) -> None:
    for name in ("lower", "upper/up", "upper/work"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "lower/file").write_text("below")

    def body() -> None:
        whole = (IdMap(0, RANGE, 65536),)
        userns = namespaces.id_mapping_namespace(whole, whole)
        lower = mounts.open_tree(os.fsencode(tmp_path / "lower"))
        mounts.set_attributes(lower, set=mounts.RDONLY, userns_fd=userns)
        up = os.open(tmp_path / "upper/up", os.O_PATH)
        work = os.open(tmp_path / "upper/work", os.O_PATH)
        options: list[mounts.Option] = [("lowerdir+", lower), ("upperdir", up), ("workdir", work), ("volatile", None)]
        overlay = mounts.fs_mount("overlay", options, mounts.NODEV | mounts.NOSUID)
        assert os.stat("file", dir_fd=overlay).st_uid == RANGE
        Path(path_of(overlay), "new").write_text("above")

    in_mount_namespace(body)
    assert (tmp_path / "upper/up/new").read_text() == "above"
    assert not (tmp_path / "lower/new").exists()


def test_a_descriptor_is_handed_over_by_path_where_the_kernel_takes_no_other(tmp_path: Path) -> None:
    # "source" of tmpfs is a string for every kernel: the descriptor is refused, the path is not.
    fd = os.open(tmp_path, os.O_PATH)

    def body() -> None:
        mount = mounts.fs_mount("tmpfs", [("source", fd)])
        target = os.open(tmp_path, os.O_PATH)
        mounts.move_mount(mount, target)
        assert mountinfo.read()[-1].source == b"/proc/self/fd/%d" % fd

    try:
        in_mount_namespace(body)
    finally:
        os.close(fd)


def test_an_error_holds_the_option_and_what_the_kernel_logged() -> None:
    def body() -> None:
        with pytest.raises(OSError, match="Unknown parameter 'sizze'") as caught:
            mounts.fs_mount("tmpfs", [("sizze", "1m")])
        assert caught.value.errno == errno.EINVAL
        assert caught.value.filename == "fsopen tmpfs sizze 1m"
        with pytest.raises(FileNotFoundError) as missing:
            mounts.fs_mount("overlay", [("lowerdir+", b"/does/not/exist")])
        assert missing.value.filename == "fsopen overlay lowerdir+ /does/not/exist"

    in_mount_namespace(body)


def test_an_unknown_file_system_is_enodev() -> None:
    with pytest.raises(OSError, match="No such device") as caught:
        mounts.fs_mount("nosuchfs")
    assert caught.value.errno == errno.ENODEV


def test_attributes_hold(tmp_path: Path) -> None:
    def body() -> None:
        mounts.bind(
            os.fsencode(tmp_path), mounts.AT_FDCWD, os.fsencode(tmp_path), attributes=mounts.RDONLY | mounts.NODEV
        )
        with pytest.raises(OSError, match="Read-only"):
            (tmp_path / "file").touch()
        options = next(m.options for m in mountinfo.read() if m.mount_point == os.fsencode(tmp_path))
        assert {"ro", "nodev"} <= options

    in_mount_namespace(body)


def test_a_recursive_read_only_copy_has_no_writable_mount_in_it(tmp_path: Path) -> None:
    (tmp_path / "outer").mkdir()
    (tmp_path / "view").mkdir()

    def body() -> None:
        os.close(_attach(mounts.fs_mount("tmpfs"), tmp_path / "outer"))
        (tmp_path / "outer/inner").mkdir()
        os.close(_attach(mounts.fs_mount("tmpfs"), tmp_path / "outer/inner"))
        view = mounts.open_tree(os.fsencode(tmp_path / "outer"), recursive=True)
        mounts.set_attributes(view, set=mounts.RDONLY, recursive=True)
        os.close(_attach(view, tmp_path / "view"))
        (tmp_path / "outer/inner/file").touch()
        with pytest.raises(OSError, match="Read-only"):
            (tmp_path / "view/inner/other").touch()

    in_mount_namespace(body)


def _attach(mount: int, path: Path) -> int:
    mounts.move_mount(mount, mounts.AT_FDCWD, os.fsencode(path))
    return mount


def test_no_mount_lands_behind_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    def body() -> None:
        mount = mounts.fs_mount("tmpfs")
        with pytest.raises(OSError):
            mounts.move_mount(mount, mounts.AT_FDCWD, os.fsencode(tmp_path / "link"))
        os.close(_attach(mount, tmp_path / "real"))
        with pytest.raises(OSError):
            mounts.umount(os.fsencode(tmp_path / "link"))
        mounts.umount(os.fsencode(tmp_path / "real"))

    in_mount_namespace(body)


def test_a_link_is_copied_itself_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")

    def body() -> None:
        fd = mounts.open_tree(os.fsencode(tmp_path / "link"))
        assert os.readlink("", dir_fd=fd) == "/etc"

    in_mount_namespace(body)


def test_pivot_leaves_nothing_of_the_old_root(tmp_path: Path) -> None:
    def body() -> None:
        mount = mounts.fs_mount("tmpfs", [("mode", "755")], mounts.NOSUID)
        _attach(mount, tmp_path)
        (tmp_path / "only").mkdir()
        (tmp_path / "proc").mkdir()
        _attach(mounts.fs_mount("proc"), tmp_path / "proc")
        os.fchdir(os.open(tmp_path, os.O_PATH))
        mounts.pivot()
        mounts.detach_old_root()
        assert sorted(os.listdir("/")) == ["only", "proc"]
        assert os.getcwd() == "/"
        assert sorted(m.mount_point for m in mountinfo.read()) == [b"/", b"/proc"]

    in_mount_namespace(body)


def test_a_busy_mount_goes_only_by_detaching(tmp_path: Path) -> None:
    def body() -> None:
        _attach(mounts.fs_mount("tmpfs"), tmp_path)
        (tmp_path / "file").touch()
        with open(tmp_path / "file"):
            with pytest.raises(OSError) as caught:
                mounts.umount(os.fsencode(tmp_path))
            assert caught.value.errno == errno.EBUSY
            mounts.umount(os.fsencode(tmp_path), detach=True)
        assert os.listdir(tmp_path) == []

    in_mount_namespace(body)
