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
from paddock.errors import InvalidArgumentError, SandboxDiedError
from tests.daemon.conftest import daemon_pid
from tests.orphans import wait_until

Make = Callable[..., Sandbox]
LIMITS = Limits(cpus=2, memory_mib=512, processes=256, disk_mib=256, tmp_mib=64)


def inside(box: Sandbox, program: str, *, check: bool = True) -> str:
    """What a program in there prints."""
    text = "from paddock import *\nimport json, os, socket, threading\n" + textwrap.dedent(program)
    return box.exec(["python3", "-c", text], check=check, timeout_seconds=120).stdout


def refused(box: Sandbox, request: str) -> str:
    """The code with which the socket answers a call that must not be."""
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
    return sandbox(max_children=2, limits=LIMITS)


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
    assert refused(outer, 'Sandbox.create(limits={"output_mib": 257})') == "invalid_argument"
    assert refused(outer, 'Sandbox.create(limits={"open_files": 4097})') == "invalid_argument"
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
    one, other = sandbox(max_children=1), sandbox(max_children=1)
    child = inside(one, "print(Sandbox.create().id)").strip()
    assert (
        refused(
            other, f"Sandbox.list and Sandbox({{'id': '{child}', 'spec': {{'name': None}}, 'state': ''}}).exec('true')"
        )
        == "not_found"
    )
    assert inside(other, "print(Sandbox.list())") == "[]\n"
    # Nor its own, but for forks and promotion; nor one that is not there.
    for id in (one.id, other.id):
        assert refused(other, f"Sandbox({{'id': '{id}', 'spec': {{'name': None}}, 'state': ''}}).kill()") in (
            "policy_denied",
            "not_found",
        )
    assert other.exec("true").ok
    assert one.exec("true").ok


def test_children_have_no_children_and_need_to_be_allowed(sandbox: Make) -> None:
    box = sandbox(max_children=1)
    program = """
        child = Sandbox.current().fork()
        print(child.exec(["python3", "-c", "import paddock"]).exit_code, child.exec("echo $PADDOCK_SOCKET").stdout)
    """
    assert inside(box, program) == "1 \n\n"
    with pytest.raises(InvalidArgumentError, match="max_children"):
        sandbox(max_children=65)


def test_everything_dies_with_the_outer_one(sandbox: Make) -> None:
    box = sandbox(max_children=2, limits=LIMITS)
    ids = json.loads(inside(box, "print(json.dumps([child.id for child in Sandbox.current().fork(2)]))"))
    children = [Sandbox.connect(id) for id in ids]
    box.kill()

    def all_dead() -> bool:
        return all(child.refresh().ended_at is not None for child in children)

    assert wait_until(all_dead)
    with pytest.raises(SandboxDiedError, match="belonged to"):
        children[0].exec("true")


def test_a_program_inside_goes_on_when_the_daemon_dies(state_dir: Path) -> None:
    transport = default_transport(state_dir)
    outer = Sandbox.create(level="jail", max_children=2, limits=LIMITS, ttl_seconds=300, transport=transport)
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


KNOCK = """
from paddock.wire import Connection, Kind, pack

def connected():
    stream = socket.socket(socket.AF_UNIX)
    stream.settimeout(60)
    stream.connect(os.environ["PADDOCK_SOCKET"])
    return stream

def knock(*frames):
    # The code of each answer, or "closed".
    with connected() as stream:
        there, said = Connection(stream), []
        try:
            stream.sendall(b"".join(frames))
            for _ in frames:
                frame = there.receive()
                said.append(json.loads(frame.body)["code"] if frame.kind is Kind.ERROR else frame.kind.name)
        except (AttributeError, OSError):
            said.append("closed")
        return said

def asked(**request):
    return pack(Kind.OPEN, 7, json.dumps(request).encode())
"""


def knocked(box: Sandbox, program: str) -> list[str]:
    """The lines of a program that speaks to the socket itself."""
    text = f"from paddock import *\nimport array, json, os, socket, threading\n{KNOCK}\n{textwrap.dedent(program)}"
    return box.exec(["python3", "-c", text], check=True, timeout_seconds=120).stdout.splitlines()


def test_what_is_not_the_protocol_is_hung_up_on_and_the_socket_stays(outer: Sandbox) -> None:
    program = """
        hello = pack(Kind.HELLO, 0, b"{}")
        print(knock(bytes(16)), knock(b"\\xff" * 16), knock(b"GET / HTTP/1.1\\r\\n\\r\\n"))
        print(*(knock(hello, pack(kind, 1)) for kind in (Kind.REPLY, Kind.ERROR, Kind.CONTROL, Kind.CLOSE)))
        print(knock(pack(Kind.OPEN, 1, b"{}", descriptors=(0,))), knock(pack(Kind.OPEN, 1, bytes(7 << 20))))
        print(Sandbox.list())
    """
    closed = "['closed']"
    hung_up = " ".join(["['HELLO', 'closed']"] * 4)
    assert knocked(outer, program) == [" ".join([closed] * 3), hung_up, f"{closed} {closed}", "[]"]


