"""Sandboxes that programs inside a sandbox make: theirs alone, within what it has, and dead when it is."""

from __future__ import annotations

import json
import os
import signal
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from paddock import Limits, Sandbox
from paddock.client import daemon_status, default_transport
from paddock.errors import InvalidArgument, SandboxDied
from tests.daemon.conftest import daemon_pid
from tests.orphans import wait_until

Make = Callable[..., Sandbox]
LIMITS = Limits(cpus=2, memory_mib=512, processes=256, disk_mib=256, tmp_mib=64)


def inside(box: Sandbox, program: str, *, check: bool = True) -> str:
    """What a program in there prints."""
    text = "from paddock import *\nimport json, os, socket, threading\n" + textwrap.dedent(program)
    return box.exec(["python3", "-c", text], check=check, timeout_seconds=120).stdout


def refused(box: Sandbox, request: str) -> str:
    """The code with which the door answers a call that must not be."""
    program = f"""
        try:
            {request}
            print("allowed")
        except PaddockError as error:
            print(error.code)
    """
    return inside(box, program).strip()


@pytest.fixture
def outer(sandbox: Make) -> Sandbox:
    return sandbox(nested=2, limits=LIMITS)


def test_the_best_of_several_attempts_is_kept(outer: Sandbox) -> None:
    outer.exec("echo shared > base; mkdir -p old/deep; echo x > old/deep/file; ln -s base link", check=True)
    program = """
        children = Sandbox.current().fork(2)
        for number, child in enumerate(children):
            child.filesystem.write("/workspace/result", str(number))
            child.exec("rm -r /workspace/old; chmod 750 /workspace/result", check=True)
        scores = [int(child.filesystem.read_text("/workspace/result")) for child in children]
        Sandbox.current().promote(children[scores.index(max(scores))])
        for child in children:
            child.kill()
        print(sorted(os.listdir("/workspace")), os.readlink("link"), oct(os.stat("result").st_mode & 0o777))
    """
    assert inside(outer, program) == "['base', 'link', 'result'] base 0o750\n"
    assert outer.exec("cat base result").stdout == "shared\n1"


def test_a_child_is_empty_or_has_the_files_of_this_instant(outer: Sandbox) -> None:
    outer.exec("echo here > file", check=True)
    program = """
        fork, fresh = Sandbox.current().fork(), Sandbox.create(name="fresh", env={"COLOUR": "red"})
        print(fork.exec("cat file; hostname").stdout.split()[0], fresh.exec("ls; echo $COLOUR", input=b"").stdout)
        print(fresh.exec(["cat"], input=b"typed").stdout, fresh.exec("exit 3").exit_code)
        print(sorted(child.name or "" for child in Sandbox.list()))
    """
    assert inside(outer, program) == "here red\n\ntyped 3\n['', 'fresh']\n"


def test_children_have_no_more_than_their_part(outer: Sandbox) -> None:
    assert refused(outer, 'Sandbox.create(limits={"memory_mib": 257})') == "invalid_argument"
    assert refused(outer, "Sandbox.create(limits={'memory_mib': 'all'})") == "invalid_argument"
    assert refused(outer, "Sandbox.create(ttl_seconds=100000)") == "invalid_argument"
    assert refused(outer, "[Sandbox.create() for _ in range(3)]") == "resource_exhausted"
    children = [box for box in Sandbox.list() if box.info.owner == f"nested:{outer.id}"]
    assert len(children) == 2  # their owner sees them
    for child in children:
        limits = child.info.spec.limits
        assert (limits.memory_mib, limits.processes, limits.disk_mib, limits.cpus) == (256, 128, 128, 1)
        assert child.info.expires_at <= outer.info.expires_at + 1
        assert (child.info.level, child.info.template) == (outer.level, outer.info.template)


def test_a_child_cannot_be_reached_from_elsewhere(sandbox: Make) -> None:
    one, other = sandbox(nested=1), sandbox(nested=1)
    child = inside(one, "print(Sandbox.create().id)").strip()
    assert (
        refused(other, f"Sandbox.list and Sandbox({{'id': '{child}', 'name': None, 'state': ''}}).exec('true')")
        == "not_found"
    )
    assert inside(other, "print(Sandbox.list())") == "[]\n"
    # Nor its own, but for forks and promotion; nor one that is not there.
    for id in (one.id, other.id):
        assert refused(other, f"Sandbox({{'id': '{id}', 'name': None, 'state': ''}}).kill()") in (
            "policy_denied",
            "not_found",
        )
    assert other.exec("true").ok
    assert one.exec("true").ok


def test_children_have_no_children_and_need_to_be_allowed(sandbox: Make) -> None:
    box = sandbox(nested=1)
    program = """
        child = Sandbox.current().fork()
        print(child.exec(["python3", "-c", "import paddock"]).exit_code, child.exec("echo door=$PADDOCK_DOOR").stdout)
    """
    assert inside(box, program) == "1 door=\n\n"
    with pytest.raises(InvalidArgument, match="nested"):
        sandbox(nested=65)


