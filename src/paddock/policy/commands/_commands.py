"""Policy rules about commands in requests from outside the sandbox."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from posixpath import basename
from typing import Literal

import msgspec

from paddock.model.policy import CommandRule, CommandRules, RuleVerdict

from ._shell import Command, Line, read_argv, read_line

_STRICT: dict[RuleVerdict, int] = {"allow": 0, "approve": 1, "deny": 2}


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the rules. `rule` is its place in the document (`commands.deny[0]`), `reason` says why in words."""

    verdict: RuleVerdict
    rule: str
    reason: str


def strictest(*verdicts: Judgement) -> Judgement:
    """Return the first of those that are equally strict."""
    return max(verdicts, key=lambda one: _STRICT[one.verdict])


MOST_RULES = 1000
_KINDS: tuple[RuleVerdict, ...] = ("deny", "approve", "allow")
# Variables that turn a name into another program.
_TURNING = frozenset({"PATH", "ENV", "BASH_ENV", "SHELLOPTS", "BASHOPTS", "IFS", "PYTHONSTARTUP", "NODE_OPTIONS"})
_Match = Literal["yes", "no", "perhaps"]


class Commands:
    """Judges commands. Pure, and never raises. The examples of `rules` must hold (`command_faults`)."""

    def __init__(self, rules: CommandRules) -> None:
        self._rules = rules

    def judge(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Judgement:
        """Judge a command before its execution, with the variables that the request sets for it."""
        found = self._line(read_argv(argv))
        turning = sorted(name for name in env or () if name in _TURNING or name.startswith("LD_"))
        return strictest(found, self._unclear(f"{turning[0]} is set for it")) if turning else found

    def judge_line(self, text: str) -> Judgement:
        """Judge a shell line."""
        return self._line(read_line(text))

    def _line(self, line: Line) -> Judgement:
        verdicts = [self._command(command) for command in line.commands]
        if line.unclear is not None:
            verdicts.append(self._unclear(line.unclear))
        if not verdicts:
            return Judgement(verdict="allow", rule="commands", reason="it starts nothing")
        return strictest(*verdicts)

    def _command(self, command: Command) -> Judgement:
        perhaps: str | None = None
        for kind in _KINDS:
            for index, rule in enumerate(getattr(self._rules, kind)):
                found = matches(rule, command, exact=kind == "allow")
                if found == "yes":
                    reason = f"{_shown(command)}: commands.{kind}[{index}] is about it"
                    verdict = Judgement(verdict=kind, rule=f"commands.{kind}[{index}]", reason=reason)
                    return verdict if perhaps is None else strictest(verdict, self._unclear(perhaps))
                if found == "perhaps" and kind != "allow":
                    perhaps = perhaps or f"commands.{kind}[{index}] may be about it: a word is known to the shell alone"
        default = Judgement(
            verdict=self._rules.default, rule="commands.default", reason=f"{_shown(command)}: no rule is about it"
        )
        return default if perhaps is None else strictest(default, self._unclear(perhaps))

    def _unclear(self, why: str) -> Judgement:
        reason = f"it does not tell what it starts: {why}"
        return Judgement(verdict=self._rules.unclear, rule="commands.unclear", reason=reason)


def matches(rule: CommandRule, command: Command, *, exact: bool) -> _Match:
    """Tell whether a rule is about a command. `exact`: the name alone doesn't mean a program given by its path, which
    may be another."""
    for place, wanted in enumerate(rule.prefix):
        if place >= len(command.words):
            return "perhaps" if command.open else "no"
        word = command.words[place]
        choices = (wanted,) if isinstance(wanted, str) else wanted
        if word in choices or (place == 0 and not exact and basename(word) in choices):
            continue
        return "no"
    return "yes"


def command_faults(rules: CommandRules) -> Iterator[tuple[str, int, str, str]]:
    """Yield kind and index of a faulty rule, the key, and the fault.

    It judges examples the same way as real commands.
    """
    for kind in _KINDS:
        for index, rule in enumerate(getattr(rules, kind)):
            if not rule.prefix or any(
                not (word if isinstance(word, str) else all(word) and word) for word in rule.prefix
            ):
                yield kind, index, "prefix", "a prefix has words, none of them empty"
                continue
            for example in rule.match:
                if not _is_about(rule, example, exact=kind == "allow"):
                    yield kind, index, "match", f"{example!r} is not such a command"
            for example in rule.not_match:
                if _is_about(rule, example, exact=kind == "allow"):
                    yield kind, index, "not_match", f"{example!r} is such a command"


def _is_about(rule: CommandRule, example: str, *, exact: bool) -> bool:
    return any(matches(rule, command, exact=exact) == "yes" for command in read_line(example).commands)


def _shown(command: Command) -> str:
    text = " ".join(command.words[:8])
    return f"{text[:120]!r}"
