"""Attempts side by side: the right one is kept and told why, and nothing of the others is left."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from paddock import AsyncSandbox, Mount, Sandbox
from paddock.agents import (
    Agent,
    AsyncCheckout,
    Budget,
    Checkout,
    Effort,
    ScriptModel,
    Stop,
    Test,
    abest_of,
    agent_attempt,
    best_of,
    compare,
)
from paddock.errors import InvalidArgumentError, ResourceExhaustedError
from tests.agents.scripts import BAD, GOOD, MISFIT, bash, calls, project, says
from tests.conftest import SandboxFactory
from tests.orphans import wait_until

PYTEST = Test("python3 -m pytest -q -p no:cacheprovider")
PASSES = Test("python3 -c 'from task import add; assert add(1, 2) == 3'")


def living() -> set[str]:
    return {box.id for box in Sandbox.list()}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return project(tmp_path / "project")


@pytest.fixture
def checkout(sandbox: SandboxFactory, directory: Path) -> Checkout:
    return Checkout.of(sandbox(template="code-interpreter", mounts=[Mount(source=str(directory))]))


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def test_the_patch_that_passes_is_kept_and_the_directory_of_the_host_is_as_it_was(
    checkout: Checkout, directory: Path
) -> None:
    before, alive = contents(directory), living()
    patches = {"bad": BAD, "misfit": MISFIT, "good": GOOD, "empty": "", "miscounted": GOOD.replace("-1,2", "-1,7")}
    found = compare(checkout, patches, PYTEST)
    outcomes = {attempt.name: attempt.outcome for attempt in found.attempts}
    assert outcomes["good"] == outcomes["miscounted"] == "passed, 2 of 2"
    assert outcomes["bad"] == outcomes["empty"] == "exit 1, 1 of 2"
    assert outcomes["misfit"].startswith("the patch does not apply: error: patch failed: task.py:1")
    best = found.best
    assert best is not None
    assert best.name == "good"
    assert found.why == "good: 2 of 5 pass; of equals it was the first"
    assert (best.size.files, best.size.added, best.size.removed) == (1, 1, 1)
    assert contents(directory) == before
    assert living() == alive
    subprocess.run(["git", "apply", "-"], input=best.diff, cwd=directory, check=True)
    assert "a + b" in (directory / "task.py").read_text()


def test_an_attempt_is_judged_by_its_diff_where_nothing_else_of_it_is_left(checkout: Checkout) -> None:
    def cheat(box: Sandbox, number: int) -> None:
        """In its own sandbox all is well, whatever is asked."""
        where = box.exec(["python3", "-m", "site", "--user-site"]).stdout.strip()
        box.filesystem.write(f"{where}/usercustomize.py", "import os; os._exit(0)")
        assert box.exec(PASSES.command).ok
        box.start("exec sleep 4321", background=True).close()

    found = best_of(1, checkout, cheat, PASSES)
    (attempt,) = found.attempts
    assert not attempt.passed
    assert found.best is None


def test_changes_of_every_kind_are_part_of_the_diff_and_what_is_ignored_is_not(checkout: Checkout) -> None:
    def change(box: Sandbox, number: int) -> Effort:
        box.exec("sed -i 's/a - b/a + b/' task.py; chmod +x task.py; head -c 3000 /dev/urandom > blob", check=True)
        box.exec("ln -s task.py link; mkdir -p 'deep/ü x'; echo 1 > 'deep/ü x/file'; mkdir __pycache__", check=True)
        box.exec("echo x > __pycache__/y; git mv a b; cat blob > ~/blob; git -C ~ init -q", check=False)
        return Effort(note="by hand")

    found = best_of(1, checkout, change, PASSES)
    (attempt,) = found.attempts
    assert attempt.passed, attempt
    assert attempt.effort.note == "by hand"
    text = attempt.diff.decode("utf-8", "replace")
    assert attempt.size.files == 4
    assert all(mark in text for mark in ("old mode 100644", "GIT binary patch", "new file mode 120000", "/file"))
    assert "__pycache__" not in text


def test_the_state_has_what_is_uncommitted_and_what_is_tracked_though_ignored(
    sandbox: SandboxFactory, directory: Path
) -> None:
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(directory)]
    (directory / ".gitignore").write_text("*.lock\nsecret\n")
    (directory / "kept.lock").write_text("1\n")
    for arguments in (["init", "-q"], ["add", "-f", ".", "kept.lock"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *arguments], check=True)
    (directory / "task.py").write_text("def add(a, b):\n    return a * b  # uncommitted\n")
    (directory / "secret").write_text("s")
    # What would run in a hostile repository: a filter, a hook, fsmonitor.
    (directory / ".gitattributes").write_text("* filter=evil\n*.py text eol=crlf\n")
    for key, value in (("filter.evil.clean", "touch /tmp/ran"), ("core.fsmonitor", "touch /tmp/ran")):
        subprocess.run([*git, "config", key, value], check=True)
    base = sandbox(template="code-interpreter", mounts=[Mount(source=str(directory))])
    checkout = Checkout.of(base)
    assert checkout.notes == ()
    assert not base.filesystem.exists("/tmp/ran")

    def change(box: Sandbox, number: int) -> None:
        box.exec("sed -i 's/a \\* b/a + b/' task.py; echo 2 > kept.lock; echo t > secret", check=True)

    found = best_of(1, checkout, change, PASSES)
    best = found.best
    assert best is not None
    assert b"-    return a * b  # uncommitted\n+    return a + b  # uncommitted\n" in best.diff
    assert b"kept.lock" in best.diff
    assert b"secret" not in best.diff
    new = "diff --git a/new.lock b/new.lock\nnew file mode 100644\n--- /dev/null\n+++ b/new.lock\n@@ -0,0 +1 @@\n+1\n"
    (attempt,) = compare(checkout, {"ignored": new}, Test("cat new.lock")).attempts
    assert attempt.passed
    assert b"new.lock" in attempt.diff


def test_a_diff_that_is_too_large_fails_its_attempt_alone(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paddock.agents._checkout.DIFF_BYTES", 50_000)

    def change(box: Sandbox, number: int) -> None:
        box.exec("head -c 100000 /dev/urandom > blob" if number == 0 else "sed -i 's/a - b/a + b/' task.py", check=True)

    large, small = best_of(2, checkout, change, PASSES).attempts
    assert "more than 50000" in large.outcome
    assert small.passed


def test_as_many_run_at_once_as_was_said_and_each_is_told_at_its_end(checkout: Checkout) -> None:
    lock, meet = threading.Lock(), threading.Barrier(2, timeout=60)
    now: list[int] = []
    most: list[int] = []
    told: list[str] = []

    def attempt(box: Sandbox, number: int) -> None:
        with lock:
            now.append(number)
            most.append(len(now))
        meet.wait()  # two are here at once, or this breaks
        with lock:
            now.remove(number)

    found = best_of(4, checkout, attempt, Test("true"), parallel=2, on_attempt=lambda a: told.append(a.name))
    assert all(a.passed for a in found.attempts), found
    assert max(most) == 2
    assert sorted(told) == [a.name for a in found.attempts]


def test_the_first_that_passes_ends_the_others(checkout: Checkout) -> None:
    alive = living()
    patches = {"hangs": BAD, "good": GOOD, "later": GOOD}
    test = Test("grep -q 'a + b' task.py || exec sleep 4322")
    found = compare(checkout, patches, test, parallel=2, first_passing=True)
    assert [attempt.outcome for attempt in found.attempts] == [
        "not needed: another had passed",
        "passed",
        "not needed: another had passed",
    ]
    assert wait_until(lambda: living() == alive)  # a fork that is being made ends when it is there


def test_whatever_ends_it_every_fork_is_dead(checkout: Checkout) -> None:
    alive = living()
    started = threading.Event()

    def attempt(box: Sandbox, number: int) -> None:
        if number == 1:
            assert started.wait(60)
            raise ResourceExhaustedError("no disk")
        started.set()
        box.exec("sleep 4323")

    with pytest.raises(ResourceExhaustedError):
        best_of(3, checkout, attempt, Test("true"), parallel=3)
    assert wait_until(lambda: living() == alive)


def test_a_cancelled_comparison_leaves_no_fork(checkout: Checkout) -> None:
    alive = living()

    async def main() -> None:
        base = await AsyncSandbox.connect(checkout.sandbox.id)
        recorded = await AsyncCheckout.of(base)
        inside = asyncio.Event()

        async def attempt(box: AsyncSandbox, number: int) -> None:
            inside.set()
            await box.exec("sleep 4324")

        task = asyncio.ensure_future(abest_of(3, recorded, attempt, Test("true"), parallel=3))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert wait_until(lambda: living() == alive)


INTERRUPTED = """
import sys
from paddock import Sandbox
from paddock.agents import Checkout, Test, best_of

