"""Pid 1 of a container: agents for identities, orphans, the deadline, standing still. It has a namespace of its own."""

from __future__ import annotations

import errno
import os
import re
import resource
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paddock.linux import seccomp_profile
from paddock.linux.descriptors import closing
from paddock.wire.guest import (
    VERSION,
    Agent,
    AgentReply,
    Begin,
    Deadline,
    Exec,
    Hold,
    HostHello,
    Identity,
    IdentityFlags,
    Kind,
    Limit,
    Lost,
    LostReply,
    Op,
    PauseClock,
    PauseClockReply,
    TimesReply,
)
from tests.native.driver import EMULATOR, Connection, Ended, GuestError, foreign_to, frame
from tests.orphans import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="pid 1 takes identities, for which the test has to be root")
NEVER = 1 << 62
SECOND = 1_000_000_000
USER = 1000
START = """
cd "$1"
mkdir usr proc dev tmp .paddock-host
mount --rbind /usr usr && mount -t proc proc proc && mount --rbind /dev dev && mount --bind "$2" .paddock-host
for name in bin lib lib64 sbin; do [ -L /$name ] && ln -s usr/$name $name; done
cp "$3" "$5"
chmod 1777 tmp
exec chroot . $4 "/$5"
"""
"""Where merged directories are no links, nothing runs inside, and the test says so."""


