"""What sandboxes wait to be allowed, and your answer: `paddock.approvals`."""

from __future__ import annotations

from paddock import model

from .daemon import default_async_transport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from paddock.model import Approval

    from .transport import AsyncTransport


async def list(*, all: bool = False, transport: AsyncTransport | None = None) -> tuple[Approval, ...]:
    """Return what waits for an answer, oldest first; with `all`, what was answered, too."""
    return await (transport or default_async_transport()).perform(model.ListApprovals(all=all))


async def approve(approval: str, *, transport: AsyncTransport | None = None) -> Approval:
    """Say yes, once, to exactly what was asked. `approval` is an id or a unique prefix."""
    return await (transport or default_async_transport()).perform(model.GrantApproval(approval=approval))


async def deny(approval: str, reason: str | None = None, *, transport: AsyncTransport | None = None) -> Approval:
    """Say no, also to one that was approved and not used yet."""
    return await (transport or default_async_transport()).perform(model.DenyApproval(approval=approval, reason=reason))
