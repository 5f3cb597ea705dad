"""Evidence: what crossed the wire is in the log and nothing else is; the log survives its writers, and shows what was
done to it to whoever has a copy and the public key."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import IO, Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

from paddock.audit import MOST_RECORDS, read_public_key, read_records, verify
from paddock.client import stop_daemon
from paddock.model import ListAudit
from paddock.supervisor import layout
from tests.audit.record_schema import wrong
from tests.conftest import SandboxFactory, gateway_pid, stop_gateway
from tests.daemon.conftest import daemon_pid
from tests.orphans import wait_until

from .rig import ADDRESS, Internet, Records

SPLICED, INSPECTED, RAW = "spliced.test", "inspected.test", "93.184.216.40"
POLICY = {
    "egress": {
        "allow": [
            {"host": SPLICED},
            {"host": INSPECTED, "methods": ["GET"], "paths": ["/yes/*"]},
            {"cidr": f"{RAW}/32", "ports": [2222]},
        ]
    }
}

CONNECTS = r"""
import json, socket, ssl, sys, threading
lenient = ssl._create_unverified_context()
made = []
def talk(host, port, tls, words):
    try:
        with socket.create_connection((host, port), 60) as s:
            made.append([host, port])
            if tls: s = lenient.wrap_socket(s, server_hostname=host)
            for one in words:
                s.sendall(one)
                if not s.recv(9999): break
            s.close()
    except OSError: pass
def get(host, path): return f"GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode()
work = []
for n in range(4):
    work += [("spliced.test", 443, True, [get("spliced.test", f"/{n}")] * 2)]
    work += [("spliced.test", 80, False, [get("spliced.test", f"/{n}")] * 2)]
    work += [("inspected.test", 443, True, [get("inspected.test", f"/yes/{n}"), get("inspected.test", "/no")])]
    work += [("93.184.216.40", 2222, False, [b"ping"])]
    work += [("93.184.216.34", 81, False, [b"ping"])]
    work += [("198.18.0.1", 3128, False, [b"CONNECT evil.test:443 HTTP/1.1\r\nhost: evil.test:443\r\n\r\n"])]
threads = [threading.Thread(target=talk, args=one) for one in work]
for t in threads: t.start()
for t in threads: t.join()
print(json.dumps(made))
"""


def populate(internet: Internet) -> None:
    internet.site(SPLICED)
    internet.site(INSPECTED, address="93.184.216.35")
    internet.listen(RAW, 2222, lambda connection, arrival: connection.sendall(connection.recv(99)))


def arrived(internet: Internet) -> Counter[tuple[str, int]]:
    """What was on the wire: every connection to anywhere."""
    return Counter((one.address, one.port) for one in internet.arrivals)


def dialled(records: Records, sandbox: str) -> Counter[tuple[str, int]]:
    allowed = [one for one in records.of(sandbox, "egress.dial") if one.allowed]
    return Counter((one.detail["address"], one.detail["port"]) for one in allowed)


def test_every_connection_on_the_wire_has_one_decision_and_every_decision_one_connection(
    sandbox: SandboxFactory, internet: Internet, records: Records
) -> None:
    populate(internet)
    made = sandbox(policy=POLICY)
    done = made.exec(("python3", "-c", CONNECTS), timeout_seconds=110)
    assert done.exit_code == 0, done
    inside = Counter(port for _, port in json.loads(done.stdout))

    assert arrived(internet) == dialled(records, made.id)
    assert {address for address, _ in arrived(internet)} == {ADDRESS, "93.184.216.35", RAW}
    connects = records.of(made.id, "egress.connect")
    assert len({one.detail["flow"] for one in connects}) == len(connects), "one for each connection"
    proxied = [one for one in connects if one.detail["host"] == "evil.test"]
    recorded = Counter(one.detail["port"] for one in connects)
    recorded.update({443: -len(proxied), 3128: len(proxied)})
    assert recorded == inside
    asked = Counter(request.target for name in (SPLICED, INSPECTED) for request in internet.requests(name))
    judged = [one for one in records.of(made.id, "egress.request") if one.allowed]
    seen = Counter(one.detail["host"] for one in judged)
    assert seen[INSPECTED] == sum(number for target, number in asked.items() if target.startswith("/yes/")) == 4
    assert "/no" not in asked
    assert internet.strays() == []
    report = verify(records.directory)
    assert report.ok, report
    written = [json.loads(line) for path in records.directory.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert [problem for record in written if (problem := wrong(record))] == [], "all of it is of a published kind"


BURST = f"""
import sys
from paddock import Sandbox
s = Sandbox.create(policy={POLICY!r}, persistent=True, name="burst", ttl_seconds=300)
print(s.id, flush=True)
s.start(["sh", "-c", "n=0; while :; do n=$((n+1)); curl -s -m 60 http://{SPLICED}/$n; done"], background=True)
n = 0
while True:
    s.filesystem.write(f"f{{n}}", "x")
    print(n, flush=True)
    n += 1
