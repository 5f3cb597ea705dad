"""Perform actions: everything that can be asked of paddock, and its handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from paddock.audit import AuditLog
from paddock.backends.base import Backend
from paddock.daemon.access.approvals import Approvals
from paddock.daemon.access.gateways import Gateways
from paddock.daemon.access.policies import Policies
from paddock.daemon.access.secrets import SecretBindings, Secrets
from paddock.daemon.backends import Backends
from paddock.daemon.clock import Clock
from paddock.daemon.context import Authorizer, Context, no_credentials, no_images, table
from paddock.daemon.sandboxes.cleanup import Cleanup
from paddock.daemon.sandboxes.create import Creation
from paddock.daemon.sandboxes.execs import Execs
from paddock.daemon.sandboxes.files import Files
from paddock.daemon.sandboxes.images import ImageHandlers
from paddock.daemon.sandboxes.nested import Nested
from paddock.daemon.sandboxes.restore import Restore
from paddock.daemon.sandboxes.running import LIVE, RunningSandboxes
from paddock.daemon.sandboxes.sandboxes import Sandboxes
from paddock.daemon.sandboxes.snapshots import Snapshots
from paddock.daemon.store.database import Store
from paddock.daemon.tasks import Activity, Tasks
from paddock.daemon.upkeep.evidence import Evidence
from paddock.daemon.upkeep.garbage import Storage
from paddock.daemon.upkeep.reports import Reports
from paddock.daemon.workspaces.artifacts import ArtifactResults
from paddock.daemon.workspaces.mounts import MountResults
from paddock.daemon.workspaces.repositories import Repositories
from paddock.daemon.workspaces.results import Sources, WorkspaceResults
from paddock.daemon.workspaces.workspaces import Workspaces
from paddock.errors import InternalError, InvalidStateError, UnrecordedError, exhaustion
from paddock.model import Action, Principal, SandboxId, State
from paddock.model.caller import SessionProcess
from paddock.model.config import Config
from paddock.policy import Policy
from paddock.storage.pool.base import Pool
from paddock.supervisor.layout import AUDIT, DATABASE

from .recovery import PERIOD_SECONDS, Recovery

if TYPE_CHECKING:
    from paddock.daemon.context import CredentialSource
    from paddock.storage import Templates
    from paddock.storage.templates.images import Images

R = TypeVar("R")


class Service:
    """The one of its state directory. `async with` it, or `start` and `aclose`, in the loop that uses it.

    Leaving it lets sandboxes live on where their backend can find them again, and ends them where it can't.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        backends: Iterable[Backend] | Callable[[], Iterable[Backend]],
        pool: Callable[[], Pool],
        templates: Callable[[], Templates],
        images: Callable[[], Images] = no_images,
        policy: Policy,
        audit: AuditLog | None = None,
        store: Store | None = None,
        config: Config = Config(),  # noqa: B008 (a frozen value)
        clock: Clock = Clock(),  # noqa: B008 (a frozen value)
        credentials: CredentialSource = no_credentials,
        gateways: Callable[[Context, SecretBindings, Approvals], Gateways] = Gateways,
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        self.state_dir = state_dir
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._audit = audit or AuditLog(state_dir / AUDIT)
        self.store = store or Store(state_dir / DATABASE, clock)
        self._backends = Backends(backends, config.level)
        self._tasks = Tasks(self._task_failed)
        self._authorizer = Authorizer(policy, self._audit)
        self._closed = False
        self._performers: set[asyncio.Task[Any]] = set()
        context = Context(
            state_dir=state_dir,
            store=self.store,
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
        )
        # Each after those that it calls.
        self.secrets = Secrets(context)
        bindings = self.bindings = SecretBindings(context, self.secrets)
        approvals = self.approvals = Approvals(context)
        self.gateways = gateways(context, bindings, approvals)
        policies = self.policies = Policies(context, self.gateways, bindings, approvals)
        snapshots = self.snapshots = Snapshots(context, policies)
        cleanup = self.cleanup = Cleanup(context, self.gateways, snapshots, approvals)
        nested = Nested(context)
        running = self.running = RunningSandboxes(context, cleanup, bindings, nested)
        restore = self.restore = Restore(context, running, snapshots, self.gateways, policies, bindings)
        repositories = self.repositories = Repositories(context)
        spaces = self.workspaces = Workspaces(context, running, repositories, policies)
        sandboxes = self.sandboxes = Sandboxes(context, running, snapshots, policies, restore, self.gateways)
        creation = self.creation = Creation(
            context, sandboxes, running, self.gateways, bindings, snapshots, policies, nested, spaces
        )
        execs = self.execs = Execs(context, sandboxes, running, cleanup, bindings, policies)
        files = Files(sandboxes, running, policies)
        self.evidence = Evidence(state_dir, self._audit, clock, config)
        image_handlers = ImageHandlers(context)
        reports = Reports(context, sandboxes, self.evidence, image_handlers)
        mount_results = MountResults(context, sandboxes, snapshots)
        sources = Sources(sandboxes, snapshots, spaces, repositories.utilities)
        artifacts = ArtifactResults(context, sources)
        results = WorkspaceResults(context, sources, repositories, policies)
        collectors = (
            image_handlers.candidates,
            repositories.bases.candidates,
            repositories.candidates,
            spaces.candidates,
        )
        self.garbage = Storage(context, cleanup, collectors)
        self.recovery = Recovery(context, self, period_seconds)
        of_sandboxes = (sandboxes, snapshots, creation, execs, files)
        of_work = (repositories, spaces, mount_results, artifacts, results)
        of_access = (self.secrets, bindings, approvals)
        of_the_machine = (image_handlers, reports, self.evidence, self.garbage)
        self.handlers = table((*of_sandboxes, *of_work, *of_access, *of_the_machine))
        self._audit.hide = bindings.without_values
        self.activity = Activity(lambda: bool(self.store.list()))

    async def perform(self, action: Action[R], principal: Principal) -> R:
        """Do what `action` asks, if the policy lets `principal`, and return what the action's type says.

        Raises PolicyDeniedError, UnrecordedError (then nothing was done), and what the handlers raise
        (`paddock.errors`).
        """
        task = asyncio.current_task()
        assert task is not None
        self._performers.add(task)
        self.activity.note()
        try:
            with self._authorizer.open(principal, action) as op:
                try:
                    handler = self.handlers.get(type(action))
                    if handler is None:
                        raise InternalError(f"there is no handler for {action.TAG!r}")
                    return cast("R", await handler(action, op))
                except (OSError, RuntimeError) as error:
                    exhausted = exhaustion(error)
                    if exhausted is None:
                        raise
                    raise exhausted from error
        finally:
            self._performers.discard(task)

    def has_running(self) -> bool:
        """Tell whether any sandbox runs, or is being made or restored."""
        return any(row.state in (State.CREATING, State.RESTORING, State.RUNNING) for row in self.store.list())

    def sessions(self) -> Iterable[SessionProcess]:
        """Return the sessions with which living sandboxes end."""
        return dict.fromkeys(session for row in self.store.list() for session in row.sessions)

    def ends_with(self, token: str, living: Iterable[str]) -> Sequence[SandboxId]:
        """Return the sandboxes that end with that session: they have none of the `living` ones."""
        tokens = {row.id: {session.token for session in row.sessions} for row in self.store.list()}
        return [id for id, own in tokens.items() if token in own and own.isdisjoint(living)]

    async def start(self) -> None:
        """Recover, and begin the sweeps in the loop that runs."""
        if self._closed:
            raise InvalidStateError("this service was closed", hint="make another one")
        await self.secrets.fetch_keys()
        await self.recovery.recover()
        self._tasks.start(self.recovery.run(self.activity), name="sweep")
        self._tasks.start(self.evidence.run(self.activity), name="sign")
        self._tasks.start(self._resume_network(), name="see to the network access of what lives")

    async def _resume_network(self) -> None:
        """See to the network access of sandboxes that live since before this daemon."""
        living = [row for row in self.store.list() if row.state in LIVE and not row.hibernated]
        self.gateways.resume(
            [(row, await self.policies.of(row.sandbox.policy)) for row in living if row.sandbox.policy is not None],
            without=[row for row in living if row.sandbox.policy is None],
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel and undo pending work, record open outcomes, and release instances: the next daemon takes them over.
        Idempotent."""
        if self._closed:
            return
        self._closed = True
        others = self._performers - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)
        # From the last line up; each runs even if others failed.
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self.evidence.aclose)
            closing.callback(self._audit.close)
            closing.callback(self.store.close)
            closing.push_async_callback(self._close_backends)
            closing.callback(self._authorizer.abandon)
            closing.callback(self.gateways.aclose)
            closing.push_async_callback(self.running.aclose)  # what has come to life since
            closing.push_async_callback(self._tasks.aclose)
            closing.push_async_callback(self.running.aclose)

    async def _close_backends(self) -> None:
        """Close all that are loaded by now: work that ended before may have loaded more."""
        async with AsyncExitStack() as closing:
            for backend in self._backends.loaded():
                closing.push_async_callback(backend.aclose)

    def _task_failed(self, name: str, error: BaseException) -> None:
        try:
            self._audit.event("task.failed", message=f"{name}: {type(error).__name__}: {error}"[:1024])
        except UnrecordedError:
            asyncio.get_running_loop().call_exception_handler({"message": f"task {name!r} failed", "exception": error})
