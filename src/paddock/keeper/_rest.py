"""Pausing and resuming, when somebody asks for it and when nobody does: what is not kept awake for so long as its plan
says is paused. What is to stand still is in the record before it does, so that the next keeper knows.

The TTL stands still too. What is left of it is in the record, and the deadline is that of the retention. Resumed, the
record has a new deadline, then pid 1's socket, and then it runs.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Protocol

from paddock.keeper._freezer import Freezer, Holder
from paddock.keeper._jail import Jail
from paddock.keeper._pid_one import send_deadline
from paddock.keeper._records import Ended, Record, Records
from paddock.linux import proc


class Living(Protocol):
    jail: Jail
    record: Record
    cause: Ended | None


class Rest:
    """`told(record, paused)` hears of every pause and of every end of one that is no death, `moved(record)` of each new
    deadline."""

    def __init__(
        self,
        records: Records,
        freezer: Freezer,
        lives: Mapping[str, Living],
        told: Callable[[Record, bool], None],
        moved: Callable[[Record], None],
    ) -> None:
        self._records, self._freezer, self._lives, self._told, self._moved = records, freezer, lives, told, moved
        self._awake: dict[str, set[Holder]] = {}
        """Of those that may be paused for idleness: who keeps them awake."""
        self._idle_at: dict[str, float] = {}
        """When they will have been idle for long enough, if nobody comes before."""

    def born(self, life: Living) -> None:
        """Whoever kept it awake when it had another keeper does so again, or is gone."""
        if life.record.idle_seconds:
            self._awake[life.record.id] = set()
            self._settle(life.record)

    def died(self, id: str) -> None:
        self._awake.pop(id, None)
        self._idle_at.pop(id, None)

    def pause(self, life: Living) -> None:
        """Whoever keeps it awake. TimeoutError, OSError: it could not be stopped, and goes on."""
        record = life.record
        if record.paused:
            return
        now, deadline = proc.boottime(), record.deadline
        record.paused, record.left_seconds = True, max(0.0, deadline - now)
        record.deadline = now + record.retention_seconds
        try:
            self._records.write(record)
            self._freezer.pause(record.id, life.jail)
        except OSError:
            self._not_paused(record, deadline)
            raise
        finally:
            self._moved(record)
        self._idle_at.pop(record.id, None)
        self._told(record, True)

    def take_over(self, life: Living) -> None:
        """One that was paused when the keeper before died, and may have been half of it."""
        try:
            self._freezer.pause(life.record.id, life.jail)
        except OSError:
            self._goes_on(life.record)
            self._settle(life.record)

    def resume(self, life: Living) -> bool:
        """False if it was not paused. Where the record can't be written (a full disk) it goes on all the same."""
        record = life.record
        if not record.paused:
            return False
        self._goes_on(record)
        self._freezer.resume(record.id)
        self._settle(record)
        self._told(record, False)
        return True

    def keep_awake(self, life: Living, who: Holder) -> bool:
        """Until `let_go`. Whether it was paused."""
        self._awake.setdefault(life.record.id, set()).add(who)
        self._idle_at.pop(life.record.id, None)
        return self.resume(life)

    def let_go(self, id: str, who: Holder) -> None:
        awake, life = self._awake.get(id), self._lives.get(id)
        if awake is not None and who in awake:
            awake.remove(who)
            if life is not None:
                self._settle(life.record)

    def gone(self) -> None:
        """The daemon, and with it all that kept any awake."""
        for id, awake in list(self._awake.items()):
            for who in list(awake):
                self.let_go(id, who)

    def deadlines(self) -> list[float]:
        return list(self._idle_at.values())

    def expire(self, now: float) -> None:
        for id in [id for id, at in self._idle_at.items() if at <= now]:
            life = self._lives.get(id)
            del self._idle_at[id]
            if life is None or life.cause is not None:
                continue
            try:
                self.pause(life)
            except OSError:  # one of its processes did not stop in time: it is tried again when its time has come again
                self._settle(life.record)

    def _settle(self, record: Record) -> None:
        """Its idle time begins, if it has any, runs, and nobody keeps it awake."""
        if record.idle_seconds and not record.paused and not self._awake.get(record.id):
            self._idle_at[record.id] = proc.boottime() + record.idle_seconds

    def _goes_on(self, record: Record) -> None:
        """Its TTL does: pid 1, which stands still at this moment, finds the new deadline when it runs."""
        # Without `left_seconds` it was paused by a keeper whose TTLs went on.
        deadline = record.deadline if record.left_seconds is None else proc.boottime() + record.left_seconds
        self._not_paused(record, deadline)
        self._moved(record)
        try:
            send_deadline(self._records.directory, record.id, deadline)
        except OSError:  # it is dead, or ends by the deadline that it has: never too late
            traceback.print_exc()
            sys.stderr.flush()

    def _not_paused(self, record: Record, deadline: float) -> None:
        record.paused, record.left_seconds, record.deadline = False, None, deadline
        try:
            self._records.write(record)
        except OSError:
            traceback.print_exc()
            sys.stderr.flush()
