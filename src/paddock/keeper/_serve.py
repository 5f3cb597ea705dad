"""The keeper's loop: one thread, one poll, nothing that waits."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import socket
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from paddock.keeper import _claim, _engine_mounts, _jail, _late_exits, layout
from paddock.keeper._bootstrap import VERSION
from paddock.keeper._errors import Gone
from paddock.keeper._house import House
from paddock.keeper._nursery import Nursery, Reply, problem
from paddock.keeper._plan import JailPlan, PlanError
from paddock.keeper._records import Ended, Record
from paddock.keeper._undertaker import Life, Undertaker
from paddock.keeper._usage import usage_of
from paddock.keeper._watch import Watch
from paddock.linux import btrfs, proc
from paddock.wire import NO_REPLY, Connection, Frame, Kind, WireError, close_all, pack

LONGEST_SLEEP_SECONDS = 60.0
MAX_BODY = 16 << 20
SEND_SECONDS = 1
KILLED = Ended(limit=None, reason="it was killed")
Message = dict[str, Any]
Operation = Callable[..., None]
"""Its first argument takes the answer, the others are fields of the request."""


class Keeper:
    """Serves one daemon at a time, until nothing is left: no sandbox, no daemon. The next daemon is answered when the
    connection of the one before has ended."""

    def __init__(self, house: House, listener: socket.socket, *, for_tests: bool) -> None:
        self._house = house
        self._listener = listener
        self._for_tests = for_tests
        self._undertaker = Undertaker(house, self._tell, self._tell_rest)
        self._poll = select.poll()
        # poll(2) looks at each descriptor that it is given, each time: hundreds that hardly ever have news are apart.
        self._deaths = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._by_pidfd: dict[int, Life] = {}
        self._line: Connection | None = None
        self._news: list[bytes] = []
        """Frames that go with the next answer, at the latest when the turn ends: the daemon wakes up once for both."""
        self._nursery = Nursery(house, watch=self._watch, unwatch=self._unwatch, born=self._born)
        self._idle_since = proc.boottime()
        self._watch_at = 0.0
        on_btrfs = house.root_mode and btrfs.is_btrfs(house.pool)
        self._limits_watch = Watch(
            house.pool,
            self._undertaker.lives,
            self._undertaker.end,
            house.signal,
            memory=not house.held >= {"memory", "pids"},
            disk=not on_btrfs,
            disk_seconds=house.watch_seconds,
        )
        self._watches: list[Callable[[list[Life]], None]] = []
        if house.groups is not None:
            self._watches.append(self._undertaker.watch_queues)
        if on_btrfs:
            self._watches.append(self._undertaker.watch_inodes)
        self._stopping = False
        self._operations: dict[str, Operation] = {
            "create": self._create,
            "kill": self._kill,
            "deadline": self._deadline,
            "usage": self._usage,
            "list": self._list,
            "inspect": self._inspect,
            "forget": self._forget,
            "exits": self._exits,
            "freeze": self._freeze,
            "thaw": self._thaw,
            "pause": self._pause,
            "resume": self._resume,
            "awake": self._awake,
            "rest": self._rest,
            "stop": self._stop,
            "mounts": _engine_mounts.order(house),
            "claim": _claim.order(house, self._undertaker, self._admitted),
        }

    def run(self) -> None:
        self._undertaker.adopt()
        for life in self._undertaker.lives.values():
            self._watch_life(life)
        self._watch(self._listener.fileno(), self._accept)
        self._watch(self._deaths.fileno(), self._bury_all)
        gc.collect()
        gc.freeze()
        gc.disable()  # nothing here makes cycles on the hot path; a collection would touch, and so copy, every page
        self._nursery.open()
        while not self._finished():
            for fd, _ in self._poll.poll(self._timeout()):
                handler = self._handlers.get(fd)
                if handler is not None:
                    self._call(handler)
                    self._flush()
            self._call(self._housekeeping)
            self._flush()
        self._nursery.close()
        self._undertaker.close()

    def _call(self, handler: Callable[[], object]) -> None:
        """A fault of ours in one matter must not leave all the others without a keeper."""
        try:
            handler()
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()

    def _finished(self) -> bool:
        busy = self._undertaker.lives or self._nursery.busy
        if self._stopping:
            return not busy
        if busy or self._line is not None:
            self._idle_since = proc.boottime()
            return False
        return proc.boottime() - self._idle_since >= self._house.idle_seconds

    def _timeout(self) -> float:
        now = proc.boottime()
        times = [self._idle_since + self._house.idle_seconds] if self._line is None else []
        if (deadline := self._undertaker.next_deadline()) is not None:
            times.append(deadline)
        if (removal := self._undertaker.next_removal()) is not None:
            times.append(removal)
        times += self._nursery.deadlines()
        times += self._undertaker.freezer.deadlines()
        times += self._undertaker.rest.deadlines()
        if self._watches and self._undertaker.lives:
            times.append(self._watch_at)
        if (look := self._limits_watch.next()) is not None:
            times.append(look)
        # poll's clock stands still while the machine sleeps, that of deadlines does not: look again now and then.
        return min(max(0.0, (min(times) - now) * 1000 + 1), LONGEST_SLEEP_SECONDS * 1000) if times else -1

    def _housekeeping(self) -> None:
        now = proc.boottime()
        self._undertaker.expire(now)
        self._undertaker.remove_left(now)
        if self._watches and self._undertaker.lives and now >= self._watch_at:
            some, part = self._undertaker.next_to_watch()
            self._watch_at = now + self._house.watch_seconds * part
            for watch in self._watches:
                watch(some)
        self._limits_watch.look(now)
        self._nursery.expire(now)
        self._undertaker.freezer.expire(now)
        self._undertaker.rest.expire(now)

    # -- connections

    def _watch(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def _unwatch(self, fd: int) -> None:
        self._poll.unregister(fd)
        del self._handlers[fd]

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return  # it went away again, or there is no descriptor left: the next one may fare better
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, SEND_SECONDS.to_bytes(8, "little") + bytes(8))
        self._line = Connection(peer, max_body=MAX_BODY)
        self._unwatch(self._listener.fileno())  # the next one waits in the queue
        self._watch(peer.fileno(), self._read)

    def _read(self) -> None:
        assert self._line is not None
        try:
            frames = self._line.read()
        except (OSError, WireError):
            frames = None
        for frame in frames or ():
            self._answer(self._line, frame)
        if frames is None:
            line, self._line = self._line, None
            self._news.clear()
            self._unwatch(line.detach().fileno())
            self._watch(self._listener.fileno(), self._accept)
            self._undertaker.freezer.gone()
            self._undertaker.rest.gone()
            line.close()

    def _answer(self, line: Connection, frame: Frame) -> None:
        def reply(result: Message | None = None, descriptors: tuple[int, ...] = ()) -> None:
            answer = result or {}
            kind = Kind.ERROR if "error" in answer else Kind.HELLO if frame.kind is Kind.HELLO else Kind.REPLY
            if not frame.flags & NO_REPLY:
                self._send(line, kind, frame.channel, answer, descriptors)

        close_all(frame.descriptors)
        try:
            fields = json.loads(frame.body)
            operation = self._hello if frame.kind is Kind.HELLO else self._operations[fields.pop("op")]
            operation(reply, **fields)
        except Exception as error:
            reply(problem(error))

    def _send(
        self, line: Connection, kind: Kind, channel: int, body: Message, descriptors: tuple[int, ...] = ()
    ) -> None:
        """To a daemon that is there."""
        if line is not self._line:
            return
        if descriptors:
            self._flush()
        self._news.append(pack(kind, channel, _json(body), descriptors=descriptors))
        self._flush(descriptors)

    def _flush(self, descriptors: tuple[int, ...] = ()) -> None:
        """The daemon may have gone, or not read: what came after half a frame could not be read."""
        if self._line is not None and self._news:
            try:
                self._line.send_packed(b"".join(self._news), descriptors)
            except OSError:
                with contextlib.suppress(OSError):
                    self._line.detach().shutdown(socket.SHUT_RDWR)
            self._news.clear()

    def _tell(self, record: Record, ended: Ended) -> None:
        self._tell_all({"event": "ended", "limit": ended.limit, "reason": ended.reason}, record)

    def _tell_rest(self, record: Record, paused: bool) -> None:
        self._tell_all({"event": "paused" if paused else "resumed"}, record)

    def _tell_all(self, event: Message, record: Record) -> None:
        if self._line is not None:
            news = _json({**event, "id": record.id, "incarnation": record.incarnation})
            self._news.append(pack(Kind.CONTROL, 0, news))

    # -- operations

    def _life(self, id: str, incarnation: int | None = None) -> Life:
        """Gone."""
        life = self._undertaker.lives.get(id)
        if life is None or incarnation not in (None, life.record.incarnation):
            raise Gone(id)
        return life

    def _hello(self, reply: Reply, version: int) -> None:
        if version != VERSION:
            raise PlanError(f"the keeper of another version of paddock serves this state directory ({VERSION})")
        house = self._house
        facts = {
            "version": VERSION,
            "pid": os.getpid(),
            "root_mode": house.root_mode,
            "root_user": house.whole,
            "cgroups": sorted(house.held),
            "missing": list(house.missing),
            "watched": [kind for kind in ("memory", "disk") if getattr(self._limits_watch, kind)],
            "btrfs": btrfs.is_btrfs(house.pool),
            "hostnames": house.hostnames,
        }
        reply(facts, (house.pool,))

    def _create(self, reply: Reply, plan: Message) -> None:
        self._nursery.create(self._admitted(plan), reply)

    def _admitted(self, message: Message) -> JailPlan:
        plan = JailPlan.from_message(message)
        if plan.fault and not self._for_tests:
            raise PlanError("faults are injected only into a keeper that was started for tests")
        if plan.id in self._undertaker.lives:
            raise PlanError(f"{plan.id} is alive already")
        if not self._house.whole and (plan.user.uid, plan.user.gid) != (layout.ORDINARY_ID, layout.ORDINARY_ID):
            raise PlanError(f"without subordinate ids a sandbox has one, {layout.ORDINARY_ID}; its user must have it")
        return plan

    def _born(self, jail: _jail.Jail) -> None:
        life = self._undertaker.add(jail)
        self._watch_life(life)
        self._undertaker.end_orphan(life)

    def _watch_life(self, life: Life) -> None:
        self._deaths.register(life.jail.pidfd, select.EPOLLIN)
        self._by_pidfd[life.jail.pidfd] = life

    def _bury_all(self) -> None:
        for fd, _ in self._deaths.poll(0):
            self._deaths.unregister(fd)
            life = self._by_pidfd.pop(fd)
            self._call(partial(self._undertaker.bury, life))

    def _kill(self, reply: Reply, id: str, incarnation: int | None = None) -> None:
        life = self._life(id, incarnation)
        life.waiting.append(reply)
        self._undertaker.end(life, KILLED)

    def _deadline(self, reply: Reply, id: str, deadline: float) -> None:
        life = self._life(id)
        if life.cause is None:
            self._undertaker.set_deadline(life, float(deadline))
        reply()

    def _usage(self, reply: Reply, id: str) -> None:
        life = self._life(id)
        reply(usage_of(self._house, life, self._limits_watch.seen(life)))

    def _exits(self, reply: Reply, id: str, incarnation: int, make: bool = False) -> None:
        """The sockets with which it is reached and left, and a pidfd; none where the gateway has the sockets still."""
        life = self._life(id, incarnation)
        if not life.record.exits and not make:
            raise PlanError(f"{id} was made without exits: it has no network at all")
        if not _late_exits.opened(self._house, life.jail, lambda: self._undertaker.reopen_exits(life)):
            raise Gone(id)
        exits, record = life.jail.exits, life.record
        fds = () if exits is None else (*(one.fileno() for one in exits.all), life.jail.pidfd)
        reply({"late": record.late, "pid": record.pid, "start": record.start}, fds)

    def _freeze(self, reply: Reply, id: str, hold: int) -> None:
        """Until `thaw`, or until the daemon is gone."""
        self._undertaker.freezer.hold(id, self._life(id).jail, hold)
        reply()

    def _thaw(self, reply: Reply, id: str, hold: int) -> None:
        reply({"held": self._undertaker.freezer.let_go(id, hold)})

    def _awakened(self, id: str, incarnation: int) -> Life:
        """One that is not just ending. Gone."""
        life = self._life(id, incarnation)
        if life.cause is not None:
            raise Gone(id)
        return life

    def _pause(self, reply: Reply, id: str, incarnation: int) -> None:
        """Until `resume` or `awake`, whoever lives. Answered when none of its processes runs."""
        life = self._awakened(id, incarnation)
        self._undertaker.rest.pause(life)
        reply(_times(life.record))

    def _resume(self, reply: Reply, id: str, incarnation: int) -> None:
        life = self._awakened(id, incarnation)
        woken = self._undertaker.rest.resume(life)
        reply({"woken": woken, **_times(life.record)})

    def _awake(self, reply: Reply, id: str, incarnation: int, hold: int) -> None:
        """It is resumed if it is paused, and not paused for idleness until `rest`, or the end of the connection."""
        reply({"woken": self._undertaker.rest.keep_awake(self._awakened(id, incarnation), hold)})

    def _rest(self, reply: Reply, id: str, hold: int) -> None:
        self._undertaker.rest.let_go(id, hold)
        reply()

    def _list(self, reply: Reply) -> None:
        self._bury_all()  # who asks for the living is told nothing of the dead
        known = self._house.records.ended()
        ended = {id: {"limit": e.limit, "reason": e.reason, "kind": e.kind} for id, e in known.items()}
        living = {id: life.record.incarnation for id, life in self._undertaker.lives.items()}
        kinds = {id: life.record.kind for id, life in self._undertaker.lives.items()}
        standing = [self._undertaker.lives[id].record for id in self._undertaker.freezer.paused()]
        paused = {record.id: _times(record) for record in standing}
        reply({"living": living, "kinds": kinds, "ended": ended, "paused": paused})

    def _inspect(self, reply: Reply, id: str) -> None:
        """All that is recorded of a living one."""
        self._bury_all()
        reply(self._life(id).record.to_message())

    def _forget(self, reply: Reply, id: str) -> None:
        self._house.records.forget(id)
        reply()

    def _stop(self, reply: Reply) -> None:
        """Kills everything and leaves: for tests, and for taking paddock away."""
        self._stopping = True
        for life in list(self._undertaker.lives.values()):
            self._undertaker.end(life, Ended(limit=None, reason="the keeper was told to stop"))
        reply()


def _json(body: Message) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _times(record: Record) -> Message:
    return {"left": record.left_seconds, "deadline": record.deadline}