def test_everything_dies_with_the_outer_one(sandbox: Make) -> None:
    box = sandbox(nested=2, limits=LIMITS)
    ids = json.loads(inside(box, "print(json.dumps([child.id for child in Sandbox.current().fork(2)]))"))
    children = [Sandbox.connect(id) for id in ids]
    box.kill()

    def all_dead() -> bool:
        return all(child.refresh().ended_at is not None for child in children)

    assert wait_until(all_dead)
    with pytest.raises(SandboxDied, match="belonged to"):
        children[0].exec("true")


def test_a_program_inside_goes_on_when_the_daemon_dies(state_dir: Path) -> None:
    transport = default_transport(state_dir)
    outer = Sandbox.create(level="jail", nested=2, limits=LIMITS, ttl_seconds=300, transport=transport)
    program = """
        from paddock import Sandbox
        print(Sandbox.create().exec("echo one").stdout, flush=True)
        open("gate").read()
        print(Sandbox.create().exec("echo two").stdout, flush=True)
    """
    outer.exec("mkfifo gate")
    process = outer.start(["python3", "-c", textwrap.dedent(program)], background=True)
    assert wait_until(lambda: outer.output(process.id).read() == b"one\n\n")
    os.kill(daemon_pid(state_dir), signal.SIGKILL)
    assert wait_until(lambda: daemon_status(state_dir) is None)
    outer.exec("echo > gate", check=True)
    with outer.attach(process.id) as again:
        assert again.wait().code == 0, outer.output(process.id, "stderr").read()
        assert again.stdout.read() == b"one\n\ntwo\n\n"
    outer.kill()


def test_what_is_no_request_is_answered_or_hung_up_on_and_the_door_stays(outer: Sandbox) -> None:
    program = """
        def knock(data):
            with socket.socket(socket.AF_UNIX) as stream:
                stream.connect(os.environ["PADDOCK_DOOR"])
                stream.settimeout(20)
                stream.sendall(data)
                return stream.recv(65536)[4:].decode()
        frame = lambda body: len(body).to_bytes(4, "big") + body
        print(knock(bytes(4)) == "", knock(b"\\xff" * 4) == "", "invalid_argument" in knock(frame(b"{}")))
        print("invalid_argument" in knock(frame(b"[" * 100000)))
        print("invalid_argument" in knock(frame(b'{"type": "doctor"}')))
        print("invalid_argument" in knock(frame(b'{"type": "fork", "count": 1, "mounts": ["/"]}')))
        print(*(knock(frame(body.encode())).startswith('{"error"') for body in (
            '{"type": "fork", "count": -1}',
            '{"type": "write", "sandbox": "x", "path": "/", "data": "%"}',
        )))
        threads = [threading.Thread(target=Sandbox.list) for _ in range(40)]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
        print(Sandbox.list())
    """
    assert inside(outer, program) == "True True True\nTrue\nTrue\nTrue\nTrue True\n[]\n"


def test_promotion_is_whole_or_not_at_all(sandbox: Make) -> None:
    # In /tmp, whose size is enforced everywhere.
    outer = sandbox(nested=1, limits=LIMITS)
    outer.exec("mkdir /tmp/w; echo mine > /tmp/w/precious; head -c 40M /dev/zero > /tmp/filler", check=True)
    program = """
        child = Sandbox.create()
        def promote(path):
            try:
                Sandbox.current().promote(child, path)
                print("done", end=" ")
            except PaddockError as error:
                print(error.code, end=" ")
            print(sorted(os.listdir("/tmp/w")))
        promote("/nowhere")
        promote("/tmp/w/..")
        child.exec("mkdir /tmp/w; head -c 40M /dev/urandom > /tmp/w/big", check=True)
        promote("/tmp/w")
        child.exec("cd /tmp/w; rm big; mkdir .paddock-promoted .paddock-replaced; echo yes > small", check=True)
        promote("/tmp/w")
    """
    lines = inside(outer, program).splitlines()
    assert lines == [
        "file ['precious']",
        "invalid_argument ['precious']",
        "file ['precious']",
        "done ['small']",
    ]


def test_a_child_is_paused_and_woken_and_the_outer_one_is_not_its_own_to_pause(outer: Sandbox) -> None:
    program = """
        child = Sandbox.create()
        states = []
        child.pause(); states.append(child.state)
        child.resume(); states.append(child.state)
        child.pause()
        states.append(child.exec("echo awake").stdout.strip())
        states += [one.state for one in Sandbox.list()]
        child.kill()
        print(*states)
    """
    assert inside(outer, program) == "paused running awake running\n"
    me = f"paddock._ask('pause', sandbox={outer.id!r})"
    assert refused(outer, f"import paddock; {me}") == "policy_denied"