"""

Paddock = Callable[..., str]


@pytest.fixture
def paddock(state_dir: Path, tmp_path: Path) -> Paddock:
    environment = {**os.environ, "PADDOCK_STATE_DIR": str(state_dir)}

    def run(*arguments: str, code: int = 0) -> str:
        argv = [sys.executable, "-m", "paddock", *arguments]
        done = subprocess.run(argv, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == code, done
        return done.stdout

    return run


@pytest.fixture
def burst(state_dir: Path, internet: Internet) -> Generator[subprocess.Popen[str]]:
    """A program that writes files as fast as it can, and a sandbox of it that calls out as fast as it can."""
    populate(internet)
    environment = {**os.environ, "PADDOCK_STATE_DIR": str(state_dir)}
    argv = [sys.executable, "-c", BURST]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()
    subprocess.run(
        [sys.executable, "-m", "paddock", "kill", "burst"], env=environment, capture_output=True, check=False
    )


def _told(stream: IO[str] | None, number: int) -> list[str]:
    assert stream is not None
    return [line.strip() for line in itertools.islice(stream, number)]


def _segment_of(directory: Path, action: str) -> Path:
    """The one with most of these."""
    return max(directory.glob("*.jsonl"), key=lambda path: path.read_bytes().count(f'"action":"{action}"'.encode()))


def test_nothing_is_lost_with_daemon_and_gateway_killed_and_nothing_can_be_changed_afterwards(
    burst: subprocess.Popen[str], paddock: Paddock, state_dir: Path, internet: Internet, tmp_path: Path
) -> None:
    id, *_ = _told(burst.stdout, 40)
    assert wait_until(lambda: len(internet.requests(SPLICED)) >= 40, seconds=100)
    gateway = gateway_pid(state_dir)
    assert gateway is not None
    os.kill(gateway, 9)
    os.kill(daemon_pid(state_dir), 9)
    burst.kill()
    assert burst.stdout is not None
    written = 39 + len([line for line in burst.stdout.read(1 << 20).splitlines(keepends=True) if line.endswith("\n")])
    burst.wait()

    directory = state_dir / layout.AUDIT
    records = Records(directory)
    report = verify(directory)
    assert report.ok, report
    wanted = ListAudit(sandbox=id, tag="file.write", limit=MOST_RECORDS)
    asked = {one.detail["path"] for one in read_records(directory, wanted)}
    assert {f"f{n}" for n in range(written)} <= asked, "each write that was answered was recorded before"
    assert arrived(internet) <= dialled(records, id), "each connection was recorded before it was made"

    paddock("kill", "burst")
    paddock("audit", "export", "-o", "out.jsonl")
    public = read_public_key(paddock("audit", "key").encode())
    _assert_stated(json.loads(paddock("audit", "statement", id)), public, records, id)
    report = verify(directory, [public])
    assert report.ok, report
    assert report.signed > report.records - 20, "by the daemon that came after, those of the dead too"
    assert verify(tmp_path / "out.jsonl", [public]).ok
    for action in ("egress.dial", "file.write"):
        _assert_shown(directory, _segment_of(directory, action).name, public, tmp_path)


def _assert_stated(statement: dict[str, Any], public: bytes, records: Records, id: str) -> None:
    """By a library of other people."""
    key = SSlibKey.from_crypto(Ed25519PublicKey.from_public_bytes(public), keyid=statement["signatures"][0]["keyid"])
    envelope = Envelope.from_dict(statement)
    assert len(envelope.verify([key], 1)) == 1
    predicate = json.loads(envelope.payload)["predicate"]
    assert predicate["sandbox"] == id
    assert predicate["policyRevisions"] == [records.of(id, "egress.dial")[0].detail["revision"]]
    assert predicate["audit"]["head"] >= 0
    assert len(predicate["template"]) > 0


def _assert_shown(directory: Path, name: str, public: bytes, tmp_path: Path) -> None:
    """What is done to a copy is told with that copy and the public key, by its first bad record."""
    lines = (directory / name).read_bytes().splitlines(keepends=True)
    at = len(lines) // 2
    tampered = {
        "edit": ([*lines[:at], lines[at].replace(b'"kind":"', b'"kind":"_'), *lines[at + 1 :]], at),
        "delete": ([*lines[:at], *lines[at + 1 :]], at),
        "reorder": ([*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]], at),
        "truncate": (lines[:at], at),
    }
    for how, (changed, first) in tampered.items():
        copy = tmp_path / "copy"
        shutil.copytree(directory, copy)
        (copy / name).write_bytes(b"".join(changed))
        fault = verify(copy, [public]).fault
        assert fault is not None, how
        assert (how, fault.segment, fault.seq) == (how, name, first)
        shutil.rmtree(copy)


def test_nobody_inside_can_write_to_it_or_stop_it(
    sandbox: SandboxFactory, internet: Internet, records: Records, shared_state: Path, who: str | None
) -> None:
    populate(internet)
    made, twin = sandbox(policy=POLICY), sandbox(policy=POLICY)
    twin_pid = gateway_pid(shared_state)
    attack = f"""
        for place in {records.directory} {shared_state} /proc/1/root{records.directory}; do
            echo x >> $place/x; rm -rf $place; : > $place; test -e $place && echo FOUND $place
        done 2>/dev/null
        find / -xdev -name '*.jsonl' 2>/dev/null
        kill -9 -1; kill -9 1; kill -9 {twin_pid} 2>/dev/null
        dd if=/dev/zero of=/tmp/fill bs=1M 2>/dev/null
        true
    """
    assert "FOUND" not in made.exec(("sh", "-c", attack), user=who, timeout_seconds=100).stdout
    assert gateway_pid(shared_state) == twin_pid
    before = len(records.of(twin.id, "egress.connect"))
    assert twin.exec(f"curl -sS -m 60 http://{SPLICED}/").stdout == "hello"
    assert len(records.of(twin.id, "egress.connect")) == before + 1
    assert verify(records.directory).ok


FULL = f"""
import sys
from paddock import Sandbox
from paddock.errors import UnrecordedError
s = Sandbox.create(policy={POLICY!r}, ttl_seconds=300)
def curl(): return s.exec("curl -s -m 60 http://{SPLICED}/").stdout
def heard(word): assert sys.stdin.readline().strip() == word
again = "read x; n=0; while curl -sf -o /dev/null -m 60 http://{SPLICED}/; do n=$((n+1)); done; echo $n; read x;" \
    "curl -s -o /dev/null -m 60 http://{SPLICED}/; echo $?"
