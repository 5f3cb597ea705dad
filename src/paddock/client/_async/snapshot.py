"""A sandbox's files at one instant, which outlive it."""

from __future__ import annotations

from paddock import model
from paddock.errors import NotFoundError

from .daemon import default_async_transport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from paddock.model import Snapshot as SnapshotInfo

    from .transport import AsyncTransport


class AsyncSnapshot:
    """A sandbox's files at one instant. They live until `delete`, whatever becomes of the sandbox.

    Example:
        ```python
        snapshot = await sandbox.snapshot("before")
        async with AsyncSandbox.create(snapshot=snapshot) as other:
            await other.exec("ls")
        await snapshot.delete()
        ```
    """

    def __init__(self, info: SnapshotInfo, transport: AsyncTransport) -> None:
        self._info = info
        self._transport = transport

    @classmethod
    async def get(cls, id_or_name: str, *, transport: AsyncTransport | None = None) -> AsyncSnapshot:
        """Return the snapshot of that id or name.

        Raises:
            NotFoundError: There is none.
        """
        for snapshot in await cls.list(transport=transport):
            if id_or_name in (snapshot.id, snapshot.name):
                return snapshot
        raise NotFoundError(f"no snapshot {id_or_name[:64]!r}", hint="paddock snapshot ls", snapshot=id_or_name)

    @classmethod
    async def list(cls, *, transport: AsyncTransport | None = None) -> tuple[AsyncSnapshot, ...]:
        """Return all snapshots, oldest first."""
        transport = transport or default_async_transport()
        return tuple(cls(info, transport) for info in await transport.perform(model.ListSnapshots()))

    @property
    def info(self) -> SnapshotInfo:
        """What the records say of it. Nothing of that changes."""
        return self._info

    @property
    def id(self) -> str:
        return self._info.id

    @property
    def name(self) -> str | None:
        return self._info.name

    @property
    def source(self) -> str:
        """The id of the sandbox that it was made of."""
        return self._info.source

    @property
    def policy(self) -> str | None:
        """The revision of the policy that the sandbox had."""
        return self._info.policy

    @property
    def created_at(self) -> float:
        """Seconds since the epoch."""
        return self._info.created_at

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncSnapshot) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    async def delete(self) -> None:
        """Delete it. What was made from it keeps its files."""
        await self._transport.perform(model.DeleteSnapshot(snapshot=self.id))

    def __repr__(self) -> str:
        named = f" {self.name!r}" if self.name else ""
        return f"<{type(self).__name__} {self.id}{named} of {self.source}>"
