"""No deadline hangs on the wall clock: it is read in few places, each of which has its reason here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import paddock

SOURCE = Path(paddock.__file__).parent
READERS = {
    "audit/_log.py": "the time of a record, beside its boot time; the order of segments",
    "audit/_heads.py": "when a head was signed",
    "backends/_look.py": "`started_at` of processes, which the kernel counts from the machine's start",
    "cli/_exec.py": "records of what was refused since a command began, whose times are of that clock",
    "cli/_sandboxes.py": "how long ago and how long until, in words",
    "cli/_logs.py": "the same",
    "cli/_render.py": "times as a person reads them",
    "cli/_stats.py": "the time of a sample",
    "cli/_values.py": "`--since 10m`",
    "cli/_audit.py": "how long until, in words",
    "cli/_workspaces.py": "`used_at`, `observed_at` and `pinned_until`, as people say them",
    "cli/_daemon.py": "how long it has been running, in words",
    "daemon/main/start.py": "when it started, for people",
    "gateway/authority.py": "when a certificate begins and ends",
    "backends/microvm/_backend.py": "what the clock of a machine that was baked is set to",
    "gateway/registries/package_cache.py": "how long a page holds, by the wall clock that its dates are of",
    "gateway/registries/files.py": "how old a release is, by the date that its registry gives",
    "linux/sizes.py": "`btime` of /proc/stat, from which programs count when a process began",
    "model/ids.py": "ids in the order of their making",
    "storage/templates/images/_images.py": "`pulled_at`",
    "daemon/upkeep/reports.py": "since when the daemon runs, as people say it",
    "daemon/clock.py": "`Clock.wall`: `created_at`, `expires_at`, `ended_at`, and when ended records are dropped",
}
_OF_TIME = {"time", "time_ns", "localtime", "gmtime", "ctime", "asctime", "strftime", "CLOCK_REALTIME", "CLOCK_TAI"}
_OF_DATETIME = {"now", "utcnow", "today"}


_MAY = re.compile(r"\b(time|datetime|date)\.|\bfrom time\b")
"""To parse all of `src` takes seconds, and a sixth of it has this."""


def reads_the_wall_clock(code: str) -> bool:
    if not _MAY.search(code):
        return False
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            return True  # whatever it is, it could not be seen any more where it is used
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner, name = node.value.id, node.attr
            if (owner == "time" and name in _OF_TIME) or (owner in ("datetime", "date") and name in _OF_DATETIME):
                return True
    return False


def test_the_wall_clock_is_read_where_a_reason_is_given_and_nowhere_else() -> None:
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if "testing" not in path.parts and reads_the_wall_clock(path.read_text())
    }
    assert found == READERS.keys()


def test_a_reader_is_recognised() -> None:
    for code in ("time.time()", "from time import time", "clock = time.time_ns", "datetime.now(UTC)", "f(time.time)"):
        assert reads_the_wall_clock(code), code
    assert not reads_the_wall_clock("time.monotonic(); time.clock_gettime(time.CLOCK_BOOTTIME); time.sleep(1)")
