"""The process of one handler: a mock's Python, without privileges, with one socket.

`answers.py` checks its answers, and doesn't trust it.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import TypeAlias

import msgspec

from paddock.gateway.mocking import Request, response_of
from paddock.gateway.processes.fork_server import ForkServer
from paddock.linux import confine, landlock, seccomp, seccomp_profile

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


Question: TypeAlias = tuple[str | None, Request]
"""A request of the sandbox. The first one comes with the handler's Python."""
_question = msgspec.msgpack.Decoder(Question).decode
_encode = msgspec.msgpack.Encoder().encode


def be_a_handler(questions: Iterator[bytes]) -> Iterator[bytes]:
    """Serve as the handler: each answer is a `MockAnswer`."""
    handle, error = None, ""
    try:
        _confine()
    except BaseException as failed:
        next(questions, None)
        yield _encode(MockAnswer(error=f"it could not be confined: {_words(failed)}"))
        return
    for question in questions:
        python, request = _question(question)
        if python is not None:
            handle, error = _load(python)
        yield _encode(MockAnswer(error=error) if handle is None else _ask(handle, request))


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


class HandlerHost(ForkServer):
    """The process that forks handlers."""

    def __init__(self) -> None:
        super().__init__("the host of handlers", be_a_handler)
        self.living = 0
        """Handlers of all networks."""


def start_host() -> HandlerHost | None:
    """Start the process that forks handlers. Return None if this kernel can't confine them."""
    return HandlerHost() if landlock.kernel_abi() >= 1 else None
