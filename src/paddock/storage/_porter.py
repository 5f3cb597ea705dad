"""Work on trees whose files belong to many ids, done by somebody who may: where paddock is an ordinary user, by a child
process in a user namespace that maps his subordinate ids."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Concatenate, NoReturn, ParamSpec, Protocol, TypeVar

from paddock.errors import InternalError, NotConfigured, PaddockError
from paddock.keeper.layout import ORDINARY_ID, TREE_ID_BASE
from paddock.linux import descriptors, namespaces, prctl
from paddock.linux.subordinate_ids import SubordinateIds, open_namespace
from paddock.storage._config import PoolConfig

T = TypeVar("T")
P = ParamSpec("P")


class Porter:
    """`base` is added to an id of a tree to store it; None: all files are those of who we are."""

    def __init__(self, base: int | None) -> None:
        self.base = base

    def do(self, work: Callable[[], T], *kept: int) -> T:
        """What `work` returns or raises. It may be done elsewhere: it changes nothing in memory, and uses no
        descriptors but `kept` and its own."""
        return work()

    def close(self) -> None: ...


class SubordinatePorter(Porter):
    """Forks for each piece of work. May be used by several threads at once."""

    def __init__(self, ids: SubordinateIds) -> None:
        super().__init__(0)
        self._ids = ids
        self._lock = threading.Lock()
        self._namespace = -1
        self._there = False

    def do(self, work: Callable[[], T], *kept: int) -> T:
        if self._there:
            return work()
        namespace = self._open()
        parent = os.getpid()
        reader, writer = os.pipe2(os.O_CLOEXEC)
        pid = -1
        try:
            pid = namespaces.clone(0)
            if pid == 0:
                self._be_there(work, parent, namespace, writer, kept)
            os.close(writer)
            writer = -1
            said = bytearray()
            while data := os.read(reader, 1 << 16):
                said += data
        finally:
            os.close(reader)
            if writer != -1:
                os.close(writer)
            if pid > 0:
                _end(pid)
        if not said:
            raise InternalError("the process that works on trees with subordinate ids died", hint="try again")
        value, error = pickle.loads(said)  # noqa: S301 (from our own child, which runs nothing foreign)
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        with self._lock:
            namespace, self._namespace = self._namespace, -1
            if namespace != -1:
                os.close(namespace)

    def _open(self) -> int:
        with self._lock:
            if self._namespace == -1:
                try:
                    self._namespace = open_namespace(self._ids, ORDINARY_ID)
                except OSError as error:
                    raise NotConfigured(
                        f"the trees here belong to your subordinate ids, which cannot be mapped any more: {error}",
                        hint="paddock doctor; /etc/subuid and /etc/subgid must be as they were",
                    ) from error
            return self._namespace

    def _be_there(
        self, work: Callable[[], object], parent: int, namespace: int, writer: int, kept: tuple[int, ...]
    ) -> NoReturn:
        """In the child, a copy of a program that may have threads: nothing of it is run, freed or closed tidily."""
        gc.disable()
        try:
            try:
                signal.set_wakeup_fd(-1)
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, signal.SIG_IGN)  # whoever gets them decides, and our end follows from its
                descriptors.close_all_but(writer, namespace, *kept)
                namespaces.setns(namespace, namespaces.NEWUSER)
                os.close(namespace)
                prctl.set_parent_death_signal(signal.SIGKILL)
                if os.getppid() == parent:
                    self._there = True
                    _tell(writer, work(), None)
            except (PaddockError, OSError) as error:
                _tell(writer, None, error)
            except BaseException as error:
                _tell(writer, None, InternalError(f"{type(error).__name__}: {error}", hint="this is a bug"))
        finally:
            os._exit(0)


def _tell(writer: int, value: object, error: Exception | None) -> None:
    view = memoryview(pickle.dumps((value, error)))
    while view:
        view = view[os.write(writer, view) :]


def _end(pid: int) -> None:
    """It has said all that it had to say, or nobody listens any more."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def porter_for(config: PoolConfig) -> Porter:
    """Who does the work on the trees of a pool."""
    if os.geteuid() == 0:
        return Porter(TREE_ID_BASE)
    return Porter(None) if config.subordinate_ids is None else SubordinatePorter(config.subordinate_ids)


class Carried(Protocol):
    """What has a porter, and one descriptor that its methods need."""

    porter: Porter

    def fileno(self) -> int: ...


C = TypeVar("C", bound=Carried)


def by_porter(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[C, P], T]:
    """The method is done by the porter of its object, as a whole."""

    @wraps(method)
    def do(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.porter.do(partial(method, self, *args, **kwargs), self.fileno())

    return do
