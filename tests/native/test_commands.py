"""Commands of the native guest, asked as a host asks."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from paddock.wire.guest import (
    Attach,
    AttachedFlags,
    AttachFlags,
    AttachReply,
    EndedFlags,
    ExecFlags,
    Execs,
    ExecsReply,
    Exit,
    Keep,
    Kill,
    KillReply,
    Kind,
    Limit,
    ListedFlags,
    Op,
    Resize,
    Signal,
    Stream,
)
from tests.native.driver import ENV, PATIENCE_SECONDS, Command, Connection, Finished, Guest, GuestError, frame
from tests.orphans import wait_until


def eventually(what: str, check: Callable[[], bool]) -> None:
    assert wait_until(check, seconds=PATIENCE_SECONDS), f"never: {what}"


def alive(marker: str) -> list[int]:
    """Processes with this word on their command line, zombies excluded."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


@pytest.fixture
def marker(request: pytest.FixtureRequest) -> str:
    return f"marker{os.getpid()}x{abs(hash(request.node.nodeid))}"


# statuses and output


def test_each_of_many_commands_has_its_own_status(host: Connection) -> None:
    for first in range(0, 512, 64):
        commands = [(n % 256, host.exec("sh", "-c", f"exit {n % 256}")) for n in range(first, first + 64)]
        for code, command in commands:
            assert command.finish().exit.code == code


def test_the_end_by_a_signal_is_told(host: Connection) -> None:
    ended = host.sh("kill -KILL $$").exit
    assert (ended.code, ended.signal) == (-1, 9)


def test_output_ends_before_exit_and_exit_before_close(host: Connection) -> None:
    finished = host.sh("echo out; echo err >&2; exit 3")
    assert (finished.out, finished.err, finished.exit.code) == (b"out\n", b"err\n", 3)
    assert finished.order[-2:] == (Kind.EXIT, Kind.CLOSE)
    assert finished.order.count(Kind.EOF) == 2


def test_output_of_a_command_that_ends_at_once_is_whole(host: Connection) -> None:
    random = Random(7)
    for size in [1, 4096, 65536, 65537, 262144, 1 << 20, *(random.randrange(1, 1 << 20) for _ in range(40))]:
        assert len(host.run("head", "-c", str(size), "/dev/zero").out) == size


def test_output_and_input_through_descriptors_of_the_host(host: Connection) -> None:
    inside, near_in = os.pipe()
    near_out, out = os.pipe()
    near_err, err = os.pipe()
    command = host.exec("sh", "-c", "cat; echo bad >&2", flags=ExecFlags.STDIN, descriptors=[inside, out, err])
    for fd in (inside, out, err):
        os.close(fd)
    os.write(near_in, b"hello")
    os.close(near_in)
    finished = command.finish()
    assert (finished.exit.code, finished.order) == (0, (Kind.EXIT, Kind.CLOSE))
    assert os.read(near_out, 100) == b"hello"
    assert os.read(near_err, 100) == b"bad\n"
    assert os.read(near_out, 100) == b"", "the guest holds an end of the host's pipe"
    for fd in (near_out, near_err):
        os.close(fd)


def test_a_process_left_behind_that_holds_the_pipe_does_not_hold_the_command(host: Connection, marker: str) -> None:
    finished = host.sh(f"sh -c 'sleep 600; : {marker}' & echo hi")
    assert finished.out == b"hi\n"
    assert finished.exit.ended == EndedFlags.OUT_OPEN | EndedFlags.ERR_OPEN
    eventually("what a command leaves running when it has ended by itself lives on", lambda: bool(alive(marker)))


def test_exit_does_not_wait_for_a_host_that_does_not_read(host: Connection) -> None:
    size = Limit.WINDOW + 100_000
    command = host.exec("head", "-c", str(size), "/dev/zero")
    came = 0
    while (got := command.next(Kind.DATA, Kind.EXIT)).kind == Kind.DATA:
        came += len(got.body)
    assert Exit.unpack(got.body).ended & EndedFlags.UNDRAINED
    assert came <= Limit.WINDOW
    host.credit(command.channel, Stream.OUT, size)
    while (got := command.next(Kind.DATA, Kind.CLOSE)).kind == Kind.DATA:
        came += len(got.body)
    assert came == size


