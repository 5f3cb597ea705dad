from __future__ import annotations

import os
import re
from pathlib import Path

from tests.cli.screen import screen
from tests.conftest import SandboxFactory

WAITS = r"""
import logging, sys
from paddock.cli._progress import progress
with progress("first"):
    logging.getLogger("paddock").info("building \x1b[31mit")
    sys.stdin.readline()
print("after")
"""


def test_what_is_waited_for_is_said_and_leaves_a_clean_line() -> None:
    with screen(python=("-c", WAITS)) as shown:
        shown.expect("building \\x1b[31mit (")
        assert re.fullmatch(rb"\d+ s\)", shown.expect(")"))
        shown.type("\r")
        assert shown.ends() == 0
        assert bytes(shown.shown).rpartition(b"\x1b[K")[2] == b"after\r\n"


WARNS = r"""
import logging
from paddock.cli._progress import progress
with progress("first"):
    logging.getLogger("paddock").warning("2 \x1b[31mare missing")
"""


def test_what_is_warned_of_meanwhile_is_said_when_it_is_done() -> None:
    with screen(python=("-c", WARNS)) as shown:
        assert shown.ends() == 0
        assert bytes(shown.shown).endswith(b"paddock: 2 \\x1b[31mare missing\r\n")


def test_what_is_quick_says_nothing(sandbox: SandboxFactory) -> None:
    sandbox()
    with screen("ls", "--all") as shown:
        assert shown.ends() == 0
        assert b"\x1b[K" not in shown.shown


def test_a_copy_that_takes_long_says_how_far_it_is(sandbox: SandboxFactory, tmp_path: Path) -> None:
    box = sandbox(persistent=True, ttl_seconds=60)
    os.mkfifo(tmp_path / "slow")
    with screen("cp", str(tmp_path / "slow"), f"{box.id}:/workspace/fast") as shown:
        with (tmp_path / "slow").open("wb") as slow:
            slow.write(b"x" * (3 << 20))
            slow.flush()
            shown.expect("copying ")
            shown.expect("3.0 MiB")
        assert shown.ends() == 0, shown.tail()
    assert box.files.stat("/workspace/fast").size_bytes == 3 << 20
