"""Preparing a state directory: once, whole or not at all, and with reasons."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest

from paddock.errors import InvalidArgumentError, InvalidStateError, NotConfiguredError, PlatformError
from paddock.linux import loop
from paddock.storage import open_pool, prepare
from paddock.storage.pool import _directories, probe
from paddock.storage.pool.config import Reason
from paddock.supervisor import layout
from tests.storage.drivers import GIB, Supervisor
from tests.storage.faults import killed_before_step


def facts(state_dir: Path) -> dict[str, tuple[int, int]]:
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in state_dir.iterdir()}


def loop_devices(image: Path) -> list[bytes]:
    fd = os.open(image, os.O_RDONLY)
    try:
        return loop.find(fd)
    finally:
        os.close(fd)


def image_or_skip(state_dir: Path) -> Path:
    prepare_or_skip(state_dir, "btrfs")
    image = state_dir / "pool.btrfs"
    if not image.exists():
        pytest.skip("the state directory is on btrfs itself")
    return image


def prepare_or_skip(state_dir: Path, driver: str) -> None:
    try:
        prepare(state_dir, driver=driver, image_bytes=GIB)
    except NotConfiguredError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("driver", ["btrfs", "overlay", "copy"])
def test_the_second_time_changes_nothing(tmp_path: Path, driver: str) -> None:
    prepare_or_skip(tmp_path, driver)
    before = facts(tmp_path)
    assert prepare(tmp_path).driver == driver
    assert prepare(tmp_path, driver=driver).driver == driver
    assert facts(tmp_path) == before


@pytest.mark.parametrize("driver", ["btrfs", "overlay", "copy"])
def test_killed_at_any_step_it_is_whole_the_next_time(tmp_path: Path, driver: str) -> None:
    prepare_or_skip(tmp_path / "probe", driver)
    step, done = 0, False
    while not done:
        step += 1 if step < 12 else 3  # the interesting ones are spread; all of them take long
        state = tmp_path / f"state{step}"
        done = not killed_before_step(step, lambda: prepare(state, driver=driver, image_bytes=GIB))  # noqa: B023
        config = prepare(state, driver=driver, image_bytes=GIB)
        assert {p.name for p in state.iterdir()} - {"supervisor.json", "pool"} == (
            {config.image} if config.image else set()
        )
        if config.image:
            supervisor = Supervisor(state)
            supervisor.close()
    assert step > 10


def test_everything_is_private(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o777)
    state.chmod(0o777)
    prepare(state, image_bytes=GIB)
    assert state.stat().st_mode & 0o077 == 0
    for path in state.iterdir():
        # The ids of sandboxes enter the pool, by a descriptor: nobody else comes past its parent.
        assert path.stat().st_mode & 0o077 == (0o011 if path.name == layout.POOL else 0), path


def test_a_driver_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="btrfs, overlay, copy"):
        prepare(tmp_path, driver="zfs")


def test_trees_stay_on_the_driver_that_they_are_on(tmp_path: Path) -> None:
    prepare(tmp_path, driver="copy")
    with pytest.raises(InvalidStateError, match="copy"):
        prepare(tmp_path, driver="overlay")
    assert prepare(tmp_path).driver == "copy"


def test_what_was_refused_at_first_is_looked_at_again_while_there_are_no_trees(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when user namespaces were forbidden, and are not any more."""
    refusal = Reason(way="overlay", why="forbidden")
    for name in ("native_btrfs", "image_possible", "overlay"):
        monkeypatch.setattr(probe, name, lambda *_: refusal)
    assert prepare(state_dir).driver == "copy"
    monkeypatch.setattr(probe, "overlay", lambda _: None)
    monkeypatch.setattr(_directories, "probe_overlay", lambda _: None)
    tree = state_dir / "pool" / "ws_1"
    tree.mkdir()
    kept = prepare(state_dir)
    assert kept.driver == "copy"
    with contextlib.closing(open_pool(state_dir, kept)) as pool:
        assert "works by now" in pool.checks()[0].detail
    tree.rmdir()
    with socket.socket(socket.AF_UNIX) as supervisor:
        supervisor.bind(str(state_dir / layout.SUPERVISOR_SOCKET))
        supervisor.listen()
        assert prepare(state_dir).driver == "copy"
    (state_dir / "pool" / "tp_1").mkdir()
    assert [prepare(state_dir).driver for _ in range(2)] == ["overlay", "overlay"]
    (state_dir / layout.SUPERVISOR_SOCKET).unlink()


def test_a_better_driver_that_was_not_taken_has_its_reason_in_doctor(tmp_path: Path) -> None:
    config = prepare(tmp_path, image_bytes=GIB)
    if config.driver == "btrfs" and config.image is None:
        pytest.skip("the best driver was taken")
    assert config.reasons
    assert all(reason.why for reason in config.reasons)
    if config.image is None:
        pool = open_pool(tmp_path, config)
        line = pool.checks()[0]
        assert line.status == "weak"
        assert all(reason.why in line.detail for reason in config.reasons)
        pool.close()


@pytest.mark.root
def test_a_lost_image_is_made_again_and_a_damaged_one_is_not_touched(tmp_path: Path) -> None:
    image = image_or_skip(tmp_path)
    image.unlink()
    prepare(tmp_path, image_bytes=GIB)
    assert image.stat().st_size == GIB
    with image.open("r+b") as file:
        file.seek(0x10000)
        file.write(bytes(4096))
    with pytest.raises(InvalidStateError, match="damaged"):
        prepare(tmp_path)
    assert image.exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"version":1}', '{"version":1,"pool":{"driver":"zfs"}}', '{"version":2,"pool":{"driver":"copy"}}'],
)
def test_a_configuration_that_is_not_ours_is_not_overwritten(tmp_path: Path, text: str) -> None:
    (tmp_path / "supervisor.json").write_text(text)
    with pytest.raises(PlatformError, match=r"supervisor\.json"):
        prepare(tmp_path)
    assert (tmp_path / "supervisor.json").read_text() == text


@pytest.mark.root
def test_a_later_supervisor_meets_the_file_system_that_sandboxes_still_hold(tmp_path: Path) -> None:
    image = image_or_skip(tmp_path)
    first = Supervisor(tmp_path)
    first.kill()
    assert len(loop_devices(image)) == 1
    os.mkdir("kept", dir_fd=first.fd)
    second = Supervisor(tmp_path)
    assert len(loop_devices(image)) == 1
    assert os.fstat(second.fd).st_dev == os.fstat(first.fd).st_dev
    assert "kept" in os.listdir(second.fd)
    first.close()
    os.mkdir("kept2", dir_fd=second.fd)
    second.close()


@pytest.mark.root
def test_the_machine_sees_no_mount_and_keeps_no_device(tmp_path: Path) -> None:
    image_or_skip(tmp_path)
    supervisor = Supervisor(tmp_path)
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    supervisor.close()
    third = Supervisor(tmp_path)  # waits for a device that is being cleared
    third.close()
