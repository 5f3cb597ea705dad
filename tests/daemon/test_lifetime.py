"""Who starts the daemon, what ends with a client, and what a daemon leaves to the next one."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import resource
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import types
from contextlib import closing
from pathlib import Path

import pytest

import paddock
from paddock import Mount, Sandbox
from paddock.backends.guest import _program
from paddock.client import DaemonTransport, _control, _daemon, daemon_status, default_transport, session, stop_daemon
from paddock.daemon.main._code import Code
from paddock.errors import DaemonLostError, InvalidArgumentError, NotConfiguredError, PaddockError, SandboxDiedError
from paddock.linux import local_sockets, namespaces, seccomp
from paddock.linux.syscall import MACHINE
from paddock.linux.syscall_names import numbers
from paddock.model import ConnectPort, SandboxId
from tests.conftest import gateway_pid, private_state, supervisors
from tests.daemon.conftest import Start, daemon_pid
from tests.linux.child import descriptors
from tests.orphans import PATIENCE_SECONDS, wait_until
from tests.supervisor.conftest import configure

_HOLDS = "box = Sandbox.create(level='jail', ttl_seconds=300)\nsay(box.id)\nsys.stdin.readline()\n"


_SAYS_ON = "say(box.exec('printf on').stdout)\nsys.stdin.readline()\n"


def _lives(sandbox: str, state_dir: Path) -> bool:
    return (state_dir / "run" / sandbox).is_dir()


def test_of_many_clients_that_come_at_once_one_starts_the_daemon(state_dir: Path, program: Start) -> None:
    asks = "sys.stdin.readline()\nSandbox.list()\nsay(1)\n"
    elsewhere = ({"TMPDIR": f"/nowhere/{n}", "XDG_RUNTIME_DIR": f"/nowhere/{n}"} for n in range(20))
    programs = [program("say(0)\n" + asks * 2 + "sys.stdin.readline()\n", **environ) for environ in elsewhere]
    for one in programs:
        assert one.hears() == "0"
    assert daemon_status(state_dir) is None, "to import paddock starts nothing"
    for daemons in (1, 2):
        for one in programs:
            one.tell()
        for one in programs:
            assert one.hears() == "1"
        status = daemon_status(state_dir)
        assert status is not None
        assert status.sessions == len(programs)
        assert (state_dir / "daemon.log").read_text().count(" listens: ") == daemons
        os.kill(status.pid, signal.SIGKILL)


@pytest.mark.both
def test_what_the_daemon_writes_is_its_owners_alone(state_dir: Path) -> None:
    """Also where somebody opens the state directory to others: the database has the values of `env`."""
    with Sandbox.create(env={"KEY": "value"}, ttl_seconds=60, transport=default_transport(state_dir)) as box:
        box.exec("head -c 3000000 /dev/zero | tr '\\0' x")
        box.start("head -c 3000000 /dev/zero | tr '\\0' y", background=True).wait()
        box.snapshot("one")
        found = [
            path
            for place in state_dir.iterdir()
            if place.name
            not in ("pool", "templates", "supervisor")  # what others inside are to read, or the kernel's own
            for path in (place, *(place.rglob("*") if place.is_dir() else ()))
            if not path.is_symlink() and path.stat().st_mode & 0o077
        ]
        names = {path.name for path in state_dir.iterdir()}
    assert found == []
    assert {"paddock.db", "outputs", "audit", "daemon.sock"} <= names


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.both
@pytest.mark.parametrize("how", ["killed", "ended", "killed with a child that holds its connections"])
def test_what_is_not_persistent_ends_with_its_program(how: str, state_dir: Path, program: Start) -> None:
    forks = "if not os.fork():\n    time.sleep(600)\n" if "child" in how else ""
    held = program(
        "stays = Sandbox.create(level='jail', persistent=True, ttl_seconds=300)\nsay(stays.id)\n"
        "box = Sandbox.create(level='jail', ttl_seconds=300)\nsay(box.id)\n" + forks + "say(1)\nsys.stdin.readline()\n"
    )
    stays, ends = held.hears(), held.hears()
    held.hears()
    children = _children(held.process.pid)
    if how == "ended":
        held.tell()
        held.process.wait(60)
    else:
        held.kill()
    try:
        assert wait_until(lambda: not _lives(ends, state_dir))
        assert _lives(stays, state_dir)
        transport = default_transport(state_dir)
        with pytest.raises(SandboxDiedError, match="the program that made it ended"):
            Sandbox.connect(ends, transport=transport)
        Sandbox.connect(stays, transport=transport).kill()
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


def test_a_sandbox_ends_with_the_last_program_that_connected_to_it(state_dir: Path, program: Start) -> None:
    first = program(_HOLDS)
    id = first.hears()
    second = program(f"box = Sandbox.connect({id!r})\nsay(1)\nsys.stdin.readline()\n{_SAYS_ON}")
    second.hears()
    first.kill()
    transport = default_transport(state_dir)
    assert wait_until(lambda: _sessions(state_dir) == 1)  # the second one
    assert transport is not None
    second.tell()
    assert second.hears() == "on"
    second.kill()
    assert wait_until(lambda: not _lives(id, state_dir))


def test_the_next_daemon_too_lets_one_live_as_long_as_a_program_that_connected_to_it(
    state_dir: Path, program: Start
) -> None:
    """Its maker dies with the daemon."""
    first = program(_HOLDS)
    id = first.hears()
    second = program(f"box = Sandbox.connect({id!r})\nsay(1)\nsys.stdin.readline()\n{_SAYS_ON}")
    second.hears()
    os.kill(daemon_pid(state_dir), signal.SIGKILL)
    first.kill()
    Sandbox.list(transport=default_transport(state_dir))  # the next daemon starts
    assert wait_until(lambda: _sessions(state_dir) == 1)  # what the maker left has been done
    second.tell()
    assert second.hears() == "on"
    second.kill()
    assert wait_until(lambda: not _lives(id, state_dir))


def _sessions(state_dir: Path) -> int:
    status = daemon_status(state_dir)
    assert status is not None
    return status.sessions


def test_a_killed_daemon_takes_nothing_with_it_and_the_next_one_knows_the_sessions(
    state_dir: Path, program: Start
) -> None:
    silent, calls = program(_HOLDS), program(_HOLDS + "say(box.exec('cat f').stdout)\nsys.stdin.readline()\n")
    first, second = silent.hears(), calls.hears()
    transport = default_transport(state_dir)
    box = Sandbox.create(level="jail", ttl_seconds=300, transport=transport)
    process = box.start("sleep 0.2; head -c 10M /dev/zero; echo kept; sleep 300", background=True)
    box.filesystem.write("f", "content")
    old = daemon_pid(state_dir)
    os.kill(old, signal.SIGKILL)
    assert box.filesystem.read_text("f") == "content"
    assert daemon_pid(state_dir) != old
    with box.attach(process.id) as again:
        with pytest.raises(DaemonLostError, match=process.id):
            process.kill()  # a handle of the daemon before is none of this one's
        said = bytearray()
        while not said.endswith(b"kept\n"):
            said += again.stdout.read(1 << 20)
        assert len(said) == (10 << 20) + len("kept\n")
    assert _lives(first, state_dir)
    silent.kill()  # it has not called since: the daemon that knows it is dead
    assert wait_until(lambda: not _lives(first, state_dir))
    calls.kill()
    assert wait_until(lambda: not _lives(second, state_dir))
    box.kill()


def test_sandboxes_of_a_program_that_dies_while_there_is_no_daemon_end_with_the_next(
    state_dir: Path, program: Start
) -> None:
    held, first = program(_HOLDS), program(_HOLDS)
    id, shared = held.hears(), first.hears()
    second = program(f"box = Sandbox.connect({shared!r})\nsay(1)\nsys.stdin.readline()\n{_SAYS_ON}")
    second.hears()
    os.kill(daemon_pid(state_dir), signal.SIGKILL)
    held.kill()
    first.kill()
    assert _lives(id, state_dir)
    assert {one.id for one in Sandbox.list(transport=default_transport(state_dir))} <= {id, shared}
    assert wait_until(lambda: not _lives(id, state_dir))
    second.tell()
    assert second.hears() == "on", "it has another program"
    second.kill()
    assert wait_until(lambda: not _lives(shared, state_dir))


@pytest.mark.both
def test_a_restart_loses_no_sandbox_and_no_background_command(state_dir: Path) -> None:
    transport = default_transport(state_dir)
    box = Sandbox.create(level="jail", ttl_seconds=300, transport=transport)
    box.exec("mkfifo gate")
    process = box.start("echo before; read line < gate; echo after", background=True)
    old = daemon_pid(state_dir)
    assert stop_daemon(state_dir, ends_sessions=False)
    assert daemon_status(state_dir) is None
    assert box.exec("echo here").stdout == "here\n"
    assert daemon_pid(state_dir) != old
    with box.attach(process.id) as again:
        assert again.stdout.read(100) == b"before\n"
    box.kill()


def test_a_daemon_has_left_when_the_next_one_holds_its_lock(state_dir: Path) -> None:
    """Another program may start the next one before the lock is ever seen free."""
    Sandbox.list(transport=default_transport(state_dir))
    now = daemon_status(state_dir)
    assert now is not None
    assert not _control._has_left(state_dir, now.instance)  # pyright: ignore[reportPrivateUsage]
    assert _control._has_left(state_dir, "the one before")  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("where", ["in the row", "in files of an older paddock"])
def test_a_session_that_names_another_process_ends_and_keeps_nothing(
    where: str, state_dir: Path, program: Start
) -> None:
    """A pid says little: it is used again, and a thread's is one as well."""
    held = program(_HOLDS)
    id = held.hears()
    stranger = subprocess.Popen(["sleep", "600"])
    os.kill(daemon_pid(state_dir), signal.SIGKILL)
    with closing(sqlite3.connect(state_dir / "paddock.db")) as db, db:
        (recorded,) = db.execute("SELECT sessions FROM sandboxes").fetchone()
        (own,) = json.loads(recorded)
        pids = enumerate((1, stranger.pid, threading.get_native_id(), -1))
        sessions = [own, *({**own, "token": f"{number:032x}", "pid": pid} for number, pid in pids)]
        if where == "in the row":
            db.execute("UPDATE sandboxes SET sessions = ?", (json.dumps(sessions),))
        else:
            db.execute("UPDATE sandboxes SET sessions = '[]'")
            files = state_dir / "sessions"
            files.mkdir()
            for session in sessions:
                first = json.dumps({**session, "sandboxes": ["sb_gone"]})
                (files / f"{session['token']}.json").write_text(f"{first}\n{id}\nsb_to")
            (files / "torn.json").write_text(first[:40])
            (files / "strange.json").write_text(first.replace(session["token"], "../../x"))
    try:
        assert [one.id for one in Sandbox.list(transport=default_transport(state_dir))] == [id]
        assert _sessions(state_dir) == 1, "the program that lives"
        assert stranger.poll() is None
        assert not (state_dir / "sessions").exists()
        held.kill()
        assert wait_until(lambda: not _lives(id, state_dir))
    finally:
        stranger.kill()
        stranger.wait()


