"""Attempts side by side, each in a fork and judged by the tests: `paddock try` and `paddock agent`."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from paddock import client, model
from paddock.errors import InvalidArgumentError

from . import _render
from ._answer import answer
from ._changes import show_patch
from ._progress import Progress, progress
from ._usage import argument, usage
from ._values import positive, sandbox_spec, seconds, spec

if TYPE_CHECKING:
    from paddock.agents import Agent, Attempt, Checkout, Comparison, Model, Price, Test, Trace

    from ._usage import Part, Run, Usage

TTL_SECONDS = 3600.0
NONE_PASSES = 1


def _judging(*parts: Part) -> Callable[[Run], Usage]:
    """Return the usage of a verb with these arguments and the ones about the tests of attempts."""
    return usage(
        *parts,
        argument(
            "--repo", default=".", metavar="DIR", help="the directory to work on; it never changes (default: this one)"
        ),
        argument("--test", required=True, metavar="COMMAND", help="an attempt passes if its exit code is 0"),
        argument("--setup", metavar="COMMAND", help="run this once, before the first attempt"),
        argument("--parallel", type=positive, metavar="N", help="test so many at once"),
        argument("--first", action="store_true", help="stop at the first attempt that passes"),
        argument(
            "--test-timeout",
            type=seconds,
            default=600.0,
            metavar="TIME",
            help="end a run of the tests after that (default: 600)",
        ),
        argument("--junit", metavar="PATH", help="a report that the tests write, below the directory"),
        sandbox_spec(ttl_seconds=TTL_SECONDS),
        template="code-interpreter",
    )


@contextmanager
def warm(options: argparse.Namespace) -> Generator[tuple[Checkout, Test, Progress]]:
    """Yield the directory in a prepared sandbox, the tests, and the progress display."""
    from paddock.agents import Checkout, Test

    if not Path(options.repo).is_dir():
        raise InvalidArgumentError(f"{options.repo!r} is not a directory", hint="--repo DIR")
    test, repo = Test(options.test, options.test_timeout, options.junit), model.Mount(source=options.repo)
    with progress("making the sandbox") as shown, client.Sandbox.create(**spec(options, repo)) as sandbox:
        if options.setup is not None:
            shown.operation = "setting up"
            sandbox.exec(options.setup, cwd=repo.target, check=True)
        shown.operation = "recording the state of the directory"
        checkout = Checkout.of(sandbox, repo.target)
        for note in checkout.notes:
            _render.note(note)
        yield checkout, test, shown


def show(options: argparse.Namespace, found: Comparison) -> int:
    """0 if one passes."""
    answer(options, _described(found), show=lambda: _tell(found))
    return 0 if found.best is not None else NONE_PASSES


def _tell(found: Comparison) -> None:
    _table(found)
    _render.notes((found.why, *_remarks(found)))
    if found.best is not None:
        show_patch(found.best.diff, colour=False)


def told(shown: Progress, count: int) -> Callable[[Attempt], None]:
    """Says how far it is."""
    ended: list[str] = []

    def tell(attempt: Attempt) -> None:
        ended.append(attempt.name)
        shown.operation = f"{len(ended)} of {count} tried"

    shown.operation = f"0 of {count} tried"
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
    """Return why agents ended, each reason once, and the last line of the tests if none passes and there are
    no counts.
    """
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
    return f"{usd}{effort.tokens.total} tokens, {_render.count(effort.steps, 'step')}, {effort.stop}"


def _described(found: Comparison) -> dict[str, object]:
    return {
        "best": None if found.best is None else found.best.name,
        "why": found.why,
        "seconds": found.seconds,
        "attempts": [_attempt(attempt) for attempt in found.attempts],
    }


def _attempt(attempt: Attempt) -> dict[str, object]:
    shown = ("name", "passed", "outcome", "verdict", "failure", "applied", "diff", "size", "effort", "seconds")
    found = {name: getattr(attempt, name) for name in shown}
    return {**found, "diff": attempt.diff.decode("utf-8", "backslashreplace")}


_PATCH_BYTES = 16 << 20


@_judging(argument("patches", nargs="+", metavar="PATCH", help="a file that `git apply` understands"))
def verb_try(options: argparse.Namespace) -> int:
    """Mount a directory copy-on-write, set up once, and fork once per patch: applied there, and judged by the tests.
    The best diff goes to stdout, the table to stderr. Exit code 0 if one passes, 1 if none does.

    Examples:
        paddock try --test "pytest -q" patches/*.patch >best.patch
    """
    from paddock.agents import compare

    patches = {name: _read(name) for name in options.patches}
    with warm(options) as (checkout, test, shown):
        found = compare(
            checkout,
            patches,
            test,
            parallel=options.parallel,
            first_passing=options.first,
            on_attempt=told(shown, len(patches)),
        )
    return show(options, found)


def _read(name: str) -> bytes:
    try:
        with Path(name).open("rb") as file:
            data = file.read(_PATCH_BYTES + 1)
    except OSError as error:
        raise InvalidArgumentError(f"the patch {name!r} cannot be read: {error.strerror}") from None
    if len(data) > _PATCH_BYTES:
        raise InvalidArgumentError(f"the patch {name!r} has more than {_PATCH_BYTES} bytes")
    return data


_AT_ONCE = 8
_SECRET_NAMES = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
_SHORTEST_SECRET = 8


def _dollars(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount of dollars: write 0.50")
    return value


def _price(text: str) -> Price:
    from paddock.agents import Price

    try:
        values = [float(part) for part in text.split(":")]
    except ValueError:
        values = []
    if len(values) not in (2, 3) or not all(value >= 0 and math.isfinite(value) for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} is not a price: write IN:OUT, US dollars for a million tokens")
    return Price(input_usd=values[0], output_usd=values[1], cached_usd=values[2] if len(values) == 3 else None)


@_judging(
    argument("task", help="what to do, in words"),
    argument(
        "--model",
        required=True,
        help="openai:NAME, anthropic:NAME (keys and addresses from the environment, as their SDKs do), script:FILE",
    ),
    argument("--best-of", type=positive, default=1, metavar="N", help="attempts (default: 1)"),
    argument("--max-steps", type=positive, default=30, metavar="N", help="of each attempt (default: 30)"),
    argument("--max-seconds", type=seconds, default=1800.0, metavar="TIME", help="default: 1800"),
    argument("--max-tokens", type=positive, metavar="N"),
    argument("--max-usd", type=_dollars, metavar="USD", help="needs --price"),
    argument(
        "--price", type=_price, metavar="IN:OUT[:CACHED]", help="US dollars for a million tokens, for cost and limit"
    ),
    argument("--step-timeout", type=seconds, default=120.0, metavar="TIME", help="for each command (default: 120)"),
    argument("--trace", metavar="FILE", help="all that happens, as JSON lines; FILE.md is a page to read"),
)
def verb_agent(options: argparse.Namespace) -> int:
    """Mount a directory copy-on-write, prepare it once, and let a model work on the task in forks.

    The tests judge each change as a diff in a fresh fork. The best diff goes to stdout, the table to stderr. Exit code
    0 if one passes, 1 if none. Limits of tokens, money and time apply to all attempts together.

    Examples:
        paddock agent "make the tests pass" --test "pytest -q" --best-of 5 --model anthropic:NAME
    """
    from paddock.agents import Agent, Budget, agent_attempt, best_of

    budget = Budget(
        max_steps=options.max_steps,
        max_tokens=options.max_tokens,
        max_seconds=options.max_seconds,
        max_usd=options.max_usd,
    )
    budget.require_price(options.price, options.model)
    choose = _models(options.model, options.price)
    with _traced(options.trace) as trace, warm(options) as (checkout, test, shown):
        tell = told(shown, options.best_of)

        def made(number: int) -> Agent:
            return Agent(
                choose(number),
                budget=budget,
                directory=checkout.directory,
                step_timeout_seconds=options.step_timeout,
                trace=trace,
            )

        def ended(attempt: Attempt) -> None:
            tell(attempt)
            if trace is not None:
                trace.text("diff", attempt.name, attempt.diff.decode("utf-8", "replace"), outcome=attempt.outcome)

        found = best_of(
            options.best_of,
            checkout,
            agent_attempt(made, f"{options.task}\n\nThe tests are run by: {options.test}", test=test),
            test,
            parallel=options.parallel or min(options.best_of, _AT_ONCE),
            first_passing=options.first,
            on_attempt=ended,
        )
    return show(options, found)


def _models(text: str, price: Price | None) -> Callable[[int], Model]:
    """Return the model of each attempt, by number. Raises InvalidArgumentError and NotConfiguredError."""
    from paddock.agents import AnthropicModel, OpenAIModel, ScriptModel, read_script

    kind, _, name = text.partition(":")
    model: Model
    if not name or kind not in ("openai", "anthropic", "script"):
        raise InvalidArgumentError(
            f"{text!r} is not a model", hint="--model openai:NAME, anthropic:NAME or script:FILE"
        )
    if kind == "script":
        scripts = [ScriptModel(replies, name=text, price=price) for replies in read_script(name)]
        if not scripts:
            raise InvalidArgumentError(f"{name} holds no replies")
        return lambda number: scripts[number % len(scripts)]
    model = OpenAIModel(name, price=price) if kind == "openai" else AnthropicModel(name, price=price)
    return lambda _: model


@contextmanager
def _traced(path: str | None) -> Generator[Trace | None]:
    if path is None:
        yield None
        return
    from paddock.agents import Trace, report

    secrets = [
        value for name, value in os.environ.items() if name.endswith(_SECRET_NAMES) and len(value) >= _SHORTEST_SECRET
    ]
    with Trace(path, redact=secrets) as trace:
        try:
            yield trace
        finally:
            page = Path(path + ".md")
            page.touch(mode=0o600)
            page.write_text(report(path))
