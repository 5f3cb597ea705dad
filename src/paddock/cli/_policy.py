"""`paddock policy`: check, explain and compare policies here. Set and show them for running sandboxes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from paddock import model

from . import _render
from ._answer import answer, perform
from ._usage import Verbs, argument, usage
from ._values import SANDBOX

if TYPE_CHECKING:
    from paddock.policy.network import Change, Explanation, Loaded

DENIED = 1
_FILE = argument("file", metavar="FILE")


@usage(_FILE)
def _check(options: argparse.Namespace) -> int:
    """Check whether a file says one thing, and show which."""
    snapshot = _load(options.file).snapshot
    rules = snapshot.rules
    document = snapshot.document
    counts = {name: len(getattr(rules, name)) for name in ("allow", "deny", "mock")}
    counts["approve"] = len(document.approve)
    commands = document.commands
    counts["commands"] = 0 if commands is None else len(commands.deny) + len(commands.approve) + len(commands.allow)
    counts["files"] = 0 if document.files is None else len(document.files.protect) + len(document.files.approve)
    facts = [("revision", snapshot.revision), *((name, str(number)) for name, number in counts.items())]
    facts.append(("secrets", ", ".join(sorted(document.secrets)) or "none"))
    told = {"revision": snapshot.revision, **counts, "secrets": sorted(document.secrets)}
    return answer(options, told, lambda: _render.facts(facts))


@usage(
    _FILE,
    argument("method", nargs="?", metavar="METHOD"),
    argument("url", nargs="?", metavar="URL"),
    argument("--command", metavar="LINE", help="instead of a request: a shell line"),
    argument("--write", metavar="PATH", help="or a file that is to be written"),
    argument("--delete", metavar="PATH", help="or one that is to be deleted"),
)
def _explain(options: argparse.Namespace) -> int:
    """Show which rule decides on a request, and why. Exit code 0 if it allows the request, 1 if not."""
    from paddock.policy.network import explain

    loaded = _load(options.file)
    if options.url is None:
        return _explain_inside(loaded.document, options)
    found = explain(loaded, options.method.upper(), options.url)
    answer(options, found, lambda: _tell(found, options.file))
    return 0 if found.allowed else DENIED


def _explain_inside(document: model.PolicyDocument, options: argparse.Namespace) -> int:
    from paddock.errors import InvalidArgumentError
    from paddock.policy.commands import explain_command, explain_file

    if options.command is not None:
        verdict, enforced = explain_command(document, options.command)
    elif options.write is not None:
        verdict, enforced = explain_file(document, options.write, delete=False)
    elif options.delete is not None:
        verdict, enforced = explain_file(document, options.delete, delete=True)
    else:
        raise InvalidArgumentError("explain what?", hint="METHOD URL, --command LINE, --write PATH or --delete PATH")
    words = {"allow": "allowed", "approve": "asked of a person", "deny": "denied"}
    told = {"verdict": verdict.verdict, "rule": verdict.rule, "reason": verdict.reason, **enforced}
    facts = [("verdict", words[verdict.verdict]), ("because", verdict.reason), *enforced.items()]
    answer(options, told, lambda: _render.facts(facts))
    return 0 if verdict.verdict == "allow" else DENIED


def _tell(found: Explanation, file: str) -> None:
    where = f"{file}:{found.line}" if found.line else ""
    rows = [
        ("verdict", "allowed" if found.allowed else "denied"),
        ("because", found.reason + (f" ({where})" if where else "")),
        ("target", f"{found.host}:{found.port}"),
        ("request", f"{found.method} {found.path}"),
    ]
    if found.tier is not None:
        rows.append(("tier", found.tier.value))
    if found.secrets:
        rows.append(("secrets", ", ".join(found.secrets)))
    if found.approve is not None:
        rows.append(("asks", f"a person, for {found.approve}"))
    rows += [("near", f"{one.rule}{f' (line {one.line})' if one.line else ''}: {one.because}") for one in found.near]
    _render.facts(rows)


@usage(argument("before", metavar="A"), argument("after", metavar="B"))
def _diff(options: argparse.Namespace) -> int:
    """Show the differences in permissions between two files."""
    from paddock.policy.network import diff

    changes = diff(_load(options.before).snapshot, _load(options.after).snapshot)
    if options.json:
        _render.document(changes)
    elif changes:
        marks = ["missing" if change.kind == "allowed" else "ok" for change in changes]
        _render.table(("CHANGE", "WHERE", "REQUESTS", "NOTE"), [_row(change) for change in changes], marks=marks)
    else:
        _render.note("they allow the same")
    return 0


def _row(change: Change) -> tuple[str, str, str, str]:
    words = {"allowed": "+ allowed", "denied": "- denied", "changed": "~ changed"}
    where = change.where if change.ports == "-" else f"{change.where} port {change.ports}"
    return words[change.kind], where, change.requests, change.note


@usage(json="of errors; what is printed is JSON")
def _schema(options: argparse.Namespace) -> int:
    """Print the JSON Schema of such files, for editors."""
    from paddock.policy.network import schema

    _render.document(schema())
    return 0


@usage(
    SANDBOX,
    argument("file", nargs="?", metavar="FILE", help="left out: no network from now on"),
    argument("--expect", metavar="REVISION", help="refuse if it has another one by now"),
)
def _set(options: argparse.Namespace) -> int:
    """Put another policy in force for a sandbox.

    It returns after paddock has cut the connections that the policy refuses. Prints the revision.
    """
    document = None if options.file is None else _load(options.file).document
    sandbox = perform(model.SetPolicy(sandbox=options.sandbox, policy=document, expect_revision=options.expect))
    return answer(options, sandbox, lambda: _render.line(sandbox.policy or "no network"))


@usage(SANDBOX)
def _show(options: argparse.Namespace) -> int:
    """Show the policy of a sandbox."""
    found = perform(model.GetPolicy(sandbox=options.sandbox))
    if options.json:
        _render.document(found)
    elif found.document is None:
        _render.line("no network")
    else:
        from paddock.policy.network import to_yaml

        _render.plain(f"# revision {found.revision}\n{to_yaml(found.document)}".rstrip())
    return 0


def _load(name: str) -> Loaded:
    """Read a policy from a file.

    It refuses a name with a line break, because as text that would be the policy itself.
    """
    from paddock.errors import InvalidArgumentError
    from paddock.policy.network import load

    if "\n" in name:
        raise InvalidArgumentError(f"{name!r} is not the name of a file")
    return load(name)


verb_policy = Verbs(check=_check, explain=_explain, diff=_diff, schema=_schema, set=_set, show=_show)
