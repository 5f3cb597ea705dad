"""Commands in a real agent."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from paddock.backends._guest_exec import attach, start_background, start_foreground
from paddock.errors import AlreadyExists, InvalidArgument, InvalidState, NotFound, Unsupported
from paddock.model import ExecId, ExecSpec, Noun, PtySize, mint


async def start(connection, *argv, id=None, **fields):
    return await start_foreground(connection, ExecSpec(argv=argv, **fields), id or ExecId(mint(Noun.EXEC)), None)


async def read_all(reader):
    parts = []
    while data := await reader.read():
        parts.append(data)
    return b"".join(parts)


async def collect(handle):
    out, err = await asyncio.gather(read_all(handle.stdout), read_all(handle.stderr))
    status = await handle.wait()
    await handle.aclose()
    return status, out, err


@pytest.fixture(params=["descriptors", "frames"])
def mode(request, run):
    """The test's body, over a connection that hands descriptors in and over one that can't."""

    def runner(body):
        async def main(connection):
            connection.descriptors = request.param == "descriptors"
            await body(connection)

        run(main)

    return runner


def test_output_streams_are_apart_and_the_code_is_the_kernels(mode):
    async def body(connection):
        status, out, err = await collect(await start(connection, "sh", "-c", "echo out; echo err >&2; exit 7"))
        assert (status.code, status.signal, out, err) == (7, None, b"out\n", b"err\n")
        assert 0 < status.duration_seconds < 60

    mode(body)


def test_death_by_signal_is_told_as_such(mode):
    async def body(connection):
        status, _, _ = await collect(await start(connection, "sh", "-c", "kill -9 $$"))
        assert (status.code, status.signal) == (None, 9)

    mode(body)


def test_arguments_environment_and_directory_arrive_byte_for_byte(mode, agent):
    odd = b"\xff\xfe \n'\"".decode("utf-8", "surrogateescape")
    (agent.home / "sub").mkdir()

    async def body(connection):
        handle = await start(
            connection, "sh", "-c", 'printf "%s|%s|" "$1" "$V"; pwd', "sh", odd, env={"V": odd}, cwd="sub"
        )
        _, out, _ = await collect(handle)
        assert out == os.fsencode(odd) + b"|" + os.fsencode(odd) + b"|" + bytes(agent.home) + b"/sub\n"

    mode(body)


def test_stdin_reaches_the_command_and_ends(mode):
    data = os.urandom(3_000_000)

    async def body(connection):
        handle = await start(connection, "cat", stdin=True)

        async def feed():
            await handle.stdin.write(data)
            await handle.stdin.aclose()

        (status, out, _), _ = await asyncio.gather(collect(handle), feed())
        assert status.code == 0
        assert out == data

    mode(body)


def test_a_command_that_closes_its_stdin_breaks_the_pipe(mode):
    async def body(connection):
        handle = await start(connection, "sh", "-c", "exec <&-; echo closed; exec sleep 60", stdin=True)
        assert await handle.stdout.read() == b"closed\n"
        with pytest.raises(BrokenPipeError):
            await handle.stdin.write(b"x" * 8_000_000)
        await handle.aclose()

    mode(body)


def test_large_output_is_whole(mode):
    async def body(connection):
        status, out, _ = await collect(await start(connection, "head", "-c", "20000000", "/dev/zero"))
        assert status.code == 0
        assert len(out) == 20_000_000

    mode(body)


def test_a_daemon_that_keeps_the_pipe_does_not_hold_the_result(mode):
    async def body(connection):
        status, out, _ = await collect(await start(connection, "sh", "-c", "echo before; sleep 1000 & exit 0"))
        assert (status.code, out) == (0, b"before\n")

    mode(body)


def test_refusals_name_what_is_wrong(mode, agent):
    (agent.home / "plain").write_text("x")
    (agent.home / "bad").write_bytes(b"\x00\x01")
    (agent.home / "bad").chmod(0o755)
    (agent.home / "script").write_text("#!/no/such/interpreter\n")
    (agent.home / "script").chmod(0o755)

    async def body(connection):
        for kind, words, argv, fields in (
            (NotFound, "no program 'nosuch'", ("nosuch",), {}),
            (NotFound, "no working directory", ("true",), {"cwd": "nowhere"}),
            (NotFound, "no working directory", ("true",), {"cwd": "plain"}),
            (NotFound, "interpreter", ("./script",), {}),
            (NotFound, "no user", ("true",), {}),
            (InvalidArgument, "not executable", ("./plain",), {}),
            (InvalidArgument, "cannot execute", ("./bad",), {}),
            (InvalidArgument, "name a program", (), {}),
            (InvalidArgument, "NUL", ("true", "a\0b"), {}),
            (InvalidArgument, "neither Unicode", ("true", "\ud800"), {}),
            (InvalidArgument, "env holds", ("true",), {"env": {"a=b": "c"}}),
        ):
            user = "nobody-here" if words == "no user" else None
            with pytest.raises(kind, match=words):
                await start_foreground(connection, ExecSpec(argv=argv, **fields), ExecId(mint(Noun.EXEC)), user)

    mode(body)


def test_a_command_too_large_for_the_kernel_is_refused_with_the_limits(mode):
    async def body(connection):
        with pytest.raises(InvalidArgument, match="128 KiB"):
            await start(connection, "true", "x" * 300_000)
        with pytest.raises(InvalidArgument, match="13 MiB"):
            await start(connection, "true", "x" * (14 << 20))
        handle = await start(connection, "true")
        assert (await handle.wait()).code == 0

    mode(body)


def test_arguments_of_nearly_what_the_kernel_takes_arrive_whole(mode):
    async def body(connection):
        arguments = ["\udcff\u00e9[" + "x" * 120_000] * 16  # brackets and escapes: the slow ways of the codec
        handle = await start(connection, "sh", "-c", 'for a; do printf %s "$a"; done | wc -c', "sh", *arguments)
        assert int(await handle.stdout.read()) == 16 * 120_004
        assert (await handle.wait()).code == 0

    mode(body)


def test_an_id_is_used_once(mode):
    async def body(connection):
        handle = await start(connection, "sleep", "60", id="ex_one")
        with pytest.raises(AlreadyExists):
            await start(connection, "true", id="ex_one")
        await handle.aclose()

    mode(body)


def test_signals_reach_the_process_group(mode):
    async def body(connection):
        handle = await start(
            connection, "sh", "-c", "trap 'echo got; exit 3' USR1; echo up; while :; do sleep 0.05; done"
        )
        assert await handle.stdout.read() == b"up\n"
        await handle.signal(10)
        status, out, _ = await collect(handle)
        assert (status.code, out) == (3, b"got\n")
        with pytest.raises((InvalidState, NotFound)):
            await handle.signal(10)

    mode(body)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


DAEMON = """import os, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
print(os.getpid(), flush=True)
time.sleep(1000)
"""


async def daemonized(connection, then, **fields):
    """A handle whose command has a daemon, and the daemon's pid."""
    handle = await start(connection, "sh", "-c", f"/usr/bin/python3 -ISc '{DAEMON}'; {then}", **fields)
    line = b""
    while not line.endswith(b"\n"):
        data = await handle.stdout.read()
        assert data
        line += data
    return handle, int(line)


