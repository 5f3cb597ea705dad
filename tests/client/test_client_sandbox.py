"""What `Sandbox` and `AsyncSandbox` promise, over any transport."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from typing import Any

import pytest

from paddock.client import AsyncSandbox, Sandbox
from paddock.errors import CommandFailedError, InvalidArgumentError, NotFoundError, SandboxDiedError
from paddock.model import CreateSandbox, KillSandbox, Level, RunExec, State
from tests.client.door import Rig


def test_a_block_ends_in_death(rig: Rig) -> None:
    with Sandbox.create(transport=rig.transport) as sandbox:
        assert rig.door.sandboxes[sandbox.id].state is State.RUNNING
    assert rig.door.sandboxes[sandbox.id].state is State.KILLED
    assert sandbox.state is State.KILLED


@pytest.mark.parametrize("persistent", [False, True])
def test_an_exception_ends_in_death_and_is_the_one_that_is_seen(rig: Rig, persistent: bool) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        Sandbox.create(persistent=persistent, transport=rig.transport) as sandbox,
    ):
        raise ZeroDivisionError
    assert rig.door.sandboxes[sandbox.id].state is State.KILLED


def test_the_asynchronous_one_dies_too_even_when_its_task_is_cancelled(rig: Rig) -> None:
    async def scenario() -> str:
        entered = asyncio.Event()
        ids: list[str] = []

        async def task() -> None:
            async with await AsyncSandbox.create(transport=rig.async_transport) as sandbox:
                ids.append(sandbox.id)
                entered.set()
                await sandbox.exec("sleep 60")

        running = asyncio.ensure_future(task())
        await entered.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return ids[0]

    assert rig.door.sandboxes[asyncio.run(scenario())].state is State.KILLED
    assert [type(action) for action in rig.door.cancelled] in ([RunExec], [])


def test_exec_gives_both_streams_the_code_and_the_signal(rig: Rig) -> None:
    with Sandbox.create(transport=rig.transport) as sandbox:
        result = sandbox.exec("echo out; echo err >&2; exit 3")
        assert (result.exit_code, result.signal, result.stdout, result.stderr) == (3, None, "out\n", "err\n")
        assert not result.ok
        assert (result.stdout_bytes, result.stderr_bytes) == (4, 4)
        killed = sandbox.exec("kill -9 $$")
        assert (killed.exit_code, killed.signal) == (137, 9)
        assert sandbox.exec("cat", input="typed").stdout == "typed"
        assert sandbox.exec(["printf", "%s", "$HOME; *"]).stdout == "$HOME; *"


def test_check_raises_with_the_whole_result(rig: Rig) -> None:
    with Sandbox.create(transport=rig.transport) as sandbox:
        assert sandbox.exec("true", check=True).ok
        with pytest.raises(CommandFailedError, match=r"'echo why >&2; exit 4' exited with 4: why") as caught:
            sandbox.exec("echo why >&2; exit 4", check=True)
    assert (caught.value.exit_code, caught.value.hint) == (4, None)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert copy.result.exit_code == 4
    assert copy.details["result"].exit_code == 4


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": ""[:0].split()},
        {"command": ["a\0b"]},
        {"command": "true", "env": {"A": "\0"}},
        {"command": "true", "timeout_seconds": 0},
    ],
)
def test_nonsense_is_refused_before_it_is_sent(rig: Rig, arguments: dict[str, Any]) -> None:
    with Sandbox.create(transport=rig.transport) as sandbox:
        with pytest.raises(InvalidArgumentError):
            sandbox.exec(**arguments)
        assert not any(isinstance(action, RunExec) for action in rig.door.performed)


def test_a_level_that_does_not_exist_is_named_with_those_that_do(rig: Rig) -> None:
    with pytest.raises(InvalidArgumentError, match="no level 'strong': there are jail, gvisor, microvm and container"):
        Sandbox.create(level="strong", transport=rig.transport)
    assert Sandbox.create(level="process", transport=rig.transport).info.spec.level is Level.PROCESS


def test_connect_and_list_find_what_create_made(rig: Rig) -> None:
    made = Sandbox.create(name="mine", transport=rig.transport)
    assert Sandbox.connect("mine", transport=rig.transport).id == made.id
    assert [sandbox.id for sandbox in Sandbox.list(transport=rig.transport)] == [made.id]
    made.kill()
    with pytest.raises(SandboxDiedError, match=rf"{made.id} \(mine\) ended at"):
        Sandbox.connect("mine", transport=rig.transport)
    with pytest.raises(NotFoundError):
        Sandbox.connect("another", transport=rig.transport)
    made.kill()


def test_every_argument_of_create_reaches_the_spec(rig: Rig) -> None:
    Sandbox.create(
        "t", name="n", ttl_seconds=7, persistent=True, env={"a": "b"}, labels={"c": "d"}, idempotency_key="k",
        transport=rig.transport,
    )  # fmt: skip
    action = rig.door.performed[0]
    assert isinstance(action, CreateSandbox)
    assert action.idempotency_key == "k"
    spec = action.spec
    assert (spec.template, spec.name, spec.ttl_seconds, spec.persistent) == ("t", "n", 7, True)
    assert (spec.env, spec.labels) == ({"a": "b"}, {"c": "d"})


def test_reprs_say_what_one_wants_to_know(rig: Rig) -> None:
    sandbox = Sandbox.create(name="mine", transport=rig.transport)
    assert repr(sandbox) == f"<Sandbox {sandbox.id} 'mine' running at level process>"
    assert repr(sandbox.files.as_user("root")) == f"<Filesystem of {sandbox.id} as root>"
    with sandbox.start("true") as process:
        assert repr(process) == f"<Process {process.id} pid {process.pid} runs>"
        process.wait()
        assert repr(process).endswith("ended with 0>")


def test_both_colours_have_the_same_surface() -> None:
    for name, member in vars(AsyncSandbox).items():
        if not name.startswith("_") and callable(getattr(AsyncSandbox, name)):
            theirs = inspect.signature(getattr(AsyncSandbox, name))
            assert list(inspect.signature(getattr(Sandbox, name)).parameters) == list(theirs.parameters), member


def test_kill_is_sent_once_per_block(rig: Rig) -> None:
    with Sandbox.create(transport=rig.transport):
        pass
    assert sum(isinstance(action, KillSandbox) for action in rig.door.performed) == 1
