from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from paddock.linux import landlock, prctl

from .child import run_in_child
from .landlocked import restrict

ABI = landlock.kernel_abi()

pytestmark = pytest.mark.skipif(ABI < 2, reason=f"needs Landlock ABI 2; this kernel has {ABI}")
scoped = pytest.mark.skipif(ABI < 6, reason=f"needs Landlock ABI 6; this kernel has {ABI}")


def restricted(body: Callable[[], object], abi: int = ABI) -> None:
    def child() -> None:
        prctl.set_no_new_privileges()
        restrict(abi)
        body()

    run_in_child(child)


@pytest.mark.root
@pytest.mark.parametrize("abi", range(2, min(ABI, landlock.KNOWN_ABI) + 1))
def test_device_nodes_cannot_be_made_on_any_version(abi: int, tmp_path: Path) -> None:
    def body() -> None:
        for kind in (0o020000, 0o060000):
            with pytest.raises(PermissionError):
                os.mknod(tmp_path / "node", kind | 0o666, os.makedev(1, 3))
        os.mkfifo(tmp_path / "fifo")

    restricted(body, abi)


def test_files_still_move_between_directories(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    def body() -> None:
        (tmp_path / "a/file").write_text("x")
        os.rename(tmp_path / "a/file", tmp_path / "b/file")
        os.link(tmp_path / "b/file", tmp_path / "a/link")
        os.rename(tmp_path / "b", tmp_path / "a/b")

    restricted(body)


@scoped
def test_abstract_sockets_outside_are_out_of_reach_and_those_inside_are_not() -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0paddock-test-{os.getpid()}")
        server.listen()

        def body() -> None:
            with socket.socket(socket.AF_UNIX) as client, pytest.raises(PermissionError):
                client.connect(server.getsockname())
            with socket.socket(socket.AF_UNIX) as own, socket.socket(socket.AF_UNIX) as client:
                own.bind(f"\0paddock-test-{os.getpid()}-own")
                own.listen()
                client.connect(own.getsockname())

        restricted(body)


@scoped
def test_processes_outside_cannot_be_signalled_and_those_inside_can() -> None:
    outside = os.getpid()

    def body() -> None:
        with pytest.raises(PermissionError):
            os.kill(outside, 0)
        if (pid := os.fork()) == 0:
            signal.pause()
            os._exit(0)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    restricted(body)


def test_sockets_with_a_path_stay_usable(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def body() -> None:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)

        restricted(body)


@pytest.mark.parametrize("abi", [0, 1])
def test_kernels_that_cannot_hold_it_are_said_to_be_off(abi: int) -> None:
    assert landlock.ruleset(abi) is None
    assert "off" in landlock.level(abi)


def test_a_newer_kernel_is_used_up_to_what_we_know() -> None:
    assert landlock.level(99).startswith(f"landlock {landlock.KNOWN_ABI}:")
