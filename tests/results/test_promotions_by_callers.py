"""What is taken over on the host is written by the caller's process: with its umask, its rights, and its death."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from paddock import AsyncSandbox, Mount, Sandbox, local
from paddock.client import _promote, default_transport
from paddock.errors import DaemonLostError, InvalidStateError, PlatformError
from paddock.model import ListAudit
from tests.conftest import SandboxFactory
from tests.daemon.conftest import daemon_pid

_PROMOTE = "import sys; from paddock import Sandbox; Sandbox.connect(sys.argv[1]).promote_mount()"
_DYING = """
import os, signal, sys
from paddock import Sandbox

left = int(sys.argv[2])

def count(event, _):
    global left
    if event.startswith(("open", "os.")):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

import paddock.client._promote as own
promote = own._Writer.apply

def apply(writer, changes):
    sys.addaudithook(count)
    promote(writer, changes)

own._Writer.apply = apply
Sandbox.connect(sys.argv[1]).promote_mount()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    (place / "old").mkdir(parents=True)
    (place / "old" / "one").write_text("1\n")
    (place / "text").write_text("old\n" * 1000)
    (place / "private").write_text("mine\n")
    (place / "text").chmod(0o644)
    (place / "private").chmod(0o600)
    return place


def changed(sandbox: SandboxFactory, project: Path, commands: str) -> Sandbox:
    box = sandbox(mounts=[Mount(source=str(project))])
    box.exec(commands, check=True)
    return box


def python(
    program: str, *arguments: str, before: tuple[str, ...] = (), umask: int = -1
) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, umask=umask)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.both
def test_what_is_new_has_the_callers_umask_and_owner(sandbox: SandboxFactory, project: Path) -> None:
    """The daemon has umask 022, as it leaves its first caller's behind."""
    commands = "mkdir new; echo x > new/file; cp new/file new/program; chmod 755 new/program; echo new > text"
    box = changed(sandbox, project, commands)
    done = python(_PROMOTE, box.id, umask=0o077)
    assert done.returncode == 0, done.stderr
    modes = {name: mode(project / name) for name in ("new", "new/file", "new/program")}
    assert modes == {"new": 0o700, "new/file": 0o600, "new/program": 0o700}
    assert (mode(project / "text"), (project / "text").read_text()) == (0o644, "new\n")
    assert {path.stat().st_uid for path in project.rglob("*")} == {os.getuid()}


@pytest.mark.both
def test_a_mode_that_the_sandbox_has_changed_is_taken_over(sandbox: SandboxFactory, project: Path) -> None:
    box = changed(sandbox, project, "chmod 755 text; chmod 400 private")
    done = python(_PROMOTE, box.id, umask=0o022)
    assert done.returncode == 0, done.stderr
    assert (mode(project / "text"), mode(project / "private")) == (0o755, 0o400)


@pytest.mark.root
def test_a_caller_who_cannot_write_is_told_so_although_the_daemon_could(sandbox: SandboxFactory, project: Path) -> None:
    box = changed(sandbox, project, "echo new > text; rm private")
    read_only = f'mount --bind {project} {project} && mount -o remount,bind,ro {project} && exec "$@"'
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare(1) here")
    done = python(_PROMOTE, box.id, before=("unshare", "--mount", "sh", "-c", read_only, "sh"))
    assert done.returncode == 1
    assert "Read-only file system; 0 of 2 changes are done" in done.stderr
    assert (project / "text").read_text() == "old\n" * 1000
    (record,) = (r for r in local().perform(ListAudit(sandbox=box.id)) if r.action == "mount.promote")
    assert not record.result.get("changes")
    box.promote_mount()
    assert (project / "text").read_text() == "new\n"


