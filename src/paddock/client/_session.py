"""This process's session with the daemon of one state directory, which its two transports share."""

from __future__ import annotations

import errno
import math
import os
from _thread import allocate_lock

from paddock import __version__
from paddock.errors import (
    DaemonLostError,
    DaemonUnavailableError,
    InvalidArgumentError,
    NotConfiguredError,
    PaddockError,
    as_python_error,
    exhaustion,
)
from paddock.model import (
    Action,
    AttachExec,
    CreateSandbox,
    CreateSnapshot,
    ForkSandbox,
    IdPrefix,
    KillSandbox,
    RunExec,
    StartExec,
    codec,
    mint,
    replace,
)
from paddock.model.caller import is_git_variable, of_source
from paddock.supervisor.layout import default_state
from paddock.wire import NO_REPLY, PROTOCOL, Connection, Frame, Kind, WireError, close_all

from . import _daemon

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    import socket
    from collections.abc import Callable
    from typing import Any

    from paddock.errors import ResourceExhaustedError


INLINE_INPUT = 64 * 1024
"""Longer input of `exec` travels as a memfd (memfd_create(2)), not in the frame."""
_BY_GIT = frozenset(("repository.acquire", "workspace.branch", "workspace.open", "workspace.status"))
"""The actions that the caller's git settings are for. A create over a workspace may fetch its submodules."""
_COMMANDS = (RunExec, StartExec)
_ATTEMPTS = 5


def log() -> logging.Logger:
    """Return the library's. Most programs never need it, and it takes long to import."""
    import logging

    return logging.getLogger("paddock")


class Session:
    """Connections to the daemon.

    A forked child drops its parent's and begins a separate session.

    Taking and giving back a connection needs no lock: `list.pop` and `list.append` are single steps of the interpreter,
    so a finalizer may use them at any point.
    """

    def __init__(
        self,
        state_dir: str | os.PathLike[str],
        connect: Callable[[str], socket.socket] | None = None,
        *,
        any_protocol: bool = False,
    ) -> None:
        """Begin a session. `any_protocol`: use only the commands of every version: `status`, `stop` and `restart`."""
        self.instance = ""
        """The daemon's that greeted it last."""
        self.state_dir = os.fspath(state_dir)
        self._connect = connect or _daemon.connect
        self._any_protocol = any_protocol
        self._begin()

    def _begin(self) -> None:
        self._pid, self.token = os.getpid(), os.urandom(16).hex()
        self._idle: list[Connection] = []
        self._starting = allocate_lock()
        self._told = False

    def take(self) -> Connection:
        """Return a connection for this caller alone, until it gives it back."""
        if self._pid != os.getpid():
            for inherited in self._idle:
                inherited.close()
            self._begin()  # with a new lock: another thread of the parent may hold the old one
        while (connection := self.take_idle()) is not None:
            if not connection.is_stale:
                return connection
            connection.close()
        return self.open()

    def give_up(self, body: bytes) -> None:
        """Send a request and wait for nothing. For finalizers: takes no lock, raises nothing."""
        connection = self.take_idle()
        if connection is None:
            return
        try:
            connection.send(Kind.OPEN, connection.next_channel(), body, flags=NO_REPLY)
        except Exception:  # the daemon is gone, and the handle with it
            connection.close()
        else:
            self.give_back(connection)

    def take_idle(self) -> Connection | None:
        """One that is open and unused, if there is one: for a finalizer, which opens nothing."""
        try:
            return self._idle.pop() if self._pid == os.getpid() else None
        except IndexError:
            return None

    def close(self) -> None:
        """End the session, and with it the sandboxes that aren't persistent. The next call begins another one."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __del__(self) -> None:
        self.close()

    def give_back(self, connection: Connection) -> None:
        if self._pid == os.getpid():
            self._idle.append(connection)

    def open_socket(self) -> socket.socket:
        """Return a greeted connection that is not of this session's pool."""
        return self.open().detach()

    def open(self) -> Connection:
        """Return a new connection, greeted."""
        _daemon.refuse_moved(self.state_dir)
        for _ in range(_ATTEMPTS):
            try:
                with self._starting:  # of many threads that find no daemon one starts it
                    connection = Connection(self._connect(self.state_dir))
            except OSError as error:
                exhausted = exhaustion(error)
                if exhausted is None:
                    raise
                raise exhausted from None
            try:
                if self.greet(connection):
                    connection.wait_at_most(_daemon.LOOK_SECONDS)
                    return connection
            except BaseException:
                connection.close()
                raise
            connection.close()
        raise DaemonUnavailableError(
            "the daemon ends each connection before it answers", hint=f"see {os.path.join(self.state_dir, _daemon.LOG)}"
        )

    def greet(self, connection: Connection) -> bool:
        """Greet the daemon. Return False if it is leaving. Raises its refusal.

        Logs once if its configuration differs from this process's.
        """
        hello = codec.Hello(
            protocol=PROTOCOL, version=__version__, session=self.token, environment=_daemon.configuring()
        )
        try:
            connection.send(Kind.HELLO, 0, codec.encode(hello))
            if not connection.has_news(_daemon.TELL_SECONDS):
                pid, _ = _daemon.listener(connection.detach())
                log().warning("waiting for the daemon of %s (pid %d), which doesn't answer", self.state_dir, pid)
                if not connection.has_news(_daemon.WAIT_SECONDS):
                    raise DaemonUnavailableError(
                        f"the daemon of {self.state_dir} (pid {pid}) has not answered for {_daemon.WAIT_SECONDS:g} s",
                        hint=f"kill -9 {pid}; the next call starts another one, and its sandboxes run on",
                    )
            frame = connection.receive()
        except (OSError, WireError):
            return False
        if frame is None or frame.kind is Kind.CLOSE:
            return False
        close_all(frame.descriptors)
        if frame.kind is not Kind.HELLO:
            raise codec.decode_error(frame.body)
        welcome: codec.Welcome = codec.decode(frame.body, codec.Welcome)
        if welcome.protocol != PROTOCOL and not self._any_protocol:
            raise NotConfiguredError(
                f"this program is paddock {__version__}, and the daemon of {self.state_dir} (pid {welcome.pid}) is"
                f" {welcome.version}: they do not understand each other, and other programs or sandboxes use it",
                hint="paddock daemon restart",
            )
        self.instance = welcome.instance
        for notice in welcome.notices:
            log().warning("%s", notice)
        if welcome.differs and not self._told:
            self._told = True
            log().warning(
                "the daemon was started with another value of %s; to have it take yours: paddock daemon restart",
                ", ".join(welcome.differs),
            )
        return True


