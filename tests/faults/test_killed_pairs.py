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
from pathlib import Path

import pytest

from paddock import Sandbox
from paddock.client import DaemonTransport, daemon_status, default_transport
from tests.conftest import gateway_pid, keepers, live_sandboxes
from tests.faults.conftest import Program
from tests.orphans import wait_until
from tests.seed import SEED

POLICY = {"egress": {"allow": [{"host": "example.com"}]}}
VERBS = {
    "create": "Sandbox.create(level='jail', ttl_seconds=60).id",
    "exec": "box.exec('sleep 0.02; echo done').stdout",
    "background": "box.start('sleep 60', background=True).id",
    "write": "box.filesystem.write('written', bytes(1 << 20))",
    "read": "len(box.filesystem.read('/workspace/big'))",
    "fork": "[child.id for child in box.fork(2)]",
    "snapshot": "box.snapshot().id",
    "rollback": "box.rollback(box.snapshots()[0])",
    "pause": "box.pause()",
    "resume": "(box.pause(), box.resume())",
    "extend": "box.extend(200)",
    "policy": "box.set_policy(None)",
    "kill": "box.kill()",
}
PARTS = ("client", "daemon", "supervisor", "gateway")
HISTORIES = tuple(itertools.product(VERBS, itertools.combinations(PARTS, 2)))
SAMPLE = 8


SAMPLED = random.Random(SEED).sample(HISTORIES, SAMPLE)


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
    verb: str, pair: tuple[str, str], module_state: Path
) -> None:
    chance = random.Random(f"{SEED} {verb} {pair}")
    transport = default_transport(module_state)
    box = Sandbox.create(level="jail", persistent=True, ttl_seconds=300, policy=POLICY, transport=transport)
    box.filesystem.write("/workspace/big", bytes(4 << 20))
    box.snapshot()
    box.filesystem.write("/workspace/kept", verb)
    client = Program(module_state, _program(box, VERBS[verb]))
    try:
        client.hears()
        parts = _parts(module_state) | {"client": [client.process.pid]}
        client.go_on()
        for part in chance.sample(pair, 2):
            time.sleep(chance.uniform(0, 0.03))  # the moment of the kill is what is drawn, not an order
            for pid in parts[part]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if "client" not in pair:
            said = client.hears()
            assert said.get("code") != "internal", said
    finally:
        client.kill()
    _goes_on(box, verb, transport, module_state)


def _program(box: Sandbox, verb: str) -> str:
    return (
        f"from paddock.errors import PaddockError\nbox = Sandbox.connect({box.id!r})\n"
        "say(ready=1)\nsys.stdin.readline()\n"
        f"try:\n    say(result=str({verb}))\n"
        "except PaddockError as error:\n    say(code=error.code, message=error.message)\nsys.stdin.readline()\n"
    )


def _parts(state_dir: Path) -> dict[str, list[int]]:
    status, gateway = daemon_status(state_dir), gateway_pid(state_dir)
    assert status is not None
    assert gateway is not None
    found = {"daemon": [status.pid], "supervisor": keepers(state_dir), "gateway": [gateway]}
    assert len(found["supervisor"]) == 1
    return found


def _goes_on(box: Sandbox, verb: str, transport: DaemonTransport, state_dir: Path) -> None:
    """What lived lives, with every acknowledged byte; what was the client's has ended; the next sandbox works."""
    box.refresh()
    if verb == "rollback":
        # It goes on to its end although its caller has gone.
        assert wait_until(lambda: box.refresh().state != "restoring")
        assert box.state in ("running", "failed")
    elif verb == "kill":
        assert box.state in ("running", "killed")
    else:
        assert box.filesystem.read_text("/workspace/kept") == verb
        assert box.exec("echo on").stdout == "on\n"
    with Sandbox.create(level="jail", ttl_seconds=60, transport=transport) as other:
        assert other.exec("echo other").stdout == "other\n"
    for one in Sandbox.list(transport=transport):
        if one.info.spec.persistent and one.id != box.id:  # children are as persistent as their parent
            one.kill()
    assert wait_until(lambda: live_sandboxes(state_dir) in ([box.id], [])), "the client's sandboxes outlive it"
    for snapshot in box.snapshots():
        box.delete_snapshot(snapshot)
    box.kill()