def test_a_command_whose_output_is_not_read_stands_still_and_others_do_not(host: Connection, guest: Guest) -> None:
    command = host.exec("sh", "-c", "yes; exit 1")
    eventually("the window is used", lambda: sum(len(f.body) for f in host_seen(host, command)) >= Limit.WINDOW)
    before = guest.resident_kib()
    for _ in range(20):
        assert host.run("echo", "hi").out == b"hi\n"
    assert guest.resident_kib() < before + 2048
    host.send(frame(Kind.EOF, Stream.OUT, command.channel))  # nobody reads it any more
    finished = command.finish()
    assert finished.exit.code == 1


def host_seen(host: Connection, command: Command) -> list[object]:
    host.ping()
    return [got for got in host._waiting[command.channel] if got.kind == Kind.DATA]  # pyright: ignore[reportPrivateUsage]


def test_input_of_many_windows_arrives_and_comes_back(host: Connection) -> None:
    data = Random(1).randbytes(3_000_000)
    assert host.run("cat", stdin=data).out == data


def test_a_slow_reader_of_its_input_gets_all_of_it(host: Connection) -> None:
    finished = host.run("sh", "-c", "sleep 0.2; wc -c", stdin=bytes(1_000_000))
    assert finished.out.strip() == b"1000000"


def test_the_host_is_told_when_a_command_stops_reading(host: Connection) -> None:
    command = host.exec("sh", "-c", "exec <&-; echo closed; sleep 600", flags=ExecFlags.STDIN)
    command.read_until(b"closed")
    host.data(command.channel, b"x")
    assert command.next(Kind.EOF).code == Stream.IN
    host.send(frame(Kind.CLOSE, channel=command.channel))
    command.next(Kind.CLOSE)


# what a program finds


def test_a_program_has_three_descriptors_and_default_signals(host: Connection) -> None:
    for flags in (0, ExecFlags.STDIN, ExecFlags.TERMINAL):
        listed = host.run("ls", "/proc/self/fd", flags=flags, stdin=b"" if flags == ExecFlags.STDIN else None)
        assert listed.out.split() == [b"0", b"1", b"2", b"3"]  # the last is that of ls itself
    status = dict(line.split(b":\t") for line in host.run("cat", "/proc/self/status").out.splitlines())
    assert {status[b"SigBlk"], status[b"SigIgn"], status[b"SigPnd"]} == {b"0" * 16}
    assert status[b"NSpgid"] == status[b"NSsid"] == status[b"NSpid"] or status[b"Pid"] == status[b"NSsid"]


def test_descriptors_of_commands_that_run_do_not_reach_later_ones(host: Connection) -> None:
    holders = [host.exec("cat", flags=ExecFlags.STDIN) for _ in range(20)]
    assert host.run("ls", "/proc/self/fd").out.split() == [b"0", b"1", b"2", b"3"]
    for holder in holders:
        host.send(frame(Kind.EOF, Stream.IN, holder.channel))
        assert holder.finish().exit.code == 0


def test_a_broken_pipe_ends_a_program(host: Connection) -> None:
    assert host.run("bash", "-c", "yes | head -1; exit ${PIPESTATUS[0]}").exit.code == 128 + signal.SIGPIPE


def test_environment_directory_mask_limits_and_arguments(host: Connection) -> None:
    script = "printenv A; printenv | wc -l; pwd; umask; ulimit -n; printf '[%s]' \"$@\""
    env = (*ENV, b"A=\xff=b")
    finished = host.sh(script, "", "a b", "\udcff", env=env, cwd=b"/usr/bin", umask=0o77, rlimits=(7, 64, 64))
    lines = finished.out.splitlines()
    assert lines[0] == b"\xff=b"
    assert lines[2:] == [b"/usr/bin", b"0077", b"64", b"[][a b][\xff]"]


def test_the_kernel_takes_a_command_before_its_agent(host: Connection, guest: Guest) -> None:
    score = Path(f"/proc/{guest.pid}/oom_score_adj")
    before = score.read_text()
    assert host.run("cat", "/proc/self/oom_score_adj", flags=ExecFlags.OOM, oom_score=500).out == b"500\n"
    assert host.run("cat", "/proc/self/oom_score_adj").out == before.encode()
    assert score.read_text() == before


def test_arguments_up_to_what_the_kernel_takes(host: Connection) -> None:
    many = ["x" * 1000] * 1900
    assert host.run("sh", "-c", "echo $#", "sh", *many).out == b"1900\n"
    with pytest.raises(GuestError) as caught:
        host.run("true", "x" * 200_000)
    assert caught.value.errno == errno.E2BIG


