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
    """List the requests that wait for your answer.

    Args:
        all: List those with an answer, too.
        transport: `paddock.local_async(DIR)` is another state directory.

    Returns:
        A tuple of approvals, oldest first.

    Raises:
        DaemonUnavailableError: The daemon doesn't start, or doesn't answer.

    Example:
        ```python
        for approval in await async_approvals.list():
            print(approval.id, approval.sandbox, approval.summary)
        ```
    """
    return await (transport or default_async_transport()).perform(model.ListApprovals(all=all))


async def approve(approval: str, *, transport: AsyncTransport | None = None) -> Approval:
    """Approve one request, once. Its caller then has to ask again.

    Args:
        approval: An id or a unique prefix of one.
        transport: `paddock.local_async(DIR)` is another state directory.

    Returns:
        The approval, with the state `granted`.

    Raises:
        NotFoundError: It doesn't exist.
        InvalidStateError: It has an answer already, or its time is over.

    Example:
        ```python
        try:
            await sandbox.exec("git push")
        except ApprovalNeededError as error:
            await async_approvals.approve(error.approval_id)
            await sandbox.exec("git push")
        ```
    """
    return await (transport or default_async_transport()).perform(model.GrantApproval(approval=approval))


async def deny(approval: str, reason: str | None = None, *, transport: AsyncTransport | None = None) -> Approval:
    """Deny it. After `approve` it works until the caller asks again.

    Args:
        approval: An id or a unique prefix of one.
        reason: A text for the caller that asked.
        transport: `paddock.local_async(DIR)` is another state directory.

    Returns:
        The approval, with the state `denied`.

    Raises:
        NotFoundError: It doesn't exist.
        InvalidStateError: It has an answer already, or its time is over.

    Example:
        ```python
        try:
            await sandbox.exec("git push --force")
        except ApprovalNeededError as error:
            await async_approvals.deny(error.approval_id, "not on a Friday")
        ```
    """
    return await (transport or default_async_transport()).perform(model.DenyApproval(approval=approval, reason=reason))


async def wait(approval: str, timeout: Duration = 900.0, *, transport: AsyncTransport | None = None) -> Approval:
    """Wait until a person has answered, or the time is over.

    Args:
        approval: An id or a unique prefix of one.
        timeout: Wait so many seconds, or a timedelta, or a text such as `"5m"`. An approval expires after 15 minutes.
        transport: `paddock.local_async(DIR)` is another state directory.

    Returns:
        The approval, whose `state` says what the answer is.

    Raises:
        NotFoundError: It doesn't exist.

    Example:
        ```python
        try:
            await sandbox.exec("git push --tags")
        except ApprovalNeededError as error:
            print((await async_approvals.wait(error.approval_id, timeout=0)).state)  # pending
        ```
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
