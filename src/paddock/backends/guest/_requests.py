"""Build requests to the native guest, and translate its refusals: an errno and what was tried."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from paddock.errors import (
    OUT_OF,
    AlreadyExistsError,
    FileError,
    GuestLostError,
    InvalidArgumentError,
    InvalidStateError,
    NotFoundError,
    PaddockError,
    ProgramNotExecutableError,
    ProgramNotFoundError,
    ResourceExhaustedError,
    SandboxError,
)
from paddock.wire import WireError
from paddock.wire.guest import Error, Hand, Op
from paddock.wire.message import Message, Shape

from ._place import encode

_MISSING = (errno.ENOENT, errno.ENOTDIR)
_NO_PROGRAM = (errno.ENOEXEC, errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR)
_LARGEST = "the kernel takes 128 KiB in one argument or variable, and 2 MiB in all (less with a small stack limit)"
_BEGINNING = ("operations", "fork", "descriptors")

TEXT = "text that means something"


class Request(NamedTuple):
    op: int
    body: bytes
    refused: Callable[..., PaddockError]
    """Translates an errno, the step, and `about`."""
    about: tuple[object, ...] = ()

    def error(self, body: bytes) -> PaddockError:
        """Return what the body of an ERROR means. WireError."""
        failure = Error.unpack(body)
        if failure.errno not in errno.errorcode:
            raise WireError("an error that no kernel has")
        return self.refused(failure.errno, failure.step.decode("ascii", "replace"), *self.about)


class EmptyBody(Message):
    """The empty body."""

    SHAPE = Shape(Struct("<"), (), (), ())


def ask(op: Op, message: Message, refused: Callable[..., PaddockError], *about: object) -> Request:
    """Return a request about `about`. Raises InvalidArgumentError if the message can't hold it."""
    try:
        return Request(op, message.pack(), refused, about)
    except (ValueError, StructError) as error:
        raise InvalidArgumentError(f"{op.name.lower()}: {error}") from None


def flags(wanted: Mapping[int, object]) -> int:
    """Those whose value is true."""
    return sum(flag for flag, is_wanted in wanted.items() if is_wanted)


def _failed(number: int, words: str) -> SandboxError:
    return SandboxError(f"{words}: {os.strerror(number)}", errno=errno.errorcode[number])


def of_guest(number: int, step: str) -> PaddockError:
    return _failed(number, f"the guest refused it at {step!r}")


PING = Request(Op.PING, b"", of_guest)


def of_file(number: int, step: str, path: str, wanted: str = TEXT) -> PaddockError:
    """`path` is as the caller named it; `wanted` is what a part of the request has to be."""
    if number == errno.EILSEQ:
        return InvalidArgumentError(f"not {wanted}: {step}")
    if step == "operation" and number == errno.EIO:
        return SandboxError("the work was ended from outside: killed, or out of memory")
    if step in _BEGINNING:
        return _failed(number, "the work could not be begun")
    hint = "recursive=True removes it with all below it" if number == errno.ENOTEMPTY else None
    return FileError(f"{os.strerror(number)}: {path}", hint=hint, errno=errno.errorcode[number])


def of_copy(number: int, step: str, source: str) -> PaddockError:
    if number == errno.EINVAL:
        return InvalidArgumentError("a directory cannot be copied into itself")
    return of_file(number, step, source)


def of_command(number: int, step: str, id: str) -> PaddockError:
    if number == errno.ENOENT:
        return NotFoundError(f"no command {id[:100]}", hint="`paddock logs ID` lists them")
    if number == errno.ESRCH:
        return InvalidStateError(f"the command {id} has ended")
    if number == errno.ENOTTY:
        return InvalidArgumentError("the command has no terminal")
    if number == errno.EINVAL:
        return InvalidArgumentError(f"not a {step} that can be given to a command")
    if number == errno.ENODATA:
        return SandboxError(
            f"the command {id} printed more than the guest keeps before it was read",
            hint="attach again for what is kept, or have it print to a file",
        )
    return _failed(number, f"{step} of command {id}")


def of_port(number: int, step: str, port: int) -> PaddockError:
    if step == "relays":
        return ResourceExhaustedError(
            f"port {port}: too many connections to this sandbox are open", hint="close some, then try again"
        )
    return FileError(f"port {port}: {os.strerror(number)}", errno=errno.errorcode[number])


def of_listener(number: int, step: str, path: str) -> PaddockError:
    if number in OUT_OF:
        return GuestLostError(f"no connection could be taken at {path}: {os.strerror(number)}", hint="try again")
    return FileError(f"{os.strerror(number)}: {path}", errno=errno.errorcode[number])


def hand(name: str, text: str) -> Request:
    """Have descriptors passed on to the process that listens at the abstract datagram socket `name`."""
    return ask(Op.HAND, Hand(name=encode(name), text=encode(text)), _of_hand, name)


def _of_hand(number: int, step: str, name: str) -> PaddockError:
    return _failed(number, f"no process listens at {name!r}")


def of_exec(number: int, step: str, program: str, cwd: str, id: str) -> PaddockError:
    reason, name = os.strerror(number), errno.errorcode[number]
    if step == "interpreter":
        return ProgramNotFoundError(f"the interpreter or loader of {program!r} does not exist", errno=name)
    if step == "cwd" and number != errno.EINVAL:
        kind = NotFoundError if number in _MISSING else InvalidArgumentError
        return kind(f"no working directory {cwd!r}: {reason}", errno=name)
    if step == "exec" and number in _MISSING:
        hint = "; lines of shell need one, a command as a sequence does not" if program == "/bin/sh" else ""
        return ProgramNotFoundError(f"no program {program!r}{hint}", errno=name)
    if step == "exec" and number == errno.EACCES:
        hint = f"chmod +x {program}" if "/" in program else None
        return ProgramNotExecutableError(f"{program!r} is not executable", hint=hint, errno=name)
    if number == errno.E2BIG:
        return InvalidArgumentError(f"cannot execute {program!r}: {reason}: {_LARGEST}", errno=name)
    if step == "exec" and number in _NO_PROGRAM:
        hint = (
            "put `#!/bin/sh` on the first line of a script; a binary has to be one for this processor"
            if number == errno.ENOEXEC
            else None
        )
        return ProgramNotExecutableError(f"cannot execute {program!r}: {reason}", hint=hint, errno=name)
    if step == "id" and number == errno.EEXIST:
        return AlreadyExistsError(f"there is a command {id} already")
    if number == errno.EINVAL:
        return InvalidArgumentError(f"{step} is nothing that a command can have")
    if step == "clone":
        return SandboxError(f"no process could be made: {reason}", errno=name)
    return SandboxError(f"cannot execute {program!r}: {step}: {reason}", errno=name)
