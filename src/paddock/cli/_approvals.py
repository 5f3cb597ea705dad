"""`paddock approvals`: show the pending approvals, grant or deny them."""

from __future__ import annotations

import argparse
import time

from paddock import client, model

from . import _render
from ._answer import answer, listing, perform
from ._usage import Verbs, argument, usage

_LOOK_SECONDS = 0.5
_APPROVAL = argument("approval", metavar="APPROVAL", help="id or unique prefix of one")


@usage(
    argument("-a", "--all", action="store_true", help="what was answered, too"),
    argument("--watch", action="store_true", help="and what comes, until Ctrl-C"),
)
def _list(options: argparse.Namespace) -> int:
    """List the pending approvals."""
    if options.watch:
        return _watch(options)
    found = perform(model.ListApprovals(all=options.all))
    return listing(
        options,
        found,
        ("ID", "STATE", "KIND", "SANDBOX", "ASKED", "UNTIL", "WHAT"),
        _row,
        "nothing waits for your answer",
    )


def _row(one: model.Approval) -> tuple[str, ...]:
    asked, until = _render.when(one.created_at), _render.when(one.expires_at)
    return (one.id, one.state.value, one.kind, one.sandbox, asked, until, one.summary)


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
def _show(options: argparse.Namespace) -> int:
    """Show all of one."""
    (one,) = perform(model.ListApprovals(approval=options.approval))
    facts = [("id", one.id), ("state", one.state.value), ("kind", one.kind), ("sandbox", one.sandbox)]
    facts += [("what", one.summary), ("digest", one.digest), ("revision", one.revision or "-")]
    facts += [("asked", _render.when(one.created_at)), ("until", _render.when(one.expires_at))]
    if one.decided_by and one.decided_at is not None:
        facts.append(("answered", f"{_render.when(one.decided_at)} by {one.decided_by}"))
    if one.reason:
        facts.append(("reason", one.reason))
    return answer(options, one, lambda: _render.facts(facts))


@usage(_APPROVAL)
def _approve(options: argparse.Namespace) -> int:
    """Grant an approval: once, for exactly the requested action."""
    one = perform(model.GrantApproval(approval=options.approval))
    until = _render.when(one.expires_at)
    return answer(options, one, lambda: _render.line(f"approved {one.id}: {one.summary}, once, until {until}"))


@usage(_APPROVAL, argument("--reason", metavar="WORDS", help="for whoever asked"))
def _deny(options: argparse.Namespace) -> int:
    """Say no."""
    one = perform(model.DenyApproval(approval=options.approval, reason=options.reason))
    return answer(options, one, lambda: _render.line(f"denied {one.id}: {one.summary}"))


verb_approvals = Verbs(ls=_list, show=_show, approve=_approve, deny=_deny, otherwise="ls")
