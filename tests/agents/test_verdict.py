"""How tests went, from words that a stranger's program wrote."""

from __future__ import annotations

import pytest

from paddock.agents import Attempt, Comparison, Counts, DiffSize, Verdict
from paddock.agents._attempt import junit_counts, summary_counts


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("3 passed in 0.01s", Counts(passed=3)),
        ("== 1 failed, 2 passed, 1 skipped in 0.10s ==", Counts(passed=2, failed=1, skipped=1)),
        ("2 passed, 1 error in 1.20s", Counts(passed=2, failed=1)),
        ("1 passed, 2 errors, 3 warnings in 61.20s (0:01:01)", Counts(passed=1, failed=2)),
        ("no tests ran in 0.00s", Counts()),
        ("all is well", None),
    ],
)
def test_the_last_line_of_pytest_is_read(line: str, counts: Counts | None) -> None:
    assert summary_counts(f"9 passed in 1.0s\nsomething\n{line}\n" if counts else line) == counts


def test_a_report_is_summed_over_its_suites() -> None:
    report = (
        b'<testsuites><testsuite tests="5" failures="1" errors="1" skipped="1"/><testsuite tests="2"/></testsuites>'
    )
    assert junit_counts(report) == Counts(passed=4, failed=2, skipped=1)


@pytest.mark.parametrize(
    "report",
    [
        b"",
        b"<testsuites",
        b'<testsuite tests="-1"/>',
        b'<testsuite tests="99999999999999999999"/>',
        b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><testsuite tests="1"><c>&b;</c></testsuite>',
    ],
)
def test_what_is_no_report_tells_nothing(report: bytes) -> None:
    assert junit_counts(report) is None


def attempt(name: str, code: int, passed: int, failed: int, lines: int) -> Attempt:
    verdict = Verdict(passed=code == 0, exit_code=code, counts=Counts(passed=passed, failed=failed))
    return Attempt(name=name, verdict=verdict, size=DiffSize(added=lines))


def test_the_best_passes_the_most_tests_then_changes_the_least_and_says_why() -> None:
    broken = Attempt(name="broken", failure="the patch does not apply")
    fewer_tests = attempt("deletes tests", 0, 1, 0, 1)
    long, short = attempt("long", 0, 9, 0, 30), attempt("short", 0, 9, 0, 3)
    near = attempt("near", 1, 8, 1, 1)
    found = Comparison(attempts=(broken, near, fewer_tests, long, short))
    assert found.best is short
    assert found.why == "short: 3 of 5 pass; of those with the most tests its change is the smallest (3 lines)"
    assert Comparison(attempts=(fewer_tests, long)).why == "long: 2 of 2 pass; it passes the most tests"
    assert Comparison(attempts=(near, long)).why == "long is the only one of 2 that passes"
    failed = Comparison(attempts=(broken, near))
    assert (failed.best, failed.nearest) == (None, near)
    assert failed.why == "none of 2 passes; near came nearest: exit 1, 8 of 9"
    assert Comparison(attempts=(broken,)).nearest is None


def test_the_size_of_a_diff_counts_content_and_no_headers() -> None:
    diff = (
        b"diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n--- gone\n+++ new\n same\n-a\n+b\n"
        b"diff --git a/y b/y\nsimilarity index 100%\nrename from y\nrename to z\n"
    )
    assert DiffSize.of(diff) == DiffSize(files=2, added=2, removed=2)
    assert DiffSize.of(b"@@ -x +y @@\n") == DiffSize()
