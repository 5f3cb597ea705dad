"""Attempts, their verdicts, the best of them, and the nodes of a tree search.

Tests report by exit code, and by counts where they have them. The sandbox could forge both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

import msgspec

from paddock.errors import InvalidArgumentError
from paddock.model import ExecResult, Limit

from ._budget import Stop, Tokens
from ._tools import cut

SAID_CHARS = 2000
REPORT_BYTES = 4 << 20
_LARGEST = 10**9
_COUNT = re.compile(r"(\d{1,9}) (passed|failed|errors?|skipped|xfailed|xpassed|deselected|warnings?)\b")
_SUMMARY = re.compile(r"^=* ?(?:no tests ran|(?:\d{1,9} [a-z]+(?:, )?)+) in [\d.]+s\b.*$", re.MULTILINE)


class Test(msgspec.Struct, frozen=True):
    """A command that passes with exit code 0.

    `junit` is the path of a JUnit report that it writes, relative to the directory of the checkout.

    Example:
        ```python
        test = Test("pytest -q --junit-xml=report.xml", timeout_seconds=300, junit="report.xml")
        ```
    """

    __test__ = False  # for pytest, which collects what is named like this

    command: str
    timeout_seconds: float = 600.0
    junit: str | None = None

    def __post_init__(self) -> None:
        if not self.command.strip():
            raise InvalidArgumentError("no command to test with was given", hint='Test("pytest -q")')
        if not self.timeout_seconds > 0:
            raise InvalidArgumentError(f"timeout_seconds is {self.timeout_seconds}: it must be more than 0")


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many tests passed, failed and didn't run, as their own report says.

    Example:
        ```python
        print(Counts(passed=3, failed=1).share)  # 0.75
        ```
    """

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    @property
    def share(self) -> float:
        """The share of those that ran and passed, from 0 to 1."""
        ran = self.passed + self.failed
        return self.passed / ran if ran else 0.0


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a test. `counts` is None if it reports none. `said` is the output, cut.

    Example:
        ```python
        verdict = checkout.test(checkout.sandbox, Test("false"))
        print(verdict.passed, verdict.exit_code, verdict.score)  # False 1 0.0
        ```
    """

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
    """Read the counts in pytest's last line: `1 failed, 2 passed in 0.1s`."""
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
    """Return the sums of a report's suites, or None if it isn't a report.

    A report with entities could be a bomb, so it doesn't count.
    """
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


NOT_NEEDED = "not needed: another had passed"


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of an attempt. `usd=None`: unknown.

    Example:
        ```python
        effort = Effort(steps=4, tokens=Tokens(input=9000, output=800), note="by hand")
        ```
    """

    steps: int = 0
    tokens: Tokens = Tokens()
    usd: float | None = None
    stop: Stop | None = None
    note: str | None = None


class DiffSize(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a diff: files, added lines and removed lines.

    Example:
        ```python
        print(DiffSize(files=1, added=3, removed=2).lines)  # 5
        ```
    """

    files: int = 0
    added: int = 0
    removed: int = 0

    @classmethod
    def of(cls, diff: bytes) -> DiffSize:
        """Count the lines of a diff.

        Args:
            diff: A patch, as git writes it.

        Returns:
            Its size.

        Example:
            ```python
            print(DiffSize.of(b"").files)  # 0
            ```
        """
        files = added = removed = left_old = left_new = 0
        for line in diff.split(b"\n"):
            if left_old > 0 or left_new > 0:
                kind = line[:1]
                added += kind == b"+"
                removed += kind == b"-"
                left_old -= kind in (b"-", b" ", b"")
                left_new -= kind in (b"+", b" ", b"")
            elif line.startswith(b"diff --git "):
                files += 1
            elif line.startswith(b"@@ -"):
                left_old, left_new = _lengths(line)
        return cls(files=files, added=added, removed=removed)

    @property
    def lines(self) -> int:
        """Added and removed lines together."""
        return self.added + self.removed


