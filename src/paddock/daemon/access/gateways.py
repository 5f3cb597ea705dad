"""Keep the network access of sandboxes: the gateway gets their policies from here. See docs/design/egress.md.

The gateway may die at any moment. Then the sandboxes are offline, and one loop starts the next gateway and sends it the
rules of all of them. The supervisor holds their sockets all the while.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

import msgspec

from paddock.daemon.context import Component, Context
from paddock.daemon.store.database import Row
from paddock.errors import (
    GatewayUnavailableError,
    InternalError,
    NotConfiguredError,
    NotFoundError,
    PaddockError,
    SandboxDiedError,
)
from paddock.gateway.client import GatewayClient
from paddock.gateway.control import Open, Record, Revise, Secret
from paddock.gateway.rules.secrets import BoundSecret, to_bytes
from paddock.model import PolicyDocument, Recording, SandboxId, State
from paddock.supervisor import layout

from . import _trust
from .approvals import Approvals
from .secrets import SecretBindings

if TYPE_CHECKING:
    from paddock.gateway.authority import Authority
    from paddock.policy.network import Snapshot

PERIOD_SECONDS = 30.0


class MalwareLists(Component):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._directory = self._state_dir / layout.MALWARE
        self._users: dict[SandboxId, frozenset[str]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def read(self, id: SandboxId, document: PolicyDocument) -> None:
        """Return when the gateway knows the lists in `document`. Raises NotConfiguredError for an unreadable list."""
        paths = frozenset(rule.malware for rule in document.egress.allow if rule.malware is not None)
        if not paths:
            self._users.pop(id, None)
            return
        for path in paths:
            await self._refresh(path)
        self._users[id] = paths
        if self._watch is None or self._watch.done():
            self._watch = self._tasks.start(self._keep_fresh(), name="see whether lists of malware have changed")

    def forget(self, id: SandboxId) -> None:
        self._users.pop(id, None)

    async def _refresh(self, path: str) -> None:
        from paddock.gateway.registries.malware import refresh

        async with self._lock:
            digest = await asyncio.to_thread(refresh, self._directory, path)
        if digest is not None:
            self._audit.event("egress.malware", message=f"{path} is read: {digest}")

    async def _keep_fresh(self) -> None:
        """Read changed lists again. If a list became unreadable, its last version holds."""
        said: dict[str, str] = {}
        while self._users:
            await asyncio.sleep(PERIOD_SECONDS)
            for path in sorted({path for paths in self._users.values() for path in paths}):
                try:
                    await self._refresh(path)
                    said.pop(path, None)
                except PaddockError as error:
                    if said.get(path) != error.message:
                        said[path] = error.message
                        self._audit.event("egress.malware", message=error.message[:1024])


_LONGEST_PAUSE_SECONDS = 30.0


def _make_authority() -> Authority:
    from paddock.gateway.authority import Authority  # cryptography: not before a sandbox needs it

    return Authority.make("sandbox")


class _Network(msgspec.Struct):
    """The network of one sandbox. `lock`: its orders reach the gateway one after the other."""

    row: Row
    snapshot: Snapshot
    authority: Authority | None = None
    lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)


class Gateways(Component):
    """Called only for sandboxes that have a policy: one that `open` was not called for has no network.

    `row.instance_id` says which sandbox of an id it is. Every call is about that one alone.
    """

    def __init__(self, context: Context, bindings: SecretBindings, approvals: Approvals) -> None:
        super().__init__(context)
        self._bindings = bindings
        bindings.changed = self.secret
        self._networks: dict[SandboxId, _Network] = {}
        self._made: asyncio.Task[Authority] | None = None
        self._client = GatewayClient(self._state_dir, on_lost=self._lost, approve=approvals.judge)
        self._lists = MalwareLists(context)

    async def open(self, row: Row, snapshot: Snapshot) -> None:
        """Return when the sandbox can reach what its policy allows, and nothing else. No command has run in it yet.
        Idempotent. NotConfiguredError (why the gateway can't start) undoes the create."""
        before = self._networks.get(row.id)
        network = _Network(row, snapshot) if before is None or before.row.instance_id != row.instance_id else before
        self._networks[row.id] = network
        async with network.lock:
            network.row, network.snapshot = row, snapshot
            try:
                await self._lists.read(row.id, snapshot.document)
                await self._send(network, new=row.state is State.CREATING)
            except BaseException:
                if network is not before:
                    self._drop(network)
                raise

    async def revise(self, row: Row, snapshot: Snapshot) -> None:
        """Return when the recorded new revision holds for living connections too; refused ones are cut. If this raises,
        nothing may get out until it holds."""
        network = self._networks.get(row.id)
        if network is None:
            await self.open(row, snapshot)
            return
        async with network.lock:
            network.row, network.snapshot = row, snapshot
            self._networks[row.id] = network  # an `open` that has failed dropped it
            unread = await self._read_lists(network)
            try:
                await self._send(network)
            except PaddockError:
                self._lost()  # it is recorded: until it holds
                raise
            if unread is not None:
                raise unread  # the revision holds all the same: what needs that list is refused

    async def withdraw(self, row: Row) -> None:
        """Refuse every connection of a living sandbox that has no policy any more. It keeps its sockets."""
        from paddock.policy.network import compile

        self._bindings.drop(row.id)
        await self.revise(row, compile(PolicyDocument()))

    def forget(self, row: Row) -> None:
        """Drop the secrets and the network of a sandbox that ends. Idempotent.

        The gateway isn't told, so that one that hangs keeps no sandbox from ending. It sees the end by a pidfd.
        """
        self._bindings.drop(row.id)
        network = self._networks.get(row.id)
        if network is not None and network.row.instance_id == row.instance_id:
            self._drop(network)

    async def secret(self, sandbox: str, bound: BoundSecret) -> None:
        """Send a changed secret. It holds for the next request when this returns."""
        network = self._networks.get(SandboxId(sandbox))
        async with nullcontext() if network is None else network.lock:  # what is just sent may have the value before
            if await self._client.connect(start=False):
                await self._client.order(Secret(sandbox=sandbox, name=bound.name, secret=to_bytes(bound)))

    async def start_recording(self, row: Row) -> None:
        await self._client.order(Record(sandbox=row.id, instance_id=row.instance_id, on=True))

    async def take_recording(self, row: Row) -> Recording:
        """Stop recording and return the exchanges. Raises InvalidStateError without a recording."""
        answer = await self._client.order(Record(sandbox=row.id, instance_id=row.instance_id, on=False))
        return msgspec.msgpack.decode(answer, type=Recording)

    def resume(self, rules: list[tuple[Row, Snapshot]], without: list[Row]) -> None:
        """See to the sandboxes of the daemon before, all in one loop: their gateway serves them, or has died too.

        `without`: those that have no policy. The daemon before may have died when it had recorded that.
        """
        for row, snapshot in rules:
            self._networks.setdefault(row.id, _Network(row, snapshot))
        self._lost()
        if without:
            self._tasks.start(self._shut(without), name="tell the gateway who has no policy")

    async def _shut(self, rows: list[Row]) -> None:
        with suppress(GatewayUnavailableError):  # then it serves no sandbox, and its successor gets the rules that hold
            if await self._client.connect(start=False):
                from paddock.policy.network import compile

                nothing = compile(PolicyDocument()).to_bytes()
                for row in rows:
                    with suppress(NotFoundError):
                        if row.id not in self._networks:  # it was given a policy since
                            revise = Revise(sandbox=row.id, instance_id=row.instance_id, snapshot=nothing)
                            await self._client.order(revise)

    def aclose(self) -> None:
        """Close the connection to the gateway, which runs on."""
        self._networks.clear()
        self._client.close()

    def _drop(self, network: _Network) -> None:
        if self._networks.get(network.row.id) is network:
            del self._networks[network.row.id]
            self._lists.forget(network.row.id)

    async def _read_lists(self, network: _Network) -> NotConfiguredError | None:
        try:
            await self._lists.read(network.row.id, network.snapshot.document)
        except NotConfiguredError as error:
            return error
        return None

    async def _send(self, network: _Network, *, new: bool = False) -> None:
        """Send the rules of a sandbox. `new`: no gateway can have them yet."""
        try:
            await self._send_once(network, new=new)
        except GatewayUnavailableError:  # it was leaving, having had no door for a while, or has died
            await self._send_once(network)  # what it had open is cut; its successor knows this revision only

    async def _send_once(self, network: _Network, *, new: bool = False) -> None:
        row, snapshot = network.row, network.snapshot.to_bytes()
        if not new:
            try:
                await self._client.order(Revise(sandbox=row.id, instance_id=row.instance_id, snapshot=snapshot))
                return
            except NotFoundError:
                pass  # it has no such door
        if network.authority is None:
            network.authority = await self._new_authority()
        secrets = await self._bindings.packed(row)
        exits = await self._backends.named(row.sandbox.backend).exits(row.id, row.instance_id, make=True)
        if exits is None:
            raise InternalError(
                f"a process that is not the gateway has the sockets of {row.id}", hint=f"paddock kill {row.id}"
            )
        order = Open(
            sandbox=row.id,
            instance_id=row.instance_id,
            first=exits.first,
            snapshot=snapshot,
            certificate=network.authority.certificate,
            key=network.authority.key,
            secrets=secrets,
        )
        opening = asyncio.ensure_future(self._client.order(order, exits.detach()))
        try:
            await asyncio.sleep(0)  # it is sent: the gateway opens the sandbox's sockets meanwhile
            await asyncio.to_thread(_trust.write, self._state_dir, row.id, network.authority.certificate)
        finally:
            await opening

    async def _new_authority(self) -> Authority:
        """Return an authority made ahead, and make another one for the next sandbox."""
        made, self._made = self._made, None
        authority = await (made or asyncio.to_thread(_make_authority))
        self._made = self._tasks.start(asyncio.to_thread(_make_authority), name="make an authority", awaited=True)
        return authority

    def _lost(self) -> None:
        if self._networks and not self._tasks.closed:
            self._tasks.start(self._send_all(), name="send the gateway all rules")

    async def _send_all(self) -> None:
        """Send all rules, until every living sandbox has its own."""
        pause = 0.1
        left = list(self._networks.values())
        while left:
            again: list[_Network] = []
            for network in left:
                try:
                    await self._send_again(network)
                except (PaddockError, OSError) as error:  # its certificates can't be written: it may just have ended
                    again.append(network)
                    self._audit.event("egress.offline", sandbox=network.row.id, message=str(error)[:1024])
            left = again
            if left:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _send_again(self, network: _Network) -> None:
        async with network.lock:
            if self._networks.get(network.row.id) is not network:
                return
            try:
                await self._read_lists(network)  # without a list, what needs it is refused
                await self._send(network)
            except SandboxDiedError:
                self._drop(network)
