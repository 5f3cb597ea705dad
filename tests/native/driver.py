"""A blocking host of the real program: enough of one to ask it anything, and to break every rule."""

from __future__ import annotations

import array
import fcntl
import importlib.util
import os
import platform
import shutil
import signal
import socket
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from types import ModuleType
from typing import NamedTuple, Self

import pytest

from paddock.wire.guest import (
    VERSION,
    Credit,
    Error,
    Exec,
    ExecFlags,
    ExecReply,
    Exit,
    GuestHello,
    HostHello,
    Kind,
    Limit,
    Op,
    Stream,
)

EMULATOR = "/usr/bin/qemu-aarch64-static"
ROOT = Path(__file__).parent.parent.parent
HEADER = Struct("<IHHIBBH")
PATIENCE_SECONDS = 60.0
"""After which a test fails in place of waiting for ever."""
ENV = (b"PATH=/usr/local/bin:/usr/bin:/bin", b"LANG=C.UTF-8")


def build_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("native_build", ROOT / "native" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Frame(NamedTuple):
    kind: Kind
    code: int
    channel: int
    body: bytes


class GuestError(Exception):
    def __init__(self, error: Error) -> None:
        super().__init__(f"{error.step.decode()}: {os.strerror(error.errno)}")
        self.errno, self.step = error.errno, error.step.decode()


class Ended(Exception):
    """The guest has closed the connection."""


def frame(
    kind: int, code: int = 0, channel: int = 0, body: bytes = b"", *, descriptors: int = 0, length: int | None = None
) -> bytes:
    return HEADER.pack(len(body) if length is None else length, kind, code, channel, descriptors, 0, 0) + body


class Connection:
    """One connection of a host. `receive` returns frames in their order; `for_channel` sorts them."""

    def __init__(self, peer: socket.socket, *, greet: bool = True) -> None:
        self.peer = peer
        peer.settimeout(PATIENCE_SECONDS)
        self._buffer = bytearray()
        self._waiting: dict[int, list[Frame]] = defaultdict(list)
        self._latest = 0
        self.hello: GuestHello | None = None
        if greet:
            try:
                self.send(frame(Kind.HELLO, body=HostHello(version=VERSION).pack()))
                self.hello = GuestHello.unpack(self.receive().body)
            except BaseException as error:
                peer.close()
                raise (Ended() if isinstance(error, BrokenPipeError) else error) from None

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        if descriptors:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())
            data = data[self.peer.sendmsg([data], [rights]) :]
        self.peer.sendall(data)

    def receive(self) -> Frame:
        while True:
            if len(self._buffer) >= HEADER.size:
                length, kind, code, channel, *zeros = HEADER.unpack_from(self._buffer)
                assert zeros == [0, 0, 0]
                assert length <= Limit.BODY
                if len(self._buffer) >= HEADER.size + length:
                    body = bytes(self._buffer[HEADER.size : HEADER.size + length])
                    del self._buffer[: HEADER.size + length]
                    return Frame(Kind(kind), code, channel, body)
            try:
                data = self.peer.recv(1 << 18)
            except ConnectionResetError:
                data = b""
            if not data:
                raise Ended
            self._buffer += data

    def for_channel(self, channel: int) -> Frame:
        while not self._waiting[channel]:
            got = self.receive()
            self._waiting[got.channel].append(got)
        return self._waiting[channel].pop(0)

    def open(self, op: int, body: bytes = b"", descriptors: Sequence[int] = ()) -> int:
        self._latest += 1
        self.send(frame(Kind.OPEN, op, self._latest, body, descriptors=len(descriptors)), descriptors)
        return self._latest

    def reply(self, channel: int) -> bytes:
        got = self.for_channel(channel)
        if got.kind == Kind.ERROR:
            raise GuestError(Error.unpack(got.body))
        assert got.kind == Kind.REPLY, got
        return got.body

    def call(self, op: int, body: bytes = b"") -> bytes:
        """REPLY and CLOSE."""
        channel = self.open(op, body)
        answer = self.reply(channel)
        assert self.for_channel(channel).kind == Kind.CLOSE
        return answer

    def data(self, channel: int, data: bytes) -> None:
        for start in range(0, len(data), Limit.BODY):
            self.send(frame(Kind.DATA, Stream.IN, channel, data[start : start + Limit.BODY]))

    def credit(self, channel: int, stream: int, count: int) -> None:
        self.send(frame(Kind.CREDIT, stream, channel, Credit(bytes=count).pack()))

    def ping(self) -> None:
        self.call(Op.PING)

    def ended(self) -> bool:
        """Whether the guest closes the connection, whatever it says before."""
        try:
            while True:
                self.receive()
        except Ended:
            return True
        except TimeoutError:
            return False

    # commands

    def exec(self, *argv: bytes | str, id: bytes = b"", descriptors: Sequence[int] = (), **more: object) -> Command:
        request = Exec(
            id=id or f"c{self._latest + 1}_{id_of(self)}".encode(),
            argv=tuple(os.fsencode(item) for item in argv),
            **{"env": ENV, "cwd": b"/", "umask": 0o22, **more},  # pyright: ignore[reportArgumentType]
        )
        channel = self.open(Op.EXEC, request.pack(), descriptors)
        return Command(self, channel, request, ExecReply.unpack(self.reply(channel)).pid)

    def run(self, *argv: bytes | str, stdin: bytes | None = None, **more: object) -> Finished:
        if stdin is not None:
            more["flags"] = int(more.get("flags", 0)) | ExecFlags.STDIN  # pyright: ignore[reportArgumentType]
        command = self.exec(*argv, **more)  # pyright: ignore[reportArgumentType]
        return command.finish(stdin)

    def sh(self, script: str, *argv: str, **more: object) -> Finished:
        return self.run("sh", "-c", script, "sh", *argv, **more)  # pyright: ignore[reportArgumentType]

    def close(self) -> None:
        self.peer.close()