def test_stop_ends_what_is_not_persistent(state_dir: Path) -> None:
    transport = default_transport(state_dir)
    box = Sandbox.create(level="jail", ttl_seconds=300, transport=transport)
    stays = Sandbox.create(level="jail", ttl_seconds=300, persistent=True, transport=transport)
    assert stop_daemon(state_dir)
    assert not _lives(box.id, state_dir)
    assert stays.exec("echo on").stdout == "on\n"
    stays.kill()
    assert stop_daemon(state_dir)
    assert not stop_daemon(state_dir), "and starts none to stop it"


def test_a_daemon_leaves_while_trees_are_being_deleted(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kill has answered before, and the next daemon deletes what this one leaves."""
    slow = (
        "import time;from paddock.daemon.main import start;from paddock.daemon.sandboxes.cleanup import Cleanup;"
        "start._CLOSE_SECONDS=0.2;Cleanup.remove_outputs=lambda self,id:time.sleep(600);main(o)"
    )
    bootstrap = _daemon._BOOTSTRAP.removesuffix("main(o)")  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(_daemon, "_BOOTSTRAP", bootstrap + slow)
    box = Sandbox.create(level="jail", ttl_seconds=300, persistent=True, transport=default_transport(state_dir))
    box.kill()
    assert stop_daemon(state_dir)


def test_what_is_under_way_when_the_daemon_leaves_is_said_to_be_unknown(state_dir: Path, program: Start) -> None:
    writes = program(
        "box = Sandbox.create(level='jail', ttl_seconds=300)\n"
        "file = box.files.open('f', 'wb')\nfile.write(b'half')\nsay(box.id)\nsys.stdin.readline()\n"
        "try:\n    file.close()\nexcept Exception as error:\n    say(error.code)\n"
        "say(box.files.exists('f'))\nsys.stdin.readline()\n"
    )
    id = writes.hears()
    old = daemon_pid(state_dir)
    ending = os.pidfd_open(old)
    os.kill(old, signal.SIGTERM)
    assert select.select([ending], [], [], 60)[0], "it has not ended"
    os.close(ending)
    writes.tell()
    assert writes.hears() == DaemonLostError.code
    assert writes.hears() == "False", "the file is whole, or as it was"
    Sandbox.connect(id, transport=default_transport(state_dir)).kill()


def test_an_idle_daemon_leaves_and_the_next_call_starts_another(state_dir: Path) -> None:
    (state_dir / "config.toml").write_text("idle_exit_seconds = 1\n")
    default_transport(state_dir).control("status")
    old = daemon_pid(state_dir)
    session(state_dir).close()
    assert wait_until(lambda: daemon_status(state_dir) is None)
    Sandbox.list(transport=default_transport(state_dir))
    assert daemon_pid(state_dir) != old


def test_a_paused_sandbox_keeps_no_daemon_and_is_resumed_by_the_next(state_dir: Path) -> None:
    (state_dir / "config.toml").write_text("idle_exit_seconds = 1\n")
    transport = default_transport(state_dir)
    box = Sandbox.create(level="jail", persistent=True, ttl_seconds=300, transport=transport)
    process = box.start("while ! test -e go; do sleep 0.1; done; echo on", background=True)
    old = daemon_pid(state_dir)
    box.pause(force=True)
    session(state_dir).close()
    assert wait_until(lambda: daemon_status(state_dir) is None)
    assert supervisors(state_dir)
    box = Sandbox.connect(box.id, transport=transport)
    assert daemon_pid(state_dir) != old
    assert box.state == "paused"
    box.resume()
    box.filesystem.write("go", "")
    assert box.attach(process.id).wait().code == 0
    box.kill()


def test_a_daemon_knows_its_modules_and_settings_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("paddock.made_up", "another.made_up"):
        module = types.ModuleType(name)
        module.__file__ = str(tmp_path / name)
        (tmp_path / name).touch()
        monkeypatch.setitem(sys.modules, name, module)
    settings = tmp_path / "config.toml"
    for path in (settings, tmp_path / "paddock.made_up"):
        code = Code(settings, tmp_path)
        assert not code.has_changed()
        (tmp_path / "another.made_up").write_text("not ours")
        assert not code.has_changed()
        path.write_text("another")
        assert code.has_changed()
        assert code.has_changed()
        code.close()


def test_a_daemon_asks_for_each_module_only_after_a_change_near_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = Code(tmp_path / "config.toml", tmp_path)
    (tmp_path / "new").touch()
    assert not code.has_changed()
    asked: list[object] = []
    monkeypatch.setattr(os, "stat", lambda path, **_: asked.append(path) or os.lstat(path))
    assert not code.has_changed()
    assert len(asked) == 1
    code.close()


def test_an_idle_daemon_makes_room_when_its_settings_change_and_a_busy_one_says_so(
    state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    transport = default_transport(state_dir)
    with Sandbox.create(level="jail", persistent=True, ttl_seconds=300, transport=transport):
        old = daemon_pid(state_dir)
        (state_dir / "config.toml").write_text('level = "jail"\n')
        session(state_dir).close()
        box = Sandbox.create(level="jail", persistent=True, ttl_seconds=300, transport=transport)
    session(state_dir).close()
    Sandbox.connect(box.id, transport=transport)
    assert daemon_pid(state_dir) == old
    assert "paddock daemon restart" in caplog.text
    box.kill()
    session(state_dir).close()
    assert wait_until(lambda: daemon_status(state_dir) is None)
    Sandbox.list(transport=transport)
    assert daemon_pid(state_dir) != old


def test_a_busy_daemon_of_another_protocol_is_named_and_the_command_that_is_named_replaces_it(
    state_dir: Path, program: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds = program(_HOLDS + _SAYS_ON)
    id = holds.hears()
    old = daemon_pid(state_dir)
    monkeypatch.setattr("paddock.client._session.PROTOCOL", 99)
    with pytest.raises(NotConfiguredError, match=rf"pid {old}\) .* \(paddock daemon restart\)"):
        Sandbox.list(transport=default_transport(state_dir))
    assert daemon_pid(state_dir) == old, "status is spoken by every version, and what is in use stays"
    assert stop_daemon(state_dir, ends_sessions=False)
    monkeypatch.undo()
    assert [one.id for one in Sandbox.list(transport=default_transport(state_dir))] == [id]
    assert daemon_pid(state_dir) != old
    holds.tell()
    assert holds.hears() == "on"


def test_an_idle_daemon_of_another_protocol_makes_room(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Sandbox.list(transport=default_transport(state_dir))
    old = daemon_pid(state_dir)
    session(state_dir).close()
    monkeypatch.setattr("paddock.client._session.PROTOCOL", 99)
    assert wait_until(lambda: daemon_status(state_dir) is None), "it leaves when it is greeted"
    monkeypatch.undo()
    Sandbox.list(transport=default_transport(state_dir))
    assert daemon_pid(state_dir) != old


@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_a_state_directory_takes_its_sandboxes_and_its_daemon_along(how: str, state_dir: Path, program: Start) -> None:
    configure(state_dir, idle_seconds=0.5)
    holds = program("stays = Sandbox.create(level='jail', persistent=True, ttl_seconds=300)\nsay(1)\n" + _HOLDS)
    assert holds.hears() == "1"
    holds.hears()
    daemon = os.pidfd_open(daemon_pid(state_dir))
    agents = [os.pidfd_open(pid) for pid in supervisors(state_dir)]
    moved = state_dir.with_name(state_dir.name + ".moved")
    if how == "deleted":
        while state_dir.exists():  # the supervisor deletes in it as well
            shutil.rmtree(state_dir, ignore_errors=True)
    else:
        state_dir.rename(moved)
    try:
        for process in (daemon, *agents):
            assert select.select((process,), (), (), PATIENCE_SECONDS)[0], "it goes on without its state directory"
            os.close(process)
        state_dir.mkdir(exist_ok=True)
        assert Sandbox.list(transport=default_transport(state_dir)) == ()
    finally:
        shutil.rmtree(moved, ignore_errors=True)


@pytest.mark.both
def test_a_state_directory_may_have_a_path_longer_than_a_socket_s_and_no_socket_is_abstract() -> None:
    policy = {"egress": {"allow": [{"host": "example.com"}]}}
    with private_state(suffix="x" * 200) as state_dir:
        transport = default_transport(state_dir)
        with Sandbox.create(level="jail", policy=policy, max_children=1, transport=transport) as box:
            box.start(["python3", "-c", _SERVES], background=True)
            assert wait_until(lambda: _answers(transport, box.id))
            box.fork().kill()
            daemon, gateway = daemon_pid(state_dir), gateway_pid(state_dir)
            assert gateway is not None
            owners = supervisors(state_dir)
            ours = [pid for pid in (daemon, gateway, *owners) if os.access(f"/proc/{pid}/fd", os.R_OK)]
            sockets = [line for pid in ours for line in _sockets_of(pid)]  # into some, only root may look
            assert any("daemon.sock" in line for line in sockets)
            # The kernel names a connected socket that asks for credentials itself (unix(7): autobind). None may listen.
            assert [line for line in sockets if "@" in line and _CONNECTED not in line] == []
            os.kill(daemon, signal.SIGKILL)
            box.refresh()
            assert _answers(transport, box.id)


_CONNECTED = " 03 "
"""The state of a socket in /proc/net/unix (linux/net.h)."""


def _sockets_of(pid: int) -> list[str]:
    """Lines of proc_net_unix(5) whose inode the process holds."""
    held = set(descriptors(pid).values())
    lines = Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]
    return [line for line in lines if f"socket:[{line.split()[6]}]" in held]


def test_why_a_daemon_cannot_start_is_said_to_the_one_who_starts_it(state_dir: Path) -> None:
    (state_dir / "config.toml").write_text("levle = 1\n")
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="there is no key 'levle'"):
            Sandbox.list(transport=default_transport(state_dir))
    (state_dir / "config.toml").unlink()
    assert Sandbox.list(transport=default_transport(state_dir)) == ()


def test_one_that_dies_before_its_first_line_is_reported_with_its_last_words(state_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(Path(paddock.__file__).parent, tmp_path / "paddock", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "paddock/daemon/main/start.py").write_text("raise ImportError('a wheel with half of its modules')")
    done = subprocess.run(
        [sys.executable, "-c", "from paddock import Sandbox; Sandbox.list()"],
        env=os.environ | {"PADDOCK_STATE_DIR": str(state_dir), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stderr.splitlines()[-1]
    assert (
        "DaemonUnavailableError: the daemon died while it started: ImportError: a wheel with half of its modules"
        in said
    )


@pytest.mark.root
def test_a_state_directory_of_another_user_is_refused_and_nothing_is_written_there(state_dir: Path) -> None:
    os.chown(state_dir, 12345, 12345)
    with pytest.raises(NotConfiguredError, match="belongs to uid 12345"):
        Sandbox.list(transport=default_transport(state_dir))
    listener = local_sockets.listen(state_dir, "daemon.sock")
    code = "import os, socket; os.setuid(12345); socket.socket(fileno=0).listen()"
    subprocess.run([sys.executable, "-c", code], stdin=listener, check=True)
    with pytest.raises(NotConfiguredError, match="served by uid 12345"):
        Sandbox.list(transport=default_transport(state_dir))
    listener.close()
    (state_dir / "daemon.sock").unlink()
    assert [path.name for path in state_dir.iterdir()] == ["config.toml"]
    os.chown(state_dir, 0, 0)


@pytest.mark.user
def test_a_state_directory_below_one_that_is_closed_is_named(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(NotConfiguredError, match="closed/state cannot be used: Permission denied"):
        Sandbox.list(transport=default_transport(tmp_path / "closed" / "state"))


@pytest.mark.both
def test_a_state_directory_to_which_anyone_may_write_is_refused(state_dir: Path) -> None:
    state_dir.chmod(0o777)
    with pytest.raises(NotConfiguredError, match="anyone may write"):
        Sandbox.list(transport=default_transport(state_dir))
    assert [path.name for path in state_dir.iterdir()] == ["config.toml"]
    state_dir.chmod(0o700)


@pytest.mark.parametrize("refusal", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_where_files_cannot_be_locked_no_daemon_starts_and_a_sentence_says_why(
    refusal: int, state_dir: Path, program: Start
) -> None:
    """As on a network file system. A filter of system calls refuses flock(2), as those do (nfs(5), fuse(4))."""
    refused = program(
        "from paddock.errors import NotConfiguredError\nfrom paddock.linux import prctl, seccomp\n"
        f"verdicts = {{{numbers(MACHINE)['flock']}: seccomp.fail_with({refusal})}}\nprctl.set_no_new_privileges()\n"
        f"seccomp.Filter(seccomp.compile({seccomp.AUDIT_ARCH[MACHINE]}, verdicts, seccomp.ALLOW)).install()\n"
        "try:\n    Sandbox.list()\nexcept NotConfiguredError as error:\n    say(error.message)\n    say(error.hint)\n"
        "sys.stdin.readline()\n"
    )
    assert refused.hears() == f"{state_dir} cannot be locked: {os.strerror(refusal)}"
    assert "set PADDOCK_STATE_DIR" in refused.hears()
    assert {path.name for path in state_dir.iterdir()} == {"daemon.lock", "config.toml"}


@pytest.mark.both
def test_nothing_is_needed_of_the_first_callers_runtime_directory(
    state_dir: Path, program: Start, tmp_path: Path
) -> None:
    """A logout removes it."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    first = program(_HOLDS + _SAYS_ON, XDG_RUNTIME_DIR=str(runtime))
    id = first.hears()
    old = daemon_pid(state_dir)
    assert f"XDG_RUNTIME_DIR={runtime}\0" in Path(f"/proc/{old}/environ").read_text()
    runtime.rmdir()  # nothing lies in it
    first.tell()
    assert first.hears() == "on"
    assert stop_daemon(state_dir, ends_sessions=False)
    second = program(f"box = Sandbox.connect({id!r})\n" + _SAYS_ON + _HOLDS, XDG_RUNTIME_DIR=str(runtime))
    assert second.hears() == "on"
    new = daemon_pid(state_dir)
    assert new != old
    assert f"XDG_RUNTIME_DIR={runtime}\0" in Path(f"/proc/{new}/environ").read_text()
    second.tell()
    assert second.hears() != id, "it makes others"


@pytest.mark.both
@pytest.mark.parametrize("flags", [namespaces.NEWNS, namespaces.NEWNS | namespaces.NEWUSER])
def test_a_client_in_other_namespaces_uses_the_daemon_and_never_gets_another_directory_than_it_sees(
    flags: int, state_dir: Path, program: Start, tmp_path: Path
) -> None:
    """The supervisor has its first caller's mounts."""
    if os.geteuid() and not flags & namespaces.NEWUSER:
        pytest.skip("an ordinary user makes a mount namespace in a user namespace only")
    shared, hidden = tmp_path / "shared", tmp_path / "hidden"
    for place in (shared, hidden):
        place.mkdir()
        (place / "f").write_text(place.name)
    with Sandbox.create(mounts=[Mount(source=str(hidden))], transport=default_transport(state_dir)) as first:
        assert first.exec("cat f").stdout == "hidden"
    daemon = daemon_pid(state_dir)
    elsewhere = program(
        "import subprocess\nfrom paddock import Mount\nfrom paddock.errors import InvalidArgumentError\n"
        "from paddock.linux import namespaces\nuid, gid = os.geteuid(), os.getegid()\n"
        f"namespaces.unshare({flags})\n"
        f"if {flags} & namespaces.NEWUSER:\n"
        "    maps = [(0, uid, 1)], [(0, gid, 1)]\n"
        "    namespaces.write_id_maps(os.getpid(), *maps, deny_setgroups=True)\n"
        "subprocess.run(['mount', '--make-rprivate', '/'], check=True)\n"
        f"subprocess.run(['mount', '-t', 'tmpfs', 'none', {str(hidden)!r}], check=True)\n"
        f"os.mkdir({str(hidden / 'below')!r})\n"
        f"for place in {str(hidden)!r}, {str(hidden / 'below')!r}:\n"
        "    try:\n        say(Sandbox.create(mounts=[Mount(source=place)]).exec('ls').stdout)\n"
        "    except InvalidArgumentError as error:\n        say(error.message)\n"
        f"say(Sandbox.create(mounts=[Mount(source={str(shared)!r})]).exec('cat f').stdout)\n"
        "sys.stdin.readline()\n"
    )
    assert elsewhere.hears().endswith("it is another directory")
    assert elsewhere.hears().endswith("it isn't there")
    assert elsewhere.hears() == "shared"
    assert daemon_pid(state_dir) == daemon


def test_a_dead_daemon_that_nobody_reaps_is_replaced_at_once(state_dir: Path, program: Start) -> None:
    """As in a container whose pid 1 reaps nothing."""
    reaps_none = program(
        "import ctypes, signal\nfrom pathlib import Path\nfrom paddock.client import daemon_status\n"
        "assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER\n"
        f"for _ in range(3):\n    Sandbox.list()\n    pid = daemon_status({str(state_dir)!r}).pid\n"
        "    os.kill(pid, signal.SIGKILL)\n    while ') Z ' not in Path(f'/proc/{pid}/stat').read_text(): pass\n"
        "say(len(Sandbox.list()))\nsys.stdin.readline()\n"
    )
    assert reaps_none.hears() == "0"


def test_a_spoilt_caller_does_not_spoil_the_daemon(state_dir: Path) -> None:
    text = (
        "import os, resource, signal\nos.umask(0)\nos.nice(5)\nos.chdir('/usr')\n"
        "open('/proc/self/oom_score_adj', 'w').write('500')\n"
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))\n"
        "for limit in (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE):\n"
        "    resource.setrlimit(limit, (1 << 20, resource.getrlimit(limit)[1]))\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "from paddock import Sandbox\nSandbox.list()\n"
    )
    spoilt = {"SECRET_OF_THE_CALLER": "x", "PYTHONPATH": "/nowhere"}
    environment = os.environ | {"PADDOCK_STATE_DIR": str(state_dir)} | spoilt
    reader, writer = os.pipe()
    command = [sys.executable, "-c", text]
    subprocess.run(command, check=True, env=environment, capture_output=True, pass_fds=[writer])  # to their ends
    os.close(writer)
    assert os.read(reader, 1) == b"", "the daemon holds what its caller had inherited"
    os.close(reader)
    pid = daemon_pid(state_dir)
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Umask"] == "0022"
    assert int(fields["SigBlk"], 16) == 0
    assert not int(fields["SigIgn"], 16) >> (signal.SIGCHLD - 1) & 1
    for limit in (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE):
        hard = resource.getrlimit(limit)[1] if os.geteuid() else resource.RLIM_INFINITY
        assert resource.prlimit(pid, limit) == (hard, hard)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    environ = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"SECRET_OF_THE_CALLER" not in environ
    assert b"PYTHONPATH" not in environ
    assert os.sched_getaffinity(pid) == os.sched_getaffinity(0)
    assert os.sched_getscheduler(pid) == os.SCHED_OTHER
    if os.geteuid() == 0:
        assert os.getpriority(os.PRIO_PROCESS, pid) == 0
        assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "0\n"