def test_another_user(host: Connection) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    finished = host.sh("id -u; id -g; id -G", flags=ExecFlags.IDENTITY, uid=65534, gid=65533, groups=(65533, 50))
    assert finished.out == b"65534\n65533\n65533 50\n"


@pytest.mark.parametrize(
    ("argv", "more", "number", "step"),
    [
        (("no-such-program",), {}, errno.ENOENT, "exec"),
        (("/etc/passwd",), {}, errno.EACCES, "exec"),
        (("/",), {}, errno.EACCES, "exec"),
        (("true",), {"cwd": b"/no/such"}, errno.ENOENT, "cwd"),
        (("true",), {"cwd": b"/etc/passwd"}, errno.ENOTDIR, "cwd"),
        (("true",), {"cwd": b"/proc/self/fd/99"}, errno.ENOENT, "cwd"),
        (("true",), {"cwd": b"relative"}, errno.EINVAL, "cwd"),
        (("true",), {"env": (b"=x",)}, errno.EINVAL, "env"),
        (("true",), {"env": (b"x",)}, errno.EINVAL, "env"),
        (("",), {}, errno.EINVAL, "argv"),
        (("true",), {"id": b"a/b"}, errno.EINVAL, "id"),
        (("true",), {"rlimits": (99, 1, 1)}, errno.EINVAL, "rlimits"),
    ],
)
def test_what_cannot_be_started_is_told(
    host: Connection, guest: Guest, argv: tuple[str, ...], more: dict[str, object], number: int, step: str
) -> None:
    host.ping()
    before = guest.descriptors()
    with pytest.raises(GuestError) as caught:
        host.exec(*argv, **more)  # pyright: ignore[reportArgumentType]
    assert (caught.value.errno, caught.value.step) == (number, step)
    host.ping()
    assert guest.descriptors() == before
    eventually("the child that failed is reaped", lambda: not guest.children())


