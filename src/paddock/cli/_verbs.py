"""The verbs, and the parser of a command line. It imports the module of a verb only for its use."""

from __future__ import annotations

import argparse
import os
from importlib import import_module

from paddock import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from ._usage import Usage, Verbs


class Verb:
    """A verb.

    `module` has `verb_<verb>`, a `Usage` or `Verbs`. `names`: completion offers ids and names of sandboxes.
    """

    def __init__(self, module: str, help: str, names: bool = False) -> None:
        self.module, self.help, self.names = module, help, names


GROUPS: dict[str, dict[str, Verb]] = {
    "sandboxes": {
        "run": Verb("_exec", "run a command in a new sandbox, and delete the sandbox"),
        "create": Verb("_sandboxes", "make a sandbox that stays until `kill` or its TTL; print its id"),
        "exec": Verb("_exec", "run a command in a living sandbox", True),
        "sh": Verb("_exec", "open a shell in a living sandbox or in a new one", True),
        "cp": Verb("_cp", "copy a file or a directory in or out", True),
        "forward": Verb("_cp", "have a port of this machine lead to one inside", True),
        "ls": Verb("_sandboxes", "list sandboxes"),
        "ps": Verb("_sandboxes", "list the processes inside, as the kernel shows them", True),
        "logs": Verb("_logs", "print what commands have printed", True),
        "stats": Verb("_stats", "show processor, memory, processes and disk, live", True),
        "inspect": Verb("_sandboxes", "show all that is known of a sandbox", True),
        "extend": Verb("_sandboxes", "have a sandbox live longer", True),
        "kill": Verb("_sandboxes", "end sandboxes at once and for good", True),
    },
    "state": {
        "fork": Verb("_sandboxes", "make sandboxes with the files of a living one", True),
        "snapshot": Verb("_sandboxes", "keep a sandbox's files, or a Dockerfile's: create, build, ls, rm", True),
        "rollback": Verb("_sandboxes", "take a sandbox back to a snapshot", True),
        "pause": Verb("_sandboxes", "stop all that runs in a sandbox until it is used", True),
        "resume": Verb("_sandboxes", "let a paused sandbox go on", True),
    },
    "tasks": {
        "up": Verb("_workspaces", "open the workspace of a task, and a sandbox over it"),
        "workspace": Verb("_workspaces", "workspaces: ls, status, pin, unpin, rm", True),
        "status": Verb("_workspaces", "show what a workspace holds that is nowhere else", True),
        "diff": Verb("_changes", "show what changed in a workspace or a mounted directory", True),
        "patch": Verb("_changes", "print those changes for `git apply`", True),
        "promote": Verb("_changes", "write what changed in a mounted directory to it", True),
        "branch": Verb("_changes", "push a workspace to a branch of its remote", True),
        "pr": Verb("_changes", "open a pull request for that branch", True),
        "artifact": Verb("_kept", "keep files of a sandbox by name: add, get, list, rm"),
        "repos": Verb("_kept", "cached repositories: ls, fetch, rm"),
    },
    "agents": {
        "try": Verb("_judging", "try patches side by side in forks, and print the best"),
        "agent": Verb("_judging", "let a model work on a task in forks, and print the best diff"),
        "eval": Verb("_eval", "play prompt injections against a policy"),
    },
    "policy": {
        "policy": Verb("_policy", "what sandboxes may reach and do: check, explain, set, show"),
        "secret": Verb("_policy", "values that sandboxes can use and never see: set, ls, rm, rekey"),
        "approvals": Verb("_policy", "what waits for your answer: ls, show, approve, deny"),
        "record": Verb("_policy", "record what a sandbox is answered from outside: start, take"),
        "why": Verb("_audit", "say why a sandbox ended, and what was refused", True),
        "audit": Verb("_audit", "what was asked, decided and done: ls, tail, show, verify", True),
    },
    "system": {
        "doctor": Verb("_doctor", "say what this machine can do, and how to fix what it can't"),
        "template": Verb("_kept", "what sandboxes start from: ls"),
        "image": Verb("_kept", "OCI images as templates: pull, ls, rm"),
        "daemon": Verb("_daemon", "the process behind all verbs: status, stop, restart, logs"),
        "gc": Verb("_doctor", "delete what nothing needs"),
        "bench": Verb("_eval", "measure the levels of this machine, side by side"),
        "completion": Verb("_completion", "completion for bash, zsh and fish"),
    },
}
VERBS: dict[str, Verb] = {name: verb for group in GROUPS.values() for name, verb in group.items()}

