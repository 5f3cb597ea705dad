"""What sandboxes may do, and what they get: `paddock policy`, `record`, `secret` and `approvals`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from paddock import client, model
from paddock.errors import InvalidArgumentError

from . import _render
from ._answer import answer, ask, each, listing, perform
from ._usage import Verbs, argument, usage
from ._values import SANDBOX

if TYPE_CHECKING:
    from paddock.policy.network import Change, Explanation, Loaded

DENIED = 1
_FILE = argument("file", metavar="FILE")


@usage(_FILE)
def _check(options: argparse.Namespace) -> int:
    """Check whether a policy is valid, and count its rules.

    Examples:
        paddock policy check paddock.yaml
    """
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
    return answer(options, told, show=lambda: _render.facts([("valid", options.file), *facts]))


@usage(
    _FILE,
    argument("method", nargs="?", metavar="METHOD"),
    argument("url", nargs="?", metavar="URL"),
    argument("--command", metavar="LINE", help="instead of a request: a shell line"),
    argument("--write", metavar="PATH", help="or a file that is to be written"),
    argument("--delete", metavar="PATH", help="or one that is to be deleted"),
)
def _explain(options: argparse.Namespace) -> int:
    """Show which rule decides on a request, and why. Exit code 0 if it allows the request, 1 if not.

    Examples:
        paddock policy explain paddock.yaml POST https://api.github.com/repos/acme/app
    """
    from paddock.policy.network import explain

    loaded = _load(options.file)
    if options.url is None:
        return _explain_inside(loaded.document, options)
    found = explain(loaded, options.method.upper(), options.url)
    answer(options, found, show=lambda: _tell(found, options.file))
    return 0 if found.allowed else DENIED


def _explain_inside(document: model.PolicyDocument, options: argparse.Namespace) -> int:
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
    answer(options, told, show=lambda: _render.facts(facts))
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
    marks = ["missing" if change.kind == "allowed" else "ok" for change in changes]
    return listing(options, changes, "CHANGE, WHERE, REQUESTS, NOTE", _change_row, "they allow the same", marks=marks)


def _change_row(change: Change) -> tuple[str, str, str, str]:
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
    sandbox = ask(model.SetPolicy, options, policy=document, expect_revision=options.expect)
    return answer(options, sandbox, sandbox.policy or "no network")


@usage(SANDBOX)
def _show(options: argparse.Namespace) -> int:
    """Show the policy of a sandbox."""
    found = ask(model.GetPolicy, options)
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
    from paddock.policy.network import load

    if "\n" in name:
        raise InvalidArgumentError(f"{name!r} is not the name of a file")
    return load(name)


verb_policy = Verbs(check=_check, explain=_explain, diff=_diff, schema=_schema, set=_set, show=_show)


@usage(SANDBOX)
def _start_recording(options: argparse.Namespace) -> int:
    """Record from now on."""
    ask(model.StartRecording, options)
    return answer(options, {"sandbox": options.sandbox})


@usage(SANDBOX, argument("file", metavar="FILE", help="a new one, that ends in .yaml or .json"))
def _take_recording(options: argparse.Namespace) -> int:
    """End it, and write the cassette."""
    from paddock.policy.network import write_cassette

    file = Path(options.file)
    if file.suffix not in (".yaml", ".yml", ".json"):
        raise InvalidArgumentError(
            f"{options.file!r} is not the name of a cassette", hint="one that ends in .yaml or .json"
        )
    try:
        opened = file.open("x", encoding="utf-8")  # before it is taken: then it is gone from where it was
    except OSError as error:
        raise InvalidArgumentError(f"{options.file!r} cannot be made: {error.strerror}") from None
    with opened:
        try:
            taken = ask(model.TakeRecording, options)
        except BaseException:
            file.unlink()
            raise
        opened.write(write_cassette(taken.exchanges, as_json=file.suffix == ".json"))
    notes = [f"not recorded: {line}" for line in taken.omitted]
    notes.append(f"{len(taken.exchanges)} exchanges in {options.file}")
    return answer(options, {"exchanges": len(taken.exchanges), "omitted": taken.omitted}, notes=notes)


verb_record = Verbs(start=_start_recording, take=_take_recording)


_MOST_SECRET_BYTES = 1 << 20


@usage(argument("name", metavar="NAME", help="as a variable is named"))
def _set_secret(options: argparse.Namespace) -> int:
    """Keep a value, or another one. Reads the value from stdin, or asks for it on a terminal. A newline at its end is
    not part of it.

    Examples:
        paddock secret set GITHUB_TOKEN <token
    """
    model.check_secret_name(options.name)
    secret = perform(model.SetSecret(name=options.name, value=_read_secret(options.name)))
    return answer(options, secret, f"{secret.name}, version {secret.version}")


def _read_secret(name: str) -> model.SecretValue:
    """Values come from stdin, never from a command line."""
    if sys.stdin.isatty():
        from getpass import getpass

        return model.SecretValue(getpass(f"value of {_render.escape(name)}: ").encode("utf-8", "surrogateescape"))
    data = sys.stdin.buffer.read(_MOST_SECRET_BYTES)
    return model.SecretValue(data.removesuffix(b"\n").removesuffix(b"\r"))


@usage()
def _list_secrets(options: argparse.Namespace) -> int:
    """List the secrets, never values."""
    found = perform(model.ListSecrets())
    return listing(options, found, "NAME, VERSION, SET, USED, KEY", _secret_row, "no secrets: paddock secret set NAME")


def _secret_row(one: model.Secret) -> tuple[str, ...]:
    return one.name, str(one.version), _render.when(one.updated_at), _render.when(one.used_at), one.key


@usage(argument("name", nargs="+", metavar="NAME"))
def _remove_secrets(options: argparse.Namespace) -> int:
    """Revoke secrets: no sandbox can use them from now on."""
    return each(options, options.name, lambda one: model.RemoveSecret(name=one))


@usage()
def _rekey(options: argparse.Namespace) -> int:
    """Make a new key for the keys of all secrets."""
    count = perform(model.RotateVaultKey())
    return answer(options, {"sealed": count}, f"{_render.count(count, 'secret')} encrypted again")


verb_secret = Verbs(set=_set_secret, ls=_list_secrets, rm=_remove_secrets, rekey=_rekey)


_LOOK_SECONDS = 0.5
_APPROVAL = argument("approval", metavar="APPROVAL", help="id or unique prefix of one")


@usage(
    argument("-a", "--all", action="store_true", help="what was answered, too"),
    argument("--watch", action="store_true", help="and what comes, until Ctrl-C"),
)
def _list_approvals(options: argparse.Namespace) -> int:
    """List the pending approvals.

    Examples:
        paddock approvals ls --watch
    """
    if options.watch:
        return _watch(options)
    found, headings = ask(model.ListApprovals, options), "ID, STATE, KIND, SANDBOX, ASKED, UNTIL, WHAT"
    return listing(options, found, headings, _approval_row, "nothing waits for your answer")


def _approval_row(one: model.Approval) -> tuple[str, ...]:
    asked, until = _render.when(one.created_at), _render.when(one.expires_at)
    return one.id, one.state.value, one.kind, one.sandbox, asked, until, one.summary


def _watch(options: argparse.Namespace) -> int:
    """Print one line for each new approval."""
    transport, seen = client.default_transport(), set[str]()
    _render.note("watching for approvals; Ctrl-C ends this")
    while True:
        for one in transport.perform(model.ListApprovals(all=options.all)):
            if one.id in seen:
                continue
            seen.add(one.id)
            if options.json:
                _render.json_line(one)
            else:
                _render.raw(1, f"{one.id}  {one.kind}  {one.sandbox}  {_render.escape(one.summary)}\n".encode())
        time.sleep(_LOOK_SECONDS)


@usage(_APPROVAL)
def _show_approval(options: argparse.Namespace) -> int:
    """Show all of one."""
    (one,) = ask(model.ListApprovals, options)
    facts = [("id", one.id), ("state", one.state.value), ("kind", one.kind), ("sandbox", one.sandbox)]
    facts += [("what", one.summary), ("digest", one.digest), ("revision", one.revision or "-")]
    facts += [("asked", _render.when(one.created_at)), ("until", _render.when(one.expires_at))]
    if one.decided_by and one.decided_at is not None:
        facts.append(("answered", f"{_render.when(one.decided_at)} by {model.Principal(one.decided_by).name}"))
    if one.reason:
        facts.append(("reason", one.reason))
    return answer(options, one, show=lambda: _render.facts(facts))


@usage(_APPROVAL)
def _approve(options: argparse.Namespace) -> int:
    """Grant an approval: once, for exactly the requested action.

    Examples:
        paddock approvals approve ap_0tx7
    """
    one = ask(model.GrantApproval, options)
    return answer(options, one, f"approved {one.id}: {one.summary}, once, until {_render.when(one.expires_at)}")


@usage(_APPROVAL, argument("--reason", metavar="WORDS", help="for whoever asked"))
def _deny(options: argparse.Namespace) -> int:
    """Say no."""
    one = ask(model.DenyApproval, options)
    return answer(options, one, f"denied {one.id}: {one.summary}")


verb_approvals = Verbs(ls=_list_approvals, show=_show_approval, approve=_approve, deny=_deny)
