"""Keep jails ready, and lead each create from its plan to its reply.

A spare is bare or complete. A complete one was made and checked by a plan of the daemon's; it has no record and no name
in `run`. `commit` then writes its record (docs/decisions/0018-complete-spares.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paddock.linux import proc
from paddock.supervisor import _jail, _spare
from paddock.supervisor._context import SupervisorContext
from paddock.supervisor._errors import Died, Gone, JailError, Steps
from paddock.supervisor._spawner import Spawner
from paddock.supervisor._supervised import Supervised
from paddock.supervisor.plan import WAITING, JailPlan

CREATE_SECONDS = 20.0
QUIET_SECONDS = 0.03
MOST_AT_ONCE = 4  # spares being made side by side when many creates wait
Message = dict[str, Any]
Reply = Callable[..., None]


def problem(error: Exception) -> Message:
    """Return an exception as an answer, with the notes of failed undo steps."""
    text = "; ".join((str(error) or repr(error), *getattr(error, "__notes__", ())))
    return {"error": text, "kind": type(error).__name__, "errno": getattr(error, "errno", None)}


@dataclass(slots=True)
class _Waiting:
    plan: JailPlan
    reply: Reply
    tries: int
    """How many more spares it may take. A dead spare doesn't refuse a create, and all of them may have died."""
    ahead: int | None
    """The number of the daemon that wants a complete spare; None for a sandbox."""