ALIASES = {
    "approval": "approvals",
    "artifacts": "artifact",
    "delete": "kill",
    "images": "image",
    "list": "ls",
    "repo": "repos",
    "rm": "kill",
    "secrets": "secret",
    "snapshots": "snapshot",
    "shell": "sh",
    "ssh": "sh",
    "stop": "kill",
    "templates": "template",
    "top": "ps",
    "unpause": "resume",
    "workspaces": "workspace",
}
"""Words that people type, and the verbs that they mean."""
_ELSEWHERE = {
    "attach": "paddock logs -f ID",
    "build": "paddock snapshot build DIR",
    "checkout": "paddock up URL",
    "clone": "paddock up URL",
    "commit": "paddock snapshot create ID",
    "config": "paddock doctor",
    "download": "paddock cp ID:PATH FILE",
    "events": "paddock audit tail -f",
    "export": "paddock cp ID:PATH DIR",
    "info": "paddock doctor",
    "network": "paddock run --network HOST",
    "new": "paddock create",
    "port": "paddock forward ID PORT",
    "pull": "paddock image pull docker://IMAGE",
    "push": "paddock branch TASK",
    "start": "paddock create, or paddock resume ID",
    "upload": "paddock cp FILE ID:PATH",
    "volume": "paddock run --mount DIR",
}
"""Verbs of other programs, and our lines for them."""
_LISTS = {
    **dict.fromkeys(("approval", "approvals", "images", "repos", "secrets", "snapshots", "templates"), "ls"),
    "artifacts": "list",
    "workspaces": "ls",
}
"""Plurals, and the verb of each without any other."""
_MEANT = {
    "--detach": "paddock create, then paddock exec -d ID -- COMMAND",
    "--env-file": "--env NAME=VALUE",
    "--idle": "paddock create --idle TIME, then paddock exec ID -- COMMAND",
    "--label": "paddock create --label NAME=VALUE, then paddock exec ID -- COMMAND",
    "--mem": "--memory",
    "--name": "paddock create --name NAME, then paddock exec NAME -- COMMAND",
    "--nested": "paddock create --nested N, then paddock exec ID -- COMMAND",
    "--net": "--network",
    "--publish": "paddock forward ID PORT",
    "--rm": "leave it out: `paddock run` deletes its sandbox",
    "--volume": "--mount DIR:TARGET",
    "--workdir": "--cwd PATH",
    "-d": "paddock create, then paddock exec -d ID -- COMMAND",
    "-e": "--env NAME=VALUE",
    "-it": "-t",
    "-m": "--memory",
    "-p": "paddock forward ID PORT",
    "-u": "--user NAME",
    "-v": "--mount DIR:TARGET",
    "-w": "--cwd PATH",
}
"""Options of other programs, and our equivalents."""

_EPILOG = """\
ID is the id of a sandbox, a unique prefix of one, or a name.

examples:
  paddock run -- python3 -c 'print(6 * 7)'
  paddock create --name box --ttl 2h
  paddock exec box -- pytest -q
  paddock kill box

`paddock help VERB` says more.
Exit codes: the command's own; 125 paddock failed; 126 not executable;
127 not found; 2 wrong usage.
"""


