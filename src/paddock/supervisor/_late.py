"""Give a running sandbox network access, or the mounts and the name of a plan that it waited for.

A sandbox made without exits may have taken the gateway's ports: then it gets none. It has no power over its network or
mounts, so otherwise it equals one that was made with exits.

A waiting VMM (docs/design/waiting.md) is complete and belongs to no sandbox until a claim makes it the sandbox of a
plan. Only processes of paddock run in it, and only paddock has written its tree. It keeps its processes, control group,
sockets and exits. Its names, deadline and parent become the plan's. One rename makes the claim: before it, the next
supervisor finds a waiting VMM. The supervisor ends one whose claim fails.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import replace

from paddock.linux import namespaces
from paddock.linux.descriptors import closing
from paddock.linux.undo import UndoStack
from paddock.supervisor import _exits, _places, trust_places
from paddock.supervisor._context import SupervisorContext
from paddock.supervisor._errors import JailError, Steps, as_jail_error, died_of
from paddock.supervisor._mounts import Mounting
from paddock.supervisor._namespaces import OpenNamespaces, open_of, visit
from paddock.supervisor._supervised import Supervised
from paddock.supervisor.plan import CLAIM, JailPlan
from paddock.supervisor.records import Record
from paddock.wire import close_all


@contextmanager
def _namespaces_of(context: SupervisorContext, sandbox: Supervised, what: str) -> Generator[OpenNamespaces]:
    """Yield the namespaces of the sandbox, until the end of the block. Raises OSError, JailError."""
    if sandbox.namespaces is not None:
        yield sandbox.namespaces
        return
    if not context.root_mode:
        raise JailError(f"the supervisor that could {what} is dead, and an ordinary user's next one can't")
    with contextlib.closing(OpenNamespaces.of(sandbox.record.pid)) as opened:
        yield opened


# -- exits


def open_exits(context: SupervisorContext, sandbox: Supervised) -> bool:
    """Make exits if it has none, or if they are lost. Return False if it has died. Raises OSError, JailError."""
    try:
        if not sandbox.record.exits:
            _give_exits(context, sandbox)
        if sandbox.exits is None:
            reopen(context, sandbox)
    except (OSError, JailError) as error:
        if not died_of(error, sandbox.pidfd):
            raise
        return False
    return True


def reopen(context: SupervisorContext, sandbox: Supervised) -> None:
    """Listen again for a sandbox whose supervisor died, unless the gateway still does. Raises OSError, JailError."""
    if not context.root_mode:
        raise JailError("the supervisor that held its exits is dead, and an ordinary user's can't make them anew")
    with closing(open_of(sandbox.record.pid, "net")) as network:
        try:
            sandbox.exits = _exits.listen_again(network)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise


def _give_exits(context: SupervisorContext, sandbox: Supervised) -> None:
    """Give it a network and its certificates, and record that. Raises OSError, JailError."""
    with _namespaces_of(context, sandbox, "give it a network") as opened:
        _trust(context, sandbox.record.id, opened)
        sandbox.exits = _exits.make(opened.network, may_return=context.root_mode)
    sandbox.record.exits = sandbox.record.late = True
    context.records.write(sandbox.record)
    sandbox.close_namespaces()


def _trust(context: SupervisorContext, id: str, opened: OpenNamespaces) -> None:
    held: list[int] = []
    try:
        with contextlib.suppress(FileExistsError):  # an attempt before has come so far
            trust_mounts = trust_places.make(context.records.directory, id, held)
            with visit(namespaces.NEWNS, opened.mounts, context.home):
                trust_places.attach(trust_mounts)
    finally:
        close_all(held)


# -- the plan of what waits


def claim(context: SupervisorContext, sandbox: Supervised, plan: JailPlan, late: Collection[str]) -> Record:
    """Make the waiting sandbox that of `plan`, and return its record. `late` has the targets of trees that it lacks.
    Raises JailError."""
    steps = Steps(plan.fault.removeprefix(CLAIM))
    records, was = context.records, sandbox.record.id
    try:
        with UndoStack() as undo:
            record = _settled(sandbox.record, plan, late)
            if late or plan.mounts or plan.protect:
                with steps("mounts"):
                    _mount(context, sandbox, plan, late)
            with steps("rename"):
                records.adopt(plan.id, records.directory, was)
                undo.push(records.adopt, was, records.directory, plan.id)
            with steps("written"):
                records.write(record)
    except Exception as error:
        raise as_jail_error(error, steps) from None
    if record.exits:
        sandbox.close_namespaces()
    return record


def _settled(record: Record, plan: JailPlan, late: Collection[str]) -> Record:
    """Return the new record. Raises JailError if it was made for another kind of plan."""
    limits = {name: getattr(plan, name) for name in record.limits}
    if limits != record.limits or plan.exits != record.exits:
        raise JailError("what waits has other limits, or another way out")
    if any(tree.writable and tree.target not in late for tree in plan.trees):
        raise JailError("what waits was made without what this one is to see")
    return replace(record, **plan.recorded)


def _mount(context: SupervisorContext, sandbox: Supervised, plan: JailPlan, targets: Collection[str]) -> None:
    """Attach its mounts, those of its trees with a target in `targets`, and protect its paths. Raises OSError,
    JailError."""
    held: list[int] = []
    slot = sandbox.record.slot
    missing = plan._replace(trees=tuple(tree for tree in plan.trees if tree.target in targets))
    with _namespaces_of(context, sandbox, "mount something into it") as opened:
        try:
            mounting = Mounting(context, missing, slot, held)
            made = [*mounting.mounts(), *mounting.trees()]
            with visit(namespaces.NEWNS, opened.mounts, context.home):  # its names are its own affair by now
                _places.attach(context.base(slot), made)
                _places.protect(plan.protect)
        finally:
            close_all(held)