running = s.start(["sh", "-c", again], stdin=True)
print(curl(), flush=True)
heard("full")
running.stdin.write(b"go\\n")
print(running.stdout.read(99).decode().strip(), flush=True)
heard("once more")
running.stdin.write(b"go\\n")
print(running.stdout.read(99).decode().strip(), flush=True)
written = 0
try:
    while True:
        s.filesystem.write("last", str(written))
        written += 1
except UnrecordedError as error:
    print(s.state, flush=True)
heard("room")
assert s.filesystem.read_text("last") in (str(written - 1), str(written))  # the outcome alone may have had no room
print(curl(), flush=True)
s.kill()
"""


@pytest.mark.root
def test_with_no_room_for_the_log_nothing_begins_and_what_runs_reaches_nobody(
    state_dir: Path, internet: Internet
) -> None:
    """What was promised to the segments is used up first; from then on the wire is silent."""
    populate(internet)
    audit = state_dir / layout.AUDIT
    audit.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "none", audit], check=True)
    environment = {**os.environ, "PADDOCK_STATE_DIR": str(state_dir)}
    argv = [sys.executable, "-c", FULL]
    try:
        with subprocess.Popen(argv, env=environment, stdin=-1, stdout=-1, text=True, bufsize=1) as program:
            assert _told(program.stdout, 1) == ["hello"]
            _fill(audit / "filler")
            print("full", file=program.stdin)
            _told(program.stdout, 1)
            there = arrived(internet)
            print("once more", file=program.stdin)
            assert _told(program.stdout, 1) != ["0"]
            assert arrived(internet) == there, "the wire is silent"
            assert _told(program.stdout, 1) == ["running"], "a daemon that can't record has done nothing"
            (audit / "filler").unlink()
            print("room", file=program.stdin)
            assert _told(program.stdout, 1) == ["hello"]
        report = verify(audit)
        assert report.ok, report
    finally:
        stop_daemon(state_dir)  # it holds files of the log open
        stop_gateway(state_dir)
        subprocess.run(["umount", audit], check=True)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
