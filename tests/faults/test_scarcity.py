"""No room, no descriptors, no log: a typed error, no effect, and recovery without a restart."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from paddock import Sandbox
from paddock._compose import LocalConnector, open_service
from paddock.errors import LevelUnavailable, PaddockError, ResourceExhausted, Unrecorded
from paddock.keeper import layout
from tests.conftest import live_sandboxes, private_state, stop_keeper


@pytest.fixture
def connector(state_dir: Path) -> Generator[LocalConnector]:
    """Services of the test's own, closed before anybody looks for what is left in `state_dir`."""
    made = LocalConnector(open_service)
    yield made
    made.close()


def _create(connector: LocalConnector, state_dir: Path) -> Sandbox:
    try:
        return Sandbox.create(level="jail", ttl_seconds=60, transport=connector.connect(state_dir))
    except (LevelUnavailable, NotImplementedError) as error:
        pytest.skip(f"no jail here: {error}")


@pytest.mark.root
def test_what_cannot_be_recorded_is_not_done(connector: LocalConnector, state_dir: Path) -> None:
    _create(connector, state_dir).kill()
    audit = state_dir / layout.AUDIT
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=1", "none", str(audit)], check=True)
    try:
        fresh = LocalConnector(open_service)
        try:
            with pytest.raises(Unrecorded):
                Sandbox.create(level="jail", transport=fresh.connect(state_dir))
        finally:
            fresh.close()
        assert live_sandboxes(state_dir) == []
    finally:
        subprocess.run(["umount", str(audit)], check=True)
    sandbox = _create(connector, state_dir)
    assert sandbox.exec("echo again").stdout == "again\n"
    sandbox.kill()


@pytest.mark.root
def test_a_full_state_directory_is_a_typed_error_and_recovers(connector: LocalConnector) -> None:
    with private_state() as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "none", str(directory)], check=True)
        try:
            _create(connector, directory).kill()
            ballast = directory / "ballast"
            _fill(ballast)
            with pytest.raises(PaddockError):
                Sandbox.create(level="jail", transport=connector.connect(directory)).kill()
            assert live_sandboxes(directory) == []
            ballast.unlink()
            sandbox = _create(connector, directory)
            assert sandbox.exec("echo again").stdout == "again\n"
            sandbox.kill()
            connector.close()
        finally:
            stop_keeper(directory)
            subprocess.run(["umount", "-l", str(directory)], check=True)


def test_without_descriptors_a_command_fails_typed_and_works_again_later(
    connector: LocalConnector, state_dir: Path
) -> None:
    sandbox = _create(connector, state_dir)
    sandbox.exec("true")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(ResourceExhausted):
            sandbox.exec("true")
        with pytest.raises(ResourceExhausted):
            sandbox.start("cat", stdin=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert sandbox.exec("echo again").stdout == "again\n"
    sandbox.kill()
    assert live_sandboxes(state_dir) == []


def test_a_hundred_lives_leave_no_descriptor_in_the_service(connector: LocalConnector, state_dir: Path) -> None:
    def life() -> None:
        sandbox = _create(connector, state_dir)
        sandbox.exec("true")
        sandbox.filesystem.write("f", "x")
        sandbox.kill()

    for _ in range(3):
        life()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        life()
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_a_damaged_record_of_a_sandbox_stops_nobody(connector: LocalConnector, state_dir: Path) -> None:
    first = _create(connector, state_dir)
    (state_dir / layout.RUN / first.id / "state.json").write_bytes(b'{"id": ')
    fresh = LocalConnector(open_service)
    try:
        second = _create(fresh, state_dir)
        assert second.exec("echo fine").stdout == "fine\n"
        second.kill()
    finally:
        fresh.close()
    first.kill()
    assert first.state == "killed"


def _fill(ballast: Path) -> None:
    with open(ballast, "wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
