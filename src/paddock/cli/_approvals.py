"""`paddock approvals`: what waits for a person's yes; show it, say yes or no."""

from __future__ import annotations

import argparse
import time

from paddock import client, model

from . import _render
from ._answer import answer, listing, perform
from ._values import Verbs

_LOOK_SECONDS = 0.5


def add_approvals(parser: argparse.ArgumentParser) -> None:
    verbs = Verbs(parser, title="verbs; without one, as ls", required=False)
    parser.set_defaults(run=_list, all=False, watch=False, json=False)
    one = verbs.add("ls", _list, "what waits for an answer")
    one.add_argument("-a", "--all", action="store_true", help="what was answered, too")
    one.add_argument("--watch", action="store_true", help="and what comes, until Ctrl-C")
    for verb, run, purpose in (
        ("show", _show, "all of one"),
        ("approve", _approve, "yes: once, to exactly what was asked"),
        ("deny", _deny, "no"),
    ):
        two = verbs.add(verb, run, purpose)
        two.add_argument("approval", metavar="APPROVAL", help="id or unique prefix of one")
        if verb == "deny":
            two.add_argument("--reason", metavar="WORDS", help="for whoever asked")


def _list(options: argparse.Namespace) -> int:
    if options.watch:
        return _watch(options)
    found = perform(model.ListApprovals(all=options.all))
    return listing(options, found, ("ID", "STATE", "KIND", "SANDBOX", "ASKED", "UNTIL", "WHAT"), _row)


def _row(one: model.Approval) -> tuple[str, ...]:
    asked, until = _render.when(one.created_at), _render.when(one.expires_at)
    return (one.id, one.state.value, one.kind, one.sandbox, asked, until, one.summary)


def _watch(options: argparse.Namespace) -> int:
    """One line for each, when it is asked."""

    transport, seen = client.default_transport(), set[str]()
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


def _show(options: argparse.Namespace) -> int:
    (one,) = perform(model.ListApprovals(approval=options.approval))
    return _tell(options, one)


def _approve(options: argparse.Namespace) -> int:
    return _tell(options, perform(model.GrantApproval(approval=options.approval)))


def _deny(options: argparse.Namespace) -> int:
    action = model.DenyApproval(approval=options.approval, reason=options.reason)
    return _tell(options, perform(action))


def _tell(options: argparse.Namespace, one: model.Approval) -> int:
    facts = [("id", one.id), ("state", one.state.value), ("kind", one.kind), ("sandbox", one.sandbox)]
    facts += [("what", one.summary), ("digest", one.digest), ("revision", one.revision or "-")]
    facts += [("asked", _render.when(one.created_at)), ("until", _render.when(one.expires_at))]
    if one.decided_by and one.decided_at is not None:
        facts.append(("answered", f"{_render.when(one.decided_at)} by {one.decided_by}"))
    if one.reason:
        facts.append(("reason", one.reason))
    return answer(options, one, lambda: _render.facts(facts))
