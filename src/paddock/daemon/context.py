"""Hold what all parts of a service share: the context, an action's way from its verdict to its outcome, and the table
of handlers. A decorator names the action of each method. See docs/design/handlers.md.

Decide, record, carry out, record: only `Authorizer` asks the policy for a verdict and keeps it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from paddock.audit import AuditLog
from paddock.errors import InternalError, NotConfiguredError, PaddockError, PolicyDeniedError, UnrecordedError
from paddock.model import Action, Principal
from paddock.model.any_action import BY_TAG
from paddock.model.caller import SESSION
from paddock.model.config import Config
from paddock.policy import Policy
from paddock.storage.pool.base import Pool

from .backends import Backends
from .clock import Clock
from .lanes import Lanes
from .store.database import Store
from .tasks import Tasks

if TYPE_CHECKING:
    from paddock.storage import Templates
    from paddock.storage.git import Proof, Remote
    from paddock.storage.templates.images import Images

    CredentialSource: TypeAlias = Callable[[Principal, Remote], Awaitable[Proof | None]]
    """How a principal authenticates to a remote. None: it doesn't."""


Perform: TypeAlias = Callable[[Action[Any], Principal], Awaitable[Any]]


def no_images() -> Images:
    raise NotConfiguredError("this service has no images")


async def no_credentials(principal: Principal, remote: Remote) -> Proof | None:
    return None


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """`perform` asks the service itself, as any caller does."""

    state_dir: Path
    store: Store
    audit: AuditLog
    backends: Backends
    tasks: Tasks
    pool: Callable[[], Pool]
    templates: Callable[[], Templates]
    perform: Perform
    images: Callable[[], Images] = no_images
    credentials: CredentialSource = no_credentials
    config: Config = Config()
    clock: Clock = Clock()
    lanes: Lanes = msgspec.field(default_factory=Lanes)


class Component:
    """A part of a service. Its constructor takes the context, then the components that it calls."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._state_dir, self._config, self._clock = context.state_dir, context.config, context.clock
        self._store, self._audit, self._tasks = context.store, context.audit, context.tasks
        self._lanes, self._backends = context.lanes, context.backends
        self._pool, self._templates = context.pool, context.templates
        self._images, self._credentials, self._perform = context.images, context.credentials, context.perform


class Operation:
    """Hold an allowed action from its decision to its outcome. It records exactly one outcome.

    As a context manager it records when the block ends; `defer` leaves that to a handle that outlives the block.
    """

    def __init__(self, gate: Authorizer, principal: Principal, tag: str, number: int) -> None:
        self.principal = principal
        self.session = None if principal.sandbox else SESSION.get()
        """The session with which new sandboxes end. Those that a program inside a sandbox makes end with that one."""
        self.sandbox: str | None = None
        """The id of the sandbox that the action names, once known."""
        self.number = number
        """The number of the decision's record, to which other records may refer."""
        self._authorizer, self._tag = gate, tag
        self._deferred = self._done = False
        self._ends: list[Callable[[], None]] = []

    def defer(self) -> None:
        self._deferred = True

    def on_end(self, call: Callable[[], None]) -> None:
        """Call `call` before the outcome is recorded."""
        self._ends.append(call)

    def record_verdict(self, what: str, *, allowed: bool, rule: str, reason: str, detail: dict[str, object]) -> None:
        """Record a further verdict on the same action. Raises Unrecorded."""
        self._authorizer.audit.verdict(
            what,
            allowed=allowed,
            rule=rule,
            reason=reason[:1024],
            sandbox=self.sandbox or "",
            detail={"of": self.number, **detail},
        )

    def done(self, detail: dict[str, object] | None = None) -> None:
        self._record(ok=True, detail=detail)

    def amend(self, name: str, what: dict[str, object]) -> None:
        """Record what became known after the outcome."""
        self._authorizer.audit.event(name, sandbox=self.sandbox, message=None, **{"decision": self.number, **what})

    def failed(self, error: BaseException) -> None:
        self._record(ok=False, error=_code_of(error), message=_message(error))

    def _record(self, **outcome: Any) -> None:
        if self._done:
            return
        self._authorizer.close(self.number)
        for call in self._ends:
            call()
        self._ends.clear()
        self._authorizer.audit.outcome(self.number, self._tag, sandbox=self.sandbox, **outcome)
        self._done = True

    def __enter__(self) -> Operation:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            if not self._deferred:
                self.done()
            return
        try:
            self.failed(error)
        except UnrecordedError as unrecorded:
            error.add_note(f"and this outcome could not be recorded: {unrecorded}")


class Authorizer:
    def __init__(self, policy: Policy, audit: AuditLog) -> None:
        self._policy, self.audit = policy, audit
        self._open: dict[int, Operation] = {}

    def open(self, principal: Principal, action: Action[Any]) -> Operation:
        """Decide, and record the decision. Raises PolicyDeniedError, or UnrecordedError: then nothing may happen."""
        verdict = self._policy.decide(principal, action)
        number = self.audit.decision(principal, action, verdict)
        if not verdict.allowed:
            raise PolicyDeniedError(verdict.reason, rule=verdict.rule)
        op = Operation(self, principal, action.TAG, number)
        self._open[number] = op
        return op

    def close(self, number: int) -> None:
        self._open.pop(number, None)

    def abandon(self) -> None:
        """Record an outcome for each handle that was never closed."""
        for op in tuple(self._open.values()):
            op.failed(Abandoned("the service was closed before it ended"))


class Abandoned(Exception):
    """Only ever recorded."""


class Unknown(Exception):
    """Only ever recorded: the caller's process ended before it said what became of what it did."""


def _code_of(error: BaseException) -> str:
    if isinstance(error, PaddockError):
        return error.code
    if isinstance(error, (asyncio.CancelledError, GeneratorExit)):
        return "cancelled"
    return type(error).__name__.lower() if isinstance(error, Abandoned | Unknown) else type(error).__name__


def _message(error: BaseException) -> str | None:
    text = error.message if isinstance(error, PaddockError) else str(error)
    return text[:1024] or None


S = TypeVar("S")
A = TypeVar("A", bound=Action[Any])
R = TypeVar("R")
Method: TypeAlias = Callable[[S, A, Operation], Coroutine[Any, Any, R]]
Handler: TypeAlias = Callable[[Action[Any], Operation], Coroutine[Any, Any, object]]


def handles(*actions: type[A]) -> Callable[[Method[S, A, R]], Method[S, A, R]]:
    """Register the decorated method as the handler of these actions."""

    def register(method: Method[S, A, R]) -> Method[S, A, R]:
        vars(method)["actions"] = actions
        return method

    return register


def table(components: Iterable[object]) -> Mapping[type[Action[Any]], Handler]:
    """Return the handler of every action. InternalError: an action has none, or two."""
    found: dict[type[Action[Any]], Handler] = {}
    for component in components:
        for name, method in vars(type(component)).items():
            for action in getattr(method, "actions", ()):
                if action in found:
                    raise InternalError(f"{action.TAG!r} has two handlers: {name} of {type(component).__name__} is one")
                found[action] = getattr(component, name)
    if missing := [tag for tag, action in BY_TAG.items() if action not in found]:
        raise InternalError(f"there is no handler for {', '.join(missing)}")
    return found
