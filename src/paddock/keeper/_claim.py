"""Claiming: a vessel that waits, complete and nobody's, becomes the sandbox of a plan (docs/design/levels.md, Waiting).

Nothing foreign has run in it. Its processes, group, sockets and exits stay as they are, and its mounts but for what the
sandbox is over (`_late_trees`); what it is known by, and when and with whom it ends, are the plan's from then on. That
it is, is written in one step: until then the next keeper finds what waits. One that was to be taken and could not be
is ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from paddock.keeper import _late_trees
from paddock.keeper._errors import Gone, JailError, as_jail_error
from paddock.keeper._house import House
from paddock.keeper._plan import CLAIM, WAITING, JailPlan
from paddock.keeper._records import Ended, Record
from paddock.keeper._trace import Steps
from paddock.keeper._undertaker import Life, Undertaker
from paddock.linux.undo import UndoStack

SPOILED = Ended(limit=None, reason="it was to become a sandbox, and could not")
Message = dict[str, Any]
Reply = Callable[..., None]


def order(
    house: House, undertaker: Undertaker, admitted: Callable[[Message], JailPlan]
) -> Callable[[Reply, str, Message, list[str]], None]:
    """The keeper's operation `claim`. `admitted` gives the plan of a message, or refuses it."""

    def claim(reply: Reply, id: str, plan: Message, late: list[str]) -> None:
        wanted = admitted(plan)
        life = undertaker.lives.get(id)
        waits = life is not None and life.cause is None and not life.record.paused
        if life is None or not waits or life.record.kind != wanted.kind + WAITING:
            raise Gone(id)
        try:
            _claim(house, undertaker, life, wanted, tuple(late))
        except Exception:
            undertaker.end(life, SPOILED)
            raise
        reply({"pid": life.record.pid})

    return claim


def _claim(house: House, undertaker: Undertaker, life: Life, plan: JailPlan, late: tuple[str, ...]) -> None:
    """`late`: where those trees of the plan belong that it has not got yet."""
    steps = Steps(plan.fault.removeprefix(CLAIM))
    records, was = house.records, life.record.id
    try:
        with UndoStack() as undo:
            record = _settled(life.record, plan, late)
            if late or plan.mounts or plan.protect:
                steps.begin("mounts")
                _late_trees.attach(house, life.jail, plan, late)
                steps.end("mounts")
            steps.begin("rename")
            records.adopt(plan.id, records.directory, was)
            undo.push(records.adopt, was, records.directory, plan.id)
            steps.end("rename")
            steps.begin("written")
            records.write(record)
            undo.release()
    except Exception as error:
        raise as_jail_error(error, steps) from None
    undertaker.pass_on(life, record)
    if record.exits:
        life.jail.close_way()


def _settled(record: Record, plan: JailPlan, late: tuple[str, ...]) -> Record:
    """What is written about it from now on. JailError: it was made for others."""
    limits = {name: getattr(plan, name) for name in record.limits}
    if limits != record.limits or plan.exits != record.exits:
        raise JailError("what waits has other limits, or another way out")
    if any(tree.writable and tree.target not in late for tree in plan.trees):
        raise JailError("what waits was made without what this one is to see")
    return replace(
        record,
        id=plan.id,
        kind=plan.kind,
        deadline=plan.deadline,
        tree=plan.tree,
        trees=plan.written,
        template=plan.template,
        incarnation=plan.incarnation,
        parent=plan.parent,
        idle_seconds=plan.idle_seconds,
        retention_seconds=plan.retention_seconds,
        env=plan.env,
    )
