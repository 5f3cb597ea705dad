"""Attempts to break out, all harmless where they succeed.

They judge effects, not refusals: a call that another kernel answers has no effect on this one. The bait for them is
worthless, and has a unique value.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from signal import SIGALRM
from typing import NamedTuple

import msgspec

from paddock.client import Sandbox
from paddock.errors import NotFoundError, UnsupportedError
from paddock.linux.syscall_names import numbers

_VARIABLE = "PADDOCK_BENCH_CANARY"
# The host's addresses behind QEMU's user network, Docker, Podman and libvirt.
_KNOWN_GATEWAYS = ("10.0.2.2", "172.17.0.1", "10.88.0.1", "192.168.122.1")


class Bait(msgspec.Struct, frozen=True, kw_only=True):
    """The bait, as an attacker knows it: the strongest position is to know all but `value`."""

    file: str
    shared_memory: str
    pid: int
    marker: str
    loopback: tuple[str, int]
    addresses: tuple[str, ...]
    gateways: tuple[str, ...]
    udp: int
    abstract: str
    socket: str
    sockets: tuple[str, ...]
    """Sockets that govern this machine or paddock."""
    kernel: tuple[str, str]
    """The boot id and version of the host's kernel."""
    calls: dict[str, int]


class Host:
    """The bait on the host, where the effects of attacks show."""

    def __init__(self, bait: Bait, value: str, process: subprocess.Popen[bytes], datagrams: socket.socket) -> None:
        self.bait, self.value = bait, value
        self._process, self._datagrams = process, datagrams

    def process_lives(self) -> bool:
        return self._process.poll() is None

    def was_sent_a_datagram(self) -> bool:
        with suppress(BlockingIOError):
            return bool(self._datagrams.recv(64))
        return False


@contextmanager
def bait(sockets: Iterable[Path] = ()) -> Generator[Host]:
    """Set up a new bait for the block. Each level needs a new one, because an attack may use it up."""
    value, marker = secrets.token_hex(16), f"paddock-bench-{secrets.token_hex(8)}"
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paddock-bench-", dir="/var/tmp")))
        directory.chmod(0o755)
        file = directory / "canary"
        file.write_text(value)
        stack.enter_context(variable(_VARIABLE, value))
        memory = Path("/dev/shm") / marker  # noqa: S108 - random
        memory.write_text(value)
        stack.callback(memory.unlink, missing_ok=True)
        argv = [sys.executable, "-I", "-S", "-c", "input()", marker]
        process = stack.enter_context(subprocess.Popen(argv, stdin=subprocess.PIPE, env={_VARIABLE: value}))
        stack.callback(process.kill)
        tcp, abstract, named = socket.socket(), socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        datagrams = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        tcp.bind(("0.0.0.0", 0))  # noqa: S104 - a canary
        datagrams.bind(("0.0.0.0", 0))  # noqa: S104
        datagrams.setblocking(False)
        abstract.bind(f"\0{marker}")
        named.bind(str(directory / "socket"))
        (directory / "socket").chmod(0o777)
        for server in (tcp, abstract, named):
            stack.enter_context(_serving(server, value))
        bait = Bait(
            file=str(file),
            shared_memory=str(memory),
            pid=process.pid,
            marker=marker,
            loopback=("127.0.0.1", tcp.getsockname()[1]),
            addresses=_addresses(),
            gateways=_KNOWN_GATEWAYS,
            udp=datagrams.getsockname()[1],
            abstract=marker,
            socket=str(directory / "socket"),
            sockets=tuple(map(str, sockets)),
            kernel=(Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.uname().version),
            calls=numbers(os.uname().machine),
        )
        yield Host(bait, value, process, datagrams)


@contextmanager
def variable(name: str, value: str) -> Generator[None]:
    """Put the value into the environment of processes that the block starts."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@contextmanager
def _serving(server: socket.socket, value: str) -> Generator[None]:
    """Send `value` to every client that connects."""
    server.listen()

    def serve() -> None:
        with suppress(OSError):  # it was shut down: the block has ended
            while True:
                client, _ = server.accept()
                with client, suppress(OSError):
                    client.sendall(value.encode())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        server.close()


def _addresses() -> tuple[str, ...]:
    """Return the address that this machine uses towards the outside, if it has any. It sends no packet."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        return (str(probe.getsockname()[0]),)
    return ()


