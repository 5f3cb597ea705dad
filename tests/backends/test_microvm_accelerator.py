"""KVM is used where a machine has booted with it, and nowhere else; which one it is, and why, is said."""

from __future__ import annotations

import asyncio
import lzma
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from paddock.backends import SandboxPlan
from paddock.backends.jail.backend import JailInstance
from paddock.backends.microvm import MicrovmBackend, _accelerator, _kernel, _qemu
from paddock.backends.microvm._bake import Ingredients
from paddock.backends.microvm._qemu import Machine
from paddock.backends.vmm import kvm
from paddock.errors import NotConfiguredError, SandboxError
from paddock.model import SandboxSpec, Template, User
from paddock.supervisor.plan import JailPlan
from tests.backends.microvms import SMALL, MicrovmHarness
from tests.conftest import configure

pytestmark = pytest.mark.timeout(900)  # a machine that is emulated, and the first is baked

PROGRAMS = ("qemu 1", "kernel 1")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that can be opened and boots nothing."""
    monkeypatch.setattr(kvm, "DEVICE", Path("/dev/null"))
    return kvm.DEVICE


def test_without_a_device_it_is_emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for there in (tmp_path / "none", tmp_path):
        monkeypatch.setattr(kvm, "DEVICE", there)
        choice = _accelerator.choose(tmp_path, PROGRAMS)
        assert (choice.name, choice.proven) == ("tcg", True)
        assert f"there is no {there}" in choice.words


@pytest.mark.user  # root opens everything
def test_a_device_of_others_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = next((path for path in Path("/dev").iterdir() if path.is_char_device() and not os.access(path, 6)), None)
    if closed is None:
        pytest.skip("every device here is open to us")
    monkeypatch.setattr(kvm, "DEVICE", closed)
    choice = _accelerator.choose(tmp_path, PROGRAMS)
    assert (choice.name, choice.proven) == ("tcg", True)
    assert "you may not open" in choice.words


def test_the_setting_spares_the_trial(tmp_path: Path, device: Path) -> None:
    assert _accelerator.choose(tmp_path, PROGRAMS, "tcg").words == "emulated (TCG): config.toml says so"


def test_what_a_machine_has_shown_counts_until_something_of_it_changes(
    tmp_path: Path, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not _accelerator.choose(tmp_path, PROGRAMS).proven
    _accelerator.booted(tmp_path, PROGRAMS)
    shown = _accelerator.choose(tmp_path, PROGRAMS)
    assert (shown.name, shown.proven) == ("kvm", True)
    _accelerator.failed(tmp_path, PROGRAMS, "the guest of sb_0123456789abcdef did not answer within 30 s")
    shown = _accelerator.choose(tmp_path, PROGRAMS)
    assert (shown.name, shown.proven) == ("tcg", True)
    nested = f"({_accelerator._NESTED})"
    assert shown.why == f"{device} is there and boots nothing: the guest did not answer within 30 s {nested}"
    died = (
        "sandbox sb_0123456789abcdef has died: its microvm ended with code None: QEMU is gone; the last that it said: "
    )
    said = "qemu-system-x86_64: error: failed to set MSR 0x10a to 0x69 qemu-system-x86_64: kvm.c:3183: Assertion."
    _accelerator.failed(tmp_path, PROGRAMS, died + said)
    shown = _accelerator.choose(tmp_path, PROGRAMS)
    assert shown.why == f"{device} is there and boots nothing: QEMU ended: failed to set MSR 0x10a to 0x69 {nested}"
    for other in (("qemu 2", "kernel 1"), ("qemu 1", "kernel 2")):
        assert not _accelerator.choose(tmp_path, other).proven
    monkeypatch.setattr(_accelerator.proc, "boot_id", lambda: "another boot")
    assert not _accelerator.choose(tmp_path, PROGRAMS).proven
    monkeypatch.undo()
    monkeypatch.setattr(kvm, "DEVICE", Path("/dev/full"))
    (tmp_path / "microvm.json").write_bytes(b"{")
    assert not _accelerator.choose(tmp_path, PROGRAMS).proven


def test_a_state_is_for_one_accelerator_one_processor_and_one_boot(tmp_path: Path) -> None:
    programs = tmp_path / "program"
    programs.touch()
    template = Template(
        name="t",
        layers=("tp_t",),
        users=(User(name="u", uid=1000, gid=1000, home="/"),),
        default_user="u",
        workdir="/",
        env={},
        host_usr=False,
        digest="d",
    )

    def made(accelerator: str, processor: str = "", boot_id: str = "") -> Ingredients:
        return Ingredients(
            kernel=_kernel.Kernel(programs, tmp_path),
            qemu=_qemu.Qemu(programs, "7.2.0"),
            machine=Machine(memory_mib=128, processors=1, accelerator=accelerator),
            template=template,
            limits=SMALL,
            host=template,
            whole=True,
            guest=programs,
            mkfs="mkfs",
            processor=processor,
            boot_id=boot_id,
        )

    each = [made("tcg"), made("kvm", "one", "a"), made("kvm", "two", "a")]
    assert len({one.stamp for one in each}) == 3
    trees = [one.recipe(lambda tree: None).tree for one in (*each, made("kvm", "one", "b"))]
    assert len(set(trees)) == 4
    command = _qemu.Qemu(programs, "7.2.0").command(each[1].machine, boot=False)
    assert command[command.index("-accel") + 1] == "kvm"
    assert command[command.index("-cpu") + 1] == "host"


def test_a_kernels_modules_are_read_compressed_too_each_after_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "lower-one.ko").write_bytes(b"lower\0depends=\0")
    upper = b"upper\0depends=lower-one\0"
    (tmp_path / "upper.ko.xz").write_bytes(lzma.compress(upper))
    (tmp_path / "broken.ko.xz").write_bytes(b"no xz")
    kernel = _kernel.Kernel(tmp_path / "vmlinuz", tmp_path)
    assert kernel.chain(("upper", "lower_one", "built_in")) == (b"lower\0depends=\0", upper)
    with pytest.raises(NotConfiguredError, match=r"broken\.ko\.xz can't be decompressed"):
        kernel.chain(("broken",))


@pytest.fixture
def undecided_harness(microvms: MicrovmHarness) -> Generator[MicrovmHarness]:
    """That of all tests, which has an emulated machine and nothing that KVM has shown."""
    shown = microvms.state_dir / "microvm.json"
    assert not shown.exists()
    configure(microvms.state_dir, accelerator=None)
    yield microvms
    configure(microvms.state_dir)
    shown.unlink(missing_ok=True)


class Sham(MicrovmBackend):
    """A jail with /dev/kvm boots nothing. `made`: kinds and devices of the jails that it made."""

    def __init__(self, harness: MicrovmHarness) -> None:
        super().__init__(harness.state_dir, supervisor=harness.supervisor)
        self.made: list[tuple[str, tuple[str, ...]]] = []

    async def make(self, plan: SandboxPlan, jail: JailPlan) -> JailInstance:
        self.made.append((jail.kind, jail.devices))
        if jail.devices:
            raise SandboxError("the guest did not answer", hint="")
        return await super().make(plan, jail)


async def _live(harness: MicrovmHarness, backend: MicrovmBackend) -> None:
    plan = await harness.plan(SandboxSpec(ttl_seconds=600))
    try:
        instance = await backend.create(plan)
        await instance.kill()
        await instance.aclose()
        await backend.forget(plan.id)
    finally:
        await harness.cleanup(plan)


def test_where_kvm_boots_nothing_it_is_tried_once_and_machines_are_emulated(
    device: Path, undecided_harness: MicrovmHarness, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(harness: MicrovmHarness) -> None:
        first, second = Sham(harness), Sham(harness)
        try:
            assert "KVM is tried with the first machine" in first.checks()[0].detail
            await asyncio.gather(_live(harness, first), _live(harness, first))
            assert first.made == [("oven", ("kvm",)), ("microvm", ()), ("microvm", ())]
            detail = first.checks()[0].detail
            assert f"emulated (TCG): {device} is there and boots nothing: the guest did not answer" in detail
            assert ", tcg: " in detail
            assert second.checks()[0].detail == detail
        finally:
            await first.aclose()
            await second.aclose()

    asyncio.run(scene(undecided_harness))
    said = [record.levelname for record in caplog.records if "trying KVM" in record.getMessage()]
    assert said == ["WARNING"], "a program without a log's configuration shows it, once"


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/kvm"), reason="this machine has no /dev/kvm")
def test_a_machine_runs_whatever_kvm_boots_here_and_which_one_it_is_is_said(
    undecided_harness: MicrovmHarness,
) -> None:
    async def scene(harness: MicrovmHarness) -> None:
        backend = harness.backend()
        try:
            await _live(harness, backend)
            detail = backend.checks()[0].detail
            assert "KVM: a machine has booted with it" in detail or "emulated (TCG): /dev/kvm is there" in detail
        finally:
            await backend.aclose()

    asyncio.run(scene(undecided_harness))
