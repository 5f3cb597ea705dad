"""Kinds of programs in which a client has to work: those that fork, and those with event loops of their own."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paddock import AsyncSandbox, Sandbox
from paddock.client import default_async_transport, default_transport
from tests.conftest import live_sandboxes
from tests.daemon.conftest import Program
from tests.orphans import wait_until

_POOL = """
import multiprocessing, sys
from paddock import Sandbox

def one(id, number):
    with Sandbox.create(level="jail", ttl_seconds=60) as own:
        return own.exec(f"echo {number}").stdout + Sandbox.connect(id).exec(f"echo {number}").stdout

if __name__ == "__main__":
    box = Sandbox.create(level="jail", ttl_seconds=60)
    box.exec("true")  # this process has a connection
    with multiprocessing.get_context(sys.argv[1]).Pool(3) as pool:
        print(pool.starmap(one, [(box.id, number) for number in range(6)]))
    print(box.exec("echo on").stdout)
"""


_LINES = [f"{number}\n" for number in range(6)]


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_processes_of_a_pool_make_sandboxes_and_use_that_of_their_parent(
    method: str, module_state: Path, tmp_path: Path
) -> None:
    (tmp_path / "pool.py").write_text(_POOL)
    done = subprocess.run(
        [sys.executable, tmp_path / "pool.py", method],
        env=os.environ | {"PADDOCK_STATE_DIR": str(module_state)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{[2 * line for line in _LINES]}\non\n\n", done.stderr
    assert done.stderr == ""


# As gunicorn with `preload_app`: the application makes what all workers use before they are forked.
_SERVER = """
import socket
box = Sandbox.create(level="jail", ttl_seconds=60)
box.exec("true")
listener = socket.create_server(("127.0.0.1", 0))

def serve():
    own = Sandbox.create(level="jail", ttl_seconds=60)
    while True:
        peer, _ = listener.accept()
        with peer:
            number = peer.recv(100).decode()
            answer = box.exec(f"echo {number}").stdout + own.exec(f"echo {number}").stdout
            peer.sendall(f"{os.getpid()} {own.id} {answer}".encode())

for _ in range(3):
    if os.fork() == 0:
        try:
            serve()
        finally:
            os._exit(1)
say(box.id, listener.getsockname()[1])
sys.stdin.readline()
"""


def _ask(port: int, number: int) -> tuple[int, str]:
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.sendall(str(number).encode())
        pid, own, answer = peer.makefile().read().split(" ", 2)
    assert answer == f"{number}\n" * 2
    return int(pid), own


def test_the_workers_of_a_server_that_forks_them_use_one_sandbox_and_end_with_their_own(module_state: Path) -> None:
    server = Program(module_state, _SERVER)
    workers = list[int]()
    try:
        box, port = server.hears().split()
        workers += map(int, Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split())
        assert len(workers) == 3
        pid, own = _ask(int(port), 0)
        assert pid in workers
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: own not in live_sandboxes(module_state))
        for number in range(1, 9):
            assert _ask(int(port), number)[0] in set(workers) - {pid}
        assert box in live_sandboxes(module_state)
    finally:
        for worker in workers:  # not reaped before their parent ends
            os.kill(worker, signal.SIGKILL)
        server.close()


def test_a_blocking_client_works_in_a_thread_whose_event_loop_runs(module_state: Path) -> None:
    """As a cell of a notebook, where both kinds of clients are used beside each other."""
    transport = default_transport(module_state)

    async def cell() -> None:
        with Sandbox.create(level="jail", ttl_seconds=60, transport=transport) as box:
            box.filesystem.write("f", "content")
            same = await AsyncSandbox.connect(box.id, transport=default_async_transport(module_state))
            results = await asyncio.gather(same.exec("cat f"), asyncio.to_thread(box.exec, "cat f"))
            assert [result.stdout for result in (*results, box.exec("cat f"))] == ["content"] * 3

    for _ in range(2):  # each cell of some notebooks has a loop of its own
        asyncio.run(cell())


def test_one_object_is_used_on_several_event_loops_at_once(module_state: Path) -> None:
    with Sandbox.create(level="jail", ttl_seconds=60, transport=default_transport(module_state)) as box:
        same = asyncio.run(AsyncSandbox.connect(box.id, transport=default_async_transport(module_state)))
        met = threading.Barrier(4)

        async def several(number: int) -> list[str]:
            met.wait()
            results = await asyncio.gather(*(same.exec(f"echo {number}") for _ in range(4)))
            return [result.stdout for result in results]

        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda number: asyncio.run(several(number)), range(4)))
        assert found == [[f"{number}\n"] * 4 for number in range(4)]
