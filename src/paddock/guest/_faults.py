"""A refusal: what the host is told when an operation fails."""

from __future__ import annotations

import contextlib
import errno
import os

from ._frames import Json

MAX_MESSAGE = 2000


class Fault(Exception):
    """`code` is a wire code of paddock's errors; `errno` the kernel's symbolic name, where the kernel refused."""

    def __init__(self, code: str, message: str, *, name: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.errno = name

    @classmethod
    def of(cls, error: BaseException, path: bytes | None = None) -> Fault:
        """The kernel's refusal of a file operation. `path` is as the caller named it."""
        if isinstance(error, Fault):
            return error
        if isinstance(error, OSError) and error.errno is not None:
            name = errno.errorcode.get(error.errno, str(error.errno))
            words = os.strerror(error.errno)
            return cls("file", f"{words}: {show(path)}" if path is not None else words, name=name)
        if isinstance(error, MemoryError):
            return cls("file", "out of memory", name="ENOMEM")
        if isinstance(error, (ValueError, OverflowError, RecursionError)):  # a value that no call of the kernel takes
            return cls("invalid_argument", f"{type(error).__name__}: {error}")
        return cls("sandbox", f"{type(error).__name__}: {error}")

    def body(self) -> Json:
        body: Json = {"code": self.code, "message": self.message[:MAX_MESSAGE]}
        if self.errno is not None:
            body["errno"] = self.errno
        return body


def encode(text: str) -> bytes:
    """A name as the kernel knows it. Fault if it cannot be one."""
    try:
        name = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Fault("invalid_argument", "text that is neither Unicode nor escaped bytes") from None
    if b"\0" in name:
        raise Fault("invalid_argument", "a NUL byte in a name")
    return name


def show(name: bytes) -> str:
    """A name as the host knows it."""
    return name.decode("utf-8", "surrogateescape")


def report(error: BaseException) -> None:
    with contextlib.suppress(OSError):
        os.write(2, described(error))


def described(error: BaseException) -> bytes:
    # Not by `traceback`: that reads source files by name, which inside are the attacker's.
    frame, lines = error.__traceback__, [f"paddock guest: {type(error).__name__}: {error}"]
    while frame is not None:
        lines.append(f"  {frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}")
        frame = frame.tb_next
    return "\n".join(lines).encode("utf-8", "backslashreplace") + b"\n"
