"""From a session of pytest outside to one inside a world, and its reports back: one line of JSON each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from .world import IMPOSSIBLE

_VARIABLE = "PADDOCK_ACCEPTANCE_REPORTS"
_WRITER = int(os.environ.pop(_VARIABLE, "-1"))
INSIDE = _WRITER >= 0
if INSIDE:
    os.set_inheritable(_WRITER, False)  # what is started here does not keep it open

_MOST_WORDS = 6000
_RUNNING = pytest.StashKey["Session"]()


def run(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Reports what becomes of `item`. The first of a file starts the session inside, the last one ends it."""
    stash = item.session.stash
    if (session := stash.get(_RUNNING, None)) is None or session.path != item.path:
        if session is not None:
            session.end()
        session = stash[_RUNNING] = Session(item)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in session.reports_of(item):
        item.ihook.pytest_runtest_logreport(report=report)
    if nextitem is None or nextitem.path != item.path:
        del stash[_RUNNING]
        if wrong := session.end():
            item.ihook.pytest_runtest_logreport(report=_report(item, "failed", wrong))
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def stop(session: pytest.Session) -> None:
    """Where it ends before a file does."""
    if (running := session.stash.get(_RUNNING, None)) is not None:
        running.end()


class Session:
    """One of pytest's, inside, with all tests of a file that were selected outside."""

    def __init__(self, first: pytest.Item) -> None:
        self.path = first.path
        nodes = [item.nodeid for item in first.session.items if item.path == first.path]
        reader, writer = os.pipe()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment[_VARIABLE] = str(writer)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.acceptance.world", *_pytest(), *nodes],
            cwd=first.config.rootpath,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            pass_fds=(writer,),
        )
        os.close(writer)
        self._lines = os.fdopen(reader)

    def reports_of(self, item: pytest.Item) -> Iterator[pytest.TestReport]:
        """Up to that of its teardown. If there are no more, whatever was said stands instead."""
        for line in self._lines:
            data: dict[str, Any] = json.loads(line)
            report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
            assert isinstance(report, pytest.TestReport)
            if isinstance(report.longrepr, list):  # of a skip, a tuple that JSON has no word for
                report.longrepr = tuple(report.longrepr)
            assert report.nodeid == item.nodeid, f"expected reports of {item.nodeid}, not of {report.nodeid}"
            yield report
            if report.when == "teardown":
                return
        yield self._instead(item)

    def _instead(self, item: pytest.Item) -> pytest.TestReport:
        status, words = self._process.wait(), self._words()
        if status == IMPOSSIBLE:
            return _report(item, "skipped", (str(item.path), 0, f"Skipped: {words.strip()}"))
        return _report(item, "failed", words[-_MOST_WORDS:])

    def end(self) -> str | None:
        """Whoever is still at work inside finds nobody listening, and ends in good order. What was wrong, if anything
        was. Idempotent."""
        if self._said.closed:
            return None
        self._lines.close()
        status, words = self._process.wait(), self._words()
        self._said.close()
        fine = status in (0, 1, 2, IMPOSSIBLE) and "LEAK: " not in words
        return None if fine else f"the session inside ended with {status}:\n{words[-_MOST_WORDS:]}"

    def _words(self) -> str:
        self._said.seek(0)
        return self._said.read().decode(errors="replace")


def _report(
    item: pytest.Item, outcome: Literal["failed", "skipped"], words: str | tuple[str, int, str]
) -> pytest.TestReport:
    return pytest.TestReport(item.nodeid, item.location, keywords={}, outcome=outcome, longrepr=words, when="setup")


def _pytest() -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short"]


def tell(report: pytest.TestReport) -> None:
    """Inside: to whoever listens outside."""
    if not INSIDE:
        return
    from _pytest.reports import pytest_report_to_serializable

    line = json.dumps(pytest_report_to_serializable(report)) + "\n"
    try:
        data = memoryview(line.encode())
        while data:
            data = data[os.write(_WRITER, data) :]
    except BrokenPipeError:
        pytest.exit("nobody listens outside")
