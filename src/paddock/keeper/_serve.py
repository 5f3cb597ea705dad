"""The keeper's loop: one thread, one poll, nothing that waits."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from paddock.keeper import _claim, _engine_mounts, _jail, _late_exits, _wire, layout
from paddock.keeper._house import House
from paddock.keeper._nursery import Nursery, Reply, problem
from paddock.keeper._plan import JAIL, JailPlan, PlanError
from paddock.keeper._records import Ended, Record
from paddock.keeper._rest_orders import orders
from paddock.keeper._undertaker import Life, Undertaker, attempt
from paddock.keeper._usage import usage_of
from paddock.keeper._watch import Watch
from paddock.linux import btrfs, proc

RECORDING_SECONDS = 15.0
LONGEST_SLEEP_SECONDS = 60.0
KILLED = Ended(limit=None, reason="it was killed")
Message = dict[str, Any]


class Connection:
    """One service. `watching` services are told of deaths."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.inbox = _wire.Inbox()
        self.watching = False
        self.killed: dict[str, tuple[float, Ended]] = {}
        """What was killed for it, and when; it records that itself, in a moment."""

    def note_kill(self, id: str, kind: str) -> None:
        now = proc.boottime()
        while self.killed and self.killed[oldest := next(iter(self.killed))][0] < now - RECORDING_SECONDS:
            del self.killed[oldest]
        self.killed.pop(id, None)
        self.killed[id] = now, KILLED if kind == JAIL else replace(KILLED, kind=kind)

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        # A service that is gone or does not read is no concern of the others. It may have got half of this: what
        # would come after it could not be read, so it is let go of.
        try:
            _wire.send(self.peer, message, descriptors)
        except OSError:
            with contextlib.suppress(OSError):
                self.peer.shutdown(socket.SHUT_RDWR)


Operation = Callable[[Connection, Message, Reply], None]


