"""Who is told of a new question, if anybody is."""

from __future__ import annotations

import os

from paddock.errors import NotConfigured
from paddock.model import Approval

from ._context import Context

VARIABLE = "PADDOCK_APPROVAL_WEBHOOK"
KEY_VARIABLE = "PADDOCK_APPROVAL_WEBHOOK_KEY"


def ring(context: Context, approval: Approval) -> None:
    """Tell of a new question. Without an address this is silent; with a bad one the record says so."""
    url = os.environ.get(VARIABLE)
    if not url:
        return
    from ._webhook import Webhook

    try:
        Webhook(context, url, os.environ.get(KEY_VARIABLE, "").encode()).asked(approval)
    except NotConfigured as error:
        event, message = "approval.webhook", str(error)
        context.audit.event(event, sandbox=approval.sandbox, approval=approval.id, message=message)