_sessions: dict[str, Session] = {}


def session(state_dir: str | os.PathLike[str] | None = None) -> Session:
    """Return this process's session with the daemon of `state_dir`, or of the default one. NotConfiguredError."""
    if state_dir is None and os.environ.get("PADDOCK_URL"):
        raise NotConfiguredError(
            "PADDOCK_URL is set, and this paddock cannot use a server yet: servers come with a later version",
            hint="unset PADDOCK_URL",
        )
    path = default_state() if state_dir is None else os.path.join(os.getcwd(), state_dir)
    found = _sessions.get(path)
    return found if found is not None else _sessions.setdefault(path, Session(path))


def new_id(action: Action[Any]) -> str:
    """Return a new id for a request. The request of a command has the command's id."""
    if isinstance(action, _COMMANDS):
        return action.id or mint(IdPrefix.EXEC)
    return os.urandom(16).hex()


def request_of(action: Action[Any], id: str, *, has_input: bool = False) -> tuple[bytes, tuple[int, ...]]:
    """Return the body of an OPEN, and its descriptors, which the caller closes after the send.

    With `has_input` the caller adds one more: the command's stdin.
    """
    if isinstance(action, RunExec) and action.input is not None and len(action.input) > INLINE_INPUT:
        body = _encoded(codec.Request(action=replace(action, input=None), has_input=True, id=id))
        return body, (_memory(action.input),)
    environment, directories = _environment(action), _directories(action)
    request = codec.Request(action=action, environment=environment, directories=directories, has_input=has_input, id=id)
    return _encoded(request), ()


def _encoded(request: codec.Request) -> bytes:
    try:
        return codec.encode(request)
    except ValueError:
        _refuse_non_finite(request.action)
        raise


def handle_methods(handle: int, method: str, *, id: str | None = None, **fields: Any) -> bytes:
    return codec.encode(codec.Request(call=codec.Call(handle=handle, method=method, **fields), id=id))


def undo_of(action: Action[Any] | None, frame: Frame) -> list[bytes]:
    """Return requests that undo an answer whose caller had left. Closes the frame's descriptors."""
    close_all(frame.descriptors)
    if frame.kind is not Kind.REPLY or action is None:
        return []
    if isinstance(action, CreateSandbox) and not action.idempotency_key:
        return [_kill(codec.decode_result(frame.body, CreateSandbox).id)]
    if isinstance(action, ForkSandbox):
        return [_kill(child.id) for child in codec.decode_result(frame.body, ForkSandbox)]
    if frame.descriptors:
        return [_let_go(frame)]
    return []


def tell(body: bytes) -> None:
    """Log the daemon's message about a request in progress: a warning, or the reason of a delay."""
    messages: dict[str, str] = codec.decode(body, dict[str, str])
    for kind, words in messages.items():
        (log().warning if kind == "warning" else log().info)("%s", words)


