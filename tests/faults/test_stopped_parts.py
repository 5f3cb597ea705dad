"""SIGSTOP of our own processes: no call of a user waits for one of them without end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from paddock import Sandbox
from paddock.client import AsyncDaemonTransport, DaemonTransport, Session, _daemon
from paddock.errors import DaemonLostError, DaemonUnavailableError, LevelUnavailableError
from paddock.model import ExecSpec, RunExec
from paddock.wire import duplex
from tests.conftest import gateway_pid
from tests.daemon.conftest import daemon_pid
from tests.orphans import wait_until

T = TypeVar("T")
POLICY = {"egress": {"allow": [{"host": "api.test", "methods": ["GET"], "paths": ["/**"]}]}}


@pytest.fixture
def state_dir(module_state: Path) -> Path:
    return module_state


def create(transport: DaemonTransport) -> Sandbox:
    try:
        return Sandbox.create(level="jail", ttl_seconds=60, policy=POLICY, transport=transport)
    except (LevelUnavailableError, NotImplementedError) as error:
        pytest.skip(f"no jail here: {error}")


@contextlib.contextmanager
def stopped(pid: int) -> Generator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def within(call: Callable[[], T], seconds: float = 20) -> T:
    """The call's result. One that hangs fails the test, which lets the stopped process go on."""
    with contextlib.ExitStack() as stack:
        threads = ThreadPoolExecutor(1)
        stack.callback(threads.shutdown, wait=False)
        return threads.submit(call).result(seconds)


def test_a_stopped_gateway_keeps_no_sandbox_from_ending(transport: DaemonTransport, state_dir: Path) -> None:
    boxes = [create(transport) for _ in range(2)]
    gateway = gateway_pid(state_dir)
    assert gateway is not None

    def held() -> int:
        return len(os.listdir(f"/proc/{gateway}/fd"))

    before = held() if os.geteuid() == 0 else 0  # only root may look
    with stopped(gateway):
        for box in boxes:
            within(box.kill)
        assert [box.state for box in boxes] == ["killed", "killed"]
    assert gateway_pid(state_dir) == gateway
    if os.geteuid() == 0:
        assert wait_until(lambda: held() <= before - 2 * 6), "it keeps their sockets"


def test_a_stopped_daemon_is_named(
    transport: DaemonTransport, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Sandbox.list(transport=transport) == ()
    daemon = daemon_pid(state_dir)
    monkeypatch.setattr(_daemon, "TELL_SECONDS", 0.1)
    monkeypatch.setattr(_daemon, "WAIT_SECONDS", 0.1)
    with stopped(daemon), pytest.raises(DaemonUnavailableError, match=f"\\(pid {daemon}\\) has not answered") as caught:
        Sandbox.list(transport=DaemonTransport(Session(state_dir)))
    assert f"kill -9 {daemon}" in str(caught.value.hint)
    assert Sandbox.list(transport=transport) == ()


def test_no_thread_waits_for_a_stopped_daemon_until_another_gives_up(
    transport: DaemonTransport, state_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert Sandbox.list(transport=transport) == ()
    shared = DaemonTransport(Session(state_dir))
    monkeypatch.setattr(_daemon, "TELL_SECONDS", 0.1)
    with ThreadPoolExecutor(1) as threads, stopped(daemon_pid(state_dir)):
        patient = threads.submit(Sandbox.list, transport=shared)
        assert wait_until(lambda: "which doesn't answer" in caplog.text)
        monkeypatch.setattr(_daemon, "WAIT_SECONDS", 0.1)
        with pytest.raises(DaemonUnavailableError):
            within(lambda: Sandbox.list(transport=shared))
        assert not patient.done()
    assert patient.result() == ()


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_a_call_tells_a_daemon_that_is_stopped_from_a_command_that_takes_long(
    kind: str, transport: DaemonTransport, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (_daemon, duplex):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.5)
    box, daemon, session = create(transport), daemon_pid(state_dir), Session(state_dir)

    def run(command: str) -> str:
        action = RunExec(sandbox=box.id, spec=ExecSpec(argv=("sh", "-c", command)))
        if kind == "blocking":
            return DaemonTransport(session).perform(action).out.head.decode()
        return asyncio.run(AsyncDaemonTransport(session).perform(action)).out.head.decode()

    assert within(lambda: run("sleep 1.75; echo done")) == "done\n"  # more than three looks
    with ThreadPoolExecutor(1) as threads, box:  # a call that hangs ends with its sandbox
        running = threads.submit(run, "touch began; exec sleep 600")
        assert wait_until(lambda: box.filesystem.exists("began"))
        with stopped(daemon), monkeypatch.context() as impatient:
            for name in ("TELL_SECONDS", "WAIT_SECONDS"):
                impatient.setattr(_daemon, name, 0.1)
            with pytest.raises(DaemonLostError, match=f"\\(pid {daemon}\\) has not answered"):
                running.result(20)
    session.close()
