"""What the witness says of a process, and what it says where there is none."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from paddock.egress._living import Living
from paddock.egress._witness import NOBODY, Witness
from paddock.linux import proc

_HOLD = "import socket, os, sys; s = socket.socket(); print(os.fstat(s.fileno()).st_ino, flush=True); input()"
_BIG = "x" * 5000


@pytest.fixture
def holder(tmp_path: Path) -> Generator[tuple[Path, int, int]]:
    """A record of a process that stands for pid 1, which holds a socket; its pid and the inode."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, _BIG], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/tmp"
    ) as one:
        assert one.stdout is not None
        inode = int(one.stdout.readline())
        (tmp_path / "run" / "sb_a").mkdir(parents=True)
        record = {"pid": one.pid, "incarnation": 2, "start": proc.start_time(one.pid)}
        (tmp_path / "run" / "sb_a" / "state.json").write_text(json.dumps(record))
        yield tmp_path, one.pid, inode
        one.communicate(b"\n")


def test_it_says_who_holds_it_with_the_digest_of_all_arguments(holder: tuple[Path, int, int]) -> None:
    state, pid, inode = holder
    found = Witness(Living(state)).look("sb_a", 2, inode)
    whole = b"\0".join(word.encode() for word in (sys.executable, "-c", _HOLD, _BIG)) + b"\0"
    assert (found["pid"], found["cwd"], found["uid"]) == (pid, "/tmp", os.getuid())
    assert found["argv_sha256"] == hashlib.sha256(whole).hexdigest()
    assert (found["argv_bytes"], found["argv"][1]) == (len(whole), "-c")
    assert len("".join(found["argv"])) <= 1024
    assert found["above"] == []


def test_what_nobody_holds_is_nobodys(holder: tuple[Path, int, int]) -> None:
    state, _, inode = holder
    with socket.socket() as elsewhere:
        witness = Witness(Living(state))
        assert witness.look("sb_a", 2, inode)["pid"]  # who was found last is no answer to the next question
        assert witness.look("sb_a", 2, os.fstat(elsewhere.fileno()).st_ino) == {"origin": "unknown", "why": NOBODY}


def test_another_incarnation_and_a_sandbox_that_is_gone_are_not_looked_at(holder: tuple[Path, int, int]) -> None:
    state, pid, inode = holder
    for sandbox, incarnation in (("sb_a", 1), ("sb_b", 2), ("../sb_a", 3)):
        assert Witness(Living(state)).look(sandbox, incarnation, inode)["why"] == "the sandbox has ended"
    # the same number, another process
    record = {"pid": pid, "incarnation": 2, "start": proc.start_time(pid) + 1}
    (state / "run" / "sb_a" / "state.json").write_text(json.dumps(record))
    assert Witness(Living(state)).look("sb_a", 2, inode)["why"] == "the sandbox has ended"


def test_a_container_is_found_by_the_record_of_whoever_made_it(holder: tuple[Path, int, int]) -> None:
    state, pid, inode = holder
    place = state / "containers" / "sb_a"
    place.mkdir(parents=True)
    (state / "run" / "sb_a" / "state.json").rename(place / "record.json")
    assert Witness(Living(state)).look("sb_a", 2, inode)["pid"] == pid
    assert [Living(state).has("sb_a", number) for number in (1, 2)] == [False, True]


def test_what_has_a_record_and_no_process_does_not_live(tmp_path: Path) -> None:
    place = tmp_path / "containers" / "sb_a"
    place.mkdir(parents=True)
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    (place / "record.json").write_text(json.dumps({"pid": gone.pid, "incarnation": 2, "start": 1}))
    assert not Living(tmp_path).has("sb_a", 2)
