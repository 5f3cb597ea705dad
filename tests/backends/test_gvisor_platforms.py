"""gVisor's platforms: the best that a sandbox has lived on here; which one, and why, is said.

KVM runs nothing where paddock is made. So what is shown here is all that leads to it and away from it, with the real
runsc: that its sentry gets the device, at its start and with a state that it loads; and that one which stands still
ends nothing but the trial.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from paddock.backends.gvisor import GvisorBackend, _backend, _platforms, _probe, _proof, _trial
from paddock.backends.gvisor._bundle import flags
from paddock.backends.vmm import kvm
from paddock.errors import LevelUnavailableError, ResourceExhaustedError
from paddock.linux import processes
from tests.backends.test_gvisor_memory import Family, MemoryHarness, play
from tests.backends.vmms import furnished
from tests.conformance import Box
from tests.conftest import configure, private_state
from tests.linux.child import descriptors
from tests.orphans import wait_until

KVM = "/dev/kvm"
WORKS = {"terminals": True, "stats": True}
STANDS_STILL = "a program in it has not ended in 15 s"


@pytest.fixture(autouse=True)
def own_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a virtual one, and with a device that can be opened."""
    monkeypatch.setattr(_platforms, "_virtual", lambda: False)
    monkeypatch.setattr(kvm, "DEVICE", Path("/dev/null"))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, bool] | str]:
    """What comes of a trial on each platform, by a runsc that does nothing."""
    program = tmp_path / "runsc"
    program.write_text("#!/bin/sh\necho runsc version 0.0~20991231.0\n")
    program.chmod(0o755)
    configure(tmp_path, runsc=str(program))
    found: dict[str, dict[str, bool] | str] = {"systrap": WORKS, "ptrace": WORKS}
    monkeypatch.setattr(_trial, "attempt", lambda runsc, platform, date: found[platform])  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    return found


def test_kvm_is_tried_on_a_machine_of_its_own_or_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def decided(name: str | None) -> tuple[str | None, tuple[str, ...] | str]:
        return _platforms.why_not_kvm(name), _platforms.without_device(20240729, name)

    assert decided(None) == (None, ("systrap", "ptrace"))
    assert _platforms.without_device(20221219, None) == ("ptrace",)
    monkeypatch.setattr(_platforms, "_virtual", lambda: True)
    assert "virtual one itself" in str(_platforms.why_not_kvm(None))
    assert decided("kvm") == (None, ("systrap", "ptrace"))
    monkeypatch.setattr(kvm, "DEVICE", tmp_path / "none")
    why = f"there is no {tmp_path / 'none'}"
    assert decided("kvm") == (why, f"gvisor_platform is 'kvm', and {why}")
    assert decided(None) == (why, ("systrap", "ptrace"))


@pytest.mark.user  # root opens everything
def test_a_device_of_others_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = next((path for path in Path("/dev").iterdir() if path.is_char_device() and not os.access(path, 6)), None)
    if closed is None:
        pytest.skip("every device here is open to us")
    monkeypatch.setattr(kvm, "DEVICE", closed)
    assert "you may not open" in str(_platforms.why_not_kvm(None))


def test_what_is_asked_for_and_not_to_be_had_is_said() -> None:
    why = "gvisor_platform is 'systrap', which this runsc does not have yet"
    assert _platforms.without_device(20221219, "systrap") == why