def test_a_missing_interpreter_is_told_from_a_missing_program(host: Connection, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    for argv, env in (((str(script),), ENV), (("script",), (f"PATH=/nowhere:{tmp_path}".encode(),))):
        with pytest.raises(GuestError) as caught:
            host.exec(*argv, env=env)
        assert (caught.value.errno, caught.value.step) == (errno.ENOENT, "interpreter")


def test_an_id_is_used_once(host: Connection) -> None:
    host.exec("sleep", "600", id=b"same")
    with pytest.raises(GuestError) as caught:
        host.exec("true", id=b"same")
    assert (caught.value.errno, caught.value.step) == (errno.EEXIST, "id")


# many at once


def test_children_that_exit_at_one_instant_are_all_told(host: Connection, guest: Guest) -> None:
    for _ in range(3):
        inside, near = os.pipe()
        null = os.open("/dev/null", os.O_WRONLY)
        commands = [host.exec("cat", flags=ExecFlags.STDIN, descriptors=[inside, null, null]) for _ in range(200)]
        os.close(inside)
        os.close(null)
        os.close(near)
        assert [command.finish().exit.code for command in commands] == [0] * 200
        eventually("no zombies", lambda: not guest.children())


def test_orphans_are_reaped(host: Connection, guest: Guest) -> None:
    host.sh("for i in $(seq 300); do (setsid true &); done")
    eventually("all orphans are reaped", lambda: not guest.children())


def test_a_thousand_commands_leave_nothing_behind(host: Connection, guest: Guest) -> None:
    for _ in range(1100):  # all slots are used once
        host.run("true")
    host.ping()  # and with it the agent has done what follows the last answer
    descriptors, memory = guest.descriptors(), guest.resident_kib()
    for _ in range(400):
        host.run("true", flags=ExecFlags.TERMINAL)
        host.run("true", stdin=b"x")
    host.ping()
    assert guest.descriptors() == descriptors
    assert guest.resident_kib() <= memory + 64
    assert not guest.children()


# terminals


def test_a_terminal_has_its_size_and_its_end_is_an_end(host: Connection) -> None:
    finished = host.sh("stty size; tty >/dev/null && echo tty", flags=ExecFlags.TERMINAL, rows=7, columns=33)
    assert finished.out == b"7 33\r\ntty\r\n"
    assert finished.exit.code == 0


def test_a_terminal_is_resized_and_tells_its_program(host: Connection) -> None:
    script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.02; done"
    command = host.exec("bash", "-c", script, flags=ExecFlags.TERMINAL, rows=5, columns=5)
    command.read_until(b"ready")
    host.call(Op.RESIZE, Resize(rows=9, columns=44, id=command.id).pack())
    assert b"9 44" in command.finish().out


def test_end_of_input_of_a_terminal_is_what_a_person_types(host: Connection) -> None:
    assert host.run("cat", stdin=b"line\n", flags=ExecFlags.TERMINAL).out == b"line\r\nline\r\n"


def test_a_terminal_that_a_grandchild_keeps_does_not_hold_the_command(host: Connection, marker: str) -> None:
    finished = host.sh(f"trap '' HUP; sh -c 'sleep 600; : {marker}' & echo done", flags=ExecFlags.TERMINAL)
    assert b"done" in finished.out
    assert host.sh("echo hi", flags=ExecFlags.TERMINAL).out == b"hi\r\n"


def test_all_output_of_a_terminal_arrives(host: Connection) -> None:
    out = host.run("seq", "20000", flags=ExecFlags.TERMINAL).out
    assert out.split() == [str(n).encode() for n in range(1, 20001)]


# the end of a command, and of all that it has started

STUBBORN = """
trap '' TERM HUP INT
(setsid sh -c 'trap "" TERM HUP; while :; do sleep 0.05; done; : MARK' &)
sh -c '(sh -c "sleep 600; : MARK" &) ; sleep 600; : MARK' &
echo ready
while :; do sleep 0.05; done; : MARK
"""


def stubborn(host: Connection, marker: str, **more: object) -> Command:
    command = host.exec("sh", "-c", STUBBORN.replace("MARK", marker), **more)  # pyright: ignore[reportArgumentType]
    if not int(more.get("flags", 0)) & ExecFlags.BACKGROUND:  # pyright: ignore[reportArgumentType]
        command.read_until(b"ready")
    eventually("all of them run", lambda: len(alive(marker)) >= 4)
    return command


def test_kill_ends_all_that_a_command_has_started(host: Connection, marker: str) -> None:
    command = stubborn(host, marker)
    assert KillReply.unpack(host.call(Op.KILL, Kill(id=command.id).pack())).survivors == 0
    assert not alive(marker)
    assert command.finish().exit.signal == signal.SIGKILL


def test_a_host_that_lets_go_ends_a_foreground_command(host: Connection, marker: str) -> None:
    command = stubborn(host, marker)
    host.send(frame(Kind.CLOSE, channel=command.channel))
    command.next(Kind.CLOSE)
    assert not alive(marker)


def test_a_lost_connection_ends_foreground_commands(guest: Guest, marker: str) -> None:
    host = guest.connect()
    stubborn(host, marker)
    host.close()
    eventually("all are dead", lambda: not alive(marker))


def test_what_a_command_left_behind_is_killed_with_it_later(host: Connection, marker: str) -> None:
    command = host.exec("sh", "-c", f"(setsid sh -c 'sleep 600; : {marker}' &) ; exit 0")
    assert command.finish().exit.code == 0
    eventually("it lives on", lambda: bool(alive(marker)))
    assert KillReply.unpack(host.call(Op.KILL, Kill(id=command.id).pack())).survivors == 0
    assert not alive(marker)


def test_a_kill_leaves_other_commands_alone(host: Connection, marker: str) -> None:
    other = host.exec("sh", "-c", f"echo ready; sleep 600; : {marker}")
    other.read_until(b"ready")
    command = host.exec("sleep", "600")
    host.call(Op.KILL, Kill(id=command.id).pack())
    assert alive(marker)


def test_a_kill_leaves_the_commands_of_another_agent_alone(
    host: Connection, program: Path, tmp_path: Path, marker: str
) -> None:
    """Both see the same processes, and have started equally many commands."""
    with Guest(program, tmp_path / "other") as guest:
        other = guest.connect()
        running = other.exec("sh", "-c", f"echo ready; sleep 600; : {marker}")
        running.read_until(b"ready")
        command = host.exec("sleep", "600")
        host.call(Op.KILL, Kill(id=command.id).pack())
        assert alive(marker)
        other.close()


def test_processes_that_fork_all_the_time_do_not_escape(host: Connection, tmp_path: Path) -> None:
    """Each lives for a moment, in a session of its own. A list of processes may miss all of them, a lock doesn't."""
    lock = tmp_path / "lock"
    lock.touch()
    script = f"""import fcntl, os, time
held = open({str(lock)!r})
fcntl.flock(held, fcntl.LOCK_EX)
os.fork(), os.fork(), print("ready", flush=True)
end = time.monotonic() + 120
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.002)
"""
    command = host.exec("python3", "-I", "-S", "-c", script)
    command.read_until(b"ready")
    assert KillReply.unpack(host.call(Op.KILL, Kill(id=command.id).pack())).survivors == 0
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_time_that_is_over_kills_a_command_with_all_it_started(host: Connection, marker: str) -> None:
    for flags in (0, ExecFlags.BACKGROUND):
        command = host.exec("sh", "-c", STUBBORN.replace("MARK", marker), timeout=200_000_000, flags=flags)
        follower = attach(host, command.id) if flags else command
        ended = follower.finish().exit
        assert (ended.signal, ended.ended & EndedFlags.TIME) == (signal.SIGKILL, EndedFlags.TIME)
        assert not alive(marker)


def test_a_command_that_ends_in_time_has_ended_by_itself(host: Connection) -> None:
    ended = host.run("sh", "-c", "exit 4", timeout=600_000_000_000).exit
    assert (ended.code, ended.ended) == (4, 0)


def test_signals_reach_the_process_group(host: Connection) -> None:
    script = "trap 'echo got; exit 5' USR1; echo ready; while :; do sleep 0.02; done"
    command = host.exec("sh", "-c", script)
    command.read_until(b"ready")
    host.call(Op.SIGNAL, Signal(number=signal.SIGUSR1, id=command.id).pack())
    finished = command.finish()
    assert (finished.out, finished.exit.code) == (b"got\n", 5)
    with pytest.raises(GuestError) as caught:
        host.call(Op.SIGNAL, Signal(number=15, id=command.id).pack())
    assert caught.value.errno == errno.ESRCH
    with pytest.raises(GuestError) as caught:
        host.call(Op.SIGNAL, Signal(number=15, id=b"never").pack())
    assert caught.value.errno == errno.ENOENT


def test_what_is_sent_to_everybody_does_not_end_the_agent(host: Connection, guest: Guest) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGPIPE):
        os.kill(guest.pid, number)
    host.ping()