def test_kill_reaches_a_daemon_that_forked_twice_and_left_the_session(mode):
    async def body(connection):
        handle, daemon = await daemonized(connection, "sleep 1000")
        bystander = await start(connection, "sleep", "1000")
        await handle.kill()
        assert not alive(daemon)
        assert (await handle.wait()).signal == 9
        assert alive(bystander.pid)
        await bystander.aclose()
        assert not alive(bystander.pid)

    mode(body)


def test_kill_reaches_a_daemon_after_its_command_has_ended(mode):
    async def body(connection):
        handle, daemon = await daemonized(connection, "read line; exit 0", stdin=True)
        await handle.stdin.aclose()
        assert (await handle.wait()).code == 0
        assert alive(daemon)
        await handle.kill()
        assert not alive(daemon)

    mode(body)


HOPPER = """import os, time
for _ in range(4):
    if os.fork() == 0: break
print("up", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    if os.fork(): os._exit(0)
    os.setsid()
"""


def test_kill_catches_daemons_that_never_stop_forking_and_exiting(mode):
    async def body(connection):
        handle = await start(connection, "sh", "-c", f"/usr/bin/python3 -ISc '{HOPPER}'; sleep 1000")
        assert (await handle.stdout.read()).startswith(b"up")
        await handle.kill()
        assert (await handle.wait()).signal == 9

    mode(body)


def test_letting_go_of_a_foreground_command_kills_its_tree(mode):
    async def body(connection):
        handle, daemon = await daemonized(connection, "sleep 1000")
        await handle.aclose()
        assert not alive(daemon)
        assert not alive(handle.pid)

    mode(body)


