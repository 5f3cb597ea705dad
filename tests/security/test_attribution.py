"""Each connection that a program in a sandbox makes is put down to that program, or to nobody: never to another."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attacking import Attacker, audited

from paddock import Sandbox
from tests.conftest import SandboxFactory, gateway_pid
from tests.orphans import wait_until

POLICY = {"egress": {"allow": [{"host": "allowed.example", "methods": ["GET"]}]}}
SOMEWHERE = ("198.51.100.7", 80)
CALL = f"""
s = socket.create_connection({SOMEWHERE!r}, 100)
s.sendall(b"GET / HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n")
said = s.recv(999)
"""


@pytest.fixture(params=["user", "root"])
def inside(request: pytest.FixtureRequest, sandbox: SandboxFactory) -> Attacker:
    if request.param == "root" and os.getuid() != 0:
        pytest.skip("there is no root inside for an ordinary user")
    return Attacker(sandbox(policy=POLICY), None if request.param == "user" else "root")


def origins(state: Path, sandbox: Sandbox) -> list[dict[str, Any]]:
    records = audited(state, "egress.origin")
    return [one for one in records if one["action"] == "egress.origin" and one["sandbox"] == sandbox.id]


def origin(state: Path, inside: Attacker, which: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
    """The one record that there is."""
    assert wait_until(lambda: any(which(one["detail"]) for one in origins(state, inside.sandbox)))
    (found,) = (one for one in origins(state, inside.sandbox) if which(one["detail"]))
    return found["detail"]


def test_a_connection_is_put_down_to_its_process_with_those_above_it(inside: Attacker, shared_state: Path) -> None:
    script = inside.run(
        "import subprocess\n"
        "os.chdir('/tmp')\n"
        f"code = 'import os, socket\\n' + {CALL!r} + 'print(os.getpid(), os.getppid(), os.getuid())'\n"
        "call = [sys.executable, '-c', code, 'x' * 2000]\n"
        "print(os.getpid(), subprocess.run(call, capture_output=True, text=True).stdout)"
    )
    above, pid, parent, uid = map(int, script.stdout.split())
    assert above == parent
    found = origin(shared_state, inside)
    assert (found["pid"], found["above"][0]["pid"], found["uid"], found["cwd"]) == (pid, above, uid, "/tmp")
    assert found["above"][-1]["pid"] == 1
    assert "python3" in found["exe"]
    assert found["argv"][1] == "-c"
    assert sum(map(len, found["argv"])) <= 1024 < found["argv_bytes"]
    assert len(found["argv_sha256"]) == 64
    decisions = [one for one in audited(shared_state, "egress.connect") if one["sandbox"] == inside.sandbox.id]
    assert [(one["seq"], one["detail"]["flow"]) for one in decisions] == [(found["decision"], found["flow"])]


def test_a_process_that_is_gone_is_nobody_and_not_the_next_one(inside: Attacker, shared_state: Path) -> None:
    """It calls and kills itself; another one, with a connection of its own, lives on."""
    script = inside.run(
        f"{CALL}\n"
        "gone = os.fork()\n"
        "if gone == 0:\n"
        "    for fd in range(3, 20):\n"
        "        try: os.close(fd)\n"
        "        except OSError: pass\n"
        f"    t = socket.socket(); t.connect({SOMEWHERE!r}); os.kill(os.getpid(), 9)\n"
        "os.waitpid(gone, 0)\n"
        "print(os.getpid(), gone)"
    )
    assert wait_until(lambda: len(origins(shared_state, inside.sandbox)) == 2)
    first, second = (one["detail"] for one in origins(shared_state, inside.sandbox))
    caller, gone = map(int, script.stdout.split())
    assert first["pid"] == caller
    assert second.get("pid") in (None, gone)
    if "pid" not in second:
        assert second["origin"] == "unknown"
        assert second["why"]


def test_one_that_does_not_let_itself_be_looked_at_is_found_by_root_and_said_to_hide_from_an_ordinary_user(
    inside: Attacker, shared_state: Path
) -> None:
    assert inside.run(f"libc.prctl(4, 0, 0, 0, 0)\n{CALL}").exit_code == 0
    found = origin(shared_state, inside)
    if os.getuid() == 0:
        assert "python3" in found["exe"]
    else:
        assert found["origin"] == "unknown"
        assert "may not look at processes" in found["why"]


def test_nothing_of_the_host_is_told_though_its_process_has_the_same_number(
    inside: Attacker, shared_state: Path
) -> None:
    inside.run(CALL)
    found = origin(shared_state, inside)
    told = json.dumps(found)
    assert str(shared_state) not in told
    assert str(Path.home()) not in told or Path.home() == Path("/root")
    assert found["pid"] < 1000  # as it is counted inside


def test_the_witness_has_no_power_but_to_look_and_leaves_with_its_gateway(inside: Attacker, shared_state: Path) -> None:
    inside.run(CALL)
    origin(shared_state, inside)
    gateway = gateway_pid(shared_state)
    assert gateway is not None
    beside = map(int, Path(f"/proc/{gateway}/task/{gateway}/children").read_text().split())
    (witness,) = (pid for pid in beside if Path(f"/proc/{pid}/comm").read_text() == "paddock-procs\n")
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{witness}/status").read_text().splitlines())
    look = 1 << 19 | 1 << 2 if os.getuid() == 0 else 0  # CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH
    assert int(status["CapEff"], 16) & ~look == int(status["CapPrm"], 16) & ~look == 0
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    os.kill(gateway, 9)
    assert wait_until(lambda: not Path(f"/proc/{witness}").exists())
    # and the next gateway has its own
    assert wait_until(lambda: gateway_pid(shared_state) not in (None, gateway))
    inside.run(CALL)
    assert wait_until(lambda: len(origins(shared_state, inside.sandbox)) == 2)