def test_a_program_is_told_once_by_what_the_daemon_is_configured_otherwise(state_dir: Path) -> None:
    def warned(**environment: str) -> list[str]:
        code = "from paddock import Sandbox\nfor _ in range(2): Sandbox.list()\n"
        code += "from paddock.client._session import session\nsession().close()\nSandbox.list()"
        ours = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        ours |= {"PADDOCK_STATE_DIR": str(state_dir)} | environment
        done = subprocess.run([sys.executable, "-c", code], env=ours, capture_output=True, text=True, check=True)
        return done.stderr.splitlines()

    assert warned(DOCKER_HOST="unix:///one") == [], "it starts the daemon"
    assert warned(DOCKER_HOST="unix:///one", UNRELATED="x") == []
    (line,) = warned(https_proxy="http://127.0.0.1:9", SSL_CERT_FILE="/another")
    assert "another value of DOCKER_HOST, SSL_CERT_FILE, https_proxy; " in line
    assert "paddock daemon restart" in line


def test_a_variable_that_has_no_effect_is_refused_with_the_line_to_write(state_dir: Path) -> None:
    code = "from paddock import Sandbox\nSandbox.list()"
    ours = {**os.environ, "PADDOCK_STATE_DIR": str(state_dir), "PADDOCK_RUNSC": "/usr/bin/runsc"}
    done = subprocess.run([sys.executable, "-c", code], env=ours, capture_output=True, text=True, check=False)
    assert "NotConfiguredError: PADDOCK_RUNSC has no effect" in done.stderr
    assert f'runsc = "/..." into {state_dir}/config.toml' in done.stderr
    assert daemon_status(state_dir) is None


