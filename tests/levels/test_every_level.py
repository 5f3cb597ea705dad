"""What holds whatever the wall is made of."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from paddock import Limit, Limits, Sandbox, local
from paddock.audit import read_records
from paddock.errors import InvalidArgumentError, SandboxDiedError, UnsupportedError
from paddock.eval._attacks import attack, bait
from paddock.model import InspectSandbox, ListAudit
from paddock.supervisor import layout
from tests.conftest import SandboxFactory
from tests.orphans import wait_until
from tests.security.attacking import Attacker
from tests.soak.test_cycles import ONCE, at_rest

pytestmark = pytest.mark.timeout(600)  # a machine that is emulated takes minutes to make its first template


SCRIPT = """
import hashlib, pathlib, subprocess
data = pathlib.Path("in").read_bytes()
pathlib.Path("out").write_bytes(data[::-1])
print(subprocess.run(["sh", "-c", "echo $KEY"], capture_output=True, text=True).stdout.strip(), len(data))
raise SystemExit(7)
"""


@pytest.mark.both
def test_the_same_program_does_the_same(create: SandboxFactory, shared_state: Path) -> None:
    data = os.urandom(3 << 20)
    made = create(env={"KEY": "value"})
    made.filesystem.write("/workspace/in", data)
    made.filesystem.write("/workspace/script.py", SCRIPT)
    done = made.exec("python3 script.py", cwd="/workspace")
    assert (done.exit_code, done.stdout, done.stderr) == (7, f"value {len(data)}\n", "")
    assert hashlib.sha256(made.filesystem.read("/workspace/out")).digest() == hashlib.sha256(data[::-1]).digest()
    (record,) = read_records(shared_state / layout.AUDIT, ListAudit(sandbox=made.id, tag="sandbox.create"))
    assert record.result["level"] == made.level


def test_a_sandbox_from_a_snapshot_without_memory_takes_a_directory_of_the_host(
    create: SandboxFactory, level: str, tmp_path: Path
) -> None:
    (tmp_path / "theirs").write_text("theirs")
    base = create()
    base.exec("echo kept > ~/kept", check=True)
    snapshot = base.snapshot()
    if level == "microvm":
        with pytest.raises(InvalidArgumentError, match="has memory"):
            create(snapshot=snapshot.id, mounts=[str(tmp_path)])
    else:
        made = create(snapshot=snapshot.id, mounts=[str(tmp_path)])
        assert made.exec("cat ~/kept theirs; rm theirs").stdout == "kept\ntheirs"
    assert (tmp_path / "theirs").exists()
    snapshot.delete()


@pytest.mark.both
def test_no_attack_gets_through(create: SandboxFactory, shared_state: Path) -> None:
    with bait([shared_state / layout.SUPERVISOR_SOCKET]) as host, create() as made:
        verdicts = attack(made, host)
    assert [one for one in verdicts if one.verdict != "stopped"] == []


@pytest.mark.both
def test_a_neighbour_notices_nothing_and_is_not_reached(attacker: Attacker, bystander: Sandbox) -> None:
    listen = "import socket\ns = socket.create_server(('0.0.0.0', 4321))\nprint('up', flush=True)\ns.accept()"
    bystander.filesystem.write("/workspace/secret", "mine")
    with bystander.start(["python3", "-c", listen]) as process:
        assert process.stdout.read(100) == b"up\n"
        said = attacker.probe(
            "answer([attempt(lambda: open('/workspace/secret').read()),"
            " attempt(lambda: socket.create_connection(('127.0.0.1', 4321), 5).close())])"
        )
        process.kill()
    assert said == ["ENOENT", "ECONNREFUSED"]
    attacker.sandbox.kill()
    assert bystander.filesystem.read_text("/workspace/secret") == "mine"


@pytest.mark.both
def test_it_dies_by_its_deadline_although_it_is_busy(create: SandboxFactory) -> None:
    made = create(ttl_seconds=600)  # a first machine is made as well
    made.start(["sh", "-c", "while :; do :; done"], background=True)
    made.extend(1)
    assert wait_until(lambda: made.refresh().state == "killed", seconds=60)
    assert made.info.limit == "ttl"
    with pytest.raises(SandboxDiedError):
        made.exec("true")


@pytest.mark.both
def test_a_fork_has_the_files_and_goes_its_own_way_and_so_has_its_fork(create: SandboxFactory) -> None:
    parent = create()
    parent.filesystem.write("/workspace/file", "parent")
    try:
        child = parent.fork()
    except UnsupportedError as error:
        pytest.skip(str(error))
    with child:
        assert (child.level, child.filesystem.read_text("/workspace/file")) == (parent.level, "parent")
        child.filesystem.write("/workspace/file", "child")
        with child.fork() as grandchild:
            assert grandchild.exec("cat file", cwd="/workspace").stdout == "child"
            entropy = "od -An -N16 -tx1 /dev/urandom"
            assert len({one.exec(entropy, check=True).stdout for one in (parent, child, grandchild)}) == 3
            assert grandchild.exec("hostname").stdout != parent.exec("hostname").stdout
            for one in (parent, child, grandchild):
                assert one.exec("hostname -f").stdout == one.exec("hostname").stdout
            assert (
                grandchild.exec("grep -c sandbox /etc/hosts").stdout == parent.exec("grep -c sandbox /etc/hosts").stdout
            )
    assert parent.exec("cat file", cwd="/workspace").stdout == "parent"


def test_a_copy_has_nothing_of_the_commands_whose_output_is_read_where_it_was_made(create: SandboxFactory) -> None:
    """Not even of one that is kept for the next daemon."""
    parent = create()
    with parent.start("echo begun; exec sleep 98765") as process:
        assert process.stdout.read(1) == b"b"  # nothing is read before it is kept
        assert wait_until(lambda: bool(parent.exec("pgrep -x sleep").stdout))  # the shell becomes it after its word
        try:
            child = parent.fork()
        except UnsupportedError as error:
            pytest.skip(str(error))
        with child:
            assert child.exec("pgrep -x sleep").stdout == ""
            assert parent.exec("pgrep -x sleep").stdout.strip()


REFUSED = """
import os, sys
ours, theirs = os.pipe()
try:
    while True:
        if not os.fork():
            os.close(theirs)
            os.read(ours, 1)
            os._exit(0)
