"""The exceptions, in one tree, each with its code on the wire.

* PaddockError
  + RequestError              the caller can fix it
    - NotFoundError
    - AlreadyExistsError
    - InvalidArgumentError
    - InvalidStateError
    - PolicyDeniedError
    - PolicyInvalidError           a policy document that says nothing, or two things at once; with line and column
    - UnsupportedError             this level or machine cannot do that
    - LevelUnavailableError        this machine cannot give the level that was asked for
    - NotConfiguredError           something on this machine is missing; the message holds the command
    - ApprovalNeededError          a person has to say yes first; details["approval"] is the id of the question
    - SecretUnavailableError       a secret has no value now: its source has none, it was revoked, its time is over
    - ImageInvalidError            an OCI image that is damaged, or holds what no sandbox may have
  + SandboxError              the sandbox did it
    - FileError               a file operation was refused inside the sandbox
    - CommandFailedError           a command exited non-zero and `check=True` was asked
      * ProgramNotFoundError       exit code 127: the program or its interpreter is missing
      * ProgramNotExecutableError  exit code 126
    - SandboxDiedError             it is gone: killed, expired, out of memory
    - GuestLostError               it lives; what serves it inside was killed or does not answer: try again
    - GuestProtocolError      what came from inside is not our protocol
    - ErrandFailedError            what paddock wanted done with files from inside could not be done
  + PlatformError             paddock or the machine did it
    - UnrecordedError              the audit log cannot be written, so nothing was done
    - ResourceExhaustedError       the machine is out of disk, memory, descriptors, ids
    - SupervisorUnavailableError
    - DaemonUnavailableError       it does not start, or does not answer
    - DaemonLostError              it died before it answered, so the outcome is unknown; `id` is the command's
    - GatewayUnavailableError      it died before it answered; while a service lives another one is started
    - ModelFailedError             the endpoint of a language model gave no answer that can be used
    - InternalError

`code` is the name on the wire. A reply from a server or a guest picks a class from
`BY_CODE` and never imports one by name. A test holds this drawing against the classes.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar

    from paddock.model import ExecResult

OUT_OF = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The kernel's errors when the machine has no more of a resource: ResourceExhaustedError."""

BY_CODE: dict[str, type[PaddockError]] = {}


class PaddockError(Exception):
    """Says what happened, why, and what to do next.

    `hint` is the next step, as a command or a sentence; `details` are values for programs.
    """

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500

    def __init__(self, message: str, *, hint: str | None = None, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details

    def __init_subclass__(cls, *, code: str | None = None, status: int | None = None) -> None:
        if code is None:  # its base's: they are one on the wire
            return
        if code in BY_CODE:
            raise TypeError(f"duplicate error code {code!r}")
        cls.code = code
        if status is not None:
            cls.status = status
        BY_CODE[code] = cls

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.code, self.message, self.hint, self.details)


def _rebuild(code: str, message: str, hint: str | None, details: dict[str, object]) -> PaddockError:
    error = BY_CODE.get(code, PaddockError)(message, hint=hint)
    error.details = details
    return as_python_error(error)


class RequestError(PaddockError, code="request", status=400): ...


class NotFoundError(RequestError, code="not_found", status=404): ...


class AlreadyExistsError(RequestError, code="already_exists", status=409): ...


class InvalidArgumentError(RequestError, code="invalid_argument", status=422): ...


class InvalidStateError(RequestError, code="invalid_state", status=409): ...


class PolicyDeniedError(RequestError, code="policy_denied", status=403): ...


class PolicyInvalidError(RequestError, code="policy_invalid", status=422):
    """`details["at"]` is where in the document (`egress.allow[3].host`); with its text known, `line` and `column`."""


class UnsupportedError(RequestError, code="unsupported", status=422): ...


class LevelUnavailableError(RequestError, code="level_unavailable", status=422): ...


class NotConfiguredError(RequestError, code="not_configured", status=424): ...


class ApprovalNeededError(RequestError, code="approval_needed", status=403):
    """`approval_id` is what `paddock.approvals.approve` and `paddock.approvals.wait` take."""

    @property
    def approval_id(self) -> str:
        return str(self.details.get("approval", ""))


class SecretUnavailableError(RequestError, code="secret_unavailable", status=424): ...


class ImageInvalidError(RequestError, code="image_invalid", status=422): ...


class SandboxError(PaddockError, code="sandbox", status=502): ...


class FileError(SandboxError, code="file", status=422):
    """`details["errno"]` holds the kernel's symbolic name, such as "ENOENT".

    The client raises the subclass that is also Python's own: `except FileNotFoundError` catches a missing file.
    """


class FileMissingError(FileError, FileNotFoundError): ...


class FilePermissionError(FileError, PermissionError): ...


class FileIsDirectoryError(FileError, IsADirectoryError): ...


class FileNotDirectoryError(FileError, NotADirectoryError): ...


class FilePresentError(FileError, FileExistsError): ...


_FILE_ERRORS = {
    "EACCES": FilePermissionError,
    "EEXIST": FilePresentError,
    "EISDIR": FileIsDirectoryError,
    "ENOENT": FileMissingError,
    "ENOTDIR": FileNotDirectoryError,
    "EPERM": FilePermissionError,
}