def test_the_end_of_the_lifeline_ends_all(program: Path, tmp_path: Path, marker: str) -> None:
    guest = Guest(program, tmp_path / "s")
    host = guest.connect()
    stubborn(host, marker)
    stubborn(host, marker, flags=ExecFlags.BACKGROUND)
    assert guest.close() == 0
    host.close()
    assert not alive(marker)


# background commands


def attach(
    host: Connection, id: bytes, out: int = 0, err: int = 0, flags: int = AttachFlags.OUT | AttachFlags.ERR
) -> Command:
    channel = host.open(Op.ATTACH, Attach(id=id, flags=flags, out=out, err=err).pack())
    command = Command(host, channel, None, 0)  # pyright: ignore[reportArgumentType]
    command.reply = AttachReply.unpack(host.reply(channel))  # pyright: ignore[reportAttributeAccessIssue]
    return command


def background(host: Connection, *argv: str) -> bytes:
    command = host.exec(*argv, flags=ExecFlags.BACKGROUND)
    assert command.next(Kind.CLOSE)
    return command.id


def test_a_background_command_outlives_its_connection_and_is_followed_again(guest: Guest, tmp_path: Path) -> None:
    go = tmp_path / "go"
    host = guest.connect()
    id = background(
        host, "sh", "-c", f"echo early; echo warn >&2; while ! test -e {go}; do sleep 0.02; done; echo late; exit 6"
    )
    host.close()
    host = guest.connect()
    follower = attach(host, id)
    follower.read_until(b"early\n")
    go.touch()
    finished = follower.finish()
    assert (finished.out, finished.exit.code) == (b"late\n", 6)
    again = attach(host, id).finish()
    assert (again.out, again.err, again.exit.code) == (b"early\nlate\n", b"warn\n", 6)
    assert attach(host, id, out=6).finish().out == b"late\n"
    host.close()