_SECONDS = 600.0
_MOST_BYTES = 64 << 20

PREAMBLE = """
import ctypes, errno, glob, json, os, signal, socket, sys
bait, attacks = json.load(sys.stdin)
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def read(path):
    try:
        with open(path, "rb") as file: return file.read(1 << 20).decode("utf-8", "replace")
    except OSError: return ""
def words(patterns): return " ".join(read(path) for path in glob.glob(patterns))
def ours():
    "This kernel is the machine's own."
    boot = read("/proc/sys/kernel/random/boot_id").strip()
    return boot == bait["kernel"][0] if boot else os.uname().version == bait["kernel"][1]
def called(name, *arguments):
    "The machine's kernel did more than refuse."
    if not ours(): return False
    values = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    ctypes.set_errno(0)
    if libc.syscall(ctypes.c_long(bait["calls"][name]), *values) >= 0: return True
    return ctypes.get_errno() not in (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP)
def heard(family, address, seconds=20):
    "On a busy machine the word of one that listens comes late, and no word counts as stopped."
    with socket.socket(family) as client:
        client.settimeout(seconds)
        try:
            client.connect(address)
            return client.recv(64).decode()
        except OSError: return ""
def opens(path, flags):
    try: os.close(os.open(path, flags))
    except OSError: return False
    return ours()
def answer(value): os.write(1, json.dumps(value).encode())
def attempt(code):
    "In a process of its own: what it gave to `answer`, and the signal that ended it."
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, 1)
        os.close(reader)
        signal.alarm(60)
        try: exec(code, globals())
        except OSError: answer(False)
        except BaseException as error: answer({"why": repr(error)})
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file: said = file.read()
    return said.decode(), os.WTERMSIG(os.waitpid(pid, 0)[1])
print(json.dumps([attempt(code) for code in attacks]))
"""


class Attack(NamedTuple):
    """An attack.

    `code` runs inside and passes its findings to `answer`: a text that may contain the canary, or success.

    `seen` checks on the host for effects that no answer can show.
    """

    name: str
    after: str
    code: str
    seen: Callable[[Host], bool] = lambda host: False


def _killed(host: Host) -> bool:
    return not host.process_lives()


def _call(name: str, arguments: str) -> Attack:
    return Attack(name, "kernel", f"answer(called({name!r}, {arguments}))")


