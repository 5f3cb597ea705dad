"""Run the supervisor's loop: one thread, one poll, nothing that blocks."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import socket
from collections.abc import Callable
from typing import Any

from paddock.linux import btrfs, proc
from paddock.supervisor import _late, _spawner, layout
from paddock.supervisor._context import SupervisorContext
from paddock.supervisor._errors import Gone
from paddock.supervisor._jail_pool import JailPool, Reply, problem
from paddock.supervisor._mounts import Mounting
from paddock.supervisor._running import Running, attempt
from paddock.supervisor._slots import ENGINE
from paddock.supervisor._supervised import KeptCommands, Supervised
from paddock.supervisor._watch import Watch
from paddock.supervisor.bootstrap import VERSION
from paddock.supervisor.plan import WAITING, JailPlan, PlanError
from paddock.supervisor.records import Ended, Record
from paddock.wire import NO_REPLY, Connection, Frame, Kind, WireError, close_all, pack

LONGEST_SLEEP_SECONDS = 60.0
MAX_BODY = 16 << 20
SEND_SECONDS = 1
STARTER_SECONDS = 10.0
"""For the client that started it, to connect. Only then is it idle."""
MOST_KEPT = 256
"""Kept commands of one sandbox, at most."""
KILLED = Ended(limit=None, reason="it was killed")
SPOILED = Ended(limit=None, reason="it was to become a sandbox, and could not")
Message = dict[str, Any]


class Supervisor:
    """Serve one daemon at a time, until no sandbox and no daemon is left. The next daemon gets its answer when the
    connection of the one before has ended."""

    def __init__(self, context: SupervisorContext, listener: socket.socket, *, for_tests: bool) -> None:
        self._context = context
        self._listener = listener
        self._for_tests = for_tests
        self._running = Running(context, self._tell, lambda: self._line is not None)
        self._poll = select.poll()
        # poll(2) looks at each descriptor that it is given, each time: hundreds that hardly ever have news are apart.
        self._deaths = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._by_pidfd: dict[int, Supervised] = {}
        self._line: Connection | None = None
        self._outside: dict[str, KeptCommands] = {}
        """Kept commands of sandboxes that this supervisor did not make, by id."""
        self._news: list[bytes] = []
        """Frames that go with the next answer, or at the end of the turn. So the daemon wakes up once for both."""
        self._jails = JailPool(context, watch=self._watch, unwatch=self._unwatch, created=self._created)
        self._idle_since = proc.boottime() + STARTER_SECONDS
        self._watched = Watch(context, self._running.sandboxes, self._running.end)
        self._stopping = False

    def run(self) -> None:
        self._running.adopt()
        for sandbox in self._running.sandboxes.values():
            self._watch_end(sandbox)
        self._watch(self._listener.fileno(), self._accept)
        self._watch(self._deaths.fileno(), self._reap_all)
        gc.collect()
        gc.freeze()
        gc.disable()  # nothing here makes cycles on the hot path; a collection would touch, and so copy, every page
        self._jails.open()
        while not self._finished():
            due = self._due()
            for fd, _ in self._poll.poll(self._milliseconds(due)):
                handler = self._handlers.get(fd)
                if handler is not None:  # a bug in one request must not leave all other sandboxes without a supervisor
                    attempt(handler)
                    self._flush()
            if due is not None and due <= proc.boottime():
                attempt(self._housekeeping)
                self._flush()
        self._jails.close()
        self._running.close()
        for commands in self._outside.values():
            commands.close()

    def _finished(self) -> bool:
        busy = self._running.sandboxes or self._jails.busy
        if self._stopping:
            return not busy
        if busy or self._line is not None:
            self._idle_since = proc.boottime()
            return False
        if proc.boottime() - self._idle_since < self._context.idle_seconds:
            return False
        if any(proc.is_running(owner) for commands in self._outside.values() for owner in commands.owners().values()):
            self._idle_since = proc.boottime()
            return False
        return True

    def _due(self) -> float | None:
        """Return the next time to act without news on a descriptor, in seconds of CLOCK_BOOTTIME."""
        times = [*self._jails.deadlines(), *self._running.pauses.deadlines()]
        once = (self._running.next_deadline(), self._running.next_removal(), self._watched.next())
        times += [at for at in once if at is not None]
        if self._line is None:
            times.append(self._idle_since + self._context.idle_seconds)
        return min(times, default=None)

    def _milliseconds(self, due: float | None) -> float:
        """Return the timeout for poll. Its clock stops while the machine sleeps, unlike that of deadlines, so the
        timeout is bounded."""
        if due is None:
            return -1
        return min(max(0.0, (due - proc.boottime()) * 1000 + 1), LONGEST_SLEEP_SECONDS * 1000)

    def _housekeeping(self) -> None:
        now = proc.boottime()
        self._running.expire(now)
        self._running.remove_left(now)
        self._watched.look(now)
        self._jails.expire(now)
        self._running.pauses.expire(now)

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
            return  # it went away again, or descriptors ran out: the next one may succeed
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
            self._running.pauses.gone()
            attempt(self._context.records.write_kept)
            self._jails.drop_all()
            line.close()

    def _answer(self, line: Connection, frame: Frame) -> None:
        def reply(result: Message | None = None, descriptors: tuple[int, ...] = ()) -> None:
            answer = result or {}
            kind = Kind.ERROR if "error" in answer else Kind.HELLO if frame.kind is Kind.HELLO else Kind.REPLY
            if not frame.flags & NO_REPLY:
                self._send(line, kind, frame.channel, answer, descriptors)

        try:
            fields = json.loads(frame.body)
            for id in fields.pop("forgotten", ()):
                self._forget(id)
            operation = self._hello if frame.kind is Kind.HELLO else getattr(self, f"do_{fields.pop('op')}")
            if frame.descriptors:
                fields["descriptors"] = frame.descriptors
            operation(reply, **fields)
        except Exception as error:
            close_all(frame.descriptors)
            reply(problem(error))

    def _send(
        self, line: Connection, kind: Kind, channel: int, body: Message, descriptors: tuple[int, ...] = ()
    ) -> None:
        """Send a frame, if this daemon is still connected."""
        if line is not self._line:
            return
        if descriptors:
            self._flush()
        self._news.append(pack(kind, channel, _json(body), descriptors=descriptors))
        self._flush(descriptors)

    def _flush(self, descriptors: tuple[int, ...] = ()) -> None:
        """Send the waiting frames. If the daemon has gone or doesn't read, cut the connection: after half a frame
        nothing can be read."""
        if self._line is not None and self._news:
            try:
                self._line.send_packed(b"".join(self._news), descriptors)
            except OSError:
                with contextlib.suppress(OSError):
                    self._line.detach().shutdown(socket.SHUT_RDWR)
            self._news.clear()

    def _tell(self, event: str, record: Record, **more: object) -> None:
        if self._line is not None:
            news = _json({"event": event, **more, "id": record.id, "instance_id": record.instance_id})
            self._news.append(pack(Kind.CONTROL, 0, news))

    # -- operations: their first argument takes the answer, the others are fields of the request

    def _sandbox(self, id: str, instance_id: int | None = None) -> Supervised:
        """Return a living sandbox. Raises Gone."""
        sandbox = self._running.sandboxes.get(id)
        if sandbox is None or instance_id not in (None, sandbox.record.instance_id):
            raise Gone(id)
        return sandbox

    def _hello(self, reply: Reply, version: int) -> None:
        if version != VERSION:
            raise PlanError(f"the supervisor of another version of paddock serves this state directory ({VERSION})")
        context = self._context
        facts = {
            "version": VERSION,
            "pid": os.getpid(),
            "root_mode": context.root_mode,
            "root_user": context.whole,
            "cgroups": sorted(context.held),
            "missing": list(context.missing),
            "watched": self._watched.kinds(),
            "btrfs": btrfs.is_btrfs(context.pool),
            "quotas": context.quotas is not None,
            "hostnames": context.hostnames,
            "program_in_memory": _spawner.is_in_memory(context.program),
        }
        reply(facts, (context.pool,))

    def do_create(self, reply: Reply, plan: Message) -> None:
        self._jails.create(self._admitted(plan), reply)

    def do_prepare(self, reply: Reply, plan: Message) -> None:
        """Make a complete spare, which `commit` makes the sandbox of the plan and `forget` ends. It ends with the
        connection."""
        self._jails.create(self._admitted(plan), reply, ahead=True)

    def do_commit(self, reply: Reply, id: str, **changes: Any) -> None:
        """Give a complete spare its record, with the late fields of its plan. Raises Gone."""
        if changes.get("fault"):
            self._refuse_faults()
        self._jails.commit(id, changes, reply)

    def _admitted(self, message: Message) -> JailPlan:
        plan = JailPlan.from_message(message)
        if plan.fault:
            self._refuse_faults()
        if plan.id in self._running.sandboxes:
            raise PlanError(f"{plan.id} is alive already")
        if not self._context.whole and (plan.user.uid, plan.user.gid) != (layout.ORDINARY_ID, layout.ORDINARY_ID):
            raise PlanError(f"without subordinate ids a sandbox has one, {layout.ORDINARY_ID}; its user must have it")
        return plan

    def _refuse_faults(self) -> None:
        if not self._for_tests:
            raise PlanError("faults are injected only into a supervisor that was started for tests")

    def _created(self, sandbox: Supervised) -> None:
        self._running.add(sandbox)
        self._watch_end(sandbox)
        self._running.end_orphan(sandbox)

    def _watch_end(self, sandbox: Supervised) -> None:
        self._deaths.register(sandbox.pidfd, select.EPOLLIN)
        self._by_pidfd[sandbox.pidfd] = sandbox
        self._watched.begin(sandbox)

    def _reap_all(self) -> None:
        for fd, _ in self._deaths.poll(0):
            self._deaths.unregister(fd)
            sandbox = self._by_pidfd.pop(fd)
            attempt(self._running.reap, sandbox)

    def do_kill(self, reply: Reply, id: str, instance_id: int | None = None) -> None:
        sandbox = self._sandbox(id, instance_id)
        sandbox.waiting.append(reply)
        self._running.end(sandbox, KILLED)

    def do_deadline(self, reply: Reply, id: str, deadline: float) -> None:
        sandbox = self._sandbox(id)
        if sandbox.cause is None:
            self._running.set_deadline(sandbox, float(deadline))
        reply()

    def do_usage(self, reply: Reply, id: str) -> None:
        reply(self._watched.usage(self._sandbox(id)))

    def do_exits(self, reply: Reply, id: str, instance_id: int, make: bool = False) -> None:
        """Reply its sockets for the gateway and a pidfd; no socket if the gateway still has them."""
        sandbox = self._sandbox(id, instance_id)
        if not sandbox.record.exits and not make:
            raise PlanError(f"{id} was made without exits: it has no network at all")
        if not _late.open_exits(self._context, sandbox):
            raise Gone(id)
        reply(*sandbox.for_gateway())

    def do_keep(
        self,
        reply: Reply,
        id: str,
        command: str,
        owner: str,
        after: int,
        outside: bool = False,
        descriptors: tuple[int, ...] = (),
    ) -> None:
        """Hold the input and output of a command for the next daemon. They replace those held before, except the first
        `after` descriptors. `outside`: this supervisor did not make the sandbox."""
        commands = self._outside.setdefault(id, KeptCommands()) if outside else self._sandbox(id).kept
        if len(commands) >= MOST_KEPT and command not in commands:
            raise PlanError(f"{MOST_KEPT} commands of {id} are kept already")
        commands.put(command, owner, descriptors, after)
        if not commands:
            self._outside.pop(id, None)
        reply()

    def do_kept(self, reply: Reply, id: str, command: str, outside: bool = False) -> None:
        commands = self._outside.get(id, KeptCommands()) if outside else self._sandbox(id).kept
        kept = commands.get(command)
        reply({}, () if kept is None else kept.descriptors)

    def do_freeze(self, reply: Reply, id: str, hold: int) -> None:
        """Stop it until `thaw`, or until the daemon is gone."""
        self._running.pauses.hold(self._sandbox(id), hold)
        reply()

    def do_thaw(self, reply: Reply, id: str, hold: int) -> None:
        reply({"held": self._running.pauses.let_go(id, hold)})

    def _awakened(self, id: str, instance_id: int) -> Supervised:
        """Return a sandbox that isn't about to end. Raises Gone."""
        sandbox = self._sandbox(id, instance_id)
        if sandbox.cause is not None:
            raise Gone(id)
        return sandbox

    def do_pause(self, reply: Reply, id: str, instance_id: int) -> None:
        """Pause it until `resume` or `awake`, under any daemon. The reply says that none of its processes runs."""
        sandbox = self._awakened(id, instance_id)
        self._running.pauses.pause(sandbox)
        reply(_times(sandbox.record))

    def do_resume(self, reply: Reply, id: str, instance_id: int) -> None:
        sandbox = self._awakened(id, instance_id)
        woken = self._running.pauses.resume(sandbox)
        reply({"woken": woken, **_times(sandbox.record)})

    def do_awake(self, reply: Reply, id: str, instance_id: int, hold: int) -> None:
        """Resume it if it is paused, and don't pause it for idleness until `rest`, or the end of the connection."""
        reply({"woken": self._running.pauses.keep_awake(self._awakened(id, instance_id), hold)})

    def do_rest(self, reply: Reply, id: str, hold: int) -> None:
        self._running.pauses.let_rest(id, hold)
        reply()

    def do_list(self, reply: Reply) -> None:
        self._reap_all()  # a list of the living leaves out the dead
        known = self._context.records.ended()
        ended = {id: {"limit": e.limit, "reason": e.reason, "kind": e.kind} for id, e in known.items()}
        records = {id: sandbox.record for id, sandbox in self._running.sandboxes.items()}
        living = {id: record.instance_id for id, record in records.items()}
        kinds = {id: record.kind for id, record in records.items()}
        paused = {record.id: _times(record) for record in self._running.pauses.paused()}
        kept = {id: sandbox.kept.owners() for id, sandbox in self._running.sandboxes.items() if sandbox.kept}
        outside = {id: commands.owners() for id, commands in self._outside.items()}
        reply(
            {"living": living, "kinds": kinds, "ended": ended, "paused": paused, "kept": kept, "kept_outside": outside}
        )

    def do_inspect(self, reply: Reply, id: str) -> None:
        """Reply the record of a living sandbox."""
        self._reap_all()
        reply(self._sandbox(id).record.to_message())

    def do_forget(self, reply: Reply, id: str) -> None:
        self._forget(id)
        reply()

    def _forget(self, id: str) -> None:
        """Forget an ended sandbox that the daemon has recorded. Every request may name some."""
        self._jails.drop(id)
        self._context.records.forget(id)

    def do_mounts(self, reply: Reply, plan: Message) -> None:
        """Reply detached mounts of the plan's directories, in their order, for a container of the machine's engine.
        They have the ids of an engine that maps none. Writes to a copy-on-write one go to the plan's tree. The
        supervisor keeps none of them."""
        wanted = JailPlan.from_message(plan)
        if not self._context.root_mode:
            raise PlanError("only root's supervisor can show directories with other owners")
        late: list[int] = []
        try:
            reply(None, tuple(fd for _, fd in Mounting(self._context, wanted, ENGINE, late).mounts()))
        finally:
            close_all(late)

    def do_claim(self, reply: Reply, id: str, plan: Message, late: list[str]) -> None:
        wanted, sandbox = self._admitted(plan), self._sandbox(id)
        if sandbox.cause is not None or sandbox.record.paused or sandbox.record.kind != wanted.kind + WAITING:
            raise Gone(id)
        try:
            self._running.pass_on(sandbox, _late.claim(self._context, sandbox, wanted, late))
        except Exception:
            self._running.end(sandbox, SPOILED)
            raise
        reply({"pid": sandbox.record.pid})

    def do_stop(self, reply: Reply) -> None:
        """Kill all sandboxes and leave: for tests, and for removing paddock."""
        self._stopping = True
        for sandbox in list(self._running.sandboxes.values()):
            self._running.end(sandbox, Ended(limit=None, reason="the supervisor was told to stop"))
        reply()


def _json(body: Message) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _times(record: Record) -> Message:
    return {"left": record.left_seconds, "deadline": record.deadline}
