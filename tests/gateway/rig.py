"""A gateway between clients on the loopback and servers on the loopback: where a connection wanted to go is said by the
test, all else is as it is in service."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from paddock.audit import AuditLog
from paddock.errors import UnrecordedError
from paddock.gateway.authority import Authority
from paddock.gateway.mocks.handler import HandlerHost
from paddock.gateway.outside import Outside
from paddock.gateway.processes.connection_owner import ConnectionOwners
from paddock.gateway.processes.process_resolver import unknown
from paddock.gateway.protocols.http1 import Request
from paddock.gateway.proxy.network import Gateway, Limits, SandboxNetwork
from paddock.gateway.registries.malware import MalwareIndexes
from paddock.gateway.registries.package_cache import PackageStore
from paddock.gateway.registries.reader import Reader
from paddock.gateway.rules.authorization import AuthorizedRequest
from paddock.gateway.rules.secrets import SecretBook
from paddock.model import ApprovalAnswer, ApprovalRequest, PolicyDocument
from paddock.model.egress import ConnectVerdict, RequestVerdict, Target, Tier, Verdict

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def authorized(target: Target, scheme: str, method: str, secrets: tuple[str, ...]) -> AuthorizedRequest:
    """Return a request that the policy allows with these secrets."""
    verdict = RequestVerdict(allowed=True, rule="r", reason="", revision="", secrets=secrets)
    return AuthorizedRequest(Request(method=method, target="/", fields=[]), target, scheme, "/", verdict)


class Policy:
    """What a test allows: hosts with their tier, and what a request must not be."""

    def __init__(self, hosts: dict[str, Tier], *, deny_paths: Collection[str] = (), revision: str = "r1") -> None:
        self.hosts, self.deny_paths, self.revision = hosts, deny_paths, revision
        self.addresses = {"127.0.0.1", "::1"}
        self.secrets: tuple[str, ...] = ()
        self.approve: str | None = None
        self.document = PolicyDocument()

    def _verdict(self, allowed: bool) -> dict[str, object]:
        return {
            "allowed": allowed,
            "rule": "allow[0]" if allowed else "default",
            "reason": "so",
            "revision": self.revision,
        }

    def name(self, name: str) -> Verdict:
        return Verdict(**self._verdict(name in self.hosts))

    def connect(self, target: Target) -> ConnectVerdict:
        return ConnectVerdict(**self._verdict(target.host in self.hosts), tier=self.hosts.get(target.host))

    def address(self, target: Target, address: str, *, own: bool = False) -> Verdict:
        return Verdict(**self._verdict(address in self.addresses))

    def request(self, target: Target, scheme: str, method: str, path: str, push: bool | None = None) -> RequestVerdict:
        allowed = target.host in self.hosts and path not in self.deny_paths
        return RequestVerdict(**self._verdict(allowed), secrets=self.secrets, approve=self.approve)


class Flow:
    """What a decision was about: the fields that were given, and None for all others."""

    refs = address = method = package = digest = malware = None

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


class Journal(AuditLog):
    """Keeps what is recorded; `broken` refuses to."""

    def __init__(self) -> None:
        self.decisions: list[tuple[Flow, Verdict]] = []
        self.outcomes: dict[int, tuple[int, int, str | None]] = {}
        self.files: list[tuple[str, str]] = []
        self.caches: list[str] = []
        self.owners: list[tuple[int, int, dict[str, object]]] = []
        self.crowds: list[int] = []
        self.broken = False

    def verdict(self, name: str, *, allowed: bool, rule: str, reason: str, sandbox: str, detail: dict[str, Any]) -> int:
        if self.broken:
            raise UnrecordedError("the disk is full")
        about = {key: value for key, value in detail.items() if key != "revision"}
        verdict = Verdict(allowed=allowed, rule=rule, reason=reason, revision=detail["revision"])
        self.decisions.append((Flow(kind=name.removeprefix("egress."), sandbox=sandbox, **about), verdict))
        return len(self.decisions) - 1

    def outcome(self, of: int, action: str, **fields: Any) -> int:
        detail = fields["detail"]
        self.outcomes[of] = (detail["sent"], detail["received"], fields["error"])
        if "url" in detail:
            self.files.append((detail["url"], detail["digest"]))
        if "cache" in detail:
            self.caches.append(detail["cache"])
        return len(self.decisions)

    def event(self, name: str, *, sandbox: str | None = None, message: str | None = None, **detail: Any) -> int:
        if self.broken:
            raise UnrecordedError("the disk is full")
        if name == "egress.crowded":
            self.crowds.append(detail["refused"])
        else:
            flow, decision = detail.pop("flow"), detail.pop("decision")
            self.owners.append((flow, decision, {key: value for key, value in detail.items() if key != "instance_id"}))
        return len(self.decisions)

    def of(self, kind: str) -> list[tuple[Flow, Verdict]]:
        return [entry for entry in self.decisions if entry[0].kind == kind]


class Strangers(ConnectionOwners):
    """Know of no connection whose it is."""

    def __init__(self) -> None: ...

    async def owner_of(self, *connection: object) -> dict[str, Any]:
        return unknown("nobody is asked")

    async def watch(self, *sandbox: object) -> None: ...

    def close(self, why: str = "") -> None: ...


class NoReader(Reader):
    """Stands where no page is read: a real one is a process."""

    def __init__(self) -> None: ...

    def close(self) -> None: ...


class Approvals:
    def __init__(self) -> None:
        self.asked: list[ApprovalRequest] = []
        self.answer = ApprovalAnswer(granted=False, id="ap_1")

    async def claim(self, request: ApprovalRequest) -> ApprovalAnswer:
        self.asked.append(request)
        return self.answer


class Rig(Outside):
    """`origin` is where the next connections want to go; `names` is what the resolver of the host knows."""

    gateway: Gateway

    def __init__(self, policy: Policy, limits: Limits | None = None) -> None:
        self.policy, self.limits = policy, limits
        self.origin: tuple[str, int] | Callable[[socket.socket], tuple[str, int]] = ("192.0.2.1", 443)
        self.names: dict[str, list[str]] = {}
        self.resolved: list[str] = []
        self.public = Authority.make("public")  # who signs the servers outside
        self.inside = Authority.make("inside")
        self.audit_log, self.approvals = Journal(), Approvals()
        self.secrets = SecretBook()
        self.packages: PackageStore | None = None
        self.reads = False
        self.known = MalwareIndexes(Path("/nonexistent"))
        self.handlers: HandlerHost | None = None
        self.servers: list[asyncio.Server] = []
        self._shaken: list[ssl.SSLContext] = []

    def network(self, sandbox: str = "sb_1", policy: Policy | None = None) -> SandboxNetwork:
        self.tcp = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.dns_tcp = socket.create_server(("127.0.0.1", 0))
        self.dns_udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.dns_udp.bind(("127.0.0.1", 0))
        self.port = self.tcp.getsockname()[1]
        self.dns_ports = (self.dns_udp.getsockname()[1], self.dns_tcp.getsockname()[1])
        return SandboxNetwork(
            gateway=self.gateway,
            sandbox=sandbox,
            instance_id=1,
            tcp=[self.tcp],
            dns_udp=self.dns_udp,
            dns_tcp=self.dns_tcp,
            policy=policy or self.policy,
            authority=self.inside,
            secrets=self.secrets,
            claim=self.approvals.claim,
            audit_log=self.audit_log,
            diag=socket.socket(socket.AF_UNIX),
            first=(0, 0),
            process=os.pidfd_open(os.getpid()),
        )

    def make_gateway(self, *, owners: ConnectionOwners | None = None, reader: Reader | None = None) -> Gateway:
        return Gateway(
            outside=self,
            destination=self.where,
            limits=self.limits,
            handlers=self.handlers,
            owners=owners or Strangers(),
            reader=reader or NoReader(),
            malware=self.known,
            packages=self.packages,
        )

    async def resolve(self, name: str) -> list[str]:
        self.resolved.append(name)
        if name not in self.names:
            raise OSError(f"no such name: {name}")
        return self.names[name]

    @property
    def authorities(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] - a benchmark replaces `public`
        return self.public.certificate.decode()

    def where(self, sock: socket.socket) -> tuple[str, int]:
        return self.origin(sock) if callable(self.origin) else self.origin

    async def server(self, serve: Serve, *, tls: str | None = None) -> int:
        """A server on the loopback; `tls`: the name in its certificate. Its port."""
        context = None if tls is None else self.public.context(tls)
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        self.servers.append(server)
        return server.sockets[0].getsockname()[1]

    def synthetic(self, name: str, sandbox: str = "sb_1") -> str:
        address = self.gateway.networks[sandbox].lookup(name)
        assert isinstance(address, str), address
        return address

    def aim(self, name: str, port: int) -> None:
        """The next connections are made by somebody who has resolved `name`."""
        self.origin = (self.synthetic(name), port)

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.inside.certificate.decode())

    async def connect(self, tls: str | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """`tls`: the name that is asked for, by a client that trusts the sandbox's authority."""
        context = None if tls is None else self.client_context()
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname=tls)

    async def ask(self, data: bytes, *, tls: str | None = None) -> bytes:
        """All that is answered to `data`, up to the end."""
        reader, writer = await self.connect(tls)
        try:
            writer.write(data)
            return await asyncio.wait_for(reader.read(), 30)
        finally:
            writer.close()


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[Rig]:
    reader = Reader() if rig.reads else NoReader()
    rig.gateway = rig.make_gateway(reader=reader)
    await rig.gateway.open(rig.network())
    try:
        yield rig
    finally:
        await rig.gateway.close_all()
        for server in rig.servers:
            server.close()
        await end_connections()
        reader.close()


async def end_connections() -> None:
    """Those of this loop, at whose end the news that the other side has left may still be on its way."""
    for transport in [one for one in asyncio.get_running_loop()._transports.values() if one._sock]:  # pyright: ignore
        transport.abort()
    await asyncio.sleep(0)  # each has its end now


async def eventually(condition: Callable[[], object]) -> None:
    """Until it holds, which is an event outside this loop: polled, and for as long as the test itself may take."""
    while not condition():  # noqa: ASYNC110 - nobody could set an event
        await asyncio.sleep(0.005)


async def answer_ok(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers every request with what it was, as text."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(head), head))
            if b"Connection: close" in head:
                break
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


GET = b"GET /a HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"


def get(host: str, path: str = "/a", *, close: bool = True) -> bytes:
    end = "Connection: close\r\n" if close else ""
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{end}\r\n".encode()


def reset_on_close(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def ca_file(authority: Authority, directory: Path) -> Path:
    fd, name = tempfile.mkstemp(dir=directory, suffix=".pem")
    os.write(fd, authority.certificate)
    os.close(fd)
    return Path(name)
