"""The loop in real sandboxes: it ends for a reason that it names, and nothing that a model writes breaks it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from paddock.agents import (
    Agent,
    AsyncAgent,
    AsyncScriptModel,
    Budget,
    Message,
    Meter,
    Price,
    Reply,
    Role,
    Run,
    ScriptModel,
    Stop,
    Toolbox,
    ToolSpec,
    Trace,
)
from paddock.errors import ModelFailedError, ResourceExhaustedError
from tests.agents.scripts import bash, calls, says
from tests.conftest import SandboxFactory


def results(run: Run) -> list[str]:
    return [result.text for message in run.messages for result in message.results]


def failures(run: Run) -> list[bool]:
    return [result.failed for message in run.messages for result in message.results]


def test_it_acts_sees_what_came_of_it_and_is_done(sandbox: SandboxFactory) -> None:
    script = [
        calls(("write_file", {"path": "a/b.py", "content": "x = 6\nprint(x * 7)\n"})),
        calls(("edit_file", {"path": "a/b.py", "old": "6", "new": "3"})),
        calls(("read_file", {"path": "a/b.py"}), ("bash", {"command": "python3 a/b.py; exit 3"})),
        calls(("run_code", {"code": "import os; print(os.getcwd(), os.listdir())"})),
        says("all done"),
    ]
    run = Agent(ScriptModel(script)).run("do it", sandbox())
    assert (run.stop, run.text, run.steps) == (Stop.DONE, "all done", 5)
    assert (run.tokens.input, run.tokens.output, run.usd) == (50, 25, None)
    written, edited, read, ran, code = results(run)
    assert "19 bytes" in written
    assert "replaced" in edited
    assert read == "     1  x = 3\n     2  print(x * 7)"
    assert ran.startswith("[exit code 3")
    assert "21" in ran
    assert "/workspace ['a']" in code
    assert failures(run) == [False, False, False, True, False]


def test_what_the_model_gets_wrong_is_told_to_it_and_it_goes_on(sandbox: SandboxFactory) -> None:
    box = sandbox()
    box.exec("printf 'one one' > twice; printf '\\377' > binary; mkfifo pipe")
    script = [
        calls(("bash", "{not json"), ("bash", '["list"]'), ("bash", {"comand": "x"}), ("rm_rf", {"path": "/"})),
        calls(
            ("read_file", {"path": "missing"}),
            ("read_file", {"path": "binary"}),
            ("edit_file", {"path": "twice", "old": "one", "new": "x"}),
            ("edit_file", {"path": "twice", "old": "", "new": "x"}),
            ("read_file", {"path": "twice", "first_line": 0}),
            ("bash", {"command": "true", "timeout_seconds": -1}),
            ("bash", {"command": "nul\0"}),
            ("read_output", {"exec": "ex_nothing"}),
            ("write_file", {"path": "/proc/x", "content": ""}),
            ("read_file", {"path": "pipe"}),
        ),
        says("done"),
    ]
    run = Agent(ScriptModel(script)).run("do it", box)
    assert run.stop is Stop.DONE
    assert all(failures(run))
    said = results(run)
    assert "are not JSON" in said[0]
    assert "Expected `object`" in said[1]
    assert "comand" in said[2]
    assert "there is no tool 'rm_rf': there are run_code" in said[3]
    assert "missing" in said[4]
    assert "not UTF-8" in said[5]
    assert "2 times" in said[6]
    assert "0 times" in said[7]


def test_a_long_output_is_cut_in_its_middle_and_all_of_it_can_be_read(sandbox: SandboxFactory) -> None:
    script = [bash("seq 100000; seq 5 >&2"), says("done")]
    box = sandbox()
    agent = Agent(ScriptModel(script), observation_chars=1000)
    run = agent.run("print", box)
    (shown,) = results(run)
    whole = "".join(f"{n}\n" for n in range(1, 100001))
    assert len(shown) < 2000
    assert "\n1\n2\n" in shown
    assert "\n99999\n100000\n" in shown
    assert "[stderr]\n1\n2\n3\n4\n5\n" in shown
    assert f"all {len(whole)} bytes of stdout: read_output(exec=" in shown
    exec = shown.partition('read_output(exec="')[2].partition('"')[0]
    read = [calls(("read_output", {"exec": exec, "offset": offset})) for offset in (500_000, len(whole) - 7)]
    middle, end = results(agent_with([*read, says("done")]).run("read", box))
    assert middle.startswith(whole[500_000:501_000])
    assert "more follows at offset 501000" in middle
    assert end == "100000\n\n[that is its end]"


def agent_with(script: Sequence[Reply]) -> Agent:
    return Agent(ScriptModel(script), observation_chars=1000)


def test_a_command_that_hangs_is_ended_and_seen(sandbox: SandboxFactory) -> None:
    script, box = [bash("sleep 1000 & sleep 1000", timeout_seconds=999), says("done")], sandbox()
    run = Agent(ScriptModel(script), step_timeout_seconds=2.0).run("hang", box)
    assert "limit reached: time" in results(run)[0]
    assert box.exec("pgrep sleep || echo none").stdout == "none\n"


@pytest.mark.parametrize(
    ("budget", "stop", "steps"),
    [
        (Budget(max_steps=3), Stop.STEPS, 3),
        (Budget(max_tokens=25), Stop.TOKENS, 2),
        (Budget(max_usd=0.00012), Stop.MONEY, 2),
    ],
)
def test_each_budget_ends_it_and_is_named(sandbox: SandboxFactory, budget: Budget, stop: Stop, steps: int) -> None:
    model = ScriptModel([bash("true")] * 10, price=Price(input_usd=1.0, output_usd=10.0))
    run = Agent(model, budget=budget).run("go on", sandbox())
    assert (run.stop, run.steps) == (stop, steps)
    assert run.usd == pytest.approx(steps * 0.00006)


def test_a_budget_of_time_ends_the_command_that_runs_when_it_is_over(sandbox: SandboxFactory) -> None:
    meter = Meter(Budget(max_seconds=3600))

    class Thinks(ScriptModel):
        """For almost an hour."""

        def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], **more: object) -> Reply:
            meter._began -= 3598  # pyright: ignore[reportPrivateUsage]
            return bash("sleep 1000")

    run = Agent(Thinks([])).run("go on", sandbox(), meter=meter)
    assert (run.stop, run.steps) == (Stop.TIME, 1)


def test_runs_that_share_a_meter_share_its_budget(sandbox: SandboxFactory) -> None:
    agent, box = Agent(ScriptModel([bash("true"), says("done")])), sandbox()
    meter = Meter(Budget(max_tokens=40))
    assert [agent.run("x", box, meter=meter).stop for _ in range(3)] == [Stop.DONE, Stop.TOKENS, Stop.TOKENS]


def test_tokens_that_nobody_counts_cannot_be_limited_in_silence(sandbox: SandboxFactory) -> None:
    model = ScriptModel([says("done", tokens=None)])
    assert Agent(model).run("x", sandbox()).stop is Stop.DONE
    run = Agent(model, budget=Budget(max_tokens=10)).run("x", sandbox())
    assert run.stop is Stop.MODEL
    assert "does not report its usage" in (run.error or "")


def test_an_endpoint_that_fails_ends_it_with_what_was_done(sandbox: SandboxFactory) -> None:
    run = Agent(ScriptModel([bash("true")])).run("x", sandbox())
    assert (run.stop, run.steps) == (Stop.MODEL, 1)
    assert "no more than 1" in (run.error or "")


def test_a_sandbox_that_dies_ends_it(sandbox: SandboxFactory) -> None:
    box = sandbox()

    class Killer(ScriptModel):
        def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], **more: object) -> Reply:
            box.kill()
            return bash("true")

    run = Agent(Killer([])).run("x", box)
    assert run.stop is Stop.SANDBOX
    assert box.id in (run.error or "")


def test_it_is_only_done_when_what_verifies_agrees(sandbox: SandboxFactory) -> None:
    script = [says("done"), bash("touch fixed"), says("now it is")]
    run = Agent(ScriptModel(script)).run(
        "fix", sandbox(), verify=lambda box: None if box.filesystem.exists("fixed") else "still broken"
    )
    assert (run.stop, run.text) == (Stop.DONE, "now it is")
    assert [message.text for message in run.messages if message.role is Role.USER] == ["fix", "still broken"]
    never = Agent(ScriptModel([says("done")] * 9), budget=Budget(max_steps=4)).run(
        "x", sandbox(), verify=lambda _: "no"
    )
    assert (never.stop, never.steps) == (Stop.STEPS, 4)


def test_an_answer_that_was_cut_off_is_no_end(sandbox: SandboxFactory) -> None:
    cut = Reply(message=Message(role=Role.ASSISTANT, text="I thi"), tokens=says("").tokens, cut=True)
    run = Agent(ScriptModel([cut, says("done")])).run("x", sandbox())
    assert (run.stop, run.steps) == (Stop.DONE, 2)


def test_errors_of_the_platform_are_no_observations(sandbox: SandboxFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    box = sandbox()

    def exhausted(*args: object, **more: object) -> None:
        raise ResourceExhaustedError("no disk")

    monkeypatch.setattr(box, "exec", exhausted)
    with pytest.raises(ResourceExhaustedError):
        Agent(ScriptModel([bash("true")])).run("x", box)


def test_the_asynchronous_one_is_the_same_and_a_cancelled_one_kills_its_command(sandbox: SandboxFactory) -> None:
    box = sandbox()

    async def main() -> None:
        from paddock import AsyncSandbox

        same = await AsyncSandbox.connect(box.id)
        run = await AsyncAgent(AsyncScriptModel([bash("echo hello"), says("done")])).run("x", same)
        assert run.stop is Stop.DONE
        assert "hello" in results(run)[0]
        agent = AsyncAgent(AsyncScriptModel([bash("touch started; exec sleep 4321")]))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(agent.run("x", same))
            async with await same.filesystem.watch(".") as changes:
                if not await same.filesystem.exists("started"):
                    await anext(aiter(changes))
            task.cancel()
        assert not [info for info in await same.processes() if "sleep" in " ".join(info.argv)]
        assert (await same.exec("pgrep -f 'sleep 432[1]'")).exit_code == 1

    asyncio.run(main())


class Waits:
    """A model that never answers."""

    name, price = "waits", None

    def __init__(self, until: Callable[[], object]) -> None:
        self.complete_until = until

    def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], **more: object) -> Reply:
        self.complete_until()
        raise ModelFailedError("late")


def test_a_model_that_never_answers_is_not_waited_for_longer_than_the_budget(sandbox: SandboxFactory) -> None:
    answer = threading.Event()
    try:
        run = Agent(Waits(answer.wait), budget=Budget(max_seconds=0.3)).run("x", sandbox())
    finally:
        answer.set()
    assert (run.stop, run.steps) == (Stop.TIME, 0)


def test_the_trace_holds_every_message_call_observation_and_the_end(sandbox: SandboxFactory, tmp_path: Path) -> None:
    with Trace(tmp_path / "t.jsonl", redact=["hunter2secret"]) as trace:
        script = [bash("echo hunter2secret; seq 100000"), says("done")]
        run = Agent(ScriptModel(script), trace=trace, system="be good").run("the task", sandbox(), name="first")
    text = (tmp_path / "t.jsonl").read_text()
    events = [json.loads(line) for line in text.splitlines()]
    assert [event["event"] for event in events] == ["start", "told", "reply", "observation", "reply", "end"]
    assert {event["run"] for event in events} == {"first"}
    assert "hunter2secret" not in text
    assert "seq 100000" in events[2]["calls"][0]["arguments"]
    assert events[3]["exec"].startswith("ex_")
    assert events[5]["stop"] == "done"
    assert events[5]["input_tokens"] == run.tokens.input


def test_the_tools_alone_do_for_any_framework(sandbox: SandboxFactory) -> None:
    toolbox = Toolbox(sandbox())
    names = [spec.name for spec in toolbox.specs]
    assert names == ["run_code", "bash", "read_file", "write_file", "edit_file", "read_output"]
    assert "42" in toolbox.call("run_code", '{"code": "print(6 * 7)"}').text
    assert toolbox.call("run_code", "nonsense").failed
    assert toolbox.call("bash", '{"command": "false"}').failed