def test_a_daemon_that_does_not_answer_is_waited_for_and_not_replaced(state_dir: Path, program: Start) -> None:
    """So it is when the machine sleeps: all stop at once, and go on."""
    transport = default_transport(state_dir)
    box = Sandbox.create(level="jail", ttl_seconds=300, transport=transport)
    process = box.start("while :; do date +%s > now; done", background=True)
    daemon = daemon_pid(state_dir)
    stopped = (daemon, *supervisors(state_dir))
    before = _connections(daemon)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        programs = [program("say(len(Sandbox.list()))\nsys.stdin.readline()\n") for _ in range(4)]
        assert wait_until(lambda: _connections(daemon) == before + len(programs))
        told = f"waiting for the daemon of {state_dir} (pid {daemon}), which doesn't answer\n"
        assert [one.says_on_stderr() for one in programs] == [told] * len(programs)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert {one.hears() for one in programs} == {"1"}
    assert (daemon_pid(state_dir), *supervisors(state_dir)) == stopped
    assert [one.id for one in box.processes() if one.status is None] == [process.id]
    box.kill()


def test_who_waits_for_a_daemon_that_starts_or_leaves_is_told_so_once(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_daemon, "TELL_SECONDS", 0.0)
    said: list[str] = []
    with open(state_dir / "daemon.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        class Leaves(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                said.append(record.getMessage())
                fcntl.flock(lock, fcntl.LOCK_UN)

        logger, handler = logging.getLogger("paddock"), Leaves()
        logger.addHandler(handler)
        try:
            assert Sandbox.list(transport=default_transport(state_dir)) == ()
        finally:
            logger.removeHandler(handler)
    assert said[0] == f"waiting for the daemon of {state_dir}, which starts or leaves"
    assert len(said) == len(set(said))


def _connections(daemon: int) -> int:
    """Taken, or still in the queue (unix(7): both have the listener's name)."""
    return Path("/proc/net/unix").read_text(errors="surrogateescape").count(f"daemon.sock.{daemon}\n")


_SERVES = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8000, bind='127.0.0.1')"


