"""kill -9 of the daemon and of the programs that use it: nothing is left, and the next daemon tells the truth."""

from __future__ import annotations

import itertools
import os
import random
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.leaks import Snapshot, wait_until_clean
from tests.conftest import live_sandboxes, stop_supervisor, supervisors
from tests.daemon.conftest import daemon_pid

Start = Callable[..., Any]
LIST = "say(found={s.id: s.state for s in Sandbox.list(ended=True)})"


@pytest.fixture
def state_dir(module_state: Path) -> Path:
    """No test here kills a supervisor."""
    return module_state


@pytest.mark.both
def test_an_ordinary_sandbox_of_a_killed_daemon_dies_by_its_ttl(program: Start, state_dir: Path) -> None:
    marker = _marker()
    first = program(
        "s = Sandbox.create(level='jail', ttl_seconds=600)\n"
        f"p = s.start(['sh', '-c', 'sleep 600; : {marker}'], background=True)\n"
        "s.extend(2); say(id=s.id); input()"  # from now on: to make it may take longer
    )
    id = first.hears()["id"]
    os.kill(daemon_pid(state_dir), signal.SIGKILL)
    first.kill()
    _until(lambda: not live_sandboxes(state_dir), "the sandbox died by its deadline")
    assert not _processes(marker)
    later = program(LIST).hears()
    assert later["found"].get(id) in ("killed", "failed")


@pytest.mark.both
def test_a_persistent_sandbox_of_a_killed_daemon_is_found_with_all_it_had(program: Start, state_dir: Path) -> None:
    first = program(
        "s = Sandbox.create(level='jail', persistent=True, name='kept', ttl_seconds=120)\n"
        "s.filesystem.write('file', 'content')\n"
        "p = s.start(['sh', '-c', 'echo early; while ! test -e go; do sleep 0.05; done; echo late'], background=True)\n"
        "say(id=s.id, exec=p.id); input()"
    )
    facts = first.hears()
    os.kill(daemon_pid(state_dir), signal.SIGKILL)
    first.kill()
    later = program(
        "s = Sandbox.connect('kept')\n"
        "content = s.filesystem.read_text('file'); s.filesystem.write('go', '')\n"
        f"p = s.attach({facts['exec']!r}); out = b''\n"
        "while data := p.stdout.read(): out += data\n"
        "status = p.wait(); s.kill()\n"
        "say(id=s.id, content=content, out=out.decode(), code=status.code, state=s.state)"
    ).hears()
    assert later == {"id": facts["id"], "content": "content", "out": "early\nlate\n", "code": 0, "state": "killed"}


def test_the_timeout_of_a_background_command_of_a_killed_daemon_holds(program: Start, state_dir: Path) -> None:
    marker = _marker()
    first = program(
        "s = Sandbox.create(level='jail', persistent=True, name='timed', ttl_seconds=120)\n"
        f"p = s.start(['sh', '-c', 'setsid sleep 600 & sleep 600; : {marker}'], background=True, timeout_seconds=6)\n"
        "say(exec=p.id); input()"
    )
    facts = first.hears()
    os.kill(daemon_pid(state_dir), signal.SIGKILL)
    first.kill()
    assert _processes(marker)
    _until(lambda: not _processes(marker), "it was ended with nobody there")
    later = program(
        "s = Sandbox.connect('timed'); status = s.attach({!r}).wait(); left = s.exec('pgrep sleep').stdout; s.kill()\n"
        "say(limit=status.limit, signal=status.signal, left=left)".format(facts["exec"])
    ).hears()
    assert later == {"limit": "time", "signal": 9, "left": ""}


