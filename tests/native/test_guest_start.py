"""The program's start, and the program itself."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from paddock.wire.guest import ExecFlags
from tests.native.driver import (
    EMULATOR,
    ROOT,
    Connection,
    Guest,
    build_module,
    emulated,
    end,
    execution,
    foreign_to,
    start,
)

REFUSED = 125
BUILD = build_module()


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_whoever_starts_it_without_a_descriptor_gets_nothing(program: Path) -> None:
    file, argv = execution(program)
    assert subprocess.run(argv, executable=file, check=False).returncode == REFUSED


def test_with_arguments_it_does_nothing(program: Path) -> None:
    ours, its = socket.socketpair()
    assert ended(start(program, [its.fileno()], argv=("guest", "--help"))) == REFUSED
    its.close()
    assert ours.recv(1) == b""
    ours.close()


def test_a_script_whose_interpreter_it_is_does_nothing(program: Path, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!{EMULATOR} {program}\n" if foreign_to(program) else f"#!{program}\n")
    script.chmod(0o755)
    ours, its = socket.socketpair()
    assert ended(start(script, [its.fileno()])) == REFUSED
    its.close()
    ours.close()


def test_one_connection_is_served_to_its_end(program: Path) -> None:
    ours, its = socket.socketpair()
    pid = start(program, [its.fileno()])
    its.close()
    host = Connection(ours)
    assert host.run("echo", "hi").out == b"hi\n"
    host.close()
    assert ended(pid) == 0


def test_it_runs_from_a_sealed_file_that_nobody_can_write(program: Path) -> None:
    memory = os.memfd_create("guest", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(memory, program.read_bytes())
    os.fchmod(memory, 0o555)
    fcntl.fcntl(
        memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    )
    ours, its = socket.socketpair()
    pid = start(Path(f"/proc/self/fd/{memory}"), [its.fileno()])
    its.close()
    host = Connection(ours)
    assert host.run("true").exit.code == 0
    if os.getuid() == 0:  # for others it is not dumpable, so not even this link can be followed
        with pytest.raises(OSError):
            os.open(f"/proc/{pid}/exe", os.O_RDWR)
    else:
        with pytest.raises(PermissionError):
            os.readlink(f"/proc/{pid}/exe")
    host.close()
    assert ended(pid) == 0
    os.close(memory)


def test_closed_and_stray_descriptors_of_its_starter(program: Path) -> None:
    """It may be started with 0, 1, 2 closed, and with others open: no command ever sees them."""
    ours, its = socket.socketpair()
    strays = [fcntl.fcntl(its.fileno(), fcntl.F_DUPFD, 100 + n) for n in range(3)]
    for fd in strays:
        os.set_inheritable(fd, True)
    own = fcntl.fcntl(its.fileno(), fcntl.F_DUPFD_CLOEXEC, 64)
    actions = [(os.POSIX_SPAWN_DUP2, own, 3), *((os.POSIX_SPAWN_CLOSE, fd) for fd in (0, 1, 2))]
    pid = os.posix_spawn(*execution(program), {"ASAN_OPTIONS": "detect_leaks=0"}, file_actions=actions)
    for fd in (*strays, own):
        os.close(fd)
    its.close()
    host = Connection(ours)
    assert host.run("ls", "/proc/self/fd").out.split() == [b"0", b"1", b"2", b"3"]
    assert host.run("readlink", "/proc/self/fd/0").out == b"/dev/null\n"
    host.close()
    assert ended(pid) == 0, "and a copy of its own socket would have kept it"


def test_its_memory_is_not_to_be_read(guest: Guest, host: Connection) -> None:
    if os.getuid() == 0:
        found = host.sh(f"stat -c %U /proc/{guest.pid}/maps").out
        assert found == b"root\n"
    else:
        with pytest.raises(PermissionError):
            os.close(os.open(f"/proc/{guest.pid}/mem", os.O_RDONLY))


def test_an_idle_guest_is_small(tmp_path: Path) -> None:
    with Guest(BUILD.build(), tmp_path / "s") as guest:
        host = guest.connect()
        host.run("true")
        assert guest.resident_kib() < 300
        host.close()


# the program


def test_the_program_is_small_and_static() -> None:
    program = BUILD.build()
    assert program.stat().st_size < 150_000
    assert b"/lib64/ld-linux" not in program.read_bytes()


@pytest.mark.slow  # with gcc: test_program.py
def test_clang_makes_the_same_bytes_of_the_same_sources(tmp_path: Path) -> None:
    if shutil.which("clang") is None:
        pytest.skip("clang is not installed: make check installs it")
    shutil.copytree(ROOT / "native", tmp_path / "native")
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    order = [sys.executable, str(tmp_path / "native" / "build.py"), "--compiler", "clang"]
    done = subprocess.run(order, env=env, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).read_bytes() == BUILD.build(compiler="clang").read_bytes()


def test_a_second_build_takes_the_first() -> None:
    first = BUILD.build()
    made = first.stat().st_mtime_ns
    assert BUILD.build() == first
    assert first.stat().st_mtime_ns == made


def test_it_runs_on_the_other_architecture() -> None:
    """`make test-all` runs all the agent's tests so: `aarch64` of conftest.py."""
    guest = emulated()
    assert guest.stat().st_size < 150_000
    assert ended(start(guest, [])) == REFUSED
    ours, its = socket.socketpair()
    pid = start(guest, [its.fileno()])
    its.close()
    host = Connection(ours)
    assert host.sh("echo out; exit 3").exit.code == 3
    with pytest.raises(Exception, match="exec"):
        host.exec("no-such-program")
    host.close()
    end(pid)