def test_output_of_a_background_command_is_kept_up_to_a_bound(host: Connection) -> None:
    id = background(host, "head", "-c", "8000000", "/dev/zero")
    assert len(attach(host, id).finish().out) == 8_000_000
    size = Limit.BACKGROUND_RING + 5_000_000
    id = background(host, "head", "-c", str(size), "/dev/zero")
    attach(host, id, flags=0).finish()
    kept = attach(host, id)
    assert kept.reply.out == 5_000_000  # pyright: ignore[reportAttributeAccessIssue]
    assert len(kept.finish().out) == Limit.BACKGROUND_RING


def test_nobody_who_does_not_read_holds_a_background_command(host: Connection) -> None:
    id = background(host, "sh", "-c", "head -c 4000000 /dev/zero; exit 4")
    slow = attach(host, id)
    assert attach(host, id, flags=0).finish().exit.code == 4
    assert len(slow.finish().out) == 4_000_000


def test_what_there_is_now_is_told_without_the_end(host: Connection) -> None:
    id = background(host, "sh", "-c", "echo early; sleep 600")
    eventually("it has printed", lambda: attach_now(host, id) == b"early\n")
    host.call(Op.KILL, Kill(id=id).pack())


def attach_now(host: Connection, id: bytes) -> bytes:
    command = attach(host, id, flags=AttachFlags.OUT | AttachFlags.NOW)
    data = b""
    while (got := command.next(Kind.DATA, Kind.CLOSE)).kind == Kind.DATA:
        data += got.body
    return data


def test_a_background_command_reads_what_the_host_gives_and_its_output_is_kept(host: Connection) -> None:
    inside, ours = os.pipe2(os.O_CLOEXEC)
    flags = ExecFlags.BACKGROUND | ExecFlags.STDIN
    command = host.exec("cat", flags=flags, descriptors=[inside])
    os.close(inside)
    assert command.next(Kind.CLOSE)
    os.write(ours, b"given")
    os.close(ours)
    assert attach(host, command.id).finish().out == b"given"


def test_commands_are_listed(host: Connection) -> None:
    first = background(host, "sh", "-c", "exit 6")
    attach(host, first, flags=0).finish()
    host.run("true")
    running = host.exec("sleep", "600")
    listed = ExecsReply.unpack(host.call(Op.EXECS, Execs().pack()))
    rows = {row.id: row for row in listed.execs}
    assert list(rows) == [running.id, first]
    assert rows[first].flags == ListedFlags.BACKGROUND | ListedFlags.ENDED
    assert (rows[first].code, rows[running.id].flags) == (6, 0)
    assert rows[running.id].argv == (b"sleep", b"600")
    assert abs(rows[running.id].started / 1e9 - time.time()) < 600


def test_a_list_that_does_not_fit_goes_on(host: Connection) -> None:
    ids = [background(host, "true", "x" * 2000) for _ in range(150)]
    found: list[bytes] = []
    before = 0
    while True:
        listed = ExecsReply.unpack(host.call(Op.EXECS, Execs(before=before).pack()))
        found += [row.id for row in listed.execs]
        before = listed.before
        if not before:
            break
    assert found == ids[::-1]


def test_a_kept_command_outlives_the_connection_and_tells_its_end(guest: Guest, tmp_path: Path, marker: str) -> None:
    host, go = guest.connect(), tmp_path / "go"
    os.mkfifo(go)
    out, err = os.pipe(), os.pipe()
    kept = host.exec("sh", "-c", f"read line <{go}; echo $line; exit 3; : {marker}", descriptors=[out[1], err[1]])
    other = host.exec("sh", "-c", f"sleep 600; : {marker}", descriptors=[out[1], err[1]])
    for fd in (out[1], err[1]):
        os.close(fd)
    host.call(Op.KEEP, Keep(id=kept.id).pack())
    assert other.pid
    host.close()
    eventually("only the other one is dead", lambda: len(alive(marker)) == 1)
    host = guest.connect()
    followed = attach(host, kept.id, flags=0)
    go.write_text("on\n")
    status = Exit.unpack(followed.next(Kind.EXIT).body)
    assert (status.code, os.read(out[0], 100), os.read(err[0], 1)) == (3, b"on\n", b"")
    host.close()
    for fd in (out[0], err[0]):
        os.close(fd)


