"""Approvals that sandboxes wait for, and your answers: `paddock.approvals`."""

from __future__ import annotations

from paddock import model
from paddock.client._command import required_seconds
from paddock.errors import ApprovalNeededError

from .daemon import default_async_transport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from paddock.client._command import Duration
    from paddock.model import Approval

    from .transport import AsyncTransport


async def list(*, all: bool = False, transport: AsyncTransport | None = None) -> tuple[Approval, ...]:
    """Return the approvals that wait for an answer, oldest first. With `all`, also the answered ones."""
    return await (transport or default_async_transport()).perform(model.ListApprovals(all=all))


async def approve(approval: str, *, transport: AsyncTransport | None = None) -> Approval:
    """Grant an approval, once, for exactly the requested action. `approval` is an id or a unique prefix."""
    return await (transport or default_async_transport()).perform(model.GrantApproval(approval=approval))


async def deny(approval: str, reason: str | None = None, *, transport: AsyncTransport | None = None) -> Approval:
    """Deny an approval, also a granted one without a use yet."""
    return await (transport or default_async_transport()).perform(model.DenyApproval(approval=approval, reason=reason))


async def wait(approval: str, timeout: Duration = 900.0, *, transport: AsyncTransport | None = None) -> Approval:
    """Wait for an answer to an approval, and return it.

    After `timeout` return it unanswered.

    An approval waits at most 15 minutes for its answer. `approval` is an id or a unique prefix.
    """
    action = model.ListApprovals(approval=approval, wait_seconds=required_seconds(timeout, "timeout"))
    (one,) = await (transport or default_async_transport()).perform(action)
    return one


def waiting(transport: AsyncTransport, timeout: Duration | None) -> AsyncTransport:
    """Return a transport that waits so long for the approval that an action needs. None waits for none."""
    return transport if timeout is None else _Waiting(transport, required_seconds(timeout, "wait_for_approval"))


class _Waiting:
    def __init__(self, transport: AsyncTransport, seconds: float) -> None:
        self._transport, self._seconds = transport, seconds
        self.aclose = transport.aclose

    async def perform(self, action: Any) -> Any:
        perform: Any = self._transport.perform
        try:
            return await perform(action)
        except ApprovalNeededError as error:
            approval = error.approval_id
        await wait(approval, self._seconds, transport=self._transport)
        return await perform(action)
