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
    def of(cls, error: BaseException) -> Fault:
        if isinstance(error, Fault):
            return error
        if isinstance(error, OSError) and error.errno is not None:
            name = errno.errorcode.get(error.errno, str(error.errno))
            return cls("file", os.strerror(error.errno), name=name)
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