_ids: dict[int, int] = {}


def id_of(connection: Connection) -> int:
    return _ids.setdefault(id(connection), len(_ids))


class Finished(NamedTuple):
    exit: Exit
    out: bytes
    err: bytes
    order: tuple[Kind, ...]


class Command:
    def __init__(self, connection: Connection, channel: int, request: Exec, pid: int) -> None:
        self.connection, self.channel, self.request, self.pid = connection, channel, request, pid
        self.window = Limit.WINDOW

    @property
    def id(self) -> bytes:
        return self.request.id

    def finish(self, stdin: bytes | None = None) -> Finished:
        """Gives credit for what comes, sends `stdin` as far as the guest allows it, to the last word."""
        out = {Stream.OUT: bytearray(), Stream.ERR: bytearray()}
        order: list[Kind] = []
        status: Exit | None = None
        left = memoryview(stdin or b"")
        if stdin is not None:
            left = self._feed(left)
        while True:
            got = self.connection.for_channel(self.channel)
            order.append(got.kind)
            match got.kind:
                case Kind.DATA:
                    out[Stream(got.code)] += got.body
                    self.connection.credit(self.channel, got.code, len(got.body))
                case Kind.CREDIT:
                    self.window += Credit.unpack(got.body).bytes
                    left = self._feed(left)
                case Kind.EXIT:
                    status = Exit.unpack(got.body)
                case Kind.EOF:
                    pass
                case Kind.CLOSE:
                    assert status is not None
                    return Finished(status, bytes(out[Stream.OUT]), bytes(out[Stream.ERR]), tuple(order))
                case _:
                    raise AssertionError(got)

    def _feed(self, left: memoryview) -> memoryview:
        count = min(self.window, len(left))
        if count:
            self.connection.data(self.channel, bytes(left[:count]))
            self.window -= count
            left = left[count:]
        if not left:
            self.connection.send(frame(Kind.EOF, Stream.IN, self.channel))
        return left

    def next(self, *kinds: Kind) -> Frame:
        """The next frame of one of these kinds; others are passed over."""
        while True:
            got = self.connection.for_channel(self.channel)
            if got.kind in kinds:
                return got

    def read_until(self, text: bytes, stream: Stream = Stream.OUT) -> bytes:
        data = b""
        while text not in data:
            got = self.next(Kind.DATA)
            if got.code == stream:
                data += got.body
            self.connection.credit(self.channel, got.code, len(got.body))
        return data


class Guest:
    """The program, listening on a socket; it ends when `close` lets its lifeline go, with all that it has started."""

    def __init__(self, program: Path, path: Path) -> None:
        self.path = path
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(64)
        reader, self._lifeline = os.pipe2(os.O_CLOEXEC)
        self.pid = start(program, [listener.fileno(), reader])
        os.close(reader)
        listener.close()
        self._reaped: int | None = None

    def connect(self, *, greet: bool = True) -> Connection:
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(str(self.path))
        return Connection(peer, greet=greet)

    def descriptors(self) -> set[str]:
        """What it has open. It is not dumpable, so the kernel tells only root: for others the set is empty."""
        return set(os.listdir(f"/proc/{self.pid}/fd")) if os.getuid() == 0 else set()

    def children(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def resident_kib(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    def close(self) -> int:
        """Its exit code. It is waited for."""
        if self._reaped is None:
            os.close(self._lifeline)
            _, status = os.waitpid(self.pid, 0)
            self._reaped = os.waitstatus_to_exitcode(status)
        return self._reaped

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        code = self.close()
        assert code == 0, f"the guest ended with {code}"


def start(
    program: Path, descriptors: Sequence[int], argv: Sequence[str] = ("guest",), env: dict[str, str] | None = None
) -> int:
    """With descriptors as 3 and on. A program of the other architecture is given to its emulator."""
    file, command = execution(program, argv)
    above = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in descriptors]
    try:
        actions = [(os.POSIX_SPAWN_DUP2, fd, 3 + index) for index, fd in enumerate(above)]
        return os.posix_spawn(file, command, env or {"ASAN_OPTIONS": "detect_leaks=0"}, file_actions=actions)
    finally:
        for fd in above:
            os.close(fd)


def execution(program: Path, argv: Sequence[str] = ("guest",)) -> tuple[str, list[str]]:
    """What is executed, and its arguments. The kernel may know no emulator (binfmt_misc), so it is named."""
    if foreign_to(program):
        return EMULATOR, [EMULATOR, "-0", argv[0], str(program), *argv[1:]]
    return str(program), list(argv)


def foreign_to(program: Path) -> bool:
    """Whether it is of the other architecture: the ELF header names its own."""
    return platform.machine() == "x86_64" and program.read_bytes()[:20].endswith(b"\xb7\x00")


def emulated() -> Path:
    """The program for aarch64, on another machine that can emulate it."""
    if platform.machine() != "x86_64" or shutil.which(EMULATOR) is None:
        pytest.skip("needs qemu-user-static on x86_64: make levels installs it")
    build = build_module()
    try:
        return build.build(arch="aarch64")
    except build.NoCompiler as error:
        pytest.skip(str(error))


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


if __name__ == "__main__":
    print(build_module().build(), file=sys.stderr)