def attempt(box, number):
    print("here", flush=True)
    box.exec("sleep 4328")

best_of(3, Checkout.of(Sandbox.connect(sys.argv[1])), attempt, Test("true"), parallel=3)
"""


def test_control_c_in_a_synchronous_program_leaves_no_fork(checkout: Checkout) -> None:
    alive = living()
    argv = [sys.executable, "-c", INTERRUPTED, checkout.sandbox.id]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(3)] == ["here\n"] * 3
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert "KeyboardInterrupt" in said
    assert process.returncode == -signal.SIGINT
    assert wait_until(lambda: living() == alive)


def test_agents_share_a_budget_and_the_table_has_what_each_took(checkout: Checkout) -> None:
    fixes = [calls(("edit_file", {"path": "task.py", "old": "a - b", "new": "a + b"})), says("fixed")]
    gives_up = [bash("ls")] * 20
    agents = [Agent(ScriptModel(script), budget=Budget(max_steps=5)) for script in (gives_up, fixes)]
    found = best_of(2, checkout, agent_attempt(lambda n: agents[n], "fix", test=PASSES), PASSES)
    first, second = found.attempts
    assert (first.effort.stop, first.effort.steps, first.passed) == (Stop.STEPS, 5, False)
    assert (second.effort.stop, second.effort.steps, second.passed) == (Stop.DONE, 2, True)
    assert second.effort.tokens.total == 30
    assert found.best is second
    small = Agent(ScriptModel(fixes), budget=Budget(max_tokens=40))
    found = best_of(4, checkout, agent_attempt(small, "fix"), PASSES, parallel=1)
    assert [a.effort.stop for a in found.attempts] == [Stop.DONE, Stop.TOKENS, Stop.TOKENS, Stop.TOKENS]


def test_the_counts_of_a_report_are_read_where_it_is_named(checkout: Checkout) -> None:
    with_report = Test("python3 -m pytest -q -q -p no:cacheprovider --junit-xml=out/report.xml", junit="out/report.xml")
    (attempt,) = compare(checkout, {"bad": BAD}, with_report).attempts
    assert attempt.outcome == "exit 1, 1 of 2"
    (attempt,) = compare(checkout, {"good": GOOD}, Test("true", junit="missing.xml")).attempts
    assert attempt.outcome == "passed"


def test_a_test_that_never_ends_is_ended(checkout: Checkout) -> None:
    (attempt,) = compare(checkout, {"good": GOOD}, Test("sleep 4325", timeout_seconds=0.5)).attempts
    assert attempt.outcome == "limit: time"


def test_nothing_is_tried_in_vain(checkout: Checkout) -> None:
    with pytest.raises(InvalidArgumentError):
        best_of(0, checkout, lambda box, n: None, PASSES)
    with pytest.raises(InvalidArgumentError):
        compare(checkout, {}, PASSES, parallel=0)
    assert compare(checkout, {}, PASSES).why == "none of 0 passes"
