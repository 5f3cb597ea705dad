"""Attempts to get out, each harmless where it succeeds. They judge effects, not refusals: a call that another kernel
answers has done nothing to this one."""

from __future__ import annotations

from collections.abc import Callable
from signal import SIGALRM
from typing import NamedTuple

import msgspec

from paddock.client import Sandbox
from paddock.errors import NotFound, Unsupported

from ._lure import Host

_SECONDS = 600.0
_MOST_BYTES = 64 << 20

PREAMBLE = """
import ctypes, errno, glob, json, os, signal, socket, sys
lure, attacks = json.load(sys.stdin)
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
    return boot == lure["kernel"][0] if boot else os.uname().version == lure["kernel"][1]
def called(name, *arguments):
    "The machine's kernel did more than refuse."
    if not ours(): return False
    values = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    ctypes.set_errno(0)
    if libc.syscall(ctypes.c_long(lure["calls"][name]), *values) >= 0: return True
    return ctypes.get_errno() not in (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP)
def heard(family, address, seconds=2):
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
    """`code` runs inside and gives to `answer` what it found: text that may hold the canary, or whether it succeeded.
    `seen` tells outside what no answer can."""

    name: str
    after: str
    code: str
    seen: Callable[[Host], bool] = lambda host: False


def _killed(host: Host) -> bool:
    return not host.process_lives()


def _call(name: str, arguments: str = "", after: str = "kernel") -> Attack:
    return Attack(name, after, f"answer(called({name!r}{arguments and ', ' + arguments}))")


ATTACKS: tuple[Attack, ...] = (
    Attack("host-file", "files", "answer(read(lure['file']))"),
    Attack("host-file-by-proc", "files", "answer(words('/proc/[0-9]*/root' + lure['file']))"),
    Attack("host-shared-memory", "files", "answer(read(lure['shared_memory']))"),
    Attack("host-environment", "files", "answer(words('/proc/[0-9]*/environ') + str(dict(os.environ)))"),
    Attack(
        "host-process-seen",
        "processes",
        "answer(lure['marker'] in words('/proc/[0-9]*/cmdline'))",
    ),
    Attack(
        "host-process-killed",
        "processes",
        "os.kill(lure['pid'], 9)\nanswer(False)",
        _killed,
    ),
    Attack("host-loopback", "network", "answer(heard(socket.AF_INET, tuple(lure['loopback'])))"),
    Attack(
        "host-addresses",
        "network",
        "answer(''.join(heard(socket.AF_INET, (to, lure['loopback'][1])) for to in lure['addresses']))",
    ),
    Attack(
        "gateways",
        "network",
        "answer(''.join(heard(socket.AF_INET, (to, lure['loopback'][1]), 1) for to in lure['gateways']))",
    ),
    Attack(
        "datagram",
        "network",
        "with socket.socket(type=socket.SOCK_DGRAM) as s:\n"
        "    for to in ('127.0.0.1', *lure['addresses'], *lure['gateways']):\n"
        "        try: s.sendto(b'x', (to, lure['udp']))\n"
        "        except OSError: pass\nanswer(False)",
        Host.was_sent_a_datagram,
    ),
    Attack("abstract-socket", "network", "answer(heard(socket.AF_UNIX, '\\0' + lure['abstract']))"),
    Attack("named-socket", "network", "answer(heard(socket.AF_UNIX, lure['socket']))"),
    Attack(
        "ruling-sockets",
        "network",
        "found = False\n"
        "for path in lure['doors']:\n"
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
    """All of them, by root inside where there is one. CommandFailed: it let nobody begin."""
    # Not by an argument: what is to be found among processes would be found in this one.
    told = msgspec.json.encode((host.lure, [one.code for one in ATTACKS]))
    argv, user = ["python3", "-I", "-S", "-c", PREAMBLE], _strongest(sandbox)
    result = sandbox.exec(argv, user=user, input=told, timeout_seconds=_SECONDS, capture_bytes=_MOST_BYTES, check=True)
    said = msgspec.json.decode(result.stdout, type=list[tuple[str, int]])
    return tuple(_judged(one, host, *answer) for one, answer in zip(ATTACKS, said, strict=True))


def _strongest(sandbox: Sandbox) -> str | None:
    try:
        return "root" if sandbox.exec(["true"], user="root").ok else None
    except (NotFound, Unsupported):
        return None


def _judged(one: Attack, host: Host, said: str, signal: int) -> Verdict:
    if one.seen(host) or host.value in said or said == "true":
        return Verdict(attack=one.name, after=one.after, verdict="through")
    if signal == SIGALRM or said.startswith('{"why"'):
        return Verdict(attack=one.name, after=one.after, verdict="not tried", why=said or "it took too long")
    return Verdict(attack=one.name, after=one.after, verdict="stopped")
