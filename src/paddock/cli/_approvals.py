"""`paddock approvals`: what waits for a person's yes; show it, say yes or no."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from . import _render
from ._values import add_json

if TYPE_CHECKING:
    from paddock.model import Approval

_LOOK_SECONDS = 0.5


def add(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs; without one, as ls", metavar="VERB")
    parser.set_defaults(run=_list, all=False, watch=False, json=False)
    one = verbs.add_parser("ls", help="what waits for an answer", allow_abbrev=False)
    one.add_argument("-a", "--all", action="store_true", help="what was answered, too")
    one.add_argument("--watch", action="store_true", help="and what comes, until Ctrl-C")
    add_json(one)
    one.set_defaults(run=_list)
    for verb, run, purpose in (
        ("show", _show, "all of one"),
        ("approve", _approve, "yes: once, to exactly what was asked"),
        ("deny", _deny, "no"),
    ):
        two = verbs.add_parser(verb, help=purpose, allow_abbrev=False)
        two.add_argument("approval", metavar="APPROVAL", help="id or unique prefix of one")
        if verb == "deny":
            two.add_argument("--reason", metavar="WORDS", help="for whoever asked")
        add_json(two)
        two.set_defaults(run=run)


def _list(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import ListApprovals

    if options.watch:
        return _watch(options)
    found = default_transport().perform(ListApprovals(all=options.all))
    if options.json:
        _render.document(found)
    elif found:
        headings = ("ID", "STATE", "KIND", "SANDBOX", "ASKED", "UNTIL", "WHAT")
        _render.table(headings, [_row(one) for one in found])
    return 0


def _row(one: Approval) -> tuple[str, ...]:
    asked, until = _render.when(one.created_at), _render.when(one.expires_at)
    return (one.id, one.state.value, one.kind, one.sandbox, asked, until, one.summary)


def _watch(options: argparse.Namespace) -> int:
    """One line for each, when it is asked."""
    from paddock.client import default_transport
    from paddock.model import ListApprovals

    transport, seen = default_transport(), set[str]()
    while True:
        for one in transport.perform(ListApprovals(all=options.all)):
            if one.id in seen:
                continue
            seen.add(one.id)
            if options.json:
                _render.json_line(one)
            else:
                _render.raw(1, f"{one.id}  {one.kind}  {one.sandbox}  {_render.escape(one.summary)}\n".encode())
        time.sleep(_LOOK_SECONDS)


def _show(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import ListApprovals

    (one,) = default_transport().perform(ListApprovals(approval=options.approval))
    _tell(one, as_json=options.json)
    return 0


def _approve(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import GrantApproval

    _tell(default_transport().perform(GrantApproval(approval=options.approval)), as_json=options.json)
    return 0


def _deny(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import DenyApproval

    action = DenyApproval(approval=options.approval, reason=options.reason)
    _tell(default_transport().perform(action), as_json=options.json)
    return 0


def _tell(one: Approval, *, as_json: bool) -> None:
    if as_json:
        _render.document(one)
        return
    facts = [("id", one.id), ("state", one.state.value), ("kind", one.kind), ("sandbox", one.sandbox)]
    facts += [("what", one.summary), ("digest", one.digest), ("revision", one.revision or "-")]
    facts += [("asked", _render.when(one.created_at)), ("until", _render.when(one.expires_at))]
    if one.decided_by and one.decided_at is not None:
        facts.append(("answered", f"{_render.when(one.decided_at)} by {one.decided_by}"))
    if one.reason:
        facts.append(("reason", one.reason))
    _render.facts(facts)
