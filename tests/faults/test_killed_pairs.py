"""kill -9 of any two of client, daemon, supervisor and gateway in the middle of a verb, and of the daemon at its steps.

Each history is drawn from a seed. `make test` plays a sample, whose seed is the commit; `make test-all` plays every
verb with every pair, and every verb with `STEPS` of the daemon's steps. `PADDOCK_SEED` repeats a run.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from paddock import Mount, Sandbox, Workspace
from paddock.client import DaemonTransport, daemon_status, default_transport
from paddock.model.any_action import BY_TAG
from tests.conftest import gateway_pid, live_sandboxes, supervisors
from tests.faults.conftest import Program
from tests.faults.stepping import Operation, Stepper
from tests.faults.verbs import POLICY, VERBS, Verb
from tests.orphans import wait_until
from tests.remotes.git_host import Host, with_login
from tests.seed import SEED

PARTS = ("client", "daemon", "supervisor", "gateway")
HISTORIES = tuple(itertools.product(VERBS, itertools.combinations(PARTS, 2)))
SAMPLE = 8
SAMPLE_STEPPED = 4
STEPS = 6
ACTIONS = ", ".join(action.__name__ for action in BY_TAG.values())


SAMPLED = random.Random(SEED).sample(HISTORIES, SAMPLE)
STEPPED = random.Random(SEED).sample(list(VERBS), SAMPLE_STEPPED)
Kill = Callable[[Program, Callable[[], None]], dict[str, Any] | None]
"""Lets the client go on, kills, and returns what the client says, if it lives."""


def test_every_action_meets_a_death() -> None:
    assert {name for verb in VERBS.values() for name in verb.actions.split()} == set(ACTIONS.split(", "))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Generator[Host]:
    with with_login(tmp_path_factory.mktemp("host")) as made:
        yield made


@pytest.mark.parametrize(
    ("verb", "pair"),
    [
        pytest.param(
            *history, id="-".join((history[0], *history[1])), marks=() if history in SAMPLED else pytest.mark.slow
        )
        for history in HISTORIES
    ],
)
def test_two_that_are_killed_in_a_verb_leave_nothing_half_done(
    verb: str, pair: tuple[str, str], module_state: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    chance = random.Random(f"{SEED} {VERBS[verb].act} {pair}")

    def kill(client: Program, go_on: Callable[[], None]) -> dict[str, Any] | None:
        parts = _parts(module_state) | {"client": [client.process.pid]}
        go_on()
        for part in chance.sample(pair, 2):
            time.sleep(chance.uniform(0, 0.03))  # the moment of the kill is what is drawn, not an order
            for pid in parts[part]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return None if "client" in pair else client.hears()

    _play(verb, "-".join(pair), kill, module_state, tmp_path, request)


@pytest.mark.root  # an ordinary user may not trace a daemon
@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=() if verb in STEPPED else pytest.mark.slow) for verb in VERBS]
)
def test_a_daemon_that_is_killed_at_a_step_of_a_verb_leaves_nothing_half_done(
    verb: str, module_state: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A step is an entry of the loop's thread to a system call, or its return from one."""
    count = 0

    def kill_at(step: int | None) -> Kill:
        def kill(client: Program, go_on: Callable[[], None]) -> dict[str, Any]:
            nonlocal count
            (daemon,) = _parts(module_state)["daemon"]
            stepper = Stepper(daemon)
            go_on()
            said: list[dict[str, Any]] = []
            answer = Operation(lambda: said.append(client.hears()))
            if step is None:
                while stepper.go(1, lambda: answer.done):
                    count += 1
                stepper.let_go()
            else:
                stepper.go(step, lambda: answer.done)
                os.kill(daemon, signal.SIGKILL)
                stepper.killed()
            answer.end()
            assert answer.error is None, answer.error
            return said[0]

        return kill

    _play(verb, "counted", kill_at(None), module_state, tmp_path / "counted", request)
    assert count > 10
    steps = random.Random(f"{SEED} {verb}").sample(range(1, count + 1), STEPS if verb not in STEPPED else 1)
    for step in steps:
        _play(verb, f"step-{step}", kill_at(step), module_state, tmp_path / str(step), request)