def test_losing_the_connection_kills_foreground_commands_only(run, agent):
    pids = []

    async def body(connection):
        handle, daemon = await daemonized(connection, "sleep 1000")
        back = await start_background(connection, ExecSpec(argv=("sleep", "1000")), ExecId("ex_back"), None)
        pids.extend((handle.pid, daemon, back.pid))

    run(body)
    until(lambda: not alive(pids[0]) and not alive(pids[1]))
    assert alive(pids[2])

    async def later(connection):
        handle = attach(connection, ExecId("ex_back"))
        await handle.started()
        assert handle.pid == pids[2]
        await handle.kill()
        assert (await handle.wait()).signal == 9

    run(later)


def test_background_output_is_there_from_the_start_and_followed_to_the_end(mode):
    async def body(connection):
        spec = ExecSpec(argv=("sh", "-c", "echo one; read line; echo $line >&2; exit 4"), stdin=connection.descriptors)
        handle = await start_background(connection, spec, ExecId("ex_b"), None)
        assert await handle.stdout.read() == b"one\n"
        if handle.stdin is not None:
            await handle.stdin.write(b"two\n")
        status, out, err = await collect(handle)
        assert (status.code, out, err) == (4, b"", b"two\n" if spec.stdin else b"\n")
        again = attach(connection, ExecId("ex_b"))
        await again.started()
        status, out, err = await collect(again)
        assert (status.code, out) == (4, b"one\n")
        if handle.stdin is not None:
            await handle.stdin.aclose()
        with pytest.raises(NotFound):
            await attach(connection, ExecId("ex_none")).started()

    mode(body)


def test_a_failed_background_start_leaves_nothing(mode, agent):
    async def body(connection):
        with pytest.raises(NotFound, match="no program"):
            await start_background(connection, ExecSpec(argv=("nosuch",)), ExecId("ex_b"), None)
        with pytest.raises(Unsupported):
            await start_background(connection, ExecSpec(argv=("sh",), pty=PtySize()), ExecId("ex_b"), None)
        assert list((agent.home / ".execs").iterdir()) == []

    mode(body)


def test_a_terminal_is_one(mode):
    async def body(connection):
        handle = await start(
            connection,
            "sh",
            "-c",
            "tty >/dev/null && stty size; read x; stty size; echo $x",
            pty=PtySize(rows=11, columns=22),
        )
        out = b""
        while b"11 22" not in out:
            out += await handle.stdout.read()
        await handle.resize(PtySize(rows=33, columns=44))
        await handle.stdin.write(b"word\n")
        rest = await read_all(handle.stdout)
        assert b"33 44" in rest
        assert rest.count(b"word") == 2  # echoed, and printed
        assert (await handle.wait()).code == 0

    mode(body)


def test_a_terminals_output_is_whole_though_a_daemon_holds_it(mode):
    async def body(connection):
        handle = await start(connection, "sh", "-c", "trap '' HUP; sleep 1000 & seq 20000", pty=PtySize())
        out = await read_all(handle.stdout)
        assert out.endswith(b"20000\r\n")
        assert (await handle.wait()).code == 0
        await handle.kill()

    mode(body)


def test_many_commands_share_one_connection(mode):
    async def body(connection):
        async def one(n):
            status, out, _ = await collect(await start(connection, "sh", "-c", f"echo {n}; exit {n}"))
            assert (status.code, out) == (n, b"%d\n" % n)

        await asyncio.gather(*(one(n) for n in range(60)))

    mode(body)


def test_nothing_of_an_exec_stays_open_in_the_agent(mode, agent):
    def count():
        return len(os.listdir(f"/proc/{agent.process.pid}/fd"))

    async def body(connection):
        await collect(await start(connection, "true"))
        before = count()
        for spec in ({}, {"stdin": True}, {"pty": PtySize()}):
            handle = await start(connection, "true", **spec)
            await handle.wait()
            await handle.aclose()
        with pytest.raises(NotFound):
            await start(connection, "nosuch", stdin=True)
        deadline = time.monotonic() + 60
        while count() != before:
            assert time.monotonic() < deadline, (count(), before)
            await asyncio.sleep(0.01)

    mode(body)


def test_who_writes_where_nobody_reads_any_more_gets_sigpipe(mode):
    async def body(connection):
        handle = await start(connection, "sh", "-c", "yes; echo $? >&2")
        await handle.stdout.read()
        await handle.stdout.aclose()
        assert int(await read_all(handle.stderr)) == 128 + 13
        await handle.wait()
        await handle.aclose()

    mode(body)
