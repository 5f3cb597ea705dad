"""How tests went: by exit code, and by their own counts where they tell them. All of it is a sandbox's word."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import msgspec

from paddock.errors import InvalidArgument
from paddock.model import ExecResult, Limit

from ._observation import cut

SAID_CHARS = 2000
REPORT_BYTES = 4 << 20
_LARGEST = 10**9
_COUNT = re.compile(r"(\d{1,9}) (passed|failed|errors?|skipped|xfailed|xpassed|deselected|warnings?)\b")
_SUMMARY = re.compile(r"^=* ?(?:no tests ran|(?:\d{1,9} [a-z]+(?:, )?)+) in [\d.]+s\b.*$", re.MULTILINE)


class Test(msgspec.Struct, frozen=True):
    """A command that passes with exit code 0. `junit` is a report that it writes, in the directory that is judged."""

    __test__ = False  # for pytest, which collects what is named like this

    command: str
    timeout_seconds: float = 600.0
    junit: str | None = None

    def __post_init__(self) -> None:
        if not self.command.strip():
            raise InvalidArgument("no command to test with was given", hint='Test("pytest -q")')
        if not self.timeout_seconds > 0:
            raise InvalidArgument(f"timeout_seconds is {self.timeout_seconds}: it must be more than 0")


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    @property
    def share(self) -> float:
        """Of those that ran, how many passed."""
        ran = self.passed + self.failed
        return self.passed / ran if ran else 0.0


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`counts` is None where the tests did not tell. `said` is the output, cut."""

    passed: bool
    exit_code: int
    limit: Limit | None = None
    counts: Counts | None = None
    seconds: float = 0.0
    said: str = ""

    @property
    def score(self) -> float:
        """1 if the command passed, else the share of tests that did, and never 1."""
        return 1.0 if self.passed else min(0.999, self.counts.share if self.counts else 0.0)

    def __str__(self) -> str:
        how = "passed" if self.passed else f"exit {self.exit_code}" if self.limit is None else f"limit: {self.limit}"
        if self.counts is None:
            return how
        return f"{how}, {self.counts.passed} of {self.counts.passed + self.counts.failed}"


def verdict(result: ExecResult, report: bytes | None = None) -> Verdict:
    return Verdict(
        passed=result.ok and result.limit is None,
        exit_code=result.exit_code,
        limit=result.limit,
        counts=junit_counts(report) if report is not None else summary_counts(result.stdout),
        seconds=result.duration_seconds,
        said=cut(result.observation(2 * SAID_CHARS), SAID_CHARS),
    )


def summary_counts(text: str) -> Counts | None:
    """Of pytest's last line: `1 failed, 2 passed in 0.1s`."""
    lines = _SUMMARY.findall(text)
    if not lines:
        return None
    found = {
        name.removesuffix("s") if name.startswith("error") else name: int(n) for n, name in _COUNT.findall(lines[-1])
    }
    return Counts(
        passed=found.get("passed", 0) + found.get("xpassed", 0),
        failed=found.get("failed", 0) + found.get("error", 0),
        skipped=found.get("skipped", 0) + found.get("xfailed", 0) + found.get("deselected", 0),
    )


def junit_counts(report: bytes) -> Counts | None:
    """The sums of its suites; None if it is no report. What defines entities is none: it could be a bomb."""
    if b"<!DOCTYPE" in report or b"<!ENTITY" in report:
        return None
    total = failed = skipped = 0
    try:
        for suite in ElementTree.fromstring(report).iter("testsuite"):  # noqa: S314 (no entities: looked at above)
            total += _number(suite, "tests")
            failed += _number(suite, "failures") + _number(suite, "errors")
            skipped += _number(suite, "skipped") + _number(suite, "disabled")
    except (ElementTree.ParseError, ValueError):
        return None
    return Counts(passed=max(0, total - failed - skipped), failed=failed, skipped=skipped)


def _number(suite: ElementTree.Element, name: str) -> int:
    text = suite.get(name) or "0"
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError(name)
    return min(int(text), _LARGEST)