@pytest.mark.root
def test_a_caller_for_whom_the_path_is_another_directory_writes_nothing(
    sandbox: SandboxFactory, project: Path, tmp_path: Path
) -> None:
    box = changed(sandbox, project, "echo new > text")
    (tmp_path / "other").mkdir()
    over = f'mount --bind {tmp_path / "other"} {project} && exec "$@"'
    done = python(_PROMOTE, box.id, before=("unshare", "--mount", "sh", "-c", over, "sh"))
    assert "another directory" in done.stderr
    assert os.listdir(tmp_path / "other") == []
    assert (project / "text").read_text() == "old\n" * 1000


def test_a_caller_killed_at_any_step_leaves_whole_files_and_the_next_promotion_goes_on(
    sandbox: SandboxFactory, project: Path
) -> None:
    commands = "mkdir new; for n in 1 2 3 4 5 6; do seq 1000 > new/$n; done; seq 2000 > text; rm -r old"
    box = changed(sandbox, project, commands)
    new = {"text": "".join(f"{n}\n" for n in range(1, 2001))}
    new |= {f"new/{name}": "".join(f"{n}\n" for n in range(1, 1001)) for name in "123456"}
    pristine = project.parent / "pristine"
    shutil.copytree(project, pristine)
    killed, step = 0, 1
    while True:
        done = python(_DYING, box.id, str(step))
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        killed += 1
        for name, content in new.items():
            path = project / name
            if path.exists():
                assert path.read_text() in (content, "old\n" * 1000 if name == "text" else content)
        step += 3
    assert killed > 3
    assert {name: (project / name).read_text() for name in new} == new
    assert not (project / "old").exists()
    box.exec("echo more >> text", check=True)
    box.promote_mount()  # what those who were killed had written is known to be the sandbox's
    assert (project / "text").read_text() == new["text"] + "more\n"


def test_a_promotion_that_outlives_its_daemon_is_asked_for_again_and_goes_on(
    state_dir: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Sandbox.create(
        level="jail", mounts=[Mount(source=str(project))], ttl_seconds=300, transport=default_transport(state_dir)
    )
    box.exec("for n in 1 2 3; do echo $n > $n; done; echo new > text; rm -r old", check=True)
    note = _promote._Writer._note  # pyright: ignore[reportPrivateUsage]

    def last_words(writer: Any, *numbers: int) -> None:
        note(writer, *numbers)
        if writer.done == 3:
            os.kill(daemon_pid(state_dir), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr("paddock.client._promote._Writer._note", last_words)
        with pytest.raises((DaemonLostError, PlatformError, InvalidStateError)):
            box.promote_mount()
    assert (project / "1").exists()
    box.promote_mount()
    assert {name: (project / name).read_text() for name in ("1", "2", "3", "text")} == {
        **{name: f"{name}\n" for name in "123"},
        "text": "new\n",
    }
    box.exec("for n in 1 2 3 text; do echo more >> $n; done", check=True)
    box.promote_mount()  # what was written for the daemon that died is known to be the sandbox's
    assert (project / "1").read_text() == "1\nmore\n"
    box.kill()


def test_a_caller_who_is_cancelled_waits_for_what_is_being_written(
    sandbox: SandboxFactory, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = changed(sandbox, project, "echo new > text")
    begun, go_on = threading.Event(), threading.Event()
    apply = _promote._Writer.apply  # pyright: ignore[reportPrivateUsage]

    def held_up(*arguments: Any) -> None:
        begun.set()
        go_on.wait()
        apply(*arguments)

    async def play() -> None:
        other = await AsyncSandbox.connect(box.id)
        promotion = asyncio.ensure_future(other.promote_mount())
        await asyncio.to_thread(begun.wait)
        promotion.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not promotion.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await promotion

    with monkeypatch.context() as patch:
        patch.setattr(_promote._Writer, "apply", held_up)  # pyright: ignore[reportPrivateUsage]
        asyncio.run(play())
    assert (project / "text").read_text() == "new\n"
    box.exec("echo newer > text", check=True)
    box.promote_mount()
    assert (project / "text").read_text() == "newer\n"
