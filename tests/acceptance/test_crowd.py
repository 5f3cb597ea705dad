"""A sandbox that opens more connections than anybody needs has what it may have of the gateway, and costs the others
nothing: they are served while it tries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paddock.audit import read_records
from paddock.model import ListAudit
from paddock.supervisor import layout
from tests.conftest import SandboxFactory, gateway_pid
from tests.orphans import wait_until

from .inside import TALK, ask
from .rig import Internet

POLICY = {"egress": {"allow": [{"host": "good.test", "ports": [80]}]}}
HELD = 512
MOST_MIB = 64
GET = "answer(exchange('good.test', 80, get('good.test'))[:12])"

FLOOD = r"""
held, tried = given
def use(s):
    s.sendall(b"GET / HTTP/1.1\r\nhost: good.test\r\n\r\n")
    said = b""
    while not said.endswith(b"hello"):
        part = s.recv(65536)
        if not part: raise SystemExit("one that was held has ended")
        said += part
def one_more():
    "What came of it; the kernel refuses those that are opened too quickly, before anybody hears of them."
    try:
        with socket.create_connection(to, 60) as s:
            s.sendall(b"GET / HTTP/1.1\r\nhost: good.test\r\n\r\n")
            return "let in" if s.recv(1) else "ended"
    except ConnectionRefusedError: return "refused"
    except ConnectionError: return "reset"
to = (socket.gethostbyname("good.test"), 80)
kept = []
for _ in range(held):
    kept.append(socket.create_connection(to, 60))
    use(kept[-1])
print("held", flush=True)
sys.stdin.readline()
came = dict.fromkeys(("let in", "ended", "refused", "reset"), 0)
for number in range(tried - held):
    came[one_more()] += 1
    if number % held == 0:
        for s in kept: use(s)
print("tried", flush=True)
sys.stdin.readline()
for s in kept: use(s)
answer(came)
"""


@pytest.mark.parametrize("tried", [600, pytest.param(5000, marks=pytest.mark.slow)])
def test_the_connections_of_one_sandbox_leave_the_others_served(
    sandbox: SandboxFactory, internet: Internet, shared_state: Path, tried: int
) -> None:
    internet.site("good.test")
    crowd, other = sandbox(policy=POLICY), sandbox(policy=POLICY)
    assert ask(crowd, GET) == ask(other, GET) == "HTTP/1.1 200"
    pid = gateway_pid(shared_state)
    assert pid is not None
    before = resident_mib(pid)
    program = f"{TALK}\ngiven = json.loads(sys.argv[1])\n{FLOOD}"
    argv = ("python3", "-c", program, f"[{HELD}, {tried}]")
    with crowd.start(argv, stdin=True, timeout_seconds=300) as process:
        lines = process.stdout.lines()
        assert next(lines).strip() == "held", process.stderr.read()
        assert ask(other, GET) == "HTTP/1.1 200"
        process.stdin.write("\n")
        assert ask(other, GET) == "HTTP/1.1 200", "while it tries"
        assert next(lines).strip() == "tried", process.stderr.read()
        assert ask(other, GET) == "HTTP/1.1 200"
        process.stdin.write("\n")
        *_, told = lines
    came = json.loads(told)
    assert (came["let in"], came["ended"]) == (0, 0)
    assert came["reset"] + came["refused"] == tried - HELD
    assert gateway_pid(shared_state) == pid, "it is the same gateway"
    assert resident_mib(pid) - before < MOST_MIB
    assert ask(crowd, GET) == "HTTP/1.1 200", "it has what it may have again"
    crowd.kill()

    def refused() -> list[int]:
        found = read_records(shared_state / layout.AUDIT, ListAudit(sandbox=crowd.id, tag="egress.crowded"))
        return [one.detail["refused"] for one in found]

    assert wait_until(lambda: sum(refused()) == came["reset"]), (refused(), came)
    assert internet.strays() == []


def resident_mib(pid: int) -> float:
    """At the most, so far."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) / 1024