ATTACKS: tuple[Attack, ...] = (
    Attack("host-file", "files", "answer(read(bait['file']))"),
    Attack("host-file-by-proc", "files", "answer(words('/proc/[0-9]*/root' + bait['file']))"),
    Attack("host-shared-memory", "files", "answer(read(bait['shared_memory']))"),
    Attack("host-environment", "files", "answer(words('/proc/[0-9]*/environ') + str(dict(os.environ)))"),
    Attack("host-process-seen", "processes", "answer(bait['marker'] in words('/proc/[0-9]*/cmdline'))"),
    Attack("host-process-killed", "processes", "os.kill(bait['pid'], 9)\nanswer(False)", _killed),
    Attack("host-loopback", "network", "answer(heard(socket.AF_INET, tuple(bait['loopback'])))"),
    Attack(
        "host-addresses",
        "network",
        "answer(''.join(heard(socket.AF_INET, (to, bait['loopback'][1]), 2) for to in bait['addresses']))",
    ),
    Attack(
        "gateways",
        "network",
        "answer(''.join(heard(socket.AF_INET, (to, bait['loopback'][1]), 1) for to in bait['gateways']))",
    ),
    Attack(
        "datagram",
        "network",
        "with socket.socket(type=socket.SOCK_DGRAM) as s:\n"
        "    for to in ('127.0.0.1', *bait['addresses'], *bait['gateways']):\n"
        "        try: s.sendto(b'x', (to, bait['udp']))\n"
        "        except OSError: pass\nanswer(False)",
        Host.was_sent_a_datagram,
    ),
    Attack("abstract-socket", "network", "answer(heard(socket.AF_UNIX, '\\0' + bait['abstract']))"),
    Attack("named-socket", "network", "answer(heard(socket.AF_UNIX, bait['socket']))"),
    Attack(
        "ruling-sockets",
        "network",
        "found = False\n"
        "for path in bait['sockets']:\n"
        "    with socket.socket(socket.AF_UNIX) as s:\n"
        "        try: s.connect(path); found = True\n"
        "        except OSError: pass\nanswer(found)",
    ),
    Attack(
        "vsock",
        "network",
        "s = socket.socket(40)\ns.settimeout(1)\nfound = False\n"
        "for port in (1, 22, 1024):\n"
        "    try: s.connect((2, port)); found = True\n"
        "    except OSError: pass\nanswer(found)",
    ),
    Attack(
        "packets",
        "network",
        "s = socket.socket(17, socket.SOCK_RAW)\nanswer(ours() and len(os.listdir('/sys/class/net')) > 1)",
    ),
    Attack("kernel-settings", "kernel", "answer(opens('/proc/sys/kernel/core_pattern', os.O_WRONLY))"),
    Attack("sysrq", "kernel", "answer(opens('/proc/sysrq-trigger', os.O_WRONLY))"),
    Attack("kernel-memory", "kernel", "answer(any(opens(p, os.O_RDONLY) for p in ('/proc/kcore', '/dev/mem')))"),
    Attack("kernel-log", "kernel", "answer(opens('/dev/kmsg', os.O_RDONLY))"),
    Attack(
        "device",
        "kernel",
        "path = '/tmp/device'\nos.mknod(path, 0o20600, os.makedev(1, 1))\nfound = opens(path, os.O_RDONLY)\n"
        "os.unlink(path)\nanswer(found)",
    ),
    _call("init_module", "0, 0, 0"),
    _call("kexec_load", "0, 0, 0, 0x7ff0"),
    _call("bpf", "0, 0, 0"),
    _call("io_uring_setup", "0, 0"),
    _call("userfaultfd", "0"),
    _call("keyctl", "0, -3, 0"),
    _call("perf_event_open", "0, 0, 0, 0, 0"),
    _call("open_by_handle_at", "-1, 0, 0"),
    _call("unshare", "0x10000000"),
    _call("fsopen", "b'tmpfs', 0"),
    _call("open_tree", "-100, b'/', 1"),
    Attack("crypto-sockets", "kernel", "socket.socket(38, socket.SOCK_SEQPACKET)\nanswer(ours())"),
)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    attack: str
    after: str
    verdict: str
    """`stopped`, `through`, or `not tried`, and then `why`."""
    why: str = ""


def attack(sandbox: Sandbox, host: Host) -> tuple[Verdict, ...]:
    """Make all attacks, as root inside if possible. Raises CommandFailedError if the sandbox can't start them."""
    # Not by an argument: an attack that searches the processes would find it in this one.
    task = msgspec.json.encode((host.bait, [one.code for one in ATTACKS]))
    argv, user = ["python3", "-I", "-S", "-c", PREAMBLE], _strongest(sandbox)
    result = sandbox.exec(argv, user=user, input=task, timeout_seconds=_SECONDS, capture_bytes=_MOST_BYTES, check=True)
    answers = msgspec.json.decode(result.stdout, type=list[tuple[str, int]])
    return tuple(_judged(one, host, *answer) for one, answer in zip(ATTACKS, answers, strict=True))


def _strongest(sandbox: Sandbox) -> str | None:
    try:
        return "root" if sandbox.exec(["true"], user="root").ok else None
    except (NotFoundError, UnsupportedError):
        return None


def _judged(one: Attack, host: Host, output: str, signal: int) -> Verdict:
    if one.seen(host) or host.value in output or output == "true":
        return Verdict(attack=one.name, after=one.after, verdict="through")
    if signal == SIGALRM or output.startswith('{"why"'):
        return Verdict(attack=one.name, after=one.after, verdict="not tried", why=output or "it took too long")
    return Verdict(attack=one.name, after=one.after, verdict="stopped")
