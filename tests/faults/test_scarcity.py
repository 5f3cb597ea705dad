"""No room, no descriptors, no log: a typed error, no effect, and recovery without a restart."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from paddock import Sandbox, Workspace
from paddock.backends.jail import _trials
from paddock.client import daemon_status, default_transport, stop_daemon
from paddock.daemon.main import _reserve
from paddock.daemon.main.start import LOG
from paddock.errors import (
    LevelUnavailableError,
    PaddockError,
    ResourceExhaustedError,
    SandboxDiedError,
    UnrecordedError,
)
from paddock.linux import cgroups
from paddock.model import CheckStorage, CollectGarbage, Diagnose
from paddock.storage import prepare
from paddock.supervisor import layout
from tests.conftest import live_sandboxes, private_state, stop_supervisor, supervisors
from tests.daemon.conftest import daemon_pid
from tests.in_process import in_process
from tests.orphans import descriptors, none_lost, wait_until


def _create(state_dir: Path) -> Sandbox:
    try:
        return Sandbox.create(level="jail", ttl_seconds=60, transport=default_transport(state_dir))
    except (LevelUnavailableError, NotImplementedError) as error:
        pytest.skip(f"no jail here: {error}")


def _use_all(sandbox: Sandbox) -> None:
    """Python imports the parts of the client at their first use, and needs a descriptor for that."""
    sandbox.filesystem.write("file", "content")
    sandbox.filesystem.read("file")
    with sandbox.start("cat", stdin=True) as process:
        process.stdin.close()


@pytest.mark.root
def test_what_cannot_be_recorded_is_not_done(state_dir: Path) -> None:
    _create(state_dir).kill()
    audit = state_dir / layout.AUDIT
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=1", "none", str(audit)], check=True)
    try:
        stop_daemon(state_dir)  # the next one opens the log anew
        with pytest.raises(UnrecordedError, match="cannot be opened: No space left on device") as full:
            Sandbox.create(level="jail", transport=default_transport(state_dir))
        assert (full.value.hint or "").startswith(f"free space on the disk of {audit}: ")
        stop_daemon(state_dir)
        assert live_sandboxes(state_dir) == []
    finally:
        subprocess.run(["umount", str(audit)], check=True)
    sandbox = _create(state_dir)
    assert sandbox.exec("echo again").stdout == "again\n"
    sandbox.kill()


@pytest.mark.root
def test_a_full_state_directory_is_a_typed_error_and_recovers() -> None:
    with private_state() as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "none", str(directory)], check=True)
        try:
            _create(directory).kill()
            ballast = directory / "ballast"
            _fill(ballast)
            with pytest.raises(PaddockError):
                Sandbox.create(level="jail", transport=default_transport(directory)).kill()
            assert live_sandboxes(directory) == []
            ballast.unlink()
            sandbox = _create(directory)
            assert sandbox.exec("echo again").stdout == "again\n"
            sandbox.kill()
        finally:
            stop_supervisor(directory)
            subprocess.run(["umount", "-l", str(directory)], check=True)


def use_up(sandbox: Sandbox) -> None:
    """Asks until there is no room for a record of it."""
    for _ in range(10_000):
        sandbox.refresh()


@pytest.mark.root
def test_on_a_full_disk_nothing_new_begins_and_kill_works() -> None:
    with private_state() as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "none", str(directory)], check=True)
        try:
            here, there = (_create(directory) for _ in range(2))
            _fill(directory / "ballast")
            with pytest.raises(PaddockError):
                use_up(here)
            here.kill()
            assert here.state == "killed"
            there.kill()
            assert wait_until(lambda: live_sandboxes(directory) == [])
            (directory / "ballast").unlink()
            assert here.refresh().state == "killed"
        finally:
            stop_supervisor(directory)
            subprocess.run(["umount", "-l", str(directory)], check=True)


@pytest.mark.root
def test_on_a_full_disk_the_next_daemon_starts_and_kill_works() -> None:
    with private_state() as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m,mode=700", "none", str(directory)], check=True)
        try:
            box = _create(directory)
            stop_daemon(directory)
            _fill(directory / "ballast")
            box.kill()
            assert box.refresh().state == "killed"
            assert live_sandboxes(directory) == []
            default_transport(directory).perform(CollectGarbage())
            assert "uses its reserve" in (directory / LOG).read_text()
            (directory / "ballast").unlink()
            stop_daemon(directory)
            reserve = directory / _reserve.FILE
            reserve.touch()  # of a daemon that was killed while it made it
            _create(directory).kill()
            assert wait_until(lambda: reserve.stat().st_size == _reserve.BYTES), "there is room for one again"
        finally:
            stop_supervisor(directory)
            subprocess.run(["umount", "-l", str(directory)], check=True)


def _background(box: Sandbox) -> None:
    with box.start("echo x", background=True) as process:
        process.wait()


def _fork(box: Sandbox) -> None:
    box.fork().kill()


def _rollback(box: Sandbox) -> None:
    box.rollback(box.snapshots()[0])


_VERBS: dict[str, Callable[[Sandbox], object]] = {
    "exec": lambda box: box.exec("echo x", check=True),
    "background": _background,
    "write": lambda box: box.filesystem.write("written", "x"),
    "read": lambda box: box.filesystem.read("kept"),
    "snapshot": lambda box: box.snapshot(),
    "fork": _fork,
    "pause": lambda box: box.pause(),
    "resume": lambda box: box.resume(),
    "extend": lambda box: box.extend(200),
    "policy": lambda box: box.set_policy({"egress": {"allow": [{"host": "example.com"}]}}),
    "rollback": _rollback,
}


@pytest.mark.root
def test_on_a_full_disk_each_verb_is_done_or_says_why_not_and_is_done_later() -> None:
    with private_state() as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "none", str(directory)], check=True)
        try:
            box = _create(directory)
            box.filesystem.write("kept", "content")
            for verb in _VERBS.values():
                verb(box)
            _fill(directory / "ballast")
            refused = _refusals(box)
            os.kill(daemon_pid(directory), signal.SIGKILL)
            assert wait_until(lambda: daemon_status(directory) is None)
            refused |= {f"{name}, later": error for name, error in _refusals(box).items()}
            (directory / "ballast").unlink()
            # An error of a file says what the kernel said to the sandbox. In its state, a pause that failed: it runs.
            known = ("resource_exhausted", "unrecorded", "file", "invalid_state")
            assert {name: error for name, error in refused.items() if error.code not in known} == {}
            for verb in _VERBS.values():
                verb(box)
            assert box.filesystem.read_text("kept") == "content"
            assert live_sandboxes(directory) == [box.id]
            box.kill()
        finally:
            (directory / "ballast").unlink(missing_ok=True)
            stop_supervisor(directory)
            subprocess.run(["umount", "-l", str(directory)], check=True)


def _refusals(box: Sandbox) -> dict[str, PaddockError]:
    refused: dict[str, PaddockError] = {}
    for name, verb in _VERBS.items():
        try:
            verb(box)
        except PaddockError as error:
            refused[name] = error
    return refused


def test_without_descriptors_a_stream_fails_typed_and_works_again_later(state_dir: Path) -> None:
    sandbox = _create(state_dir)
    _use_all(sandbox)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(ResourceExhaustedError):
            sandbox.start("cat", stdin=True)
        assert sandbox.exec("echo needs none").stdout == "needs none\n"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert sandbox.exec("echo again").stdout == "again\n"
    sandbox.kill()
    assert live_sandboxes(state_dir) == []


@pytest.mark.root
def test_on_a_full_disk_the_next_supervisor_starts_and_knows_what_died() -> None:
    with private_state() as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "none", str(directory)], check=True)
        try:
            living, dead = (_create(directory) for _ in range(2))
            record = json.loads((directory / layout.RUN / dead.id / "state.json").read_bytes())
            _fill(directory / "ballast")
            for pid in (*supervisors(directory), int(record["pid"])):
                os.kill(pid, signal.SIGKILL)
            assert wait_until(lambda: not supervisors(directory))
            with contextlib.suppress(UnrecordedError):  # what can't be recorded is not done
                assert living.exec("echo alive").stdout == "alive\n"
            (directory / "ballast").unlink()
            assert living.exec("echo alive").stdout == "alive\n"
            living.kill()
            with pytest.raises(SandboxDiedError, match=dead.id):
                dead.exec("true")
            assert dead.refresh().state in ("killed", "failed")
            assert dead.info.reason
            assert live_sandboxes(directory) == []
        finally:
            stop_supervisor(directory)
            subprocess.run(["umount", "-l", str(directory)], check=True)


@pytest.mark.root
def test_a_full_pool_refuses_loses_nothing_and_has_room_again() -> None:
    with private_state() as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2500m,mode=700", "none", str(directory)], check=True)
        try:
            if prepare(directory, image_bytes=1 << 30).image is None:
                pytest.skip("no image can be made here")
            transport = default_transport(directory)
            kept = _create(directory)
            kept.exec("echo precious >file; sync file", cwd="/workspace", check=True)
            fillers = [_create(directory)]

            def fill_up(make: Callable[[], Sandbox]) -> None:
                """Each filler takes what there is, and the pool grows for the next one, as far as the disk goes."""
                while True:
                    fill = "i=0; while fallocate -l 64M $i; do i=$((i+1)); done; yes >rest"
                    assert not fillers[-1].exec(fill, cwd="/workspace").ok
                    fillers.append(make())

            for make in (lambda: _create(directory), kept.fork):  # the kernel may find room again in between
                with pytest.raises(ResourceExhaustedError, match="paddock gc"):
                    fill_up(make)
            assert len(fillers) > 1, "it grew"
            assert kept.exec("cat file", cwd="/workspace").stdout == "precious\n"
            for filler in fillers:
                filler.kill()

            def room() -> bool:
                report = transport.perform(CollectGarbage())
                return report.after.fill < 0.2

            assert wait_until(room, seconds=60)
            child = kept.fork()
            assert child.exec("cat file", cwd="/workspace").stdout == "precious\n"
            assert not [c for c in transport.perform(CheckStorage(scrub=True)) if c.status == "missing"]
            child.kill()
            kept.kill()
        finally:
            stop_supervisor(directory)
            subprocess.run(["umount", "-l", str(directory)], check=True)


_WITH_FEW_PROCESSES = """
from paddock.errors import PaddockError
from paddock.linux import cgroups
from paddock.model import CheckStorage, CollectGarbage, Diagnose
from paddock.storage import prepare
base = cgroups.Base.open("paddock_few_" + os.environ["PADDOCK_STATE_DIR"].rpartition("/")[2])
group = base.create("few", cgroups.GroupLimits())
with group.joining() as joining:
    for tasks in joining[:-1] if base.unified else joining:
        os.write(tasks, b"0")
