"""`perform`: everything that can be asked of paddock, and who answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from paddock.audit import AuditLog
from paddock.backends._base import Backend
from paddock.errors import InternalError, InvalidState, Unrecorded, exhaustion
from paddock.keeper.layout import AUDIT, DATABASE
from paddock.model import (
    Action,
    Principal,
    SandboxId,
    State,
)
from paddock.model.config import Config
from paddock.policy import Policy
from paddock.storage._base import Pool

from ._clock import Clock
from ._context import Context
from ._doors import Egress
from ._gate import Gate
from ._needs import Needs
from ._providers import Backends, Images, Templates
from ._recover import PERIOD_SECONDS
from ._rooms import Rooms
from ._store import Store
from ._tasks import Activity, Tasks
from ._workspace_tree import Workspaces

if TYPE_CHECKING:
    from ._repositories import CredentialSource

R = TypeVar("R")


class Service:
    """The one of its state directory. `async with` it, or `start` and `aclose`, in the loop that uses it. Policies are
    kept by `egress`, or with `gateway` by that of the state directory.

    Leaving it lets sandboxes live on where their backend can find them again, and ends them where it can't.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        backends: Iterable[Backend] | Callable[[], Iterable[Backend]],
        pool: Callable[[], Pool],
        templates: Templates,
        images: Callable[[], Images] | None = None,
        policy: Policy,
        audit: AuditLog | None = None,
        store: Store | None = None,
        config: Config = Config(),  # noqa: B008 (a frozen value)
        clock: Clock = Clock(),  # noqa: B008 (a frozen value)
        workspaces: Workspaces | None = None,
        credentials: CredentialSource | None = None,
        egress: Egress | None = None,
        gateway: bool = False,
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        self.state_dir = state_dir
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._audit = audit or AuditLog(state_dir / AUDIT)
        self._store = store or Store(state_dir / DATABASE, clock)
        self._backends = Backends(backends, config.level)
        self._tasks = Tasks(self._task_failed)
        self._gate = Gate(policy, self._audit)
        self._closed = False
        self._performers: set[asyncio.Task[Any]] = set()
        context = Context(
            state_dir=state_dir,
            store=self._store,
            audit=self._audit,
            clock=clock,
            config=config,
            tasks=self._tasks,
            backends=self._backends,
            pool=pool,
            templates=templates,
            images=images,
            credentials=credentials,
            perform=self.perform,
            needs=Needs(self._store),
        )
        self._rooms = Rooms(
            context, workspaces=workspaces, egress=egress, gateway=gateway, period_seconds=period_seconds
        )
        self._audit.hide = self._rooms.leases.without_values
        self.recovery = self._rooms.recovery
        self.activity = Activity(lambda: bool(self._store.list()))

    async def perform(self, action: Action[R], principal: Principal) -> R:
        """Does what `action` asks, if the policy lets `principal`, and returns what the action's type says.

        Raises PolicyDenied, Unrecorded (then nothing was done), and what the handlers raise (`paddock.errors`).
        """
        task = asyncio.current_task()
        assert task is not None
        self._performers.add(task)
        self.activity.note()
        try:
            with self._gate.open(principal, action) as entry:
                try:
                    handler = self._rooms.handlers.get(type(action))
                    if handler is None:
                        raise InternalError(f"there is no handler for {action.TAG!r}")
                    return cast("R", await handler(action, entry))
                except (OSError, RuntimeError) as error:
                    exhausted = exhaustion(error)
                    if exhausted is None:
                        raise
                    raise exhausted from error
        finally:
            self._performers.discard(task)

    async def end(self, id: SandboxId) -> None:
        """End a sandbox whose program has ended. Nothing happens to one that has ended by itself."""
        await self._rooms.sandboxes.end(id)

    def has_running(self) -> bool:
        """Whether any sandbox runs, or is being made or restored."""
        return any(row.state in (State.CREATING, State.RESTORING, State.RUNNING) for row in self._store.list())

    def not_persistent(self, owner: Principal) -> set[SandboxId]:
        """Those that live and end with the programs of `owner` that use them."""
        rows = self._store.list()
        return {row.id for row in rows if not row.sandbox.spec.persistent and row.sandbox.owner == owner.id}

    async def recover(self) -> None:
        """Put right what the service before this one has left. To be awaited once, before anything is performed."""
        await self.recovery.recover()

    async def start(self) -> None:
        """Recover, and begin the sweeps in the loop that runs."""
        if self._closed:
            raise InvalidState("this service was closed", hint="make another one")
        await self._rooms.secrets.fetch_keys()
        await self.recover()
        self._tasks.start(self.recovery.run(self.activity), name="sweep")
        self._tasks.start(self._rooms.evidence.run(self.activity), name="sign")
        self._tasks.start(self._rooms.resume(), name="see to the network access of what lives")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Idempotent. What is under way is cancelled and undone, open outcomes are recorded, instances are let go: the
        next service takes them over."""
        if self._closed:
            return
        self._closed = True
        others = self._performers - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)
        # From the last line up; each runs whatever became of the others.
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._rooms.evidence.aclose)
            closing.callback(self._audit.close)
            closing.callback(self._store.close)
            closing.push_async_callback(self._close_backends)
            closing.callback(self._gate.abandon)
            closing.callback(self._rooms.let_go)
            closing.push_async_callback(self._rooms.live.aclose)  # what has come to life since
            closing.push_async_callback(self._tasks.aclose)
            closing.push_async_callback(self._rooms.live.aclose)

    async def _close_backends(self) -> None:
        """All that are loaded by now: work that was ended before may have loaded more."""
        async with AsyncExitStack() as closing:
            for backend in self._backends.loaded():
                closing.push_async_callback(backend.aclose)

    def _task_failed(self, name: str, error: BaseException) -> None:
        try:
            self._audit.event("task.failed", message=f"{name}: {type(error).__name__}: {error}"[:1024])
        except Unrecorded:
            asyncio.get_running_loop().call_exception_handler({"message": f"task {name!r} failed", "exception": error})
