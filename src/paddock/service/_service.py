"""`perform`: everything that can be asked of paddock, and who answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AsyncExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, assert_never, cast

from paddock.audit import AuditLog
from paddock.backends._base import Backend
from paddock.errors import InvalidState, Unrecorded, exhaustion
from paddock.keeper.layout import ARTIFACTS, AUDIT, DATABASE, REPOSITORIES
from paddock.model import (
    AcquireRepository,
    Action,
    AddArtifact,
    AnyAction,
    AttachExec,
    ConnectPort,
    CopyFile,
    CreateSandbox,
    CreateSnapshot,
    DeleteRepository,
    DeleteSnapshot,
    Diagnose,
    DiffMount,
    DiffWorkspace,
    DownloadTree,
    ExtendSandbox,
    FindFiles,
    ForkSandbox,
    GetArtifact,
    GetSandbox,
    GetUsage,
    GrepFiles,
    InspectSandbox,
    KillSandbox,
    Level,
    ListArtifacts,
    ListAudit,
    ListExecs,
    ListFiles,
    ListProcesses,
    ListRepositories,
    ListSandboxes,
    ListSnapshots,
    MakeDirectory,
    MoveFile,
    OpenPullRequest,
    Principal,
    PromoteChild,
    PromoteMount,
    PushBranch,
    ReadFile,
    ReadOutput,
    RemoveArtifact,
    RemoveFile,
    RollbackSandbox,
    RunExec,
    SetFileAttributes,
    SignalExec,
    StartExec,
    StatFile,
    UploadTree,
    VerifyAudit,
    WatchFiles,
    WriteFile,
)
from paddock.policy import Policy
from paddock.storage import Artifacts
from paddock.storage._base import Pool

from ._allotment import Allotment
from ._artifacts import ArtifactResults
from ._bases import Bases
from ._clock import Clock, holder_id
from ._execs import Execs
from ._expiry import PERIOD_SECONDS, Expiry
from ._files import Files
from ._forks import Forks
from ._gate import Entry, Gate
from ._lifecycle import Lifecycle
from ._live import Live
from ._making import Making
from ._mount_results import MountResults
from ._nested import Nested
from ._promotion import Promotion
from ._providers import MEASURED_CREATE_MS, Backends, Templates
from ._reconcile import Reconciler
from ._remains import Remains
from ._reports import Reports
from ._repository_store import RepositoryStore
from ._result_source import Known, NothingKnown, Sources
from ._result_store import ResultStore
from ._sandboxes import Sandboxes
from ._snapshot_store import SnapshotStore
from ._snapshots import Snapshots
from ._store import Store
from ._tasks import Tasks
from ._workshop import Workshops
from ._workspace_tree import NoWorkspaces, Workspaces

if TYPE_CHECKING:
    from ._repositories import CredentialSource, Repositories
    from ._workspace_results import WorkspaceResults

R = TypeVar("R")


class Service:
    """One per program and state directory; many may share a directory. `async with` it, or `start` and `aclose`,
    in the loop that uses it.

    Leaving it lets sandboxes live on where their backend can find them again, and ends them where it can't.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        backends: Iterable[Backend] | Callable[[], Iterable[Backend]],
        pool: Callable[[], Pool],
        templates: Templates,
        policy: Policy,
        audit: AuditLog | None = None,
        store: Store | None = None,
        clock: Clock = Clock(),  # noqa: B008 (a frozen value)
        measured: Mapping[Level, float] = MEASURED_CREATE_MS,
        workspaces: Workspaces | None = None,
        credentials: CredentialSource | None = None,
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        self.state_dir = state_dir
        self._clock, self._credentials = clock, credentials
        self._known: Known = NothingKnown()
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._audit = audit or AuditLog(state_dir / AUDIT)
        self._store = store or Store(state_dir / DATABASE)
        self._backends = Backends(backends, measured)
        self._tasks = Tasks(self._task_failed)
        self._gate = Gate(policy, self._audit)
        self._closed = False
        self._performers: set[asyncio.Task[Any]] = set()
        self._wire(pool, templates, clock, workspaces or NoWorkspaces(), period_seconds)

    def _wire(
        self,
        pool: Callable[[], Pool],
        templates: Templates,
        clock: Clock,
        workspaces: Workspaces,
        period_seconds: float,
    ) -> None:
        """Each handler gets the few things that it needs."""
        store, audit, backends, tasks, holder = self._store, self._audit, self._backends, self._tasks, holder_id()
        lifecycle = Lifecycle(store, clock)
        remains = Remains(
            self.state_dir, store=store, lifecycle=lifecycle, audit=audit, backends=backends, pool=pool, clock=clock
        )
        allotment = Allotment(store, clock)
        live = self._live = Live(
            holder=holder,
            store=store,
            backends=backends,
            remains=remains,
            pool=pool,
            tasks=tasks,
            serve=Nested(self.perform, allotment).serve,
        )
        making = Making(store=store, lifecycle=lifecycle, live=live, pool=pool, tasks=tasks, clock=clock)
        snapshots = self._snapshots = Snapshots(
            store=SnapshotStore(store), pool=pool, clock=clock, tasks=tasks, holder=holder
        )
        forks = self._forks = Forks(
            store=store,
            lifecycle=lifecycle,
            live=live,
            backends=backends,
            pool=pool,
            making=making,
            snapshots=snapshots,
            tasks=tasks,
            allotment=allotment,
        )
        self._sandboxes = Sandboxes(
            store=store,
            lifecycle=lifecycle,
            live=live,
            remains=remains,
            backends=backends,
            pool=pool,
            templates=templates,
            tasks=tasks,
            clock=clock,
            making=making,
            snapshots=snapshots,
            allotment=allotment,
            workspaces=workspaces,
        )
        self._promotion = Promotion(sandboxes=self._sandboxes, live=live)
        workshops = self._workshops = Workshops(
            store=store,
            backends=backends,
            pool=pool,
            templates=templates,
            tasks=tasks,
            clock=clock,
            audit=audit,
            holder=holder,
        )
        bases = self._bases = Bases(
            self.state_dir / REPOSITORIES,
            store=store,
            pool=pool,
            workshops=workshops,
            tasks=tasks,
            clock=clock,
            audit=audit,
            holder=holder,
        )
        self._execs = Execs(sandboxes=self._sandboxes, live=live, remains=remains, tasks=tasks)
        self._files = Files(sandboxes=self._sandboxes, live=live)
        self._reports = Reports(
            self.state_dir, store=store, audit=audit, backends=backends, pool=pool, find=self._sandboxes.find
        )
        self._mount_results = MountResults(live=live, snapshots=snapshots, pool=pool, tasks=tasks)
        reconciler = Reconciler(
            store=store,
            live=live,
            remains=remains,
            backends=backends,
            pool=pool,
            audit=audit,
            snapshots=snapshots,
            forks=forks,
            workshops=workshops,
            bases=bases,
        )
        self.expiry = Expiry(
            store=store,
            reconciler=reconciler,
            audit=audit,
            clock=clock,
            holder=holder,
            period_seconds=period_seconds,
        )

    @cached_property
    def _repositories(self) -> Repositories:
        from ._repositories import Repositories  # with all that git needs, which a sandbox does not

        return Repositories(
            self.state_dir / REPOSITORIES,
            store=RepositoryStore(self._store),
            clock=self._clock,
            credentials=self._credentials,
            forget_bases=self._bases.forget,
        )

    @cached_property
    def _sources(self) -> Sources:
        return Sources(
            sandboxes=self._sandboxes,
            live=self._live,
            known=self._known,
            snapshots=self._snapshots,
            workshops=self._workshops,
        )

    @cached_property
    def _artifacts(self) -> ArtifactResults:
        contents = Artifacts(self.state_dir / ARTIFACTS)
        return ArtifactResults(
            sources=self._sources, store=ResultStore(self._store), contents=contents, clock=self._clock
        )

    @cached_property
    def _workspace_results(self) -> WorkspaceResults:
        from ._workspace_results import WorkspaceResults  # with all that git needs, which a sandbox does not

        return WorkspaceResults(
            sources=self._sources,
            store=ResultStore(self._store),
            repositories=self._repositories,
            credentials=self._credentials,
            audit=self._audit,
            clock=self._clock,
            tasks=self._tasks,
        )

    async def perform(self, action: Action[R], principal: Principal) -> R:
        """Does what `action` asks, if the policy lets `principal`, and returns what the action's type says.

        Raises PolicyDenied, Unrecorded (then nothing was done), and what the handlers raise (`paddock.errors`).
        """
        with self._performing(), self._gate.open(principal, action) as entry:
            try:
                return cast("R", await self._effect(cast("AnyAction", action), entry))
            except (OSError, RuntimeError) as error:
                exhausted = exhaustion(error)
                if exhausted is None:
                    raise
                raise exhausted from error

    async def _effect(self, action: AnyAction, entry: Entry) -> object:
        match action:
            case CreateSandbox():
                return await self._sandboxes.create(action, entry)
            case GetSandbox():
                return await self._sandboxes.get(action, entry)
            case ListSandboxes():
                return await self._sandboxes.list(action, entry)
            case ExtendSandbox():
                return await self._sandboxes.extend(action, entry)
            case KillSandbox():
                return await self._sandboxes.kill(action, entry)
            case GetUsage():
                return await self._sandboxes.usage(action, entry)
            case InspectSandbox():
                return await self._sandboxes.inspect(action, entry)
            case ListProcesses():
                return await self._sandboxes.processes(action, entry)
            case CreateSnapshot():
                return await self._snapshots.create(action, *await self._sandboxes.use(action.sandbox, entry), entry)
            case ListSnapshots():
                source = None if action.sandbox is None else self._sandboxes.find(action.sandbox, entry).id
                return self._snapshots.list(source, entry)
            case DeleteSnapshot():
                return self._snapshots.delete(action, entry)
            case ForkSandbox():
                return await self._forks.fork(action, *await self._sandboxes.use(action.sandbox, entry), entry)
            case RollbackSandbox():
                return await self._forks.rollback(action, *await self._sandboxes.use(action.sandbox, entry), entry)
            case PromoteChild():
                return await self._promotion.promote(action, entry)
            case AcquireRepository():
                return await self._repositories.perform(action, entry)
            case ListRepositories():
                return self._repositories.list(entry)
            case DeleteRepository():
                return await self._repositories.delete(action, entry)
            case RunExec():
                return await self._execs.run(action, entry)
            case StartExec():
                return await self._execs.start(action, entry)
            case AttachExec():
                return await self._execs.attach(action, entry)
            case ListExecs():
                return await self._execs.list(action, entry)
            case ReadOutput():
                return await self._execs.output(action, entry)
            case SignalExec():
                return await self._execs.signal(action, entry)
            case ReadFile() | DownloadTree():
                return await self._files.read(action, entry)
            case WriteFile() | UploadTree():
                return await self._files.write(action, entry)
            case WatchFiles():
                return await self._files.watch(action, entry)
            case ConnectPort():
                return await self._files.connect(action, entry)
            case (
                StatFile()
                | ListFiles()
                | MakeDirectory()
                | MoveFile()
                | CopyFile()
                | RemoveFile()
                | SetFileAttributes()
                | FindFiles()
                | GrepFiles()
            ):
                return await self._files.value(cast("Action[object]", action), entry)
            case DiffMount():
                return await self._mount_results.diff(action, *await self._sandboxes.use(action.sandbox, entry), entry)
            case PromoteMount():
                return await self._mount_results.promote(
                    action, *await self._sandboxes.use(action.sandbox, entry), entry
                )
            case DiffWorkspace():
                return await self._workspace_results.diff(action, entry)
            case PushBranch():
                return await self._workspace_results.push(action, entry)
            case OpenPullRequest():
                return await self._workspace_results.pull_request(action, entry)
            case AddArtifact():
                return await self._artifacts.add(action, entry)
            case ListArtifacts():
                return self._artifacts.list(action, entry)
            case GetArtifact():
                return self._artifacts.get(action, entry)
            case RemoveArtifact():
                return self._artifacts.remove(action, entry)
            case ListAudit():
                return await self._reports.audit(action, entry)
            case VerifyAudit():
                return await self._reports.verify()
            case Diagnose():
                return await self._reports.diagnose()
            case _:
                assert_never(action)

    @contextmanager
    def _performing(self) -> Generator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._performers.add(task)
        try:
            yield
        finally:
            self._performers.discard(task)

    def start(self) -> None:
        """Begins the sweeps, in the loop that runs. The first create does not wait for the past to be put in order."""
        if self._closed:
            raise InvalidState("this service was closed", hint="make another one")
        self._tasks.start(self.expiry.run(), name="sweep")

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Idempotent. What is under way is cancelled and undone, open outcomes are recorded, instances are let go."""
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
            closing.callback(self._audit.close)
            closing.callback(self._store.close)
            for backend in self._backends.loaded():
                closing.push_async_callback(backend.aclose)
            closing.callback(self.expiry.release)
            closing.callback(self._gate.abandon)
            closing.push_async_callback(self._tasks.aclose)
            closing.push_async_callback(self._live.aclose)

    def _task_failed(self, name: str, error: BaseException) -> None:
        try:
            self._audit.event("task.failed", message=f"{name}: {type(error).__name__}: {error}"[:1024])
        except Unrecorded:
            asyncio.get_running_loop().call_exception_handler({"message": f"task {name!r} failed", "exception": error})
