"""The verbs, and the parser of a command line: of a verb nothing is imported before it is asked for."""

from __future__ import annotations

import argparse
import os
from importlib import import_module

from paddock import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn


class Verb:
    """`module` has `verb_<verb>`, a `Usage` or `Verbs`; `names` says whether completion offers ids and names of
    sandboxes."""

    def __init__(self, module: str, help: str, names: bool = False) -> None:
        self.module, self.help, self.names = module, help, names


VERBS: dict[str, Verb] = {
    "run": Verb("_exec", "a command in a new sandbox, which is gone afterwards"),
    "create": Verb("_sandboxes", "a sandbox that stays until `kill` or its TTL; prints its id"),
    "up": Verb("_workspaces", "the workspace of a task, and a sandbox over it"),
    "exec": Verb("_exec", "a command in a sandbox that lives", names=True),
    "sh": Verb("_exec", "a shell on this terminal, in a sandbox that lives or in a new one", names=True),
    "cp": Verb("_cp", "a file or a directory into a sandbox or out of it", names=True),
    "ls": Verb("_sandboxes", "the sandboxes of this machine"),
    "ps": Verb("_sandboxes", "the processes inside, as the kernel shows them", names=True),
    "logs": Verb("_logs", "what commands have printed", names=True),
    "stats": Verb("_stats", "processor, memory, processes and disk, live", names=True),
    "inspect": Verb("_sandboxes", "all that is known of a sandbox", names=True),
    "why": Verb("_audit", "why a sandbox died, and what was refused", names=True),
    "workspaces": Verb("_workspaces", "the workspaces there are; --delete, --pin"),
    "status": Verb("_workspaces", "what a workspace holds that is nowhere else", names=True),
    "fork": Verb("_sandboxes", "new sandboxes with the files of one that lives", names=True),
    "snapshot": Verb("_sandboxes", "keep the files of a sandbox as they are now", names=True),
    "snapshots": Verb("_sandboxes", "the snapshots there are; --delete", names=True),
    "rollback": Verb("_sandboxes", "take a sandbox back to a snapshot", names=True),
    "try": Verb("_judging", "patches side by side: each in a fork, judged by the tests; prints the best"),
    "agent": Verb("_judging", "a model works on a task in forks, judged by the tests; prints the best diff"),
    "repos": Verb("_repos", "repositories that are cached: list, fetch, remove"),
    "image": Verb("_image", "OCI images as templates: pull, ls, rm"),
    "template": Verb("_image", "what sandboxes can start from: ls"),
    "diff": Verb("_changes", "what a workspace holds, or a sandbox has changed in a mounted directory", names=True),
    "patch": Verb("_changes", "what a workspace holds, for `git apply`", names=True),
    "branch": Verb("_changes", "push what a workspace holds to a branch of its remote", names=True),
    "pr": Verb("_changes", "a pull request for that branch, on GitHub, Gitea or Forgejo", names=True),
    "artifact": Verb("_artifact", "take files out by name, and keep them here"),
    "approvals": Verb("_approvals", "what waits for a person's yes: ls, show, approve, deny"),
    "secret": Verb("_secret", "values that sandboxes can use and never see: set, ls, rm"),
    "promote": Verb("_changes", "take what a sandbox has changed in a mounted directory over into it", names=True),
    "policy": Verb("_policy", "what sandboxes may reach and do: check, explain, diff, schema, set, show"),
    "record": Verb("_record", "what a sandbox is answered from outside, as a cassette: start, take"),
    "pause": Verb("_sandboxes", "have all that runs in a sandbox stand still until it is used", names=True),
    "resume": Verb("_sandboxes", "have a paused sandbox go on", names=True),
    "kill": Verb("_sandboxes", "end sandboxes at once and for good", names=True),
    "gc": Verb("_doctor", "delete what nobody needs; --dry-run says what and why"),
    "doctor": Verb("_doctor", "what this machine can do, and how to mend what it cannot"),
    "daemon": Verb("_daemon", "the process that owns this state directory: status, stop, restart, logs"),
    "audit": Verb("_audit", "the record of what was asked, decided and done", names=True),
    "eval": Verb("_eval", "whether what is promised holds here: prompt injection, played"),
    "bench": Verb("_eval", "what the levels of this machine cost and stop, side by side"),
    "completion": Verb("_completion", "completion of verbs, options, ids and names, for bash, zsh and fish"),
}

_EPILOG = """\
ID is the id of a sandbox, a unique prefix of one, or a name.
`paddock VERB --help` says more.
Exit codes: the command's own; 125 paddock failed; 126 not executable; 127 not found; 2 wrong usage.
"""


class WrongUsage(Exception):
    """What is wrong with a command line, and what to try."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class _Formatter(argparse.HelpFormatter):
    """Asks for the terminal's width itself: argparse imports the whole of shutil for that, for each option."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


class _RootFormatter(_Formatter, argparse.RawDescriptionHelpFormatter):
    """Leaves the lines of the epilog as they are."""


def _columns() -> int:
    if (columns := os.environ.get("COLUMNS", "")).isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80