def _for_callers(error: Exception) -> Exception:
    """Return a refused file operation, or an argument of a wrong type, as Python's own error too."""
    return as_python_error(error) if isinstance(error, PaddockError) else error


def answered(frame: Frame, give_up: Callable[[bytes], None]) -> Frame:
    """Return the REPLY with all its descriptors. Raises the daemon's error, or ResourceExhaustedError."""
    if frame.kind is Kind.ERROR:
        raise _for_callers(codec.decode_error(frame.body))  # no local name: its traceback would hold it, and streams
    if frame.lost:
        close_all(frame.descriptors)
        give_up(_let_go(frame))
        exhausted = exhaustion(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        assert exhausted is not None
        raise exhausted
    return frame


def lost(what: Action[Any] | None, id: str | None, problem: str) -> DaemonLostError:
    """Return the error for an unknown outcome of `what`, or of a call on a handle for None.

    Its hint says where to look.
    """
    name = "a call" if what is None else type(what).__name__
    why = f" ({problem})" if problem else ""
    message = f"the daemon died before it answered {name}: it may have been done or not{why}"
    if isinstance(what, AttachExec) or (isinstance(what, StartExec) and what.background):
        id = what.exec if isinstance(what, AttachExec) else id
        hint = f"if it was started it runs on: sandbox.attach({id!r}), or: paddock logs -f {what.sandbox} {id}"
    elif isinstance(what, _COMMANDS):
        hint = f"the command has ended with the daemon; look what it has done: paddock sh {what.sandbox}"
    else:
        return DaemonLostError(message, hint=f"look first, then ask again: {_look(what)}")
    return DaemonLostError(message, hint=hint, id=id)


def too_many_under_way(error: Exception) -> ResourceExhaustedError | None:
    """Return the error of a request whose descriptors the kernel didn't take, nor any byte of it (unix(7))."""
    if isinstance(error, OSError) and error.errno == errno.ETOOMANYREFS:
        return exhaustion(error)
    return None


def _look(what: Action[Any] | None) -> str:
    sandbox = getattr(what, "sandbox", None)
    if sandbox is None or isinstance(what, ForkSandbox):
        return "paddock ls"
    return f"paddock snapshot ls {sandbox}" if isinstance(what, CreateSnapshot) else f"paddock inspect {sandbox}"


def _let_go(frame: Frame) -> bytes:
    handle: codec.Handle = codec.decode(frame.body, codec.Handle)
    return handle_methods(handle.handle, "leave")


def _kill(sandbox: str) -> bytes:
    return codec.encode(codec.Request(action=KillSandbox(sandbox=sandbox)))


def _memory(data: bytes) -> int:
    with open(os.memfd_create("paddock-input", os.MFD_CLOEXEC), "wb") as file:
        file.write(data)
        file.flush()
        return os.dup(file.fileno())


def _refuse_non_finite(value: object, name: str = "") -> None:
    """Raise InvalidArgumentError for NaN and infinity, which JSON lacks."""
    from typing import cast

    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidArgumentError(f"{name}={value} isn't a finite number", field=name)
    elif isinstance(value, tuple | list):
        for item in cast("tuple[object, ...]", value):
            _refuse_non_finite(item, name)
    elif isinstance(value, dict):
        for key, item in cast("dict[object, object]", value).items():
            _refuse_non_finite(item, f"{name}.{key}")
    else:
        for field in getattr(value, "__fields__", None) or getattr(value, "__struct_fields__", ()):
            _refuse_non_finite(getattr(value, field), f"{name}.{field}".removeprefix(".").removeprefix("spec."))


def _directories(action: Action[Any]) -> dict[str, tuple[int, int]]:
    """Return device and inode of the caller's mounts, if the caller can see them."""
    found: dict[str, tuple[int, int]] = {}
    for mount in action.spec.mounts if isinstance(action, CreateSandbox) else ():
        try:
            seen = os.stat(f"{mount.source}/")  # by the slash it is mounted, if it is mounted at its first use
        except (OSError, ValueError):
            continue
        found[mount.source] = seen.st_dev, seen.st_ino
    return found


def _environment(action: Action[Any]) -> dict[str, str]:
    """Return the caller's variables that the request needs: git's settings, and the variables of its policy."""
    needed: dict[str, str] = {}
    if action.TAG in _BY_GIT or (isinstance(action, CreateSandbox) and action.spec.workspace is not None):
        needed = {name: value for name, value in os.environ.items() if is_git_variable(name)}
    policy = action.spec.policy if isinstance(action, CreateSandbox) else getattr(action, "policy", None)
    if policy is None:
        return needed
    for rule in policy.secrets.values():
        needed |= of_source(rule.source, os.environ)
    return needed