class Container:
    def __init__(self, program: Path, place: Path, name: str = "guest") -> None:
        """`name` is that of the file that runs, which may tell a build for faults which call fails."""
        self.place = place
        (place / "root").mkdir()
        (place / "host").mkdir()
        self.door = self._listen(place / "host" / "birth.sock")
        self.listeners: list[socket.socket] = []
        argv = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--propagation", "private", "sh", "-ec", START]
        emulator = f"{EMULATOR} -0 /guest" if foreign_to(program) else ""
        argv += ["sh", str(place / "root"), str(place / "host"), str(program), emulator, name]
        self.process = subprocess.Popen(argv, env={"PATH": os.environ["PATH"], "ASAN_OPTIONS": "detect_leaks=0"})
        self.birth = self._called()

    def identity(self, name: str, uid: int, flags: int = 0, *, filter: bytes = b"") -> None:
        message = Identity(name=name.encode(), uid=uid, gid=uid, flags=flags, filter=filter)
        with self._listen(self.place / f"{name}.sock") as listener:
            channel = self.birth.open(Op.IDENTITY, message.pack(), [listener.fileno()])
            assert self.birth.reply(channel) == b""

    def begin(self, deadline: int = NEVER, *, idle: int = 0, rlimits: tuple[int, ...] = ()) -> None:
        message = Begin(deadline=deadline, idle=idle, retention=NEVER // 2, rlimits=rlimits)
        with self._listen(self.place / "init.sock") as listener:
            channel = self.birth.open(Op.BEGIN, message.pack(), [listener.fileno()])
            assert self.birth.reply(channel) == b""

    def connect(self, name: str, *, greet: bool = True) -> Connection:
        peer = socket.socket(socket.AF_UNIX)
        try:
            peer.connect(str(self.place / f"{name}.sock"))
        except BaseException:
            peer.close()
            raise
        return Connection(peer, greet=greet)

    def ended(self) -> int:
        return self.process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.birth.close()
        self.door.close()

    def _called(self) -> Connection:
        """Its call. Raises Ended if it ends before that."""
        try:
            with closing(os.pidfd_open(self.process.pid)) as process:
                calls = select.select([self.door, process], [], [], PATIENCE_SECONDS)[0]
            assert calls, "it neither calls nor ends"
            if self.door not in calls:
                raise Ended
            return Connection(self.door.accept()[0])
        except BaseException:
            self.process.kill()
            self.process.wait()
            self.door.close()
            raise

    def _listen(self, path: Path) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(16)
        return listener


@pytest.fixture
def container(program: Path, tmp_path: Path) -> Iterator[Container]:
    container = Container(program, tmp_path)
    yield container
    container.close()


@pytest.fixture
def whole(container: Container) -> Container:
    """With a user's agent, one of root's that waits to be called, and one that attends holds."""
    container.identity("user", USER, IdentityFlags.EAGER)
    container.identity("root", 0)
    container.identity("carrier", 0, IdentityFlags.ATTENDING)
    container.begin()
    return container


def agent_of(control: Connection, name: bytes) -> int:
    return AgentReply.unpack(control.call(Op.AGENT, Agent(name=name).pack())).pid


def times(control: Connection, op: Op) -> TimesReply:
    return TimesReply.unpack(control.call(op))


def left_of(control: Connection, name: bytes, pid: int) -> LostReply:
    return LostReply.unpack(control.call(Op.LOST, Lost(name=name, pid=pid).pack()))


def test_each_identity_has_an_agent_that_acts_as_it(whole: Container) -> None:
    control = whole.connect("init")
    assert agent_of(control, b"root") == 0
    for name, uid in (("user", USER), ("root", 0)):
        host = whole.connect(name)
        done = host.sh("id -u; id -g; id -G; grep -E 'CapEff|NoNewPrivs' /proc/self/status")
        ids, _, status = done.out.decode().partition("\nCapEff:")
        assert ids.split() == [str(uid)] * 3
        assert (int(status.split()[0], 16) != 0) is (uid == 0)
        assert status.split()[-1] == "1"
        host.close()
    assert agent_of(control, b"root") > 1
    assert control.hello is not None
    assert control.hello.pid == 1
    control.close()


def test_what_the_filter_refuses_is_refused_to_commands(container: Container) -> None:
    container.identity("user", USER, IdentityFlags.EAGER, filter=seccomp_profile.build(os.uname().machine, owners=True))
    container.begin(rlimits=(7, 77))
    host = container.connect("user")
    done = host.sh("ulimit -Hn; grep Seccomp: /proc/self/status; unshare -r true || echo refused")
    assert done.out.split() == [b"77", b"Seccomp:", b"2", b"refused"]
    host.close()


def test_what_a_killed_agent_leaves_is_ended_before_that_is_told_and_another_serves(whole: Container) -> None:
    control, host = whole.connect("init"), whole.connect("user")
    before = agent_of(control, b"user")
    left = host.exec("sh", "-c", "setsid sleep 600 & echo; exec sleep 600")
    left.read_until(b"\n")
    root = whole.connect("root")
    root.sh(f"kill -9 {before}")
    with pytest.raises(Ended):
        left.next()
    assert left_of(control, b"user", before) == LostReply(alive=0, signal=signal.SIGKILL)
    assert b"sleep" not in root.sh("cat /proc/[0-9]*/comm").out.split()
    assert b"Z" not in root.sh("cat /proc/[0-9]*/stat | sed 's/.*) //' | cut -c1").out
    again = whole.connect("user")
    assert again.sh("echo hi").out == b"hi\n"
    assert agent_of(control, b"user") not in {0, before}
    assert left_of(control, b"user", agent_of(control, b"user")).alive
    for one in (control, host, root, again):
        one.close()


def test_what_root_left_behind_goes_and_what_another_started_stays(whole: Container) -> None:
    control, user, root = whole.connect("init"), whole.connect("user"), whole.connect("root")
    kept = user.exec("sh", "-c", "setsid sleep 601 & wait")
    pid = agent_of(control, b"root")
    root.exec("sh", "-c", f"nice -n -5 setsid sleep 602 & until [ -e /tmp/go ]; do sleep 0.01; done; kill -9 {pid}")
    user.sh("touch /tmp/go")
    assert root.ended()
    assert left_of(control, b"root", pid).signal == signal.SIGKILL
    shown = user.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").out
    assert b"sleep 601" in shown
    assert b"sleep 602" not in shown
    assert kept.pid
    for one in (control, user, root):
        one.close()


def test_a_stopped_agent_goes_on(whole: Container) -> None:
    root, user = whole.connect("root"), whole.connect("user")
    control = whole.connect("init")
    root.sh(f"kill -STOP {agent_of(control, b'user')}")
    user.ping()
    for one in (root, user, control):
        one.close()


def test_pid_1_survives_what_is_sent_to_it_inside_and_ends_by_a_sigterm_from_outside(whole: Container) -> None:
    root = whole.connect("root")
    root.sh("kill -TERM 1; kill -INT 1; kill -KILL 1; kill -STOP 1")
    assert root.sh("echo hi").out == b"hi\n"
    root.close()
    pid = _pid_1(whole)
    assert wait_until(
        lambda: not _has_pending(pid, signal.SIGTERM)
    )  # the kernel would merge this one with it (signal(7))
    os.kill(pid, signal.SIGTERM)
    assert whole.ended() == 0


def _has_pending(pid: int, number: int) -> bool:
    (pending,) = re.findall(r"^ShdPnd:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(pending, 16) >> (number - 1) & 1)


def test_all_ends_at_the_deadline_which_the_host_moves(whole: Container) -> None:
    control, host = whole.connect("init"), whole.connect("user")
    host.exec("sleep", "600")
    assert times(control, Op.TIMES).deadline == NEVER
    control.call(Op.DEADLINE, Deadline(deadline=time.clock_gettime_ns(time.CLOCK_BOOTTIME) + SECOND // 5).pack())
    assert whole.ended() == 0
    assert host.ended()
    control.close()
    host.close()


def test_the_last_word_of_a_host_that_hangs_up_is_heard(whole: Container) -> None:
    """As that of a host which lets all go on: it does not wait for what stands still."""
    pid = int(Path(f"/proc/{whole.process.pid}/task/{whole.process.pid}/children").read_text().split()[0])
    os.kill(pid, signal.SIGSTOP)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(whole.place / "init.sock"))
        word = Deadline(deadline=0).pack()
        peer.sendall(frame(Kind.HELLO, body=HostHello(version=VERSION).pack()))
        peer.sendall(frame(Kind.OPEN, Op.DEADLINE, 1, word))
    os.kill(pid, signal.SIGCONT)
    assert whole.ended() == 0


def test_it_ends_when_the_host_goes_before_it_has_begun(container: Container) -> None:
    container.identity("user", USER, IdentityFlags.EAGER)
    container.birth.peer.close()
    assert container.ended() == 125


def test_orders_have_their_time(container: Container) -> None:
    with pytest.raises(GuestError, match="operation"):
        container.birth.call(Op.DEADLINE, Deadline(deadline=0).pack())
    container.identity("user", USER, IdentityFlags.EAGER)
    container.begin()
    control = container.connect("init")
    with pytest.raises(GuestError, match="operation"):
        control.call(Op.EXEC, Exec(id=b"x", argv=(b"true",), cwd=b"/").pack())
    with pytest.raises(GuestError, match="identity"):
        agent_of(control, b"nobody")
    control.close()


def test_pausing_stops_all_and_the_clock(whole: Container) -> None:
    control, host = whole.connect("init"), whole.connect("user")
    told = control.open(Op.PAUSE_CLOCK, PauseClock(paused=0).pack())
    ticking = host.exec("sh", "-c", "while :; do echo; done")
    ticking.next(Kind.DATA)
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    paused = times(control, Op.PAUSE)
    assert 0 < NEVER - now - paused.left < PATIENCE_SECONDS * SECOND
    assert NEVER // 2 + now <= paused.deadline < NEVER // 2 + now + PATIENCE_SECONDS * SECOND
    assert PauseClockReply.unpack(control.reply(told)) == PauseClockReply(
        paused=1, left=paused.left, deadline=paused.deadline
    )
    assert running(whole) == []
    again = times(control, Op.PAUSE)
    assert again == paused
    resumed = times(control, Op.RESUME)
    assert resumed.left == (1 << 64) - 1
    host.ping()
    for one in (control, host):
        one.close()


def test_a_pause_that_cannot_see_whether_all_stand_fails_and_all_go_on(whole: Container) -> None:
    control, user = whole.connect("init"), whole.connect("user")
    pid = _pid_1(whole)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")), 1024))
    with pytest.raises(GuestError) as failed:
        times(control, Op.PAUSE)
    assert failed.value.errno == errno.ETIMEDOUT
    assert user.sh("echo here").out == b"here\n"
    control.close()
    user.close()


def _pid_1(container: Container) -> int:
    """As this namespace numbers it: the only child of the process that made its namespace."""
    (pid,) = Path(f"/proc/{container.process.pid}/task/{container.process.pid}/children").read_text().split()
    return int(pid)


def test_whoever_calls_while_all_stand_still_is_served_afterwards(whole: Container) -> None:
    control = whole.connect("init")
    times(control, Op.PAUSE)
    root = whole.connect("root", greet=False)
    control.ping()
    assert agent_of(control, b"root") == 0
    times(control, Op.RESUME)
    assert Connection(root.peer).sh("echo hi").out == b"hi\n"
    for one in (control, root):
        one.close()


def test_a_hold_lasts_as_long_as_its_channel_and_one_attends_it(whole: Container) -> None:
    control, user = whole.connect("init"), whole.connect("user")
    hold = control.open(Op.HOLD, Hold(seconds=60).pack())
    assert control.reply(hold) == b""
    carrier = whole.connect("carrier")
    assert carrier.sh("echo hi").out == b"hi\n"
    control.send(frame(Kind.CLOSE, channel=hold))
    assert control.for_channel(hold).kind == Kind.CLOSE
    user.ping()
    assert carrier.ended()
    for one in (control, user, carrier):
        one.close()


def test_one_that_was_dismissed_is_there_at_once_when_it_is_wanted_again(container: Container) -> None:
    """Whoever dies by itself as soon as it is there is waited for, longer each time: two minutes for thirty of them."""
    container.identity("carrier", 0, IdentityFlags.ATTENDING)
    container.begin(time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 100 * SECOND)
    control = container.connect("init")
    for _ in range(30):
        hold = control.open(Op.HOLD, Hold(seconds=60).pack())
        control.reply(hold)
        carrier = container.connect("carrier")
        carrier.ping()
        control.send(frame(Kind.CLOSE, channel=hold))
        assert control.for_channel(hold).kind == Kind.CLOSE
        assert carrier.ended()
        carrier.close()
    control.close()


def test_a_hold_has_a_longest_time(whole: Container) -> None:
    control, user = whole.connect("init"), whole.connect("user")
    for seconds in (0, Limit.HOLD + 1):
        with pytest.raises(GuestError, match="hold"):
            control.reply(control.open(Op.HOLD, Hold(seconds=seconds).pack()))
    hold = control.open(Op.HOLD, Hold(seconds=1).pack())
    control.reply(hold)
    assert control.for_channel(hold).kind == Kind.CLOSE
    user.ping()
    for one in (control, user):
        one.close()


def test_it_is_paused_when_nobody_keeps_it_awake(container: Container) -> None:
    container.identity("user", USER, IdentityFlags.EAGER)
    container.begin(idle=SECOND // 10)
    control = container.connect("init")
    told = control.open(Op.PAUSE_CLOCK, PauseClock(paused=0).pack())
    assert PauseClockReply.unpack(control.reply(told)).paused
    awake = control.open(Op.AWAKE)
    assert TimesReply.unpack(control.reply(awake)).left == (1 << 64) - 1
    host = container.connect("user")
    host.ping()
    told = control.open(Op.PAUSE_CLOCK, PauseClock(paused=0).pack())
    control.send(frame(Kind.CLOSE, channel=awake))
    assert PauseClockReply.unpack(control.reply(told)).paused
    for one in (control, host):
        one.close()


def test_garbage_ends_one_connection_and_no_more(whole: Container) -> None:
    control = whole.connect("init")
    control.send(os.urandom(64))
    assert control.ended()
    again = whole.connect("init")
    again.ping()
    for one in (control, again):
        one.close()


def running(container: Container) -> list[str]:
    """Processes below pid 1 that do not stand, as the host sees them."""
    init = Path(f"/proc/{container.process.pid}/task/{container.process.pid}/children").read_text().split()
    found: list[str] = []
    left = Path(f"/proc/{init[0]}/task/{init[0]}/children").read_text().split()
    while left:
        pid = left.pop()
        left += Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TtZX":
            found.append(pid)
    return found
