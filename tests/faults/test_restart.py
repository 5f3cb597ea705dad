"""The machine goes down and comes up again, with the state directory as it was: what lived is said to be dead and why,
what it left is removed, and everything works.

The new boot has another id and a young clock, as far as its processes can see: each has a mount namespace with another
/proc/sys/kernel/random/boot_id, and a time namespace in which the machine has run for a minute.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import live_sandboxes, supervisors
from tests.daemon.conftest import daemon_pid
from tests.faults.conftest import PROGRAM
from tests.orphans import wait_until

pytestmark = pytest.mark.root

BEFORE = """
kept = Sandbox.create(level="jail", persistent=True, name="kept", ttl_seconds=86_400)
kept.filesystem.write("file", "content")
kept.start("sleep 600", background=True)
brief = Sandbox.create(level="jail", ttl_seconds=600)
brief.exec("head -c 3000000 /dev/zero", capture_bytes=10)
say(kept=kept.id, brief=brief.id)
input()
"""
AFTER = """
from paddock.errors import SandboxDiedError
from paddock.linux import proc
found = {s.id: (s.state, s.info.limit, s.info.reason) for s in Sandbox.list(ended=True)}
try:
    Sandbox.connect("kept").exec("true")
    said = None
except SandboxDiedError as error:
    said = error.message
with Sandbox.create(level="jail", name="kept", ttl_seconds=60) as new:
    out = new.exec("echo works").stdout
    deadline_is_young = proc.boottime() < 600
say(found=found, said=said, out=out, young=deadline_is_young, boot=proc.boot_id())
"""


def test_after_a_restart_of_the_machine(program: Callable[..., Any], state_dir: Path, tmp_path: Path) -> None:
    if shutil.which("unshare") is None or not Path("/proc/self/timens_offsets").exists():
        pytest.skip("needs unshare(1) and time namespaces")
    first = program(BEFORE)
    facts = first.hears()
    _power_off(first, state_dir)
    assert set(live_sandboxes(state_dir)) == {facts["kept"], facts["brief"]}, "its records are still there"

    heard = _on_the_next_boot(AFTER, state_dir, tmp_path)
    assert heard["boot"] != Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert heard["young"]
    for id in (facts["kept"], facts["brief"]):
        state, limit, reason = heard["found"][id]
        assert (state, limit) == ("killed", None)
        assert reason == "the machine was restarted"
    assert "the machine was restarted" in heard["said"]
    assert heard["out"] == "works\n"
    assert live_sandboxes(state_dir) == []
    assert wait_until(lambda: not (state_dir / "outputs" / facts["brief"]).exists())


def _power_off(program: Any, state_dir: Path) -> None:
    """Every process of it at once, with which its mounts and namespaces go."""
    pids = [int(json.loads(p.read_bytes())["pid"]) for p in (state_dir / "run").glob("*/state.json")]
    assert len(pids) == 2
    pids += [*supervisors(state_dir), daemon_pid(state_dir)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # nobody sees another one die
    program.kill()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not any(_lives(pid) for pid in pids))


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _on_the_next_boot(code: str, state_dir: Path, tmp_path: Path) -> Any:
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("11111111-2222-3333-4444-555555555555\n")
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    script = 'mount --bind "$1" /proc/sys/kernel/random/boot_id && exec "$2" -c "$3"'
    done = subprocess.run(
        [
            *("unshare", "--mount", "--time", f"--boottime={60 - int(uptime)}", "--fork"),
            *("sh", "-c", script, "sh", str(boot_id), sys.executable, PROGRAM + code),
        ],
        env={**os.environ, "PADDOCK_STATE_DIR": str(state_dir)},
        capture_output=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)
