"""What `paddock try` and `paddock agent` share: a warm sandbox over a directory, tests, a table, and the best diff."""

from __future__ import annotations

import argparse
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from paddock.errors import InvalidArgument

from . import _render
from ._progress import Progress, progress
from ._signals import run_until_signal
from ._values import add_json, add_spec, limits, mounts, positive, seconds

if TYPE_CHECKING:
    from paddock.loop import AsyncCheckout, Attempt, Comparison, Test

TTL_SECONDS = 3600.0
NONE_PASSES = 1

Judge = Callable[["AsyncCheckout", "Test", Progress], Coroutine[None, None, "Comparison"]]


def add_judging(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repo", default=".", metavar="DIR", help="a directory; it is never changed (default: here)")
    parser.add_argument("--test", required=True, metavar="COMMAND", help="passes with exit code 0")
    parser.add_argument("--setup", metavar="COMMAND", help="run once, before the first fork")
    parser.add_argument("--parallel", type=positive, metavar="N", help="so many at once")
    parser.add_argument("--first", action="store_true", help="be content with the first that passes")
    parser.add_argument(
        "--test-timeout", type=seconds, default=600.0, metavar="TIME", help="for each run of the tests (default: 600)"
    )
    parser.add_argument("--junit", metavar="PATH", help="a report that the tests write, below the directory")
    add_json(parser)
    add_spec(parser, ttl_seconds=TTL_SECONDS, policy=False)
    parser.set_defaults(template="code-interpreter")


def judge(options: argparse.Namespace, work: Judge) -> int:
    """0 if one passes."""
    from paddock.loop import Test

    if not Path(options.repo).is_dir():
        raise InvalidArgument(f"{options.repo!r} is no directory", hint="--repo DIR")
    test = Test(options.test, options.test_timeout, options.junit)
    found = run_until_signal(_judge(options, test, work))
    if options.json:
        _render.document(_described(found))
    else:
        _table(found)
        _render.note(found.why)
        for words in _remarks(found):
            _render.note(words)
        if found.best is not None:
            _render.document_text(found.best.diff)
    return 0 if found.best is not None else NONE_PASSES


async def _judge(options: argparse.Namespace, test: Test, work: Judge) -> Comparison:
    with progress("making the sandbox") as shown:
        async with _warm(options, shown) as checkout:
            for note in checkout.notes:
                _render.note(note)
            return await work(checkout, test, shown)


@asynccontextmanager
async def _warm(options: argparse.Namespace, shown: Progress) -> AsyncGenerator[AsyncCheckout]:
    from paddock import AsyncSandbox
    from paddock.loop import AsyncCheckout
    from paddock.model import Mount

    repo = Mount(source=options.repo)
    async with await AsyncSandbox.create(
        options.template,
        level=options.level,
        ttl_seconds=options.ttl,
        limits=limits(options),
        mounts=(repo, *mounts(options)),
        snapshot=options.snapshot,
    ) as sandbox:
        if options.setup is not None:
            shown.said = "setting up"
            await sandbox.exec(options.setup, cwd=repo.target, check=True)
        shown.said = "recording the state of the directory"
        yield await AsyncCheckout.of(sandbox, repo.target)


def told(shown: Progress, count: int) -> Callable[[Attempt], None]:
    """Says how far it is."""
    ended: list[str] = []

    def tell(attempt: Attempt) -> None:
        ended.append(attempt.name)
        shown.said = f"{len(ended)} of {count} tried"

    shown.said = f"0 of {count} tried"
    return tell


def _table(found: Comparison) -> None:
    rows = [
        (
            ("* " if attempt is found.best else "  ") + attempt.name,
            attempt.outcome.partition("\n")[0],
            f"+{attempt.size.added} -{attempt.size.removed}, files: {attempt.size.files}" if attempt.diff else "none",
            _cost(attempt),
            f"{attempt.seconds:.1f} s",
        )
        for attempt in found.attempts
    ]
    marks = ["ok" if attempt.passed else "missing" for attempt in found.attempts]
    _render.table(("  attempt", "tests", "diff", "cost", "time"), rows, marks=marks, beside=True)


def _remarks(found: Comparison) -> list[str]:
    """Why agents ended, each reason once; and what the tests said where they told no counts and none passes."""
    notes: dict[str, str] = {}
    for attempt in found.attempts:
        if attempt.effort.note:
            notes.setdefault(attempt.effort.note.partition("\n")[0], attempt.name)
    remarks = [f"{name}: {note}" for note, name in notes.items()]
    nearest = None if found.best is not None else found.nearest
    if nearest is not None and nearest.verdict is not None and nearest.verdict.counts is None:
        lines = [line for line in nearest.verdict.said.splitlines() if line.strip()]
        remarks += [f"its tests said: {lines[-1]}"] if lines else []
    return remarks


def _cost(attempt: Attempt) -> str:
    effort = attempt.effort
    if not effort.steps:
        return "-" if effort.stop is None else str(effort.stop)
    usd = "" if effort.usd is None else f"${effort.usd:.4f}, "
    return f"{usd}{effort.tokens.total} tokens, {effort.steps} steps, {effort.stop}"


def _described(found: Comparison) -> dict[str, object]:
    return {
        "best": None if found.best is None else found.best.name,
        "why": found.why,
        "seconds": found.seconds,
        "attempts": [_attempt(attempt) for attempt in found.attempts],
    }


def _attempt(attempt: Attempt) -> dict[str, object]:
    return {
        "name": attempt.name,
        "passed": attempt.passed,
        "outcome": attempt.outcome,
        "verdict": attempt.verdict,
        "failure": attempt.failure,
        "applied": attempt.applied,
        "diff": attempt.diff.decode("utf-8", "backslashreplace"),
        "size": attempt.size,
        "effort": attempt.effort,
        "seconds": attempt.seconds,
    }
