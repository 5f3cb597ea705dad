"""The context of a service, for a component of it that is tested alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paddock.audit import AuditLog
from paddock.daemon.backends import Backends
from paddock.daemon.clock import Clock
from paddock.daemon.context import Context
from paddock.daemon.store.database import Store
from paddock.daemon.tasks import Tasks
from paddock.model import Action, Principal
from paddock.supervisor.layout import AUDIT, DATABASE


class NoTemplates:
    def get(self, name: str, progress: object = None) -> Any:
        raise AssertionError(name)

    def names(self) -> tuple[str, ...]:
        return ()

    def versions(self) -> frozenset[str]:
        return frozenset()

    def is_version(self, tree: str) -> bool:
        return False

    def discard(self, tree: str) -> bool:
        raise AssertionError(tree)


def context(state_dir: Path, **given: Any) -> Context:
    """Whoever has it closes its store and its audit log."""

    async def perform(action: Action[Any], principal: Principal) -> Any:
        raise AssertionError(action)

    def failed(name: str, error: BaseException) -> None:
        raise error

    clock = given.pop("clock", Clock())
    store = Store(state_dir / DATABASE, clock)
    defaults: dict[str, Any] = {
        "audit": AuditLog(state_dir / AUDIT),
        "backends": Backends(()),
        "tasks": Tasks(failed),
        "pool": lambda: None,
        "templates": NoTemplates,
        "perform": perform,
    }
    return Context(state_dir=state_dir, store=store, clock=clock, **{**defaults, **given})