def test_what_is_no_request_is_refused_and_the_next_one_is_served(outer: Sandbox) -> None:
    program = """
        me = os.environ["ME"]
        bad = [
            pack(Kind.OPEN, 1, b"[" * 100000),
            pack(Kind.OPEN, 2, b"{}"),
            pack(Kind.OPEN, 3, json.dumps([[]] * 200000).encode()),
            asked(action={"action": "doctor"}),
            asked(action={"action": "sandbox.list"}, control="stop"),
            asked(action={"action": "diagnose"}),
            asked(action={"action": "sandbox.get", "sandbox": me}),
            asked(action={"action": "exec.start", "sandbox": me, "spec": {"argv": ["true"]}}),
            asked(action={"action": "sandbox.fork", "sandbox": me, "count": -1}),
            asked(action={"action": "sandbox.fork", "sandbox": me, "count": 10**400}),
            asked(action={"action": "sandbox.fork", "sandbox": me, "mounts": ["/"]}),
            asked(action={"action": "sandbox.create", "spec": {"mounts": [{"source": "/", "target": "/host"}]}}),
            asked(action={"action": "sandbox.create", "spec": {"name": "\\ud800"}}),
            asked(action={"action": "file.write", "sandbox": "x", "path": "/"}, data="%"),
        ]
        *codes, last = knock(*bad, asked(action={"action": "sandbox.list"}))
        print(*sorted(set(codes)), last, len(codes) == len(bad))
    """
    program = program.replace('os.environ["ME"]', repr(outer.id))
    assert knocked(outer, program) == ["invalid_argument policy_denied REPLY True"]


def test_descriptors_from_inside_are_closed(outer: Sandbox) -> None:
    program = """
        reading, writing = os.pipe()
        with connected() as stream:
            rights = array.array("i", [writing] * 8).tobytes()
            stream.sendmsg([pack(Kind.HELLO, 0, b"{}")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            os.close(writing)
            print(Connection(stream.dup()).receive().kind.name, os.read(reading, 1))
    """
    assert knocked(outer, program) == ["HELLO b''"]


def test_slow_callers_hold_their_own_places_only(outer: Sandbox) -> None:
    program = """
        whole = asked(action={"action": "sandbox.list"})
        slow = []
        for number in range(16):
            slow.append(connected())
            slow[-1].sendall(whole[:20])
            if number == 14:
                print(knock(*[whole] * 3))
        others = [threading.Thread(target=Sandbox.list) for _ in range(24)]
        [thread.start() for thread in others]
        slow.pop(0).close()
        [thread.join() for thread in others]
        for stream in slow:
            for byte in whole[20:]:
                stream.sendall(bytes([byte]))
        print({Connection(stream).receive().body for stream in slow})
    """
    assert knocked(outer, program) == ["['REPLY', 'REPLY', 'REPLY']", "{b'[]'}"]


def test_an_answer_has_bounds_and_nothing_of_the_host(sandbox: Make) -> None:
    outer = sandbox(max_children=2, limits=LIMITS, env={"TOKEN": "mine"}, labels={"of": "mine"})
    program = """
        import paddock
        child, = paddock._ask("sandbox.fork", sandbox=paddock._outer(), count=1)
        print(child["spec"]["env"], child["spec"]["labels"], child["spec"]["mounts"])
        child = Sandbox(child)
        files = child.files
        files.write("most", bytes(4 << 20))
        print(files.read("most") == bytes(4 << 20), child.exec("echo >> most; echo $TOKEN").stdout.strip())
        for ask in (lambda: files.read("most"), lambda: files.write("more", bytes(5 << 20))):
            try:
                ask()
            except PaddockError as error:
                print(error.code, error.hint)
        spec = {"argv": ["head", "-c", "3000000", "/dev/zero"]}
        print(paddock._ask("exec.run", sandbox=child.id, spec=spec)["out"]["file"])
        text = child.exec(spec["argv"]).stdout
        print(len(text), text.strip("\\0").strip())
    """
    assert knocked(outer, program) == [
        "{} {} []",
        "True mine",
        "invalid_argument `promote` moves whole trees",
        "not_configured the daemon ended, or the request is too large",
        "None",
        "1048606 [… 1951424 bytes left out …]",
    ]


def test_promotion_is_whole_or_not_at_all(sandbox: Make) -> None:
    # In /tmp, whose size is enforced everywhere.
    outer = sandbox(max_children=1, limits=LIMITS)
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
    me = f"paddock._ask('sandbox.pause', sandbox={outer.id!r})"
    assert refused(outer, f"import paddock; {me}") == "policy_denied"
