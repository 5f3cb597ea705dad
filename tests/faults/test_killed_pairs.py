"""kill -9 of any two of client, daemon, supervisor and gateway in the middle of a verb.

Each history is drawn from a seed. `make test` plays a sample, whose seed is the commit; `make test-all` plays every
verb with every pair. `PADDOCK_SEED` repeats a run.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from paddock import Mount, Sandbox, Workspace
from paddock.client import DaemonTransport, daemon_status, default_transport
from paddock.model.any_action import BY_TAG
from tests.conftest import gateway_pid, keepers, live_sandboxes
from tests.faults.conftest import Program
from tests.faults.verbs import POLICY, VERBS, Verb
from tests.orphans import wait_until
from tests.remotes.git_host import Host, with_login
from tests.seed import SEED

PARTS = ("client", "daemon", "supervisor", "gateway")
HISTORIES = tuple(itertools.product(VERBS, itertools.combinations(PARTS, 2)))
SAMPLE = 8
ACTIONS = ", ".join(action.__name__ for action in BY_TAG.values())


SAMPLED = random.Random(SEED).sample(HISTORIES, SAMPLE)


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
    played, transport = VERBS[verb], default_transport(module_state)
    name = f"{verb}-{'-'.join(pair)}".replace(" ", "-")
    if played.prepare is not None:
        played.prepare(tmp_path)
    mounts = [Mount(source=str(tmp_path), target="/mount")] if played.needs == "mount" else []
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
        answered = _play(played, pair, box, module_state, tmp_path)
        _goes_on(box, verb, transport, module_state, acknowledged=played.acknowledged if answered else "true")
    finally:
        box.kill()
    if played.needs == "mount":
        assert (tmp_path / "file").exists() or not answered
        assert [path.read_text() for path in tmp_path.iterdir()] in ([], ["new\n"])
    if work is not None:
        work.delete(discard=True)


def _play(verb: Verb, pair: tuple[str, str], box: Sandbox, state_dir: Path, local: Path) -> bool:
    """Return whether the client has its answer."""
    chance = random.Random(f"{SEED} {verb.act} {pair}")
    box.filesystem.write("/workspace/big", bytes(4 << 20))
    box.snapshot()
    box.filesystem.write("/workspace/kept", verb.act)
    client = Program(state_dir, _program(box, verb, local))
    try:
        client.hears()
        parts = _parts(state_dir) | {"client": [client.process.pid]}
        client.go_on()
        for part in chance.sample(pair, 2):
            time.sleep(chance.uniform(0, 0.03))  # the moment of the kill is what is drawn, not an order
            for pid in parts[part]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if "client" in pair:
            return False
        said, actions = client.hears(), set(verb.actions.split())
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
    found = {"daemon": [status.pid], "supervisor": keepers(state_dir), "gateway": [gateway]}
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