class JailPool:
    """Give each create a spare, and make new ones.

    `watch(fd, call)` and `unwatch(fd)` belong to the supervisor's loop. The pool calls `created(sandbox)` for each new
    sandbox.

    A new spare follows the reply to the create that took the last one. It competes with the first command of that
    sandbox. Further spares, for bursts, follow one by one after a quiet time, so that occasional callers have finished
    their first command by then.
    """

    def __init__(
        self,
        context: SupervisorContext,
        *,
        watch: Callable[[int, Callable[[], None]], None],
        unwatch: Callable[[int], None],
        created: Callable[[Supervised], None],
    ) -> None:
        self._context = context
        self._watch = watch
        self._unwatch = unwatch
        self._created = created
        self._waiting: deque[_Waiting] = deque()
        self._spares: list[_spare.Spare] = []
        self._pending: dict[int, tuple[float, Callable[[], None]]] = {}
        """For each sandbox in the making: its deadline, and what to do when that passes."""
        self._complete: dict[str, _jail.Pending] = {}
        """Complete spares, by the id that each will have."""
        self._daemon = 0
        """How many daemons have gone."""
        self._restock: float | None = None

    @property
    def busy(self) -> bool:
        """Whether a caller waits for a sandbox."""
        return bool(self._waiting or self._pending)

    def deadlines(self) -> list[float]:
        return [*(limit for limit, _ in self._pending.values()), *([] if self._restock is None else [self._restock])]

    def open(self) -> None:
        """Start the spawner, last of all before the first create."""
        self._spawner = Spawner(self._context)

    def create(self, plan: JailPlan, reply: Reply, *, ahead: bool = False) -> None:
        """Make the sandbox of `plan`; with `ahead`, a complete spare for it."""
        self.drop(plan.id)
        who = self._daemon if ahead else None
        if plan.fault:  # a test wants to see it fail: no whole spare may take the place of the one that does
            self._discard()
            self._waiting.appendleft(_Waiting(plan, reply, tries=1, ahead=who))
            self._make_spare(plan.fault)
        else:
            self._waiting.append(_Waiting(plan, reply, tries=1 + max(1, len(self._spares)), ahead=who))
        self._feed()

    def commit(self, id: str, changes: Message, reply: Reply) -> None:
        """Make a complete spare the sandbox of its plan. Raises Gone if there is none, or if that failed; then only its
        tree is left, and a create from nothing reports the reason."""
        if id not in self._complete:
            raise Gone(id)
        plan = self._complete[id].plan.changed(**changes)
        pending = self._complete.pop(id)
        self._unwatch(pending.spare.sync.fileno())
        pending.plan, pending.steps = plan, Steps.of_supervisor(plan.fault)
        try:
            sandbox, timings = _jail.commit(self._context, pending)
        except JailError as error:
            raise Gone(id) from error
        self._answer(sandbox, timings, reply)
        _jail.close_spare(pending)

    def _answer(self, sandbox: Supervised, timings: dict[str, float], reply: Reply) -> None:
        """Reply that it runs, with the sockets for the gateway. A warm VMM keeps them until its claim."""
        self._created(sandbox)
        facts, descriptors = sandbox.for_gateway()
        reply({**facts, "timings": timings}, () if sandbox.record.kind.endswith(WAITING) else descriptors)

    def drop(self, id: str) -> None:
        """End a complete spare that the daemon doesn't want; do nothing if there is none of that id."""
        if (pending := self._complete.pop(id, None)) is not None:
            self._unwatch(pending.spare.sync.fileno())
            pending.spare.undo.unwind()

    def drop_all(self) -> None:
        """End the spares of a daemon that has gone, and those still being made for it."""
        self._daemon += 1
        for id in list(self._complete):
            self.drop(id)

    def expire(self, now: float) -> None:
        for give_up in [give_up for limit, give_up in self._pending.values() if limit <= now]:
            give_up()
        if self._restock is not None and self._restock <= now:
            self._restock = None
            if len(self._spares) < self._context.spare_count and not self.busy and self._make_spare():
                self._restock = now + QUIET_SECONDS

    def close(self) -> None:
        self.drop_all()
        self._discard()
        self._spawner.close()

    # -- spares

    def _discard(self) -> None:
        for spare in self._spares:
            self._unwatch(spare.sync.fileno())
            spare.undo.unwind()
        self._spares.clear()

    def _feed(self) -> None:
        """Give each waiting plan a spare, and make more if there are too few."""
        for spare in [spare for spare in self._spares if spare.ready]:
            if not self._waiting:
                return
            self._spares.remove(spare)
            self._unwatch(spare.sync.fileno())
            self._fit_out(spare, self._waiting.popleft())
        while len(self._spares) < min(len(self._waiting), MOST_AT_ONCE):
            # One that can't be made is refused to the first; the others wait only if there is something to wait for.
            if not self._make_spare() and self._spares:
                return

    def replenish(self) -> None:
        """Make one spare now, and more soon. A failure isn't reported here: the next create reports it."""
        self._restock = proc.boottime() + QUIET_SECONDS
        if not self._spares and not self._waiting and self._context.spare_count:
            self._make_spare()

    def _make_spare(self, fault: str = "") -> bool:
        try:
            spare = _spare.begin(self._context, self._spawner, fault)
        except JailError as error:
            self._refuse(error)
            return False
        self._spares.append(spare)
        fd = spare.sync.fileno()

        def heard() -> None:
            was_ready = spare.ready
            try:
                if not _spare.receive(spare):
                    return
            except JailError as error:
                self._unwatch(fd)
                self._spares.remove(spare)
                if was_ready:  # one that died in waiting is replaced when it is missed
                    return
                # The mounts that its children copy end with the spawner. Then their error isn't the plan's fault.
                self._spawner.check()
                self._refuse(error)
            self._feed()

        self._watch(fd, heard)
        return True

    def _refuse(self, error: JailError) -> None:
        if self._waiting:
            waiting = self._waiting.popleft()
            if not self._try_again(waiting, error):
                waiting.reply(problem(error))

    def _try_again(self, waiting: _Waiting, error: JailError) -> bool:
        waiting.tries -= 1
        if not isinstance(error, Died) or not waiting.tries:
            return False
        self._waiting.appendleft(waiting)
        return True

    # -- sandboxes

    def _fit_out(self, spare: _spare.Spare, waiting: _Waiting) -> None:
        try:
            pending = _jail.begin(self._context, waiting.plan, spare)
        except JailError as error:
            if not self._try_again(waiting, error):  # else `_feed`, from where we come, has another one for it
                waiting.reply(problem(error))
            return
        fd = spare.sync.fileno()

        def settle(limit_reached: bool) -> None:
            try:
                if not _jail.receive(pending):
                    if not limit_reached:
                        return
                    _jail.abandon(pending, JailError(f"the sandbox was not ready within {CREATE_SECONDS:.0f} s"))
                self._forget(fd)
                _jail.check(self._context, pending)
                if waiting.ahead not in (None, self._daemon):
                    _jail.abandon(pending, JailError("the daemon that it was made for has gone"))
                made = None if waiting.ahead is not None else _jail.commit(self._context, pending)
            except JailError as error:
                self._forget(fd)
                if self._try_again(waiting, error):
                    self._feed()
                else:
                    waiting.reply(problem(error))
                return
            if made is None:
                self._keep(fd, pending)
                waiting.reply()
            else:
                sandbox, timings = made
                self._answer(sandbox, timings, waiting.reply)
                _jail.close_spare(pending)
            _jail.close_layers(pending)
            self.replenish()

        self._pending[fd] = (proc.boottime() + CREATE_SECONDS, lambda: settle(True))
        self._watch(fd, lambda: settle(False))

    def _keep(self, fd: int, pending: _jail.Pending) -> None:
        """Keep a complete spare. Its socket becomes readable only when it dies: then the create that wanted it makes
        another."""
        id = pending.plan.id
        self._complete[id] = pending
        self._watch(fd, lambda: self.drop(id))

    def _forget(self, fd: int) -> None:
        if self._pending.pop(fd, None) is not None:
            self._unwatch(fd)