def _play(verb: str, name: str, kill: Kill, state_dir: Path, local: Path, request: pytest.FixtureRequest) -> None:
    played, transport = VERBS[verb], default_transport(state_dir)
    name = f"{verb}-{name}".replace(" ", "-")
    local.mkdir(exist_ok=True)
    if played.prepare is not None:
        played.prepare(local)
    mounts = [Mount(source=str(local), target="/mount")] if played.needs == "mount" else []
    work = None
    if played.needs == "workspace":
        work = Workspace.open(name, url=request.getfixturevalue("host").url, transport=transport)
    box = Sandbox.create(
        level="jail",
        persistent=True,
        ttl_seconds=300,
        policy=POLICY,
        mounts=mounts,
        workspace=work and work.name,
        name=name,
        transport=transport,
    )
    try:
        answered = _ask(played, kill, box, state_dir, local)
        _goes_on(box, verb, transport, state_dir, acknowledged=played.acknowledged if answered else "true")
    finally:
        box.kill()
    if played.needs == "mount":
        assert (local / "file").exists() or not answered
        assert [path.read_text() for path in local.iterdir()] in ([], ["new\n"])
    if work is not None:
        work.delete(discard=True)


def _ask(verb: Verb, kill: Kill, box: Sandbox, state_dir: Path, local: Path) -> bool:
    """Return whether the client has its answer."""
    box.filesystem.write("/workspace/big", bytes(4 << 20))
    box.snapshot()
    box.filesystem.write("/workspace/kept", verb.act)
    client = Program(state_dir, _program(box, verb, local))
    try:
        client.hears()
        said, actions = kill(client, client.go_on), set(verb.actions.split())
        if said is None:
            return False
        assert said.get("code") != "internal", said
        assert set(said["asked"]) == actions or ("code" in said and set(said["asked"]) <= actions)
        return "result" in said
    finally:
        client.kill()


def _program(box: Sandbox, verb: Verb, local: Path) -> str:
    return (
        "from pathlib import Path\nfrom paddock import Workspace\nfrom paddock.client import DaemonTransport\n"
        f"from paddock.errors import PaddockError\nfrom paddock.model import SecretValue, {ACTIONS}\n"
        f"local = Path({str(local)!r})\nbox = Sandbox.connect({box.id!r})\nask = box._transport.perform\n{verb.before}"
        "asked, perform = [], DaemonTransport.perform\n"
        "def ask(action): asked.append(type(action).__name__); return perform(box._transport, action)\n"
        "DaemonTransport.perform = lambda self, action: ask(action)\n"
        "say(ready=1)\nsys.stdin.readline()\n"
        f"try:\n    said = {{'result': str({verb.act})}}\n"
        "except PaddockError as error:\n    said = {'code': error.code, 'message': error.message}\n"
        "say(asked=asked, **said)\nsys.stdin.readline()\n"
    )


def _parts(state_dir: Path) -> dict[str, list[int]]:
    status, gateway = daemon_status(state_dir), gateway_pid(state_dir)
    assert status is not None
    assert gateway is not None
    found = {"daemon": [status.pid], "supervisor": supervisors(state_dir), "gateway": [gateway]}
    assert len(found["supervisor"]) == 1
    return found


def _goes_on(box: Sandbox, verb: str, transport: DaemonTransport, state_dir: Path, *, acknowledged: str) -> None:
    """What lived lives, with every acknowledged byte; what was the client's has ended; the next sandbox works."""
    box.refresh()
    if verb == "rollback":
        # It goes on to its end although its caller has gone.
        assert wait_until(lambda: box.refresh().state != "restoring")
        assert box.state in ("running", "failed")
    elif verb == "kill":
        assert box.state in ("running", "killed")
    else:
        assert box.filesystem.read_text("/workspace/kept") == VERBS[verb].act
        assert box.exec(f"{acknowledged} && echo on").stdout == "on\n"
    with Sandbox.create(level="jail", ttl_seconds=60, transport=transport) as other:
        assert other.exec("echo other").stdout == "other\n"
    for one in Sandbox.list(transport=transport):
        if one.info.spec.persistent and one.id != box.id:  # children are as persistent as their parent
            one.kill()
    assert wait_until(lambda: live_sandboxes(state_dir) in ([box.id], [])), "the client's sandboxes outlive it"
    for snapshot in box.snapshots():
        box.delete_snapshot(snapshot)