class Parser(argparse.ArgumentParser):
    """Raises instead of printing and leaving: errors have one shape, and `--json` is one of it."""

    def error(self, message: str) -> NoReturn:
        raise WrongUsage(message, f"{self.prog} --help")


def parser(*loaded: str) -> argparse.ArgumentParser:
    """Of the verbs `loaded` with all that they take; without any, of all verbs by name and purpose."""
    root = Parser(
        prog="paddock",
        usage=None if loaded else "paddock VERB ...",
        description="Disposable computers for coding agents, on this machine.",
        epilog=_EPILOG,
        formatter_class=_RootFormatter,
        allow_abbrev=False,
    )
    root.add_argument("--version", action="version", version=f"paddock {__version__}")
    verbs = root.add_subparsers(title="verbs", metavar="VERB", required=True, prog="paddock")
    for name in loaded or VERBS:
        one = verbs.add_parser(
            name,
            help=VERBS[name].help,
            description=VERBS[name].help,
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        if loaded:
            getattr(import_module(f"{__package__}.{VERBS[name].module}"), f"verb_{name}").add_to(one)
    return root


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """WrongUsage; SystemExit after `--help` and `--version`."""
    asked = arguments[0] if arguments else None
    if asked is None:
        raise WrongUsage("no verb was given", "paddock --help")
    if asked.startswith("-"):
        return parser().parse_args(arguments)
    if asked not in VERBS:
        near = nearest(asked, VERBS)
        raise WrongUsage(f"there is no verb {asked!r}", f"paddock {near}" if near else "paddock --help")
    root = parser(asked)
    options, unknown = root.parse_known_args(arguments)
    if unknown and hasattr(options, "paths") and not any(word.startswith("-") for word in unknown):
        options.paths += unknown  # argparse takes them in one place only, before the options or after
    elif unknown:
        raise _unknown(root, asked, unknown)
    if isinstance(getattr(options, "command", None), list) and options.command:
        _refuse_late_options(verb_parser(root, asked), arguments, options.command)
    return options


def _refuse_late_options(parser: argparse.ArgumentParser, arguments: Sequence[str], rest: Sequence[str]) -> None:
    """WrongUsage: an option of the verb is among `rest`, the words of the command, and no `--` says that it belongs
    there. `run CMD --policy FILE` would run without that policy."""
    verb, *first = arguments[: len(arguments) - len(rest)]
    if "--" in (*first, rest[0]):
        return
    late, command, at = list[str](), list(rest), 0
    while at < len(command) and command[at] != "--":
        taken = _words_of_option(parser, command[at])
        late += command[at : at + taken]
        del command[at : at + taken]
        at += not taken
    if not late:
        return
    from shlex import join

    place = "sandbox" if verb == "exec" else "command"
    own = "" if "--" in rest else f" (if it is the command's own: paddock {join([verb, *first, '--', *rest])})"
    dashes = [] if command[:1] == ["--"] else ["--"]
    raise WrongUsage(
        f"{late[0]!r} is an option of `paddock {verb}`, and options go before the {place}{own}",
        f"paddock {join([verb, *late, *first, *dashes, *command])}",
    )


def _words_of_option(parser: argparse.ArgumentParser, word: str) -> int:
    """Return how many words the option takes that `word` begins, 0 if it isn't one of the verb's. `--help` is the
    command's."""
    known = {name: action for action in parser._actions for name in action.option_strings}  # pyright: ignore[reportPrivateUsage]
    name, equals, _ = word.partition("=")
    if name in ("-h", "--help"):
        return 0
    if name in known:
        return 1 if equals or known[name].nargs == 0 else 2
    letters = word[1:] if word[:1] == "-" and word[1:2] != "-" else ""
    return int(len(letters) > 1 and all(f"-{letter}" in known for letter in letters))


def nearest(word: str, known: Sequence[str] | dict[str, Verb]) -> str | None:
    """What was meant, perhaps."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(known), n=1, cutoff=0.5)), None)


def verb_parser(root: argparse.ArgumentParser, verb: str) -> argparse.ArgumentParser:
    """The part of `parser(…)` that is about `verb`."""
    return inner_parsers(root)[verb]


def inner_parsers(one: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The verbs of a parser, or of a verb such as `paddock audit`."""
    for action in one._actions:  # pyright: ignore[reportPrivateUsage]
        if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
            return dict(action.choices)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return {}


def option_names(parser: argparse.ArgumentParser) -> tuple[str, ...]:
    return tuple(name for action in parser._actions for name in action.option_strings)  # pyright: ignore[reportPrivateUsage]


def _unknown(root: argparse.ArgumentParser, verb: str, words: list[str]) -> WrongUsage:
    option = next((word for word in words if word.startswith("-")), None)
    if option is None:
        return WrongUsage(f"too many arguments: {' '.join(words)}", f"paddock {verb} --help")
    near = nearest(option.partition("=")[0], option_names(verb_parser(root, verb)))
    hint = f"paddock {verb} {near}" if near else f"paddock {verb} --help"
    return WrongUsage(f"`paddock {verb}` has no option {option!r}", hint)
