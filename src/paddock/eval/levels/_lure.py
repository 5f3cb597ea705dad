"""What this machine offers to whoever is inside: worthless, harmless, and known by a value that is nowhere else."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from paddock.linux._syscall_names import numbers

_VARIABLE = "PADDOCK_BENCH_CANARY"
# What a machine is called behind QEMU's user network, Docker, Podman, libvirt.
_KNOWN_GATEWAYS = ("10.0.2.2", "172.17.0.1", "10.88.0.1", "192.168.122.1")


class Lure(msgspec.Struct, frozen=True, kw_only=True):
    """As whoever attacks is told of it: the strongest position is to know all but `value`."""

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
    doors: tuple[str, ...]
    """Sockets that govern this machine or paddock."""
    kernel: tuple[str, str]
    """Its boot id and version."""
    calls: dict[str, int]


class Host:
    """The lure as it is outside, where what became of it is seen."""

    def __init__(self, lure: Lure, value: str, process: subprocess.Popen[bytes], datagrams: socket.socket) -> None:
        self.lure, self.value = lure, value
        self._process, self._datagrams = process, datagrams

    def process_lives(self) -> bool:
        return self._process.poll() is None

    def was_sent_a_datagram(self) -> bool:
        with suppress(BlockingIOError):
            return bool(self._datagrams.recv(64))
        return False


@contextmanager
def lure(doors: Iterable[Path] = ()) -> Generator[Host]:
    """While the block lasts. A new one for each level: an attack may have used it up."""
    value, marker = secrets.token_hex(16), f"paddock-bench-{secrets.token_hex(8)}"
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paddock-bench-", dir="/var/tmp")))
        directory.chmod(0o755)
        file = directory / "canary"
        file.write_text(value)
        stack.enter_context(_variable(value))
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
        told = Lure(
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
            doors=tuple(str(door) for door in doors),
            kernel=(Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.uname().version),
            calls=numbers(os.uname().machine),
        )
        yield Host(told, value, process, datagrams)


@contextmanager
def _variable(value: str) -> Generator[None]:
    """In the environment of what is started from here."""
    os.environ[_VARIABLE] = value
    try:
        yield
    finally:
        del os.environ[_VARIABLE]


@contextmanager
def _serving(server: socket.socket, value: str) -> Generator[None]:
    """Gives `value` to all who connect."""
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
    """The one that this machine is seen under outside, if it has any: nothing is sent."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        return (str(probe.getsockname()[0]),)
    return ()
