"""A new revision holds when `set_policy` returns: what it refuses is cut, of live connections too, what it allows goes
on; nothing widens by itself; and what a change allows is said before."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from paddock.errors import InvalidStateError, PolicyInvalidError
from paddock.policy.egress import diff, explain, load
from tests.conftest import SandboxFactory, gateway_pid
from tests.orphans import wait_until

from .inside import TALK, ask, refused
from .rig import PATIENCE_SECONDS, Arrival, Internet, Records

BOTH = {"egress": {"allow": [{"host": f"{name}.test", "paths": ["/**"]} for name in ("gone", "kept")]}}
ONE = {"egress": {"allow": [{"host": "kept.test", "paths": ["/**"]}]}}
GET = "answer(exchange(given[0], 80, get(given[0], *given[1:])))"


def denied(said: str) -> bool:
    """Its name does not exist any more, or whoever calls is told no."""
    return said == "gaierror" or refused(said)


def hold(connection: socket.socket, arrival: Arrival) -> None:
    """Answers each request by what it asks for: a stream of events without an end, a WebSocket, or a word; and holds
    the connection as long as the other side does."""
    connection.settimeout(PATIENCE_SECONDS)
    buffer = b""
    while True:
        data = connection.recv(65536)
        if not data:
            return
        buffer += data
        while b"\r\n\r\n" in buffer:
            head, _, buffer = buffer.partition(b"\r\n\r\n")
            path = head.split(b" ")[1]
            if path == b"/events":
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n")
            elif path == b"/socket":
                connection.sendall(
                    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
                    b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
                )
            else:
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")


LIVE = r"""
import selectors
count, kinds = given
upgrade = "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
upgrade += "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
def begin(number):
    host, kind = ("gone.test", "kept.test")[number % 2], kinds[number // 2 % len(kinds)]
    s = socket.create_connection((host, 80), 60)
    s.sendall(f"GET /{kind} HTTP/1.1\r\nhost: {host}\r\n{upgrade if kind == 'socket' else ''}\r\n".encode())
    said = b""
    while b"\r\n\r\n" not in said: said += s.recv(4096)
    assert said.split(b" ")[1] in (b"200", b"101"), said
    return host, kind, s
live = [begin(number) for number in range(count)]
sys.stdout.write("ready\n"); sys.stdout.flush()
gone, selector = 0, selectors.DefaultSelector()
for host, kind, s in live:
    if host == "gone.test": selector.register(s, selectors.EVENT_READ)
while gone < count // 2:
    for key, _ in selector.select(60):
        try: over = not key.fileobj.recv(65536)
        except OSError: over = True
        if over: selector.unregister(key.fileobj); gone += 1
sys.stdout.write("gone\n"); sys.stdout.flush()
sys.stdin.readline()
still = {kind: 0 for kind in kinds}
for host, kind, s in live:
    if host != "kept.test": continue
    if kind == "word":
        s.sendall(b"GET /word HTTP/1.1\r\nhost: kept.test\r\n\r\n")
        said = s.recv(4096)
        while said and not said.endswith(b"hello"): said += s.recv(4096)
        still[kind] += said.startswith(b"HTTP/1.1 200 ") and said.endswith(b"hello")
    else:
        s.setblocking(False)
        try:
            while (said := s.recv(65536)): pass
        except BlockingIOError: still[kind] += 1
        except OSError: pass
answer(still)
"""


@pytest.mark.parametrize("count", [96, pytest.param(500, marks=pytest.mark.slow)])
def test_a_revision_cuts_what_it_refuses_of_many_live_connections_and_nothing_else(
    sandbox: SandboxFactory, internet: Internet, records: Records, count: int
) -> None:
    for name in ("gone.test", "kept.test"):
        internet.site(name, serve=hold)
    made = sandbox(policy=BOTH)
    before = made.policy
    kinds = ("events", "socket", "word")
    program = f"{TALK}\ngiven = json.loads(sys.argv[1])\n{LIVE}"
    argv = ("python3", "-c", program, json.dumps([count, kinds]))
    with made.start(argv, stdin=True, timeout_seconds=300) as process:
        lines = process.stdout.lines()
        assert next(lines).strip() == "ready", process.stderr.read()
        after = made.set_policy(ONE, expect_revision=before)
        assert next(lines).strip() == "gone", "every one of them"
        process.stdin.write("\n")
        *_, told = lines
    still = json.loads(told)
    assert sum(still.values()) == count // 2, still
    assert denied(ask(made, GET, "gone.test"))
    assert ask(made, GET, "kept.test", "/word").endswith("hello")

    asked = records.of(made.id, "egress.request", host="kept.test")
    assert [one.detail["revision"] for one in asked] == [before] * (count // 2) + [after] * (len(asked) - count // 2), (
        "each decision says which revision it belongs to"
    )
    assert len(asked) > count // 2
    assert {one.detail["revision"] for one in records.of(made.id, "egress.request", host="gone.test")} == {before}
    assert records.denied(made.id, "egress.name", host="gone.test", revision=after)
    assert internet.strays() == []


@pytest.mark.parametrize("narrower", [ONE, None])
def test_what_another_program_has_set_is_what_the_next_gateway_keeps(
    sandbox: SandboxFactory, internet: Internet, shared_state: Path, tmp_path: Path, narrower: object
) -> None:
    """It has ended by then, and the program that made the sandbox has not heard of it."""
    for name in ("gone.test", "kept.test"):
        internet.site(name)
    made = sandbox(policy=BOTH)
    assert ask(made, GET, "gone.test").endswith("hello")
    change = [made.id]
    if narrower is not None:
        (tmp_path / "one.json").write_text(json.dumps(narrower))
        change = [made.id, str(tmp_path / "one.json")]
    command = [sys.executable, "-m", "paddock", "policy", "set", *change]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    first = gateway_pid(shared_state)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert wait_until(lambda: gateway_pid(shared_state) not in (None, first))
    assert denied(ask(made, GET, "gone.test"))
    said = ask(made, GET, "kept.test")
    assert denied(said) if narrower is None else said.endswith("hello")
    assert internet.strays() == []


def test_a_policy_that_another_program_has_given_a_sandbox_without_one_outlives_the_gateway(
    sandbox: SandboxFactory, internet: Internet, shared_state: Path, tmp_path: Path
) -> None:
    internet.site("kept.test")
    made = sandbox()
    (tmp_path / "one.json").write_text(json.dumps(ONE))
    command = [sys.executable, "-m", "paddock", "policy", "set", made.id, str(tmp_path / "one.json")]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    first = gateway_pid(shared_state)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert wait_until(lambda: gateway_pid(shared_state) != first)
    made.exec("true", check=True)  # whoever uses it sees to it
    assert wait_until(lambda: gateway_pid(shared_state) not in (None, first))
    assert ask(made, GET, "kept.test").endswith("hello")


def test_a_policy_that_says_two_things_changes_nothing(sandbox: SandboxFactory, internet: Internet) -> None:
    internet.site("kept.test")
    made = sandbox(policy=ONE)
    before = made.policy
    wrong = {"egress": {"allow": [{"host": "kept.test", "secret": "A"}, {"host": "kept.test"}, {"host": "gone.test"}]}}
    for document in (wrong, {"egress": {"alow": []}}, {"egress": {"default": "allow"}}, "egress:\n\t- x\n"):
        with pytest.raises(PolicyInvalidError):
            made.set_policy(document)
    with pytest.raises(InvalidStateError):
        made.set_policy(BOTH, expect_revision="0" * 64)
    assert made.refresh().policy == before
    assert denied(ask(made, GET, "gone.test"))
    assert ask(made, GET, "kept.test").endswith("hello")
    assert internet.strays() == []


def test_a_command_is_run_under_the_revision_that_its_caller_expects_or_not_at_all(
    sandbox: SandboxFactory, internet: Internet
) -> None:
    made = sandbox(policy=ONE)
    before = made.policy
    assert made.exec("touch /tmp/ran", expect_revision=before).exit_code == 0
    after = made.set_policy(BOTH)
    for run in (made.exec, made.start):
        with pytest.raises(InvalidStateError, match="has the policy"):
            run("rm /tmp/ran", expect_revision=before)
    assert made.exec("ls /tmp/ran", expect_revision=after).exit_code == 0


@pytest.mark.both
def test_forks_rollbacks_and_snapshots_never_widen(sandbox: SandboxFactory, internet: Internet) -> None:
    internet.site("gone.test")
    internet.site("kept.test")
    made = sandbox(policy=BOTH)
    snapshot = made.snapshot()
    made.set_policy(ONE)
    with made.fork() as fork:
        assert fork.policy == made.policy
        assert denied(ask(fork, GET, "gone.test"))
        assert ask(fork, GET, "kept.test").endswith("hello")
    made.rollback(snapshot)
    assert denied(ask(made, GET, "gone.test")), "the snapshot was of another time, and brings no policy back"
    assert ask(made, GET, "kept.test").endswith("hello")
    narrow = sandbox(snapshot=snapshot.id, policy=ONE)
    assert denied(ask(narrow, GET, "gone.test")), "the one that is named, and not both"
    own = sandbox(snapshot=snapshot.id)
    assert ask(own, GET, "gone.test").endswith("hello")
    made.set_policy(None)
    assert denied(ask(made, GET, "kept.test"))
    assert internet.strays() == []


def test_what_a_change_allows_is_what_asking_for_everything_finds(sandbox: SandboxFactory, internet: Internet) -> None:
    hosts, paths, methods = ("a.test", "b.test"), ("/x", "/y/1"), ("GET", "DELETE")
    for host in hosts:
        internet.site(host)
    documents = (
        {"egress": {"allow": [{"host": "a.test", "methods": ["GET"]}, {"host": "b.test", "paths": ["/x"]}]}},
        {
            "egress": {
                "allow": [{"host": "a.test", "paths": ["/**"]}, {"host": "b.test", "paths": ["/y/*"]}],
                "deny": [{"host": "a.test", "paths": ["/x"], "methods": ["GET"]}],
            }
        },
    )
    made = sandbox(policy=documents[0])
    every = [*itertools.product(hosts, paths, methods)]
    probe = "answer([exchange(h, 80, get(h, p, method=m)).startswith('HTTP/1.1 200') for h, p, m in given])"
    found: list[list[bool]] = []
    for document in documents:
        made.set_policy(document)
        found.append(ask(made, probe, *every))
        said = [explain(load(document), method, f"http://{host}{path}").allowed for host, path, method in every]
        assert said == found[-1]
    changes = diff(load(documents[0]).snapshot, load(documents[1]).snapshot)
    for kind, before, after in (("allowed", False, True), ("denied", True, False)):
        asked = {host for (host, _, _), one, two in zip(every, *found, strict=True) if (one, two) == (before, after)}
        assert {change.where for change in changes if change.kind == kind} == asked
    assert internet.strays() == []


def test_a_sandbox_without_a_policy_is_given_one_with_its_secret_and_its_authority(
    sandbox: SandboxFactory, internet: Internet, tmp_path: Path
) -> None:
    internet.site("api.test")
    (tmp_path / "token").write_text("correct-horse-battery-staple")
    policy = {
        "egress": {"allow": [{"host": "api.test", "secret": "TOKEN"}]},
        "secrets": {
            "TOKEN": {"from": {"file": str(tmp_path / "token")}, "bind": {"host": "api.test", "header": "x-key"}}
        },
    }
    made = sandbox()
    assert made.exec("curl -sS -m 60 https://api.test/").exit_code != 0
    assert made.set_policy(policy) == made.policy
    done = made.exec('curl -sS -m 60 -H "x-key: $TOKEN" https://api.test/; echo; echo $TOKEN', check=True)
    word, token = done.stdout.splitlines()
    assert word == "hello"
    assert token.startswith("pdk_")
    (request,) = internet.requests("api.test")
    assert request.field("x-key") == "correct-horse-battery-staple"
    assert internet.strays() == []
