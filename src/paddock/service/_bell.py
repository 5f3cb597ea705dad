"""Who is told of a new question, if anybody is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paddock.audit import AuditLog
from paddock.errors import NotConfigured
from paddock.model import Approval

from ._clock import Clock
from ._tasks import Tasks

VARIABLE = "PADDOCK_APPROVAL_WEBHOOK"
KEY_VARIABLE = "PADDOCK_APPROVAL_WEBHOOK_KEY"


def bell(environment: Mapping[str, str], *, audit: AuditLog, clock: Clock, tasks: Tasks) -> Callable[[Approval], None]:
    """What is called with each new question. Without an address it is silent; with a bad one the record says so."""

    def ring(approval: Approval) -> None:
        url = environment.get(VARIABLE)
        if not url:
            return
        from ._webhook import Webhook

        try:
            key = environment.get(KEY_VARIABLE, "").encode()
            Webhook(url, key, audit=audit, clock=clock, tasks=tasks).asked(approval)
        except NotConfigured as error:
            audit.event("approval.webhook", sandbox=approval.sandbox, approval=approval.id, message=str(error))

    return ring
