"""The one place where the synchronous and the asynchronous world meet."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from paddock.client import AsyncSandbox, LoopThread, Sandbox
from paddock.errors import InvalidState
from paddock.model import RunExec, State
from tests.client.door import Rig


def interrupt_when(ready: Callable[[], bool]) -> threading.Thread:
    """Ctrl-C for the main thread, once `ready` says so."""

    def watch() -> None:
        pause = threading.Event()
        while not ready():
            pause.wait(0.002)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def eventually(rig: Rig, condition: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not condition():  # noqa: ASYNC110 (the fake has no event for it)
            await asyncio.sleep(0.001)

    rig.loop.run(asyncio.wait_for, poll(), 60)


def test_control_c_ends_the_command_and_then_the_sandbox(rig: Rig) -> None:
    watcher = interrupt_when(lambda: any(isinstance(action, RunExec) for action in rig.door.performed))
    with pytest.raises(KeyboardInterrupt), Sandbox.create(transport=rig.transport) as sandbox:
        sandbox.exec("sleep 60")
    watcher.join()
    assert [type(action) for action in rig.door.cancelled] == [RunExec]
    assert rig.door.sandboxes[sandbox.id].state is State.KILLED


def test_a_sandbox_that_comes_too_late_is_killed(rig: Rig) -> None:
    rig.door.holds_create = True
    watcher = interrupt_when(lambda: bool(rig.door.sandboxes))
    with pytest.raises(KeyboardInterrupt):
        Sandbox.create(transport=rig.transport)
    watcher.join()

    eventually(rig, lambda: all(info.state is State.KILLED for info in rig.door.sandboxes.values()))


def test_forks_that_come_too_late_are_killed(rig: Rig) -> None:
    parent = Sandbox.create(transport=rig.transport)
    rig.door.holds_create = True
    watcher = interrupt_when(lambda: len(rig.door.sandboxes) > 1)
    with pytest.raises(KeyboardInterrupt):
        parent.fork(2)
    watcher.join()

    def children() -> list[State]:
        return [info.state for id, info in rig.door.sandboxes.items() if id != parent.id]

    eventually(rig, lambda: children() == [State.KILLED] * 2)


def test_an_asynchronous_caller_that_leaves_gives_back_what_it_got(rig: Rig) -> None:
    async def scenario() -> None:
        sandbox = await AsyncSandbox.create(transport=rig.async_transport)
        for _ in range(50):  # somewhere between asked and answered
            task = asyncio.ensure_future(sandbox.start("sleep 60"))
            await asyncio.sleep(0.001)
            task.cancel()
            try:
                process = await task
            except asyncio.CancelledError:
                continue
            await process.aclose()

    asyncio.run(scenario())
    eventually(rig, lambda: not rig.door.open)


def test_one_loop_serves_many_threads_and_loops_at_once(rig: Rig) -> None:
    sandbox = Sandbox.create(transport=rig.transport)
    codes: list[int] = []

    def one(number: int) -> None:
        codes.append(sandbox.exec(f"sleep 0.05; exit {number}").exit_code)

    async def another() -> list[int]:
        same = await AsyncSandbox.connect(sandbox.id, transport=rig.async_transport)
        return [result.exit_code for result in await asyncio.gather(*(same.exec(f"exit {n}") for n in range(8)))]

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    assert asyncio.run(another()) == list(range(8))
    for thread in threads:
        thread.join()
    assert sorted(codes) == list(range(8))


def test_a_loop_that_was_closed_says_so() -> None:
    loop = LoopThread("short")
    loop.stop()
    loop.stop()
    with pytest.raises(InvalidState, match="closed in this process"):
        loop.run(asyncio.sleep, 0)


def test_closing_ends_what_others_wait_for() -> None:
    loop = LoopThread("short")
    problems: list[BaseException] = []
    started = threading.Event()

    async def long() -> None:
        started.set()
        await asyncio.sleep(60)

    def wait() -> None:
        try:
            loop.run(long)
        except InvalidState as error:
            problems.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert started.wait(20)
    loop.stop()
    thread.join()
    assert len(problems) == 1


def test_a_call_that_comes_while_the_loop_is_being_closed_is_answered() -> None:
    loop = LoopThread("short")
    problems: list[BaseException] = []
    started, closing, posted = threading.Event(), threading.Event(), threading.Event()

    async def slow_to_end() -> None:
        try:
            started.set()
            await asyncio.sleep(60)
        finally:
            closing.set()
            posted.wait(20)  # as one that is busy at that moment

    def call(function: Callable[[], Any]) -> None:
        try:
            loop.run(function)
        except InvalidState as error:
            problems.append(error)

    first = threading.Thread(target=call, args=(slow_to_end,))
    late = threading.Thread(target=call, args=(lambda: asyncio.sleep(60),), daemon=True)
    ending = threading.Thread(target=loop.stop)
    first.start()
    assert started.wait(20)
    ending.start()
    assert closing.wait(20)
    late.start()
    while len(loop._calls) < 2:  # it is posted right after
        posted.wait(0.001)
    posted.wait(0.05)
    posted.set()
    for thread in (first, ending, late):
        thread.join(20)
    assert not late.is_alive(), "it waits for ever"
    assert len(problems) == 2


def test_the_loop_never_waits_for_itself(rig: Rig) -> None:
    async def blocking() -> None:
        Sandbox.create(transport=rig.transport)

    with pytest.raises(InvalidState, match="wait for itself"):
        rig.loop.run(blocking)


def test_after_a_fork_the_parents_loop_is_refused_and_not_waited_for(rig: Rig) -> None:
    sandbox = Sandbox.create(transport=rig.transport)
    child = os.fork()
    if child == 0:
        try:
            sandbox.exec("true")
        except InvalidState:
            os._exit(42)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert sandbox.exec("true").ok


def test_an_error_keeps_its_class_and_shows_where_it_was_raised(rig: Rig) -> None:
    async def failing() -> None:
        raise ZeroDivisionError("there")

    with pytest.raises(ZeroDivisionError, match="there") as caught:
        rig.loop.run(failing)
    assert "failing" in [entry.name for entry in caught.traceback]


def test_control_c_at_the_very_end_of_a_call_does_not_wait_for_ever() -> None:
    """The handler of a signal may run between the answer and the return; a trace function comes at that very place."""
    loop, discarded, seen = LoopThread("test"), list[int](), list[BaseException]()

    def interrupt(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_name != "_wait":
            return None
        if event == "return":
            sys.settrace(None)
            raise KeyboardInterrupt
        return interrupt

    async def answer() -> int:
        return 1

    async def discard(number: int) -> None:
        discarded.append(number)

    def caller() -> None:
        sys.settrace(interrupt)
        try:
            loop.run(answer, discard=discard)
        except KeyboardInterrupt as error:
            seen.append(error)
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=caller, daemon=True)
    thread.start()
    thread.join(20)
    assert seen
    loop.run(asyncio.sleep, 0)
    assert discarded == [1]
    loop.stop()