def test_an_upgrade_keeps_sandboxes_commands_and_what_serves_a_port(
    state_dir: Path, tmp_path: Path, program: Start, caplog: pytest.LogCaptureFixture
) -> None:
    old = tmp_path / "old"
    shutil.copytree(Path(paddock.__file__).parent, old / "paddock", ignore=shutil.ignore_patterns("__pycache__"))
    (old / "paddock/native").mkdir()
    shutil.copy(_program.program(), old / "paddock/native" / _program.shipped().name)  # as a wheel has it
    version = old / "paddock/__init__.py"
    version.write_text(version.read_text().replace(paddock.__version__, "0.0.1"))
    older = program(
        f"sys.path.insert(0, {str(old)!r})\n"
        "for name in [name for name in sys.modules if name.startswith('paddock')]:\n    del sys.modules[name]\n"
        "from paddock import Sandbox, __version__\nsay(__version__)\n"
        "box = Sandbox.create(level='jail', ttl_seconds=300, name='upgraded', persistent=True)\n"
        "box.exec('mkfifo gate')\n"
        "say(box.start('echo before; read line < gate; echo after', background=True).id)\n"
        f"say(box.start(['python3', '-c', {_SERVES!r}], background=True).id)\n"
        "sys.stdin.readline()\n"
    )
    assert older.hears() == "0.0.1"
    command, server = older.hears(), older.hears()
    transport = default_transport(state_dir)
    box = Sandbox.connect("upgraded", transport=transport)
    status = daemon_status(state_dir)
    assert status is not None
    assert status.version == "0.0.1", "it is in use: it isn't replaced, and serves this version too"
    assert "paddock daemon restart" in caplog.text
    assert wait_until(lambda: _answers(transport, box.id))
    shutil.rmtree(old)
    box.snapshot()
    box.fork().kill()
    box.filesystem.write("f", "x")
    assert stop_daemon(state_dir, ends_sessions=False)
    assert _answers(transport, box.id)
    status = daemon_status(state_dir)
    assert status is not None
    assert status.version == paddock.__version__
    assert {one.id for one in box.processes() if one.status is None} == {command, server}
    box.exec("echo go > gate")
    with box.attach(command) as again:
        assert again.wait().code == 0
        assert again.stdout.read() == b"before\nafter\n"
    box.kill()


def _answers(transport: DaemonTransport, sandbox: str) -> bool:
    """Whether it serves HTTP, asked from the host."""
    try:
        stream = transport.perform(ConnectPort(sandbox=SandboxId(sandbox), port=8000))
    except PaddockError:
        return False
    stream.write(b"GET / HTTP/1.0\r\n\r\n")
    answer = stream.read(12)
    stream.close()
    return answer == b"HTTP/1.0 200"
