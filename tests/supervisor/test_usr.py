"""The machine's /usr as sandboxes see it: which overlays are kept, and for how long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paddock.supervisor import _slots
from paddock.supervisor._slots import Slots


def test_overlays_of_ranges_that_nobody_has_had_for_long_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    made: list[int] = []

    def overlay(slots: Slots) -> int:
        made.append(os.open("/dev/null", os.O_RDONLY))
        return made[-1]

    monkeypatch.setattr(Slots, "_usr_overlay", overlay)
    monkeypatch.setattr(_slots.mounts, "open_tree", lambda path, fd: os.dup(fd))
    monkeypatch.setattr(_slots.proc, "boottime", lambda: now)
    slots, late = Slots(-1), list[int]()
    for slot in (0, 1, 2, 3, 0):
        slots.usr(slot, late)
    assert len(made) == 4, "one for those who have a range one after the other"
    assert not set(made) & set(late)
    now += 31
    closed = len(late)
    slots.usr(2, late)
    assert [fd for fd in late[closed:] if fd in made] == [made[2], made[0], made[1]], "its own, and the two oldest"
    slots.usr(2, late)
    assert made[3] in late
    assert len(made) == 5
    for fd in {*late, made[4]}:
        os.close(fd)


_NO_LOCAL = """
mount -t tmpfs none "$1"
mkdir "$1"/upper "$1"/work
mknod "$1"/upper/local c 0 0
mount -t overlay none -o lowerdir=/usr,upperdir="$1"/upper,workdir="$1"/work /usr
test ! -e /usr/local
shift
"$@" run -- test -x /usr/local/bin
"$@" daemon stop
"""


@pytest.mark.root
@pytest.mark.skipif(sys.base_prefix.startswith("/usr/local"), reason="this Python lies in the /usr/local that goes")
def test_a_machine_needs_no_usr_local(state_dir: Path, tmp_path: Path) -> None:
    run = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", _NO_LOCAL, "sh", tmp_path, sys.executable, "-m", "paddock"],
        env=os.environ | {"PADDOCK_STATE_DIR": str(state_dir)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "stopped\n"), run.stderr