except OSError:
    os.close(theirs)
try:
    while True: os.wait()
except ChildProcessError:
    sys.exit(int(sys.argv[1]))
"""


@pytest.mark.both
def test_a_limit_is_put_down_to_the_command_that_met_it(create: SandboxFactory) -> None:
    made = create(limits=Limits(processes=40))
    told = made.level == "microvm"  # by its own kernel
    if not told and Limit.PROCESSES not in local().perform(InspectSandbox(sandbox=made.id)).enforced:
        pytest.skip(f"the limit of processes does not hold at level {made.level} here")

    def refused(code: int) -> tuple[int, str | None]:
        done = made.exec(["python3", "-I", "-S", "-c", REFUSED, str(code)])
        return done.exit_code, done.limit

    assert refused(0) == (0, None)
    assert made.exec("false").limit is None
    assert refused(3) == (3, "processes")
    assert made.exec("false").limit is None


@pytest.mark.both
def test_a_rollback_takes_the_files_back(create: SandboxFactory) -> None:
    made = create()
    made.filesystem.write("/workspace/file", "before")
    try:
        snapshot = made.snapshot()
    except UnsupportedError as error:
        pytest.skip(str(error))
    made.filesystem.write("/workspace/file", "after")
    made.rollback(snapshot)
    assert made.exec("cat file", cwd="/workspace").stdout == "before"
    made.delete_snapshot(snapshot)


@pytest.mark.parametrize("cycles", [3, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_lives_leave_nothing_behind(create: SandboxFactory, shared_state: Path, cycles: int) -> None:
    for _ in range(3):
        create().kill()  # what is made once and kept is made
    before, ids = at_rest(shared_state), list[str]()
    for _ in range(cycles):
        made = create()
        assert made.exec("true").ok
        made.kill()
        ids.append(made.id)
    kinds = ("processes", "mounts", "cgroups", "namespaces", "loop_devices", "nft_tables")
    left: dict[str, int] = {}

    def clean() -> bool:
        now = at_rest(shared_state)
        left.update({kind: len(getattr(now, kind)) - len(getattr(before, kind)) for kind in kinds})
        left["files"] = len(now.files - ONCE) - len(before.files - ONCE)
        return all(number <= 0 for number in left.values())

    assert wait_until(clean), left
