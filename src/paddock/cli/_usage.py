"""The usage of a verb, declared once at the function that carries it out: arguments, help and function."""

from __future__ import annotations

from operator import methodcaller

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import Any, TypeAlias

    Part: TypeAlias = Callable[[Any], object]
    """Adds arguments to a parser, or to a group of one."""
    Run: TypeAlias = Callable[[argparse.Namespace], int]

_JSON = "print one JSON document"


def argument(*names: str, **how: Any) -> Part:
    """Return the part that adds one argument, as `ArgumentParser.add_argument` takes it."""
    return methodcaller("add_argument", *names, **how)


def together(*parts: Part) -> Part:
    """Return one part that adds all of these."""

    def add(parser: Any) -> None:
        for part in parts:
            part(parser)

    return add


def group(title: str, *parts: Part) -> Part:
    """Return the part that adds these below a separate title in the help."""
    return lambda parser: together(*parts)(parser.add_argument_group(title))


def exclusive(*parts: Part) -> Part:
    """Return the part that adds mutually exclusive arguments."""
    return lambda parser: together(*parts)(parser.add_mutually_exclusive_group())


class Usage:
    """One verb. The docstring of `run` describes it, and has its examples. Lists of verbs show its first sentence."""

    def __init__(self, run: Run, parts: tuple[Part, ...], json: str | None, defaults: dict[str, object]) -> None:
        self.run, self._parts, self._json, self._defaults = run, parts, json, defaults
        text, _, examples = (run.__doc__ or "").partition("Examples:\n")
        self.description = " ".join(text.split())
        self.examples = [line.strip() for line in examples.rstrip().splitlines()]

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        parser.description = self.description or parser.description
        together(*self._parts)(parser)
        if self._json is not None:
            parser.add_argument("--json", action="store_true", help=self._json)
        parser.set_defaults(run=self.run, **self._defaults)


def usage(*parts: Part, json: str | None = _JSON, **defaults: object) -> Callable[[Run], Usage]:
    """Turn a function into a verb with these arguments.

    `json` is the help of `--json`. None: a part adds that option.
    """
    return lambda run: Usage(run, parts, json, defaults)


class Verbs:
    """The verbs of a verb, as in `paddock audit ls`."""

    def __init__(self, about: str | None = None, **verbs: Usage) -> None:
        self._about, self._verbs = about, verbs
        self.examples = [text for one in verbs.values() for text in one.examples]

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        parser.description = self._about or parser.description
        verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
        for name, one in self._verbs.items():
            first = one.description.partition(". ")[0].removesuffix(".")
            one.add_to(verbs.add_parser(name, help=first, allow_abbrev=False))
