"""Create, exec and destroy of a virtual machine on KVM: paddock's, and microsandbox's where its wheel is. Runs in the
machine of lane `kvm`, as root, in the environment of the tests; seconds, a line for each sandbox."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

INPUT, PLACE = Path("/run/input"), Path("/srv/figures")
MEMORY_MIB, ROUNDS = 256, 4


def paddock() -> None:
    from paddock import Limits, Sandbox
    from paddock.backends.microvm import _accelerator, _kernel, _qemu

    state = PLACE / "paddock"
    state.mkdir(mode=0o700)
    kernel = f"/boot/vmlinuz-{platform.release()}"
    (state / "config.toml").write_text(f'kernel = "{kernel}"\n')
    (state / "config.toml").chmod(0o600)
    # Known beforehand, KVM is used or the create fails. A trial's half minute is too short in an emulated machine.
    _accelerator.booted(state, (_qemu.find().stamp, _kernel.find(kernel).stamp))
    os.environ["PADDOCK_STATE_DIR"] = str(state)
    rows: list[tuple[float, ...]] = []
    for _ in range(ROUNDS):
        times = [time.monotonic()]
        with Sandbox.create(level="microvm", limits=Limits(memory_mib=MEMORY_MIB), ttl_seconds=900) as sandbox:
            times.append(time.monotonic())
            assert sandbox.exec(["true"]).status.code == 0
            times.append(time.monotonic())
        times.append(time.monotonic())
        rows.append(show("paddock", times))
    summary("paddock", rows)


def microsandbox() -> None:
    wheel = next(INPUT.glob("microsandbox-*.whl"), None)
    if wheel is None:
        say("microsandbox: not measured, its wheel could not be fetched")
        return
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(PLACE / "peer")
    (PLACE / "peer/microsandbox/_bundled/bin/msb").chmod(0o755)
    sys.path.insert(0, str(PLACE / "peer"))
    peer: Any = importlib.import_module("microsandbox")
    root = PLACE / "root"
    for name in ("usr", "etc", "proc", "sys", "dev", "tmp", "run", "root", "var"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / name).symlink_to(f"usr/{name}")
    for name in ("passwd", "group"):
        shutil.copy(Path("/etc", name), root / "etc")
    subprocess.run(["mount", "--bind", "/usr", root / "usr"], check=True)
    asyncio.run(_microsandboxes(peer, root))


async def _microsandboxes(peer: Any, root: Path) -> None:
    rows: list[tuple[float, ...]] = []
    for number in range(ROUNDS):
        times = [time.monotonic()]
        options = {"image": str(root), "memory": MEMORY_MIB, "cpus": 1, "network": peer.Network.none()}
        sandbox = await peer.Sandbox.create(f"figures-{number}", replace=True, **options)
        times.append(time.monotonic())
        assert (await sandbox.exec("/bin/true", [])).exit_code == 0
        times.append(time.monotonic())
        await sandbox.destroy()
        times.append(time.monotonic())
        rows.append(show("microsandbox", times))
    summary("microsandbox", rows)


def show(name: str, times: list[float]) -> tuple[float, ...]:
    took = tuple(later - earlier for earlier, later in itertools.pairwise(times))
    say(f"{name}: create {took[0]:.2f} s, exec {took[1]:.2f} s, destroy {took[2]:.2f} s")
    return took


def summary(name: str, rows: list[tuple[float, ...]]) -> None:
    """Print the figures. The first one also makes what all later ones start from."""
    create, run, destroy = (statistics.median(column) for column in zip(*rows[1:], strict=True))
    say(f"{name}, median without the first: create {create:.2f} s, exec {run:.2f} s, destroy {destroy:.2f} s")


def say(line: str) -> None:
    print(line, flush=True)
    with (PLACE / "figures.txt").open("a") as file:
        file.write(f"{line}\n")


def attempt(name: str, measure: Callable[[], None]) -> bool:
    try:
        measure()
    except Exception as error:
        say(f"{name}: failed: {type(error).__name__}: {error}")
        return False
    return True


if __name__ == "__main__":
    PLACE.mkdir()
    results = [attempt("paddock", paddock), attempt("microsandbox", microsandbox)]
    sys.exit(0 if results[0] else 1)  # another project's failure is a finding, not ours