outcomes = []
for most in (*range(1, 16), 400):
    group.limit(cgroups.GroupLimits(pids=most))
    try:
        with Sandbox.create(level="jail", ttl_seconds=60) as s:
            outcomes.append(s.exec("echo fine").stdout)
    except PaddockError as error:
        outcomes.append(error.code)
ended = Sandbox.list(ended=True)
say(outcomes=outcomes, states=[s.state for s in ended], reasons=[s.info.reason for s in ended])
"""


@pytest.mark.root
def test_with_a_full_table_of_processes_every_call_says_so_and_later_ones_work(
    program: Callable[..., Any], state_dir: Path
) -> None:
    name = f"paddock_few_{state_dir.name}"
    try:
        crowded = program(_WITH_FEW_PROCESSES)
        heard = crowded.hears()
        assert crowded.ends() == 0
    finally:
        stop_supervisor(state_dir)
        base = cgroups.Base.open(name)
        base.group("few").kill()
        base.group("few").remove(timeout_seconds=20)
        base.remove()
    # "sandbox": its agent could make no process for the command.
    assert set(heard["outcomes"]) - {"sandbox"} == {"resource_exhausted", "fine\n"}
    assert heard["outcomes"][0] == "resource_exhausted"
    assert heard["outcomes"][-1] == "fine\n", "it has recovered without a restart"
    assert set(heard["states"]) <= {"killed", "failed"}
    assert all(heard["reasons"]), "each says why"
    assert live_sandboxes(state_dir) == []


def test_however_few_descriptors_there_are_nothing_is_half_made(state_dir: Path) -> None:
    with _create(state_dir) as first:
        _use_all(first)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    outcomes: set[str] = set()
    for most in range(3, used + 16, 3):  # a number may be free below the highest that is used
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        try:
            with Sandbox.create(level="jail", ttl_seconds=60, transport=default_transport(state_dir)) as box:
                box.filesystem.write("file", "content")
                assert box.filesystem.read_text("file") == "content"
                outcomes.add(box.exec("echo fine").stdout)
        except ResourceExhaustedError as error:
            outcomes.add(error.code)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert not [s for s in Sandbox.list(transport=default_transport(state_dir)) if s.state != "killed"]
    assert outcomes == {"resource_exhausted", "fine\n"}
    assert live_sandboxes(state_dir) == []


def test_a_hundred_lives_leave_no_descriptor_in_client_and_daemon(state_dir: Path) -> None:
    def life() -> None:
        sandbox = _create(state_dir)
        sandbox.exec("true")
        sandbox.filesystem.write("f", "x")
        sandbox.kill()

    with in_process(state_dir):
        for _ in range(3):
            life()
        before = len(descriptors())
        for _ in range(30):
            life()
        assert none_lost(before + 2)


def test_a_damaged_record_of_a_sandbox_stops_nobody(state_dir: Path) -> None:
    first = _create(state_dir)
    (state_dir / layout.RUN / first.id / "state.json").write_bytes(b'{"id": ')
    second = _create(state_dir)
    assert second.exec("echo fine").stdout == "fine\n"
    second.kill()
    first.kill()
    assert first.state == "killed"


def _fill(ballast: Path) -> None:
    with open(ballast, "wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


@pytest.fixture
def small_disk(state_dir: Path, tmp_path: Path) -> Generator[Path]:
    """An ext4 of its own below the state directory."""
    image = tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(400 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m0", image], check=True, capture_output=True)
    subprocess.run(["mount", "-o", "loop", image, state_dir], check=True)
    try:
        prepare(state_dir, image_bytes=1 << 30)
        yield state_dir
    finally:
        stop_supervisor(state_dir)
        # The last mount of the pool goes with the mount namespace of the supervisor's last child, which no one tells.
        assert wait_until(lambda: subprocess.run(["umount", state_dir], check=False).returncode == 0)


@pytest.mark.root
def test_sandboxes_are_made_again_after_the_disk_below_the_pool_was_full(
    small_disk: Path,
) -> None:
    """The kernel keeps the error of a write that failed, and refuses volatile overlays until a program has taken it."""
    transport = default_transport(small_disk)
    workspace = Workspace.open("full", transport=transport)
    victim = Sandbox.create(level="jail", workspace="full", ttl_seconds=300, transport=transport)
    with (small_disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(1 << 20))
    wrote = victim.exec("head -c 20000000 /dev/urandom >y; sync y", timeout_seconds=60)
    assert "No space left" in wrote.stderr
    (small_disk / "filler").unlink()
    victim.kill()
    for _ in range(2):
        sandbox = Sandbox.create(level="jail", workspace="full", ttl_seconds=60, transport=transport)
        assert sandbox.exec("echo again").stdout == "again\n"
        sandbox.kill()
    checks = {check.name: check for check in transport.perform(Diagnose()).checks}
    assert checks["file system"].status == "ok"
    workspace.delete(discard=True)


def test_doctor_says_that_nothing_can_be_mounted_in_the_pool(state_dir: Path) -> None:
    prepare(state_dir)
    (state_dir / layout.POOL).rename(state_dir / "elsewhere")
    check = _trials.pool(state_dir, os.getpid())
    assert check.status == "missing"
    assert "No such file" in check.detail
