"""What differs between the protocol of the Python guest (`docs/protocol.md`) and that of the native one.

Both have connections, channels, streams with credit, and the same kinds of frames: `GuestConnection`, `Channel` and the
handles of commands serve both. `_guest_json` and `guest` are the two that there are; the first goes with its guest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from paddock.errors import PaddockError
from paddock.guest._frames import Kind
from paddock.model import Action, ExecId, ExecInfo, ExecSpec, ExitStatus, PtySize

if TYPE_CHECKING:
    from ._guest_connection import GuestConnection

T = TypeVar("T")


class Frame(Protocol):
    """`stream` belongs to DATA, EOF and CREDIT, `data` to DATA, `credit` to CREDIT, `body` to the others."""

    @property
    def kind(self) -> Kind: ...
    @property
    def channel(self) -> int: ...
    @property
    def body(self) -> Any: ...
    @property
    def stream(self) -> int: ...
    @property
    def data(self) -> bytes: ...
    @property
    def credit(self) -> int: ...


class Decoder(Protocol):
    def feed(self, data: bytes | memoryview) -> Sequence[Frame]:
        """The frames that are complete now; ProtocolError. It holds at most one unfinished frame."""
        ...


class Dialect(Protocol):
    """Requests are values that only their dialect reads: `GuestConnection.open` takes them."""

    window: int
    """Bytes that each stream may carry before credit is given."""
    chunk: int
    """Bytes of one DATA."""
    most_requests: int
    """Under way at one time on a connection: to one more the guest says no, or hangs up."""
    ping: Any

    # frames

    def decoder(self) -> Decoder: ...
    def hello(self) -> bytes: ...
    def greeting(self, frame: Frame) -> int | None:
        """The guest's process id, if it says one. ProtocolError: this is no greeting."""
        ...

    def open(self, channel: int, request: Any, descriptors: int) -> bytes:
        """InvalidArgument for what would be a breach of ours, and cost everybody the connection."""
        ...

    def refusal(self, request: Any) -> Callable[[Any], PaddockError]:
        """What the body of an ERROR means as an answer to it; ProtocolError."""
        ...

    def read(self, body: Any, type: type[T]) -> T:
        """The body of a REPLY or EXIT. ProtocolError."""
        ...

    def data(self, channel: int, stream: int, length: int) -> bytes:
        """What stands before so many bytes of data."""
        ...

    def eof(self, channel: int, stream: int) -> bytes: ...
    def credit(self, channel: int, stream: int, credit: int) -> bytes: ...
    def close(self, channel: int) -> bytes: ...

    # commands, and the types of what is answered

    nothing: type[Any]
    started: type[Any]
    """Has `pid`."""
    attached: type[Any]
    """The same."""
    exited: type[Any]
    killed: type[Any]
    """Has `survivors`."""

    def exec(self, spec: ExecSpec, id: ExecId, user: str | None, *, background: bool) -> Any: ...
    def attach(self, id: ExecId, *, silent: bool = False) -> Any:
        """`silent`: the end of the command alone."""
        ...

    def output(self, id: ExecId, stream: int) -> tuple[Any, int]:
        """And the stream on which it comes."""
        ...

    def signal(self, id: ExecId, number: int) -> Any: ...
    def kill(self, id: ExecId) -> Any: ...
    def resize(self, id: ExecId, size: PtySize) -> Any: ...
    def status(self, exited: Any, connection: GuestConnection) -> ExitStatus:
        """Breaks the connection over what no kernel reports."""
        ...

    async def execs(self, connection: GuestConnection) -> list[ExecInfo]: ...

    # pid 1, on a connection to it

    async def serves(self, control: GuestConnection, identity: str) -> bool:
        """Whether an agent runs for it."""
        ...

    async def verdict(self, control: GuestConnection, identity: str, pid: int | None) -> tuple[bool, int | None]:
        """Of an agent whose connection ended: whether it lives, and the signal that killed it. Told when nothing is
        left of what it had started."""
        ...

    # connections inside

    def connect(self, port: int) -> Any: ...
    def accept(self, path: str) -> Any: ...

    # files

    async def perform(self, connection: GuestConnection, action: Action[T]) -> T: ...
