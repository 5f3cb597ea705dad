"""`paddock agent`: a model works on a task, several times at once, each time in a fork of its own."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

from paddock.errors import InvalidArgument

from ._judging import Judge, add_judging, judge, told
from ._values import positive, seconds

if TYPE_CHECKING:
    from paddock.loop import AsyncAgent, AsyncCheckout, AsyncModel, Attempt, Budget, Comparison, Price, Test, Trace

    from ._progress import Progress

_AT_ONCE = 8
_SECRET_NAMES = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
_SHORTEST_SECRET = 8


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Mounts a directory copy-on-write, sets up once, and lets a model work on the task in forks. What each has "
        "changed is judged by the tests, as a diff in a fresh fork. The best diff goes to stdout, the table to "
        "stderr. Exit code 0 if one passes, 1 if none. Tokens, money and time are limited for all attempts together."
    )
    parser.add_argument("task", help="what to do, in words")
    parser.add_argument(
        "--model",
        required=True,
        help="openai:NAME, anthropic:NAME (keys and addresses from the environment, as their SDKs do), script:FILE",
    )
    parser.add_argument("--best-of", type=positive, default=1, metavar="N", help="attempts (default: 1)")
    parser.add_argument("--max-steps", type=positive, default=30, metavar="N", help="of each attempt (default: 30)")
    parser.add_argument("--max-seconds", type=seconds, default=1800.0, metavar="TIME", help="default: 1800")
    parser.add_argument("--max-tokens", type=positive, metavar="N")
    parser.add_argument("--max-usd", type=_dollars, metavar="USD", help="needs --price")
    parser.add_argument(
        "--price", type=_prices, metavar="IN:OUT[:CACHED]", help="US dollars for a million tokens, for cost and limit"
    )
    parser.add_argument(
        "--step-timeout", type=seconds, default=120.0, metavar="TIME", help="for each command (default: 120)"
    )
    parser.add_argument("--trace", metavar="FILE", help="all that happens, as JSON lines; FILE.md is a page to read")
    add_judging(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock.loop import Budget

    budget = Budget(
        max_steps=options.max_steps,
        max_tokens=options.max_tokens,
        max_seconds=options.max_seconds,
        max_usd=options.max_usd,
    )
    price = _price(options.price)
    budget.require_price(price, options.model)
    choose = _models(options.model, price)
    with _traced(options.trace) as trace:
        return judge(options, _worker(options, budget, choose, trace))


def _worker(
    options: argparse.Namespace, budget: Budget, choose: Callable[[int], AsyncModel], trace: Trace | None
) -> Judge:
    async def work(checkout: AsyncCheckout, test: Test, shown: Progress) -> Comparison:
        from paddock.loop import AsyncAgent, aagent_attempt, abest_of

        def agent(number: int) -> AsyncAgent:
            return AsyncAgent(
                choose(number),
                budget=budget,
                directory=checkout.directory,
                step_timeout_seconds=options.step_timeout,
                trace=trace,
            )

        tell = told(shown, options.best_of)

        def ended(attempt: Attempt) -> None:
            tell(attempt)
            if trace is not None:
                trace.text("diff", attempt.name, attempt.diff.decode("utf-8", "replace"), outcome=attempt.outcome)

        return await abest_of(
            options.best_of,
            checkout,
            aagent_attempt(agent, f"{options.task}\n\nThe tests are run by: {options.test}", test=test),
            test,
            parallel=options.parallel or min(options.best_of, _AT_ONCE),
            first_passing=options.first,
            on_attempt=ended,
        )

    return work


def _models(text: str, price: Price | None) -> Callable[[int], AsyncModel]:
    """By the number of the attempt. InvalidArgument, NotConfigured."""
    from paddock.loop import AsyncAnthropicModel, AsyncOpenAIModel, AsyncScriptModel, read_script

    kind, _, name = text.partition(":")
    model: AsyncModel
    if not name or kind not in ("openai", "anthropic", "script"):
        raise InvalidArgument(f"{text!r} is no model", hint="--model openai:NAME, anthropic:NAME or script:FILE")
    if kind == "script":
        scripts = [AsyncScriptModel(replies, name=text, price=price) for replies in read_script(name)]
        if not scripts:
            raise InvalidArgument(f"{name} holds no replies")
        return lambda number: scripts[number % len(scripts)]
    model = AsyncOpenAIModel(name, price=price) if kind == "openai" else AsyncAnthropicModel(name, price=price)
    return lambda _: model


@contextlib.contextmanager
def _traced(path: str | None) -> Generator[Trace | None]:
    if path is None:
        yield None
        return
    from paddock.loop import Trace, report

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


def _dollars(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of dollars: write 0.50")
    return value


def _prices(text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(":")]
    except ValueError:
        values = []
    if len(values) not in (2, 3) or not all(value >= 0 and math.isfinite(value) for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} is no price: write IN:OUT, US dollars for a million tokens")
    return values


def _price(values: list[float] | None) -> Price | None:
    from paddock.loop import Price

    if values is None:
        return None
    return Price(input_usd=values[0], output_usd=values[1], cached_usd=values[2] if len(values) == 3 else None)