def _lengths(header: bytes) -> tuple[int, int]:
    """`@@ -1,3 +1,4 @@`."""
    try:
        old, new = header.split(b" ", 3)[1:3]
        lengths = [int(part.partition(b",")[2] or b"1") for part in (old, new)]
    except ValueError:
        return 0, 0
    return lengths[0], lengths[1]


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt: its diff and the verdict.

    Without a verdict, `failure` says why. `applied` names the program that applied the patch.

    Example:
        ```python
        found = compare(checkout, {"nothing": b""}, Test("true"))
        print(found.attempts[0].name, found.attempts[0].outcome)  # nothing passed
        ```
    """

    name: str
    verdict: Verdict | None = None
    failure: str | None = None
    diff: bytes = b""
    size: DiffSize = DiffSize()
    applied: str | None = None
    effort: Effort = Effort()
    seconds: float = 0.0
    """Seconds from its fork to its end, with the tests."""

    @property
    def passed(self) -> bool:
        """Tell whether its test passed."""
        return self.verdict is not None and self.verdict.passed

    @property
    def outcome(self) -> str:
        """The verdict in words, or the failure."""
        return (self.failure or "") if self.verdict is None else str(self.verdict)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All attempts, in their order. `best` is None where none passes.

    Example:
        ```python
        found = compare(checkout, {"nothing": b""}, Test("false"))
        print(found.best, found.why)  # None none of 1 passes; nothing came nearest: exit 1
        ```
    """

    attempts: tuple[Attempt, ...]
    seconds: float = 0.0

    @property
    def best(self) -> Attempt | None:
        """The best attempt that passed, or None."""
        nearest = self.nearest
        return nearest if nearest is not None and nearest.passed else None

    @property
    def nearest(self) -> Attempt | None:
        """The first by tests passed, then by the smaller change, then by order."""
        judged = [attempt for attempt in self.attempts if attempt.verdict is not None]
        return min(judged, key=_rank) if judged else None

    @property
    def why(self) -> str:
        """The reason for `best`, in words."""
        passed = [attempt for attempt in self.attempts if attempt.passed]
        best = self.best
        if best is None:
            nearest = self.nearest
            near = f"; {nearest.name} came nearest: {nearest.outcome}" if nearest is not None else ""
            return f"none of {len(self.attempts)} passes{near}"
        if len(passed) == 1:
            return f"{best.name} is the only one of {len(self.attempts)} that passes"
        return f"{best.name}: {len(passed)} of {len(self.attempts)} pass; {_advantage(best, passed)}"


def _rank(attempt: Attempt) -> tuple[bool, float, int, int]:
    assert attempt.verdict is not None
    counts = attempt.verdict.counts
    return not attempt.passed, -attempt.verdict.score, -(counts.passed if counts else 0), attempt.size.lines


def _advantage(best: Attempt, passed: Sequence[Attempt]) -> str:
    ranks = sorted(_rank(attempt) for attempt in passed)
    if ranks[0][2] != ranks[1][2]:
        return "it passes the most tests"
    if ranks[0][3] != ranks[1][3]:
        return f"of those with the most tests its change is the smallest ({best.size.lines} lines)"
    return "of equals it was the first"


class SearchBudget(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a tree search.

    Example:
        ```python
        budget = SearchBudget(max_depth=3, max_nodes=20, max_seconds=600)
        ```
    """

    max_depth: int = 5
    max_nodes: int = 50
    max_seconds: float = 1800.0

    def __post_init__(self) -> None:
        if self.max_depth < 1 or self.max_nodes < 1 or not self.max_seconds > 0:
            raise InvalidArgumentError("max_depth, max_nodes and max_seconds have to be more than 0")


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A state that a search tried: a step (`label`) from its parent's.

    Without a score it failed, and `failure` says why.

    Example:
        ```python
        found = tree_search(checkout, lambda sandbox, node, branch: "wait", lambda sandbox: 1.0, branches=1)
        print(found.nodes[1].label, found.nodes[1].score)  # wait 1.0
        ```
    """

    id: int
    parent: int | None = None
    depth: int = 0
    label: str | None = None
    score: float | None = None
    diff: bytes = b""
    """Against the warm state."""
    failure: str | None = None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of a search. `nodes[0]` is the warm state.

    `stop` is `goal`, `nodes`, `depth` (every state is at its greatest depth or failed) or `time`.

    Example:
        ```python
        found = tree_search(checkout, lambda sandbox, node, branch: "wait", lambda sandbox: 1.0, branches=1)
        print(found.stop, found.best.depth)  # goal 1
        ```
    """

    nodes: tuple[Node, ...]
    stop: str
    seconds: float = 0.0

    @property
    def best(self) -> Node | None:
        """The node with the highest score, or None."""
        scored = [node for node in self.nodes if node.score is not None]
        return max(scored, key=lambda node: (node.score or 0.0, -node.depth, -node.id)) if scored else None

    def path(self, node: Node) -> tuple[Node, ...]:
        """List the nodes from the warm state to one.

        Args:
            node: A node of this search.

        Returns:
            A tuple of nodes, the root first.

        Example:
            ```python
            found = tree_search(checkout, lambda sandbox, node, branch: "wait", lambda sandbox: 1.0, branches=1)
            print([node.label for node in found.path(found.best)])  # [None, 'wait']
            ```
        """
        steps = [node]
        while steps[-1].parent is not None:
            steps.append(self.nodes[steps[-1].parent])
        return tuple(reversed(steps))
