"""What a sandbox was answered is recorded by a verb, and answers another sandbox that has no way out at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paddock import Sandbox, local
from paddock.errors import InvalidStateError
from paddock.model import GetSandbox, TakeRecording
from tests.cli.command_line import environment
from tests.conftest import SandboxFactory, gateway_pid
from tests.orphans import wait_until

from .rig import Internet, Request, Response

CURL = "curl -sS -m 60 https://api.test"


def answer(request: Request) -> Response:
    return Response(200, {"content-type": "application/json"}, json.dumps([request.method, request.target]).encode())


def paddock(state: Path, *arguments: str) -> str:
    argv = [sys.executable, "-m", "paddock", "record", *arguments]
    done = subprocess.run(argv, capture_output=True, env=environment(state), timeout=100, check=False)
    return f"{done.returncode} {done.stderr.decode()}"


@pytest.mark.parametrize("ending", [".yaml", ".json"])
def test_what_was_recorded_is_replayed_without_a_network_and_a_miss_is_denied(
    sandbox: SandboxFactory, internet: Internet, shared_state: Path, tmp_path: Path, ending: str
) -> None:
    internet.site("api.test", answer)
    made = sandbox(policy={"egress": {"allow": [{"host": "api.test", "paths": ["/**"]}]}})
    file = tmp_path / f"api{ending}"
    with pytest.raises(InvalidStateError, match="no recording of"):
        local().perform(TakeRecording(sandbox=made.id))
    assert paddock(shared_state, "start", made.id).startswith("0 ")
    script = f"{CURL}/users?page=1; {CURL}/users -d name=me"
    said = made.exec(script, check=True).stdout
    assert paddock(shared_state, "take", made.id, str(file)) == f"0 paddock: 2 exchanges in {file}\n"
    assert paddock(shared_state, "take", made.id, str(file)).startswith("125 "), "it is there already"
    before = len(internet.arrivals)

    again = sandbox(policy={"egress": {"mock": [{"host": "api.test", "with": str(file)}]}})
    assert again.exec(script, check=True).stdout == said == '["GET", "/users?page=1"]["POST", "/users"]'
    missed = again.exec(f"{CURL}/users?page=2")
    assert "the cassette has no answer (left) to GET https://api.test/users?page=2" in missed.stdout
    assert len(internet.arrivals) == before
    assert internet.strays() == []


def test_a_recording_begins_though_the_gateway_has_died_and_with_it_whoever_made_the_sandbox(
    internet: Internet, shared_state: Path, tmp_path: Path
) -> None:
    internet.site("api.test", answer)
    program = """if True:
        from paddock import Sandbox
        policy = {"egress": {"allow": [{"host": "api.test", "paths": ["/**"]}]}}
        print(Sandbox.create(policy=policy, persistent=True).id, flush=True)
        input()
    """
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(shared_state)) as maker:
        assert maker.stdout is not None
        id = maker.stdout.readline().decode().strip()
        maker.kill()
    made = Sandbox(local().perform(GetSandbox(sandbox=id)), local())
    try:
        first = gateway_pid(shared_state)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert wait_until(lambda: gateway_pid(shared_state) != first)
        assert paddock(shared_state, "start", id).startswith("0 ")
        assert made.exec(f"{CURL}/users", check=True).stdout == '["GET", "/users"]'
        assert paddock(shared_state, "take", id, str(tmp_path / "api.yaml")).startswith("0 paddock: 1 exchange")
    finally:
        made.kill()
