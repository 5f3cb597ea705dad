from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddock.linux import openat2

SECRET = b"outside"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("openat2")
    (base / "secret").write_bytes(SECRET)
    root = base / "root"
    (root / "d/e").mkdir(parents=True)
    (root / "d/file").write_bytes(b"inside")
    (root / "up").symlink_to("../secret")
    (root / "absolute").symlink_to(str(base / "secret"))
    (root / "d/parent").symlink_to("..")
    (root / "d/self").symlink_to(".")
    (root / "magic").symlink_to("/proc/self/root")
    (root / "good").symlink_to("/d/file")
    return root


@pytest.fixture
def root_fd(tree: Path) -> Iterator[int]:
    fd = os.open(tree, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def test_descriptors_are_never_inherited(root_fd: int) -> None:
    fd = openat2.open_beneath(root_fd, b"d/file", os.O_RDONLY)
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_a_path_that_leaves_is_refused_beneath(root_fd: int) -> None:
    for path in (b"..", b"/d/file", b"d/../../secret"):
        with pytest.raises(OSError) as caught:
            openat2.open_beneath(root_fd, path, os.O_RDONLY)
        assert caught.value.errno == errno.EXDEV, path


def test_links_are_refused(root_fd: int) -> None:
    for path in (b"up", b"absolute", b"good", b"magic", b"d/parent/d/file"):
        with pytest.raises(OSError) as caught:
            openat2.open_beneath(root_fd, path, os.O_RDONLY)
        assert caught.value.errno == errno.ELOOP


def test_magic_links_are_refused() -> None:
    proc = os.open("/proc/self", os.O_PATH)
    try:
        with pytest.raises(OSError) as caught:
            openat2.open_beneath(proc, b"cwd", os.O_RDONLY)
        assert caught.value.errno == errno.ELOOP
    finally:
        os.close(proc)


def test_mounts_can_be_refused() -> None:
    root = os.open("/", os.O_PATH)
    try:
        with pytest.raises(OSError) as caught:
            openat2.open_beneath(root, b"proc/version", os.O_RDONLY, cross_mounts=False)
        assert caught.value.errno == errno.EXDEV
    finally:
        os.close(root)


PARTS = ["..", ".", "", "d", "e", "file", "up", "absolute", "parent", "self", "magic", "good", "secret", "proc", "root"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(parts=st.lists(st.sampled_from(PARTS), max_size=8), absolute=st.booleans())
def test_no_path_reaches_the_outside(root_fd: int, parts: list[str], absolute: bool) -> None:
    path = ("/" if absolute else "") + "/".join(parts)
    try:
        fd = openat2.open_beneath(root_fd, path.encode(), os.O_RDONLY)
    except OSError:
        return
    found = os.readlink(f"/proc/self/fd/{fd}")
    os.close(fd)
    top = os.readlink(f"/proc/self/fd/{root_fd}")
    assert found == top or found.startswith(top + "/")