def test_a_kept_command_ends_when_its_time_is_over_whoever_lives(guest: Guest, marker: str) -> None:
    host = guest.connect()
    out, err = os.pipe(), os.pipe()
    kept = host.exec("sh", "-c", f"sleep 600; : {marker}", descriptors=[out[1], err[1]])
    host.call(Op.KEEP, Keep(id=kept.id, timeout=50_000_000).pack())
    host.close()
    eventually("it is dead", lambda: not alive(marker))
    host = guest.connect()
    status = Exit.unpack(attach(host, kept.id, flags=0).next(Kind.EXIT).body)
    host.close()
    assert (status.signal, status.ended) == (signal.SIGKILL, EndedFlags.TIME)
    for fd in (*out, *err):
        os.close(fd)


def test_what_a_host_had_not_taken_when_it_died_the_next_one_gets(guest: Guest, tmp_path: Path) -> None:
    size, go = 3 * Limit.WINDOW, tmp_path / "go"
    os.mkfifo(go)
    data = Random(1).randbytes(size)
    (tmp_path / "data").write_bytes(data)
    host = guest.connect()
    kept = host.exec("sh", "-c", f"cat {tmp_path}/data; read line <{go}; cat >&2", flags=ExecFlags.STDIN)
    host.call(Op.KEEP, Keep(id=kept.id).pack())
    host.data(kept.channel, b"x" * Limit.WINDOW)  # more than a pipe takes
    host.credit(kept.channel, Stream.OUT, Limit.WINDOW - 1)
    came = b""
    while len(came) < Limit.WINDOW + 100_000:
        came += kept.next(Kind.DATA).body
    host.close()
    host = guest.connect()
    followed = attach(host, kept.id, out=Limit.WINDOW - 1)
    reply: AttachReply = followed.reply  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]
    assert (reply.out, reply.flags) == (Limit.WINDOW - 1, AttachedFlags.STDIN)
    go.write_text("on\n")
    host.data(followed.channel, b"x" * Limit.WINDOW)
    host.send(frame(Kind.EOF, Stream.IN, followed.channel))
    host.credit(followed.channel, Stream.OUT, size)
    host.credit(followed.channel, Stream.ERR, size)
    streams = {int(Stream.OUT): b"", int(Stream.ERR): b""}
    while (got := followed.next(Kind.DATA, Kind.EXIT)).kind == Kind.DATA:
        streams[got.code] += got.body
    assert streams[Stream.OUT] == data[Limit.WINDOW - 1 :]
    assert len(streams[Stream.ERR]) == reply.input + Limit.WINDOW
    host.close()
    host = guest.connect()  # all is held until one lets go of it
    assert attach(host, kept.id, out=size - 100).next(Kind.DATA).body == data[-100:]
    host.close()


def test_what_a_host_lets_go_of_ends_and_is_forgotten(host: Connection, marker: str) -> None:
    kept = host.exec("sh", "-c", f"sleep 600; : {marker}")
    host.call(Op.KEEP, Keep(id=kept.id).pack())
    host.call(Op.KILL, Kill(id=kept.id).pack())
    assert not alive(marker)
    assert kept.next(Kind.EXIT)
    assert kept.next(Kind.CLOSE)
    ended = host.exec("cat", flags=ExecFlags.STDIN)
    host.call(Op.KEEP, Keep(id=ended.id).pack())
    host.send(frame(Kind.EOF, Stream.IN, ended.channel))
    assert ended.next(Kind.EXIT)
    host.send(frame(Kind.CLOSE, 0, ended.channel))
    assert ended.next(Kind.CLOSE)
    for id in (kept.id, ended.id, b"never"):
        with pytest.raises(GuestError) as caught:
            attach(host, id)
        assert caught.value.errno == errno.ENOENT


def test_only_a_command_can_be_kept(host: Connection) -> None:
    with pytest.raises(GuestError) as caught:
        host.call(Op.KEEP, Keep(id=b"never").pack())
    assert caught.value.errno == errno.ENOENT


def test_a_foreground_command_is_not_followed(host: Connection) -> None:
    command = host.exec("sleep", "600")
    with pytest.raises(GuestError) as caught:
        attach(host, command.id)
    assert caught.value.errno == errno.ENOENT


def test_a_vital_command_takes_the_agent_along(program: Path, tmp_path: Path) -> None:
    guest = Guest(program, tmp_path / "s")
    host = guest.connect()
    finished: Finished = host.run("true", flags=ExecFlags.VITAL)
    assert finished.exit.code == 0
    assert host.ended()
    host.close()
    assert guest.close() == 0