@pytest.mark.parametrize("steps", ["exec", "create write upload kill"], ids=["exec", "the others"])
def test_a_program_or_daemon_killed_in_the_middle_of_anything_leaves_nothing(
    steps: str, program: Start, state_dir: Path, tmp_path: Path
) -> None:
    first = program("with Sandbox.create(level='jail') as s: say(ready=True)")  # the pool and the supervisor are there
    first.hears()
    assert first.ends() == 0, "while it lives it may ask, and so start another daemon"
    _everything_leaves(state_dir)
    before, marker = Snapshot.take(state_dir), _marker()
    (tmp_path / "big").write_bytes(bytes(8 << 20))
    bodies = {
        "create": "say(go=1)\nwhile True: Sandbox.create(level='jail', ttl_seconds=3)",
        "exec": f"say(go=1)\nwhile True: s.exec(['sh', '-c', 'sleep 0.001; : {marker}'])",
        "write": "say(go=1)\nwhile True: s.filesystem.write('file', bytes(1 << 20))",
        "upload": f"say(go=1)\nwhile True: s.filesystem.upload({str(tmp_path)!r}, 'up')",
        "kill": "say(go=1)\nwhile True:\n    Sandbox.create(level='jail', ttl_seconds=3).kill()",
    }
    dice = random.Random(steps)
    for step, kills_daemon in itertools.product(steps.split(), (False, True) * 2):
        # Its deadline counts from now on: to make it may take longer.
        victim = program("s = Sandbox.create(level='jail'); s.extend(3)\n" + bodies[step])
        victim.hears()
        time.sleep(dice.random() * 0.3)  # where it is hit is chance; that it is hit is the test
        if kills_daemon:
            os.kill(daemon_pid(state_dir), signal.SIGKILL)
        victim.kill()
    _until(lambda: not live_sandboxes(state_dir), "all died by their deadline")
    found = program(LIST).hears()["found"]
    assert not {id: state for id, state in found.items() if state in ("running", "creating")}
    assert not _processes(marker)
    _everything_leaves(state_dir)
    wait_until_clean(before, state_dir, ignore=["files", "descriptors"])


def test_two_programs_use_one_state_directory_at_once(program: Start, state_dir: Path) -> None:
    code = (
        "for n in range(5):\n"
        "    with Sandbox.create(level='jail') as s:\n"
        "        assert s.exec(['echo', str(n)]).stdout == f'{n}\\n'\n"
        "        Sandbox.list()\n"
        "say(done=True)"
    )
    both = [program(code) for _ in range(3)]
    assert [one.hears()["done"] for one in both] == [True] * 3
    assert [one.ends() for one in both] == [0] * 3
    assert len(supervisors(state_dir)) <= 1, "one supervisor serves them all"


def test_a_sandbox_made_by_one_program_is_used_and_killed_by_another(program: Start) -> None:
    first = program(
        "s = Sandbox.create(level='jail', name='shared')\n"
        "say(id=s.id); input()\n"
        "from paddock.errors import SandboxDiedError\n"
        "try: s.exec('true'); say(died=False)\n"
        "except SandboxDiedError: say(died=True, state=s.refresh().state)"
    )
    id = first.hears()["id"]
    other = program(
        "s = Sandbox.connect('shared'); out = s.exec('echo hi').stdout; s.kill(); say(id=s.id, out=out)"
    ).hears()
    assert other == {"id": id, "out": "hi\n"}
    first.go_on()
    assert first.hears() == {"died": True, "state": "killed"}


def test_a_program_that_raises_leaves_no_sandbox(program: Start, state_dir: Path) -> None:
    one = program(
        "with Sandbox.create(level='jail', ttl_seconds=600) as s:\n    say(id=s.id)\n    raise RuntimeError('oops')"
    )
    one.hears()
    assert one.ends() == 1
    assert live_sandboxes(state_dir) == []


def _everything_leaves(state_dir: Path) -> None:
    stop_supervisor(state_dir)


def _marker() -> str:
    return f"paddock-fault-{secrets.token_hex(8)}"


def _processes(marker: str) -> list[int]:
    found: list[int] = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and marker.encode() in Path("/proc", name, "cmdline").read_bytes():
                found.append(int(name))
        except OSError:
            continue
    return found


def _until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)