def test_numbers_of_system_calls_are_the_kernel_s() -> None:
    generic, x86_64 = Path("/usr/include/asm-generic/unistd.h"), Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not generic.exists() or not x86_64.exists():
        pytest.skip("the kernel's headers are not installed: apt-get install linux-libc-dev")
    row = re.compile(r"(?:SYS_|DEFINE\d\([\w ]+, )(\w+)(?: = NUMBER\(|, )(\d+), (\d+)")
    numbers = row.findall((ROOT / "native" / "sys.h").read_text())
    assert len(numbers) > 90
    theirs = dict(re.findall(r"#define __NR_(\w+) (\d+)", x86_64.read_text()))
    others = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", generic.read_text()))
    others["newfstatat"] = others["fstatat"]
    for name, ours, its in numbers:
        assert (ours, its) in [(theirs.get(known), others.get(known)) for known in (name, f"{name}64")], name


def test_no_signal_has_a_handler() -> None:
    """A handler that did too much was CVE-2024-6387. The only action that the guest sets is the default one."""
    found = [line.strip() for path in (ROOT / "native").glob("*.c") for line in path.read_text().splitlines()]
    calls = [line for line in found if "sys_sigaction(" in line]
    assert calls == ["(void)sys_sigaction(number, &standard); /* what our starter ignores, commands would ignore */"]
    assert "struct signal_action standard = {0};" in found


def test_commands_die_of_lack_of_memory_before_an_agent_that_was_given_its_score(program: Path) -> None:
    """In a jail /proc can't be written: whoever starts the agent opens the file."""
    ours, its = socket.socketpair()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(reader, 1)
        os.dup2(os.open("/proc/self/oom_score_adj", os.O_RDWR), 60)
        os.dup2(its.fileno(), 3)
        os.dup2(60, 6)
        for fd in (4, 5):
            with contextlib.suppress(OSError):
                os.close(fd)
        os.execve(*execution(program), {"ASAN_OPTIONS": "detect_leaks=0"})
    own = Path(f"/proc/{pid}/oom_score_adj").read_text()
    os.write(writer, b"x")
    for fd in (reader, writer):
        os.close(fd)
    its.close()
    host = Connection(ours)
    found = host.run("cat", "/proc/self/oom_score_adj", flags=ExecFlags.OOM, oom_score=int(own) + 500)
    assert found.out.split() == [str(int(own) + 500).encode()]
    assert Path(f"/proc/{pid}/oom_score_adj").read_text() == own
    assert host.run("ls", "/proc/self/fd").out.split() == [b"0", b"1", b"2", b"3"]
    host.close()
    assert ended(pid) == 0


def test_without_a_lifeline_it_dies_with_its_parent(program: Path, tmp_path: Path) -> None:
    script = (
        "import os, socket, sys; ours, its = socket.socketpair(); listener = socket.socket(socket.AF_UNIX);"
        "listener.bind(sys.argv[2]); listener.listen(1);"
        "fd = os.dup(listener.fileno()); own = os.fork();"
        "own or (os.dup2(fd, 60), os.closerange(3, 60), os.dup2(60, 3), os.close(60),"
        " os.execve(sys.argv[1], sys.argv[3:], {'ASAN_OPTIONS': 'detect_leaks=0'}));"
        "print(own, flush=True); sys.stdin.read()"
    )
    file, argv = execution(program)
    order = [sys.executable, "-c", script, file, tmp_path / "s", *argv]
    with subprocess.Popen(order, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pidfd = os.pidfd_open(int(parent.stdout.readline()))
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(str(tmp_path / "s"))
        host = Connection(peer)
        assert host.run("true").exit.code == 0
        parent.kill()
    assert select.select([pidfd], [], [], 60)[0]
    os.close(pidfd)
    host.close()