class WrongUsage(Exception):
    """A mistake on the command line, and a correction."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class _Formatter(argparse.HelpFormatter):
    """Asks for the terminal's width itself: argparse imports the whole of shutil for that, for each option."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Leave the lines of an epilog as they are."""
        return text if "\n" in text else super()._fill_text(text, width, indent)


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
    """Return the parser of the verbs `loaded`. Without any, its help lists all verbs in groups."""
    groups = "".join(
        f"{title}:\n" + "".join(f"  {name:<12}{verb.help}\n" for name, verb in group.items()) + "\n"
        for title, group in GROUPS.items()
    )
    root = Parser(
        prog="paddock",
        usage=None if loaded else "paddock VERB ...",
        description="Run code that you don't trust, on this machine." + ("" if loaded else f"\n\n{groups.rstrip()}"),
        epilog=_EPILOG,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    root.add_argument("--version", action="version", version=f"paddock {__version__}")
    if not loaded:
        return root
    verbs = root.add_subparsers(title="verbs", metavar="VERB", required=True, prog="paddock")
    for name in loaded:
        verb = VERBS[name]
        one = verbs.add_parser(
            name,
            help=verb.help,
            description=verb.help,
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        declared: Usage | Verbs = getattr(import_module(f"{__package__}.{verb.module}"), f"verb_{name}")
        declared.add_to(one)
        if examples := [text for text in declared.examples if f"{one.prog} " in f"{text} "]:
            one.epilog = "\n  ".join(("examples:", *examples))
    return root


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. Raises WrongUsage, and SystemExit after `--help` and `--version`."""
    if not arguments:
        raise WrongUsage("no verb was given", "paddock --help")
    arguments = _as_written_today(list(arguments))
    asked = arguments[0]
    if asked.startswith("-"):
        options, unknown = parser().parse_known_args(arguments)
        late = next((word for word in unknown if word in VERBS), None)
        if late is not None:
            raise WrongUsage(f"{asked} comes after the verb", f"paddock {late} --help")
        raise WrongUsage(f"`paddock` has no option {asked!r}", "paddock --help")
    if asked not in VERBS:
        near = nearest(asked, VERBS)
        hint = _ELSEWHERE.get(asked) or (f"paddock {near}" if near else "paddock --help")
        raise WrongUsage(f"there is no verb {asked!r}", hint)
    root = parser(asked)
    if asked == "exec":
        arguments = _options_first(verb_parser(root, asked), arguments)
    options, unknown = root.parse_known_args(arguments)
    if unknown and hasattr(options, "paths") and not any(word.startswith("-") for word in unknown):
        options.paths += unknown  # argparse takes them in one place only, before the options or after
    elif unknown:
        raise _unknown(root, arguments, unknown)
    if isinstance(getattr(options, "command", None), list) and options.command:
        _refuse_late_options(verb_parser(root, asked), arguments, options.command)
    return options


def _as_written_today(words: list[str]) -> list[str]:
    """Return a command line whose verb is one of VERBS, where it began with another word for it."""
    verb, *rest = words
    if verb == "version":
        return ["--version"]
    if verb == "help":
        return [*_as_written_today(rest), "--help"] if rest else ["--help"]
    if verb == "snapshot" and rest and rest[0] not in ("create", "build", "ls", "rm", "-h", "--help"):
        return [verb, "create", *rest]
    if verb in _LISTS and (not rest or (rest[0].startswith("-") and rest[0] not in ("-h", "--help"))):
        rest = [_LISTS[verb], *rest]
    return [ALIASES.get(verb, verb), *rest]


def _options_first(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """Return `exec OPTIONS ID -- COMMAND` for `exec ID OPTIONS -- COMMAND`."""
    if "--" not in words:
        return words
    end = words.index("--")
    head, options, others = words[1:end], list[str](), list[str]()
    while head:
        taken = _words_of_option(parser, head[0])
        (options if taken else others).extend(head[: taken or 1])
        del head[: taken or 1]
    return [words[0], *options, *others, *words[end:]] if len(others) == 1 else words


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
    """Return the most similar known word, or None."""
    from difflib import get_close_matches

    swapped = (one for one in known if sorted(one) == sorted(word))
    return next(swapped, None) or next(iter(get_close_matches(word, list(known), n=1, cutoff=0.76)), None)


def verb_parser(root: argparse.ArgumentParser, verb: str) -> argparse.ArgumentParser:
    """Return the part of `parser(…)` that is about `verb`."""
    return inner_parsers(root)[verb]


def inner_parsers(one: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the verbs of a parser, or of a verb such as `paddock audit`."""
    for action in one._actions:  # pyright: ignore[reportPrivateUsage]
        if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
            return dict(action.choices)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return {}


def option_names(parser: argparse.ArgumentParser) -> tuple[str, ...]:
    return tuple(name for action in parser._actions for name in action.option_strings)  # pyright: ignore[reportPrivateUsage]


def _unknown(root: argparse.ArgumentParser, arguments: list[str], words: list[str]) -> WrongUsage:
    verb, *rest = arguments
    parser = verb_parser(root, verb)
    if rest and rest[0] in (inner := inner_parsers(parser)):
        verb, parser = f"{verb} {rest[0]}", inner[rest[0]]
    option = next((word for word in words if word.startswith("-")), None)
    if option is None:
        return WrongUsage(f"too many arguments: {' '.join(words)}", f"paddock {verb} --help")
    name, known = option.partition("=")[0], option_names(parser)
    meant = _MEANT.get(name)
    if meant is not None and meant.startswith("-") and meant.split()[0] not in known:
        meant = None
    near = meant or nearest(name, known)
    hint = f"paddock {verb} {near}" if near and near.startswith("-") else near or f"paddock {verb} --help"
    return WrongUsage(f"`paddock {verb}` has no option {option!r}", hint)
