"""What the process resolver says of a process, and what it says where there is none."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Generator

import pytest

from paddock.gateway.processes import process_resolver
from paddock.gateway.processes.process_resolver import MOST_BYTES, NO_PROCESS, First, ProcessResolver
from paddock.linux import proc

_HOLD = "import socket, os, sys; s = socket.socket(); print(os.fstat(s.fileno()).st_ino, flush=True); input()"
_BIG = "x" * 5000


@pytest.fixture
def holder() -> Generator[tuple[First, int]]:
    """A process that stands for pid 1, which holds a socket; and the inode of that."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, _BIG], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/tmp"
    ) as one:
        assert one.stdout is not None
        inode = int(one.stdout.readline())
        yield (one.pid, proc.start_time(one.pid)), inode
        one.communicate(b"\n")


def test_it_says_who_holds_it_with_the_digest_of_all_arguments(holder: tuple[First, int]) -> None:
    first, inode = holder
    found = ProcessResolver().look("sb_a", first, inode)
    whole = b"\0".join(word.encode() for word in (sys.executable, "-c", _HOLD, _BIG)) + b"\0"
    assert (found["pid"], found["cwd"], found["uid"]) == (first[0], "/tmp", os.getuid())
    assert found["argv_sha256"] == hashlib.sha256(whole).hexdigest()
    assert (found["argv_bytes"], found["argv"][1]) == (len(whole), "-c")
    assert len("".join(found["argv"])) <= 1024
    assert found["above"] == []


def test_the_longest_answer_fits_into_one_message() -> None:
    text = process_resolver._words(b"\1" * 4096)
    above = [{"pid": 1 << 22, "exe": text}] * process_resolver._ANCESTORS
    answer = {"exe": text, "cwd": text, "argv": ["\1"] * 1024, "argv_sha256": "a" * 64, "above": above}
    assert len(json.dumps({"n": 1 << 32, "answer": answer})) < MOST_BYTES - 1024


def test_what_nobody_holds_is_nobodys(holder: tuple[First, int]) -> None:
    first, inode = holder
    with socket.socket() as elsewhere:
        witness = ProcessResolver()
        assert witness.look("sb_a", first, inode)["pid"]  # who was found last is no answer to the next question
        assert witness.look("sb_a", first, os.fstat(elsewhere.fileno()).st_ino) == {
            "origin": "unknown",
            "why": NO_PROCESS,
        }


def test_another_process_of_the_same_number_is_not_looked_at(holder: tuple[First, int]) -> None:
    (pid, start), inode = holder
    assert ProcessResolver().look("sb_a", (pid, start + 1), inode)["why"] == "the sandbox has ended"
