"""The process of one handler: a mock's Python, without privileges, with one socket.

`answers.py` checks its answers, and doesn't trust it.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import ModuleType
from typing import BinaryIO, NoReturn, TypeAlias

import msgspec

from paddock.gateway.mocking import Request, response_of
from paddock.gateway.processes.fork_server import ForkServer
from paddock.linux import confine, landlock, seccomp, seccomp_profile

LENGTH = struct.Struct("!I")
MEMORY_BYTES = 256 << 20
_MODULE = "paddock_mock"
_FILE = "<string>"

Handle: TypeAlias = Callable[[Request], object]

# The system calls that Python needs to compute, import its library, and use an open socket.
_CALLS = """
read readv pread64 write writev lseek close fcntl dup open openat stat fstat lstat newfstatat statx
access faccessat faccessat2 readlink readlinkat getdents64 getcwd ioctl
recvfrom sendto recvmsg sendmsg poll ppoll
mmap munmap mprotect mremap madvise brk
futex exit exit_group rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack restart_syscall
getpid gettid getppid getuid geteuid getgid getegid sched_yield sched_getaffinity rseq membarrier
clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time times getrusage getrandom uname sysinfo
"""


class MockAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A mock's answer. `error`: the handler raised, or returned an unusable value."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    error: str | None = None


def be_a_handler(peer: socket.socket) -> None:
    """Serve as the handler until its socket ends."""
    with suppress(EOFError, OSError):
        try:
            _confine()
        except BaseException as error:
            _say(peer, MockAnswer(error=f"it could not be confined: {_words(error)}"))
        else:
            _serve(peer)


def _confine() -> None:
    os.dup2(0, 2)
    os.chdir("/")
    os.environ.clear()
    library = os.path.dirname(os.__file__)
    sys.path[:] = [library, os.path.join(library, "lib-dynload")]
    _limit()
    places = (library, "/lib", "/lib64", "/usr/lib", "/usr/share/zoneinfo", "/etc/localtime", "/dev/urandom")
    calls = seccomp.Filter(seccomp_profile.build_only(os.uname().machine, (), free=_CALLS.split()))
    if not confine.confine(readable=places, writable=(), calls=calls):
        raise OSError(errno.ENOSYS, "no Landlock")


def _limit() -> None:
    """Limit descriptors, files, and memory to a little more than the process has now."""
    with open("/proc/self/statm", "rb") as statm:
        most = int(statm.read().split()[0]) * resource.getpagesize() + MEMORY_BYTES
    for number, value in ((resource.RLIMIT_AS, most), (resource.RLIMIT_NOFILE, 64), (resource.RLIMIT_FSIZE, 0)):
        confine.limit(number, value)


def _serve(peer: socket.socket) -> NoReturn:
    messages = peer.makefile("rb")
    handle, error = _load(msgspec.msgpack.decode(_read(messages), type=str))
    while True:
        asked = msgspec.msgpack.decode(_read(messages), type=Request)
        answer = MockAnswer(error=error) if handle is None else _ask(handle, asked)
        _say(peer, answer)


def _say(peer: socket.socket, answer: MockAnswer) -> None:
    data = msgspec.msgpack.encode(answer)
    peer.sendall(LENGTH.pack(len(data)) + data)


def _load(text: str) -> tuple[Handle | None, str]:
    """Load the handler as a module that can find itself in `sys.modules`, as dataclasses do."""
    module = sys.modules[_MODULE] = ModuleType(_MODULE)
    try:
        exec(compile(text, _FILE, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 (this process has no power)
    except BaseException as error:
        return None, _words(error)
    handle = getattr(module, "handle", None)
    if not callable(handle):
        return None, "it has no function `handle`"
    return handle, ""


def _ask(handle: Handle, request: Request) -> MockAnswer:
    try:
        response = response_of(handle(request))
        given = response.headers
        fields = given.items() if isinstance(given, Mapping) else given
        body = response.body.encode() if isinstance(response.body, str) else bytes(response.body)
        headers = tuple((str(name), str(value)) for name, value in fields)
        return MockAnswer(status=int(response.status), headers=headers, body=body)
    except BaseException as error:
        return MockAnswer(error=_words(error))


def _words(error: BaseException) -> str:
    """Describe an exception, with the line of the handler that raised it."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _FILE]
    where = f", line {lines[-1]}" if lines else f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
    try:
        return f"{type(error).__name__}: {error}{where}"[:1000]
    except BaseException:  # instances of handler classes
        return f"an exception that cannot be shown{where}"


def _read(messages: BinaryIO) -> bytes:
    head = messages.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    return messages.read(LENGTH.unpack(head)[0])


class HandlerHost(ForkServer):
    """The process that forks handlers."""

    def __init__(self) -> None:
        super().__init__("the host of handlers", be_a_handler)
        self.living = 0
        """Handlers of all networks."""


def start_host() -> HandlerHost | None:
    """Start the process that forks handlers. Return None if this kernel can't confine them."""
    return HandlerHost() if landlock.kernel_abi() >= 1 else None