def test_what_has_come_of_kvm_is_known_in_this_boot_and_with_this_setting(
    tmp_path: Path, runs: dict[str, dict[str, bool] | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _probe.look(tmp_path)
    assert isinstance(found, _probe.FoundRunsc)
    assert (found.platform, found.tries_kvm) == ("systrap", True)
    assert "platform systrap (KVM is tried with the first sandbox)" in GvisorBackend(tmp_path).checks()[0].detail
    _probe.settled(tmp_path, found, STANDS_STILL)
    known = _probe.look(tmp_path)
    assert isinstance(known, _probe.FoundRunsc)
    assert (known.platform, known.tries_kvm, known.without) == ("systrap", False, STANDS_STILL)
    assert f"platform systrap (not KVM: {STANDS_STILL})" in GvisorBackend(tmp_path).checks()[0].detail
    with monkeypatch.context() as other:
        other.setattr(_platforms.proc, "boot_id", lambda: "another boot")
        assert _probe.remembered(tmp_path) is None
    configure(tmp_path, runsc=str(tmp_path / "runsc"), gvisor_platform="systrap")
    assert _probe.remembered(tmp_path) is None
    assert "not KVM: gvisor_platform says so" in GvisorBackend(tmp_path).checks()[0].detail


def test_kvm_by_name_that_is_not_to_be_had_is_refused_and_not_tried_again(
    tmp_path: Path, runs: dict[str, dict[str, bool] | str]
) -> None:
    configure(tmp_path, runsc=str(tmp_path / "runsc"), gvisor_platform="kvm")
    found = _probe.look(tmp_path)
    assert isinstance(found, _probe.FoundRunsc)
    assert found.tries_kvm
    assert _probe.settled(tmp_path, found, STANDS_STILL).refused
    why = f"gvisor_platform is 'kvm', and here {STANDS_STILL}"
    assert _probe.look(tmp_path) == why
    (line,) = GvisorBackend(tmp_path).checks()
    assert (line.status, line.detail, line.fix) == ("missing", why, _probe.fix(tmp_path))


# with a real runsc


@pytest.fixture(scope="module")
def sandboxes() -> Generator[MemoryHarness]:
    with private_state() as state_dir, furnished(state_dir) as (pool, templates):
        yield MemoryHarness(state_dir, pool, templates)


@pytest.fixture
def told(sandboxes: MemoryHarness, monkeypatch: pytest.MonkeyPatch) -> MemoryHarness:
    """Where KVM is tried."""
    if not Path(KVM).is_char_device() or not os.access(KVM, os.R_OK | os.W_OK):
        pytest.skip(f"there is no {KVM}, or it is not for us")
    monkeypatch.setattr(kvm, "DEVICE", Path(KVM))
    (sandboxes.state_dir / "gvisor.json").unlink(missing_ok=True)
    found = _probe.look(sandboxes.state_dir)
    if isinstance(found, str) or GvisorBackend(sandboxes.state_dir).probe() is not None:
        pytest.skip(f"no gVisor here: {found}")
    assert found.tries_kvm
    return sandboxes


@pytest.fixture
def alive(told: MemoryHarness, monkeypatch: pytest.MonkeyPatch) -> MemoryHarness:
    """Where a sentry that should be on KVM is told of another platform, which lets the device be and has a life."""
    real = flags

    def other(platform: str, date: int, **rest: bool) -> list[str]:
        (without, *_) = _platforms.without_device(date, None)
        return real(without if platform == "kvm" else platform, date, **rest)

    monkeypatch.setattr(_backend, "flags", other)
    return told


@pytest.fixture
def still(told: MemoryHarness, monkeypatch: pytest.MonkeyPatch) -> MemoryHarness:
    """Where a sentry has not so long to come to life on KVM, which it does not where KVM runs nothing."""
    monkeypatch.setattr(_proof, "GREETING_SECONDS", 5.0)
    return told


def test_a_sandbox_that_has_lived_on_it_is_proof_and_its_sentry_is_given_the_device(alive: MemoryHarness) -> None:
    async def test(family: Family) -> None:
        box = await family.begin()
        assert given_the_device(family, box)
        found = _probe.remembered(alive.state_dir)
        assert found is not None
        assert (found.platform, found.tries_kvm) == ("kvm", False)
        assert "platform KVM, in a jail" in family.backend.checks()[0].detail
        assert (await box.sh("echo lives")).text == "lives"
        if family.backend._saves(found):
            await remember(box)
            child = await family.fork(box)
            assert await remembers(child)
            assert given_the_device(family, child)

    play(alive, test)
    nothing_is_left_of_the_trial(alive)


def test_what_was_saved_before_goes_on_where_it_was_saved(
    alive: MemoryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What sleeps, and snapshots, from before KVM was to be had."""

    async def test(family: Family) -> None:
        with monkeypatch.context() as before:
            before.setattr(_platforms, "_virtual", lambda: True)
            found = family.backend._look()
            if isinstance(found, str) or not family.backend._saves(found):
                pytest.skip(f"{found} saves no memory here")
            box = await family.begin()
            await remember(box)
            saved = await family.copied(box)
        assert not given_the_device(family, box)
        family.backend._found = None  # as of a program that begins now  # pyright: ignore[reportPrivateUsage]
        assert given_the_device(family, await family.begin())
        child = await family.create(saved)
        assert await remembers(child)
        assert not given_the_device(family, child)
        assert await remembers(await family.fork(child))

    play(alive, test)


def test_one_that_stands_still_ends_nothing_but_the_trial(still: MemoryHarness) -> None:
    async def test(family: Family) -> None:
        box, machine = await asyncio.gather(family.begin(), asyncio.to_thread(wait_until, a_machine_is_made))
        assert machine
        assert (await box.sh("echo lives")).text == "lives"
        found = _probe.remembered(still.state_dir)
        assert found is not None
        assert not found.tries_kvm
        if found.platform == "kvm":
            pytest.skip("KVM runs sandboxes here")
        assert "no sandbox has lived on it: the guest did not answer within 5 s" in found.without
        assert found.without in family.backend.checks()[0].detail
        assert not given_the_device(family, box)

    play(still, test)
    nothing_is_left_of_the_trial(still)


def test_asked_for_by_name_it_is_refused_and_no_other_taken(still: MemoryHarness) -> None:
    configure(still.state_dir, gvisor_platform="kvm")

    async def test(family: Family) -> None:
        boxes = await asyncio.gather(family.begin(), family.begin(), return_exceptions=True)
        for box in boxes:  # one trial for both
            if isinstance(box, Box):
                assert given_the_device(family, box)
            else:
                assert isinstance(box, LevelUnavailableError)
                assert "is 'kvm', and here no sandbox has lived on it: the guest did not answer" in box.message

    try:
        play(still, test)
    finally:
        configure(still.state_dir)
    nothing_is_left_of_the_trial(still)


def test_what_fails_on_every_platform_says_nothing_of_kvm(
    still: MemoryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[str] = []

    async def fail(backend: GvisorBackend, found: _probe.FoundRunsc) -> None:
        failed.append(found.platform)
        raise ResourceExhaustedError("no space left on the device")

    monkeypatch.setattr(_proof, "_live", fail)

    async def test(family: Family) -> None:
        box = await family.begin()
        assert (await box.sh("echo lives")).text == "lives"
        await family.begin()
        assert (failed[0], len(failed)) == ("kvm", 2)
        found = _probe.remembered(still.state_dir)
        assert found is not None
        assert found.tries_kvm, "the next program tries it"

    play(still, test)


async def remember(box: Box) -> None:
    await box.start_python("import time; open('/tmp/on', 'w'); time.sleep(600)", background=True)
    await box.sh("while [ ! -e /tmp/on ]; do sleep 0.1; done")


async def remembers(box: Box) -> bool:
    return "time.sleep(600)" in (await box.sh("cat /proc/*/cmdline | tr '\\0' ' '")).text


def given_the_device(family: Family, box: Box) -> bool:
    (sentry,) = (one for one in sentries(family, box) if b"boot" in one.argv)
    return any(word.startswith(b"--device-fd=") for word in sentry.argv)


def sentries(family: Family, box: Box) -> list[processes.Process]:
    pid = box.instance.pid
    return [one for one in processes.below(pid) if any(word.endswith(b"/runsc") for word in one.argv[:1])]


def a_machine_is_made() -> bool:
    """By a sentry in its jail, of the kernel."""
    return any(one.startswith("anon_inode:kvm-vm") for pid in on_kvm() for one in opened(pid))


def on_kvm() -> list[int]:
    return [one.pid for one in processes.below(1) if b"--platform=kvm" in one.argv and b"boot" in one.argv]


def opened(pid: int) -> list[str]:
    try:
        return list(descriptors(pid).values())
    except OSError:
        return []


def nothing_is_left_of_the_trial(harness: MemoryHarness) -> None:
    assert [name for name in harness.pool.names() if name.startswith("wv_")] == []
    assert wait_until(lambda: not on_kvm())
    assert [name for name in os.listdir(harness.state_dir / "run") if name.startswith("wv_")] == []
