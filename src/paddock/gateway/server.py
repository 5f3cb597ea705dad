"""Orders of the daemon, from the gateway's control socket, as networks of the gateway."""

from __future__ import annotations

import asyncio
import os
import socket
import traceback
from typing import cast

import msgspec

from paddock.audit import AuditLog
from paddock.errors import InternalError, InvalidStateError, NotFoundError, PaddockError
from paddock.model import ApprovalAnswer, ApprovalRequest, ApprovalState, codec
from paddock.policy.network import Snapshot
from paddock.wire import Frame, Kind, WireError, close_all
from paddock.wire.duplex import Duplex, NotSent

from .authority import Authority
from .control import VERSION, Hello, Open, Order, Record, Revise, Secret, Welcome
from .proxy.network import Gateway, SandboxNetwork
from .rules.secrets import BoundSecret, SecretBook, from_bytes

_bound = msgspec.msgpack.Decoder(BoundSecret).decode
IDLE_SECONDS = 10.0
LOOK_SECONDS = 1.0
CLAIM_SECONDS = 30.0
NO_ANSWER = ApprovalAnswer(
    granted=False, state=ApprovalState.DENIED, reason="no paddock daemon is there that could ask a person"
)


class Server:
    """Carry out the orders of one daemon, one after the other, until no network was open for a while.

    A network closes when its sandbox ends. No daemon has to say so, and none waits for it.
    """

    def __init__(
        self,
        listener: socket.socket,
        gateway: Gateway,
        audit_log: AuditLog,
        *,
        owner: int,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        listener.setblocking(False)
        self._listener, self._owner, self._idle = listener, owner, idle_seconds
        self._gateway, self._audit_log = gateway, audit_log
        self._connection: Duplex | None = None
        self._turn = asyncio.Lock()

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._listener.fileno(), self._accept)
        since = loop.time()
        try:
            while loop.time() - since < self._idle:
                await asyncio.sleep(min(LOOK_SECONDS, self._idle))
                if self._gateway.networks or self._turn.locked():
                    since = loop.time()
        finally:
            loop.remove_reader(self._listener.fileno())
            self._listener.close()
            if self._connection is not None:
                self._connection.close()
            await self._gateway.close_all()

    async def claim(self, request: ApprovalRequest) -> ApprovalAnswer:
        """Ask the daemon for an approval.

        Without an answer it denies, because a granted answer uses the approval up.
        """
        if self._connection is None:
            return NO_ANSWER
        try:
            async with asyncio.timeout(CLAIM_SECONDS):
                return codec.decode((await self._connection.ask(codec.encode(request))).body, ApprovalAnswer)
        except (ConnectionError, TimeoutError, codec.Malformed):
            return NO_ANSWER

    def _accept(self) -> None:
        """Accept a connection. The peer is the daemon after its HELLO."""
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        connection = Duplex(peer, lambda connection, frame: self._on_frame(connection, frame), self._on_end)
        if connection.uid != self._owner:
            connection.close()

    def _follow(self, connection: Duplex) -> None:
        """Follow the next daemon: the previous one is dead, even if its connection is still open."""
        previous, self._connection = self._connection, connection
        if previous is not None and previous is not connection:
            previous.close()

    def _on_end(self, connection: Duplex) -> None:
        if self._connection is connection:
            self._connection = None

    def _on_frame(self, connection: Duplex, frame: Frame) -> None:
        kinds = cast("type[Hello | Order]", Hello if frame.kind is Kind.HELLO else Order)
        try:
            order = codec.decode(frame.body, kinds)
        except codec.Malformed as error:
            close_all(frame.descriptors)
            raise WireError(f"not an order: {error}") from None
        if isinstance(order, Hello) and order.version == VERSION:
            self._follow(connection)
        elif connection is not self._connection and not isinstance(order, Hello):
            close_all(frame.descriptors)
            raise WireError("an order of one who has not said HELLO, or was followed by another")
        self._gateway.start(self._answer(connection, frame, order))

    async def _answer(self, connection: Duplex, frame: Frame, order: Hello | Order) -> None:
        descriptors = list(frame.descriptors)
        kind = frame.kind if frame.kind is Kind.HELLO else Kind.REPLY
        try:
            async with self._turn:
                body = await self._carry_out(order, descriptors)
        except Exception as error:  # a fault in one matter must not leave all the others without a gateway
            if not isinstance(error, PaddockError):
                traceback.print_exc()
                error = InternalError(f"{type(error).__name__}: {error}"[:1000], hint="gateway.log has the traceback")
            kind, body = Kind.ERROR, codec.encode_error(error)
        finally:
            close_all(descriptors)  # those that no network has taken
        try:
            connection.send(kind, frame.channel, body)
        except NotSent:
            return  # its daemon has died; the next one asks what is open

    async def _carry_out(self, order: Hello | Order, descriptors: list[int]) -> bytes:
        match order:
            case Hello(version=version):
                if version != VERSION:
                    reason = (
                        f"a gateway of another version of paddock serves this state directory (it speaks {VERSION})"
                    )
                    raise InvalidStateError(reason, hint=f"end it, and paddock starts its own: kill {os.getpid()}")
                return codec.encode(Welcome(pid=os.getpid()))
            case Open():
                await self._open(order, descriptors)
            case Secret():
                if (network := self._gateway.networks.get(order.sandbox)) is not None:
                    network.secrets.put(_bound(order.secret))
            case Revise() | Record():
                network = self._gateway.networks.get(order.sandbox)
                if network is None or network.instance_id != order.instance_id:
                    reason = f"the gateway has no network of {order.sandbox} in instance {order.instance_id}"
                    raise NotFoundError(reason)
                if isinstance(order, Record):
                    return self._record(network, order)
                await network.revise(Snapshot.from_bytes(order.snapshot))
        return b""

    def _record(self, network: SandboxNetwork, order: Record) -> bytes:
        """Start a recording, or end and return the one under way."""
        taken = network.record(order.on)
        if order.on:
            return b""
        if taken is None:
            reason = (
                f"no recording of {order.sandbox} is under way: none was started, or the gateway that recorded has died"
            )
            raise InvalidStateError(reason, hint=f"paddock record start {order.sandbox}")
        return msgspec.msgpack.encode(taken)

    async def _open(self, order: Open, descriptors: list[int]) -> None:
        await self._gateway.close(order.sandbox)  # of the one before, under the same id
        if len(descriptors) < 5:
            raise InvalidStateError(f"the sockets of {order.sandbox} are gone: it has no network access any more")
        policy, process = Snapshot.from_bytes(order.snapshot), descriptors.pop()
        sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        descriptors[:] = [process]
        *tcp, dns_udp, dns_tcp, diag = sockets
        try:
            network = SandboxNetwork(
                gateway=self._gateway,
                sandbox=order.sandbox,
                instance_id=order.instance_id,
                first=order.first,
                process=process,
                tcp=tcp,
                dns_udp=dns_udp,
                dns_tcp=dns_tcp,
                diag=diag,
                policy=policy,
                authority=Authority(order.certificate, order.key),
                secrets=SecretBook(from_bytes(order.secrets)),
                claim=self.claim,
                audit_log=self._audit_log,
            )
            await self._gateway.open(network)
        except BaseException:
            for one in sockets:
                one.close()
            raise
        descriptors.clear()
        network.loop.add_reader(process, self._ended, network)
        await network.watch()

    def _ended(self, network: SandboxNetwork) -> None:
        async def close() -> None:
            async with self._turn:
                if self._gateway.networks.get(network.sandbox) is network:
                    await self._gateway.close(network.sandbox)

        network.loop.remove_reader(network.process)
        self._gateway.start(close())