class WrongTypeError(InvalidArgumentError, TypeError):
    """An argument has a wrong type. `details["wrong_type"]` is its name."""


def as_python_error(error: PaddockError) -> PaddockError:
    """Return the error that a program would catch for its own files and functions too; others as they are.

    An OSError has its `errno`. Only the client does this: in the daemon an OSError is one of the machine.
    """
    if type(error) is InvalidArgumentError and "wrong_type" in error.details:
        return WrongTypeError(error.message, hint=error.hint, **error.details)
    name = str(error.details.get("errno"))
    kind = _FILE_ERRORS.get(name)
    if kind is None or type(error) is not FileError:
        return error
    copy = kind(error.message, hint=error.hint)
    copy.details, copy.errno = error.details, getattr(errno, name)
    return copy


class CommandFailedError(SandboxError, code="command_failed", status=422):
    """`result` is the whole ExecResult where `exec` raised it with `check`."""

    @property
    def result(self) -> ExecResult | None:
        return self.details.get("result")  # pyright: ignore[reportReturnType]

    @property
    def exit_code(self) -> int | None:
        return None if self.result is None else self.result.exit_code


class ProgramNotFoundError(CommandFailedError, NotFoundError, code="program_not_found", status=422):
    """As a result it is exit code 127: `exec` raises it with `check` alone, `start` always."""


class ProgramNotExecutableError(CommandFailedError, InvalidArgumentError, code="program_not_executable", status=422):
    """As a result it is exit code 126: `exec` raises it with `check` alone, `start` always."""


class SandboxDiedError(SandboxError, code="sandbox_died", status=410): ...


class GuestLostError(SandboxError, code="guest_lost", status=503):
    """`details["killed"]` is true if all that it had started is known to be dead as well."""


class GuestProtocolError(SandboxError, code="guest_protocol", status=502): ...


class ErrandFailedError(SandboxError, code="errand_failed", status=422):
    """The message comes from a program in a utility sandbox, about files that an attacker may have written."""


class PlatformError(PaddockError, code="platform", status=500): ...


class UnrecordedError(PlatformError, code="unrecorded", status=503): ...


class ResourceExhaustedError(PlatformError, code="resource_exhausted", status=507): ...


class GatewayUnavailableError(PlatformError, code="gateway_unavailable", status=503): ...


class SupervisorUnavailableError(PlatformError, code="supervisor_unavailable", status=503): ...


class DaemonUnavailableError(PlatformError, code="daemon_unavailable", status=503): ...


class DaemonLostError(PlatformError, code="daemon_lost", status=503):
    """The outcome is unknown, and asking again may do it twice: look first. The hint says where."""

    @property
    def id(self) -> str | None:
        """The command's that was asked for: one in the background runs on if it was started, and can be attached to."""
        id = self.details.get("id")
        return id if isinstance(id, str) else None


class ModelFailedError(PlatformError, code="model_failed", status=502): ...


class InternalError(PlatformError, code="internal", status=500): ...


_HINTS = {
    errno.EAGAIN: "ulimit -u and the cgroup's pids.max tell how many processes and threads there may be",
    errno.EMFILE: "ulimit -n tells how many this program may have; close what is not used, or raise it",
    errno.ENFILE: "sysctl fs.file-max tells how many the machine has",
    errno.ETOOMANYREFS: "ulimit -n tells how many this user may have under way",
    errno.ENOBUFS: "paddock doctor",
    errno.ENOMEM: "paddock doctor",
    errno.ENOSPC: "paddock doctor",
    errno.EDQUOT: "paddock doctor",
}


def exhaustion(error: OSError | RuntimeError) -> ResourceExhaustedError | None:
    """Return what this program or its machine is out of, if that is what the exception says.

    Refusals from inside a sandbox are FileErrors and never come here.
    """
    number = error.errno if isinstance(error, OSError) else None
    if str(error) == "can't start new thread":  # all that Python says of EAGAIN there
        number = errno.EAGAIN
    if number not in _HINTS:
        return None
    name = errno.errorcode[number]
    what = "no process or thread can be made" if number == errno.EAGAIN else os.strerror(number)
    return ResourceExhaustedError(f"not done: {what}", hint=_HINTS[number], errno=name)


def logged(attempt: str, id: str) -> _Logged:
    """Log a PaddockError or an OSError where it must not stop the work: what was tried, and on which object.

    Like `contextlib.suppress`, with a line in the daemon's log: `with logged("delete the tree", name):`.
    """
    return _Logged(attempt, id)


class _Logged:
    def __init__(self, attempt: str, id: str) -> None:
        self._attempt, self._id = attempt, id

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, PaddockError | OSError):
            return False
        import logging

        logging.getLogger("paddock.suppressed").info("could not %s (%s): %r", self._attempt, self._id, error)
        return True


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "__path__":  # `from paddock.errors import` asks for it
            raise AttributeError(name)
        import sys

        from paddock import _renamed

        return _renamed.error(name, sys.modules[__name__])