class Keeper:
    """Serves until nothing is left: no sandbox, no service."""

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
        self._connections: set[Connection] = set()
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
            "hello": self._hello,
            "create": self._create,
            "kill": self._kill,
            "deadline": self._deadline,
            "usage": self._usage,
            "list": self._list,
            "forget": self._forget,
            "exits": self._exits,
            "freeze": self._freeze,
            "thaw": self._thaw,
            "stop": self._stop,
            "bye": self._bye,
            "mounts": _engine_mounts.order(house),
            "claim": _claim.order(house, self._undertaker, self._admitted),
            **orders(self._undertaker),
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
            # Who has hung up comes first: what it left unrecorded is then known to whoever asks after its death.
            for fd, _ in sorted(self._poll.poll(self._timeout()), key=lambda ready: not ready[1] & select.POLLHUP):
                handler = self._handlers.get(fd)
                if handler is not None:
                    self._call(handler)
            self._call(self._housekeeping)
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
        if busy or self._connections:
            self._idle_since = proc.boottime()
            return False
        return proc.boottime() - self._idle_since >= self._house.idle_seconds

    def _timeout(self) -> float:
        now = proc.boottime()
        times = [self._idle_since + self._house.idle_seconds] if not self._connections else []
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
        self._undertaker.remove_groups(now)
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
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, (1).to_bytes(8, "little") + bytes(8))
        connection = Connection(peer)
        self._connections.add(connection)
        self._watch(peer.fileno(), lambda: self._read(connection))

    def _read(self, connection: Connection) -> None:
        try:
            alive = connection.inbox.receive(connection.peer)
            messages = connection.inbox.messages()
        except (OSError, _wire.WireError):
            alive, messages = False, []
        for message in messages:
            self._answer(connection, message)
        if not alive:
            self._unwatch(connection.peer.fileno())
            self._connections.discard(connection)
            self._undertaker.freezer.gone(connection)
            self._undertaker.rest.gone(connection)
            self._record_kills(connection)
            connection.inbox.close()
            connection.peer.close()

    def _answer(self, connection: Connection, message: Message) -> None:
        number = message.pop("n", None)

        def reply(result: Message, descriptors: tuple[int, ...] = ()) -> None:
            connection.send({"re": number, **result}, descriptors)

        try:
            operation = self._operations.get(str(message.pop("op", None)))
            if operation is None:
                raise PlanError("no such operation")
            operation(connection, message, reply)
        except Exception as error:
            reply(problem(error))

    def _tell(self, record: Record, ended: Ended) -> None:
        self._tell_all({"event": "ended", "limit": ended.limit, "reason": ended.reason}, record)

    def _tell_rest(self, record: Record, paused: bool) -> None:
        self._tell_all({"event": "paused" if paused else "resumed"}, record)

    def _tell_all(self, event: Message, record: Record) -> None:
        message = {**event, "id": record.id, "incarnation": record.incarnation}
        for connection in list(self._connections):
            if connection.watching:
                connection.send(message)

    # -- operations

    def _hello(self, connection: Connection, message: Message, reply: Reply) -> None:
        if message.get("version") != _wire.VERSION:
            raise PlanError(f"this keeper speaks version {_wire.VERSION}, not {message.get('version')!r}")
        connection.watching = True
        house = self._house
        facts = {
            "version": _wire.VERSION,
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

    def _create(self, connection: Connection, message: Message, reply: Reply) -> None:
        self._nursery.create(self._admitted(message), reply)

    def _admitted(self, message: Message) -> JailPlan:
        plan = JailPlan.from_message(cast("Message", message["plan"]))
        if plan.fault and not self._for_tests:
            raise PlanError("faults are injected only into a keeper that was started for tests")
        if plan.id in self._undertaker.lives:
            raise PlanError(f"{plan.id} is alive already")
        if not self._house.whole and (plan.user.uid, plan.user.gid) != (layout.ORDINARY_ID, layout.ORDINARY_ID):
            raise PlanError(f"without subordinate ids a sandbox has one, {layout.ORDINARY_ID}; its user must have it")
        for other in self._connections:
            other.killed.pop(plan.id, None)  # that was the one before
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

    def _kill(self, connection: Connection, message: Message, reply: Reply) -> None:
        life = self._undertaker.lives.get(message["id"])
        if life is None or message.get("incarnation", life.record.incarnation) != life.record.incarnation:
            reply({"known": False})
            return

        id, kind = life.record.id, life.record.kind

        def answer() -> None:
            reply({"known": True})
            connection.note_kill(id, kind)
            if connection not in self._connections:
                self._record_kills(connection)

        life.waiting.append(answer)
        self._undertaker.end(life, KILLED)

    def _record_kills(self, connection: Connection) -> None:
        """A service that died may not have come to recording what it had killed. Else these are swept away unread."""
        for id, (_, ended) in connection.killed.items():
            attempt(self._house.records.write_ended, id, ended)
        connection.killed.clear()

    def _bye(self, connection: Connection, message: Message, reply: Reply) -> None:
        """It has recorded everything."""
        connection.killed.clear()

    def _deadline(self, connection: Connection, message: Message, reply: Reply) -> None:
        life = self._undertaker.lives.get(message["id"])
        if life is not None and life.cause is None:
            self._undertaker.set_deadline(life, float(message["deadline"]))
        reply({"known": life is not None})

    def _usage(self, connection: Connection, message: Message, reply: Reply) -> None:
        life = self._undertaker.lives.get(message["id"])
        used = {} if life is None else usage_of(self._house, life, self._limits_watch.seen(life))
        reply({"known": life is not None, **used})

    def _exits(self, connection: Connection, message: Message, reply: Reply) -> None:
        """The sockets with which it is reached and left; none where somebody else has them still."""
        life = self._undertaker.lives.get(message["id"])
        if life is None or message["incarnation"] != life.record.incarnation:
            reply({"known": False})
            return
        if not life.record.exits and not message.get("make"):
            raise PlanError(f"{life.record.id} was made without exits: it has no network at all")
        if not _late_exits.opened(self._house, life.jail, lambda: self._undertaker.reopen_exits(life)):
            reply({"known": False})
            return
        exits, record = life.jail.exits, life.record
        fds = () if exits is None else (*(one.fileno() for one in exits.all), life.jail.pidfd)
        reply({"known": True, "late": record.late, "pid": record.pid, "start": record.start, "fds": len(fds)}, fds)

    def _freeze(self, connection: Connection, message: Message, reply: Reply) -> None:
        """Until `thaw`, or until the service that asks is gone."""
        life = self._undertaker.lives.get(message["id"])
        if life is not None:
            self._undertaker.freezer.hold(life.record.id, life.jail, (connection, int(message["hold"])))
        reply({"known": life is not None})

    def _thaw(self, connection: Connection, message: Message, reply: Reply) -> None:
        reply({"held": self._undertaker.freezer.let_go(str(message["id"]), (connection, int(message["hold"])))})

    def _list(self, connection: Connection, message: Message, reply: Reply) -> None:
        self._bury_all()  # who asks for the living is told nothing of the dead
        # What is killed for others they may not have recorded yet.
        others = (other for other in self._connections if other is not connection)
        killed = {id: ended for other in others for id, (_, ended) in other.killed.items()}
        known = killed | self._house.records.ended()
        ended = {id: {"limit": e.limit, "reason": e.reason, "kind": e.kind} for id, e in known.items()}
        living = {id: life.record.incarnation for id, life in self._undertaker.lives.items()}
        kinds = {id: life.record.kind for id, life in self._undertaker.lives.items()}
        paused = self._undertaker.freezer.paused()
        reply({"living": living, "kinds": kinds, "ended": ended, "paused": paused})

    def _forget(self, connection: Connection, message: Message, reply: Reply) -> None:
        self._house.records.forget(str(message["id"]))
        reply({})

    def _stop(self, connection: Connection, message: Message, reply: Reply) -> None:
        """Kills everything and leaves: for tests, and for taking paddock away."""
        self._stopping = True
        for life in list(self._undertaker.lives.values()):
            self._undertaker.end(life, Ended(limit=None, reason="the keeper was told to stop"))
        reply({})


def listen(state: Path) -> socket.socket:
    """The keeper's door; whatever an earlier keeper left at its place is taken away. The caller holds the lock."""
    directory = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(layout.KEEPER_SOCKET, dir_fd=directory)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"/proc/self/fd/{directory}/{layout.KEEPER_SOCKET}")
        listener.listen(64)
        return listener
    finally:
        os.close(directory)
