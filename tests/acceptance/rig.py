"""The internet of these tests: names, origins, and a sinkhole for all that nobody has set up. Runs inside `world`.

internet.site("good.test")                          # http and https, at the address that all sites share
internet.names["rebinds.test"] = [["93.184.216.9"], ["127.0.0.1"]]    # one list an answer, the last for ever
internet.listen("93.184.216.40", 2222, serve)       # any other protocol, one thread a connection
assert internet.strays() == []                      # nothing came to where nobody is, nobody else was asked for
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import dns.exception
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import h11

from paddock.audit import read_records
from paddock.gateway.authority import Authority
from paddock.gateway.proxy.network import original_destination
from paddock.model import AuditRecord, ListAudit

from .world import RESOLVER, TCP_PORT, UDP_PORT

ADDRESS = "93.184.216.34"
"""Where sites are if nothing else is said: all at one address, as behind a large provider."""
PATIENCE_SECONDS = 60.0
_MOST_KEPT = 1 << 16


@dataclass
class Arrival:
    """What came to an address outside. `name` is what was asked for by TLS; `data` the beginning of what was said, in
    clear if it was TLS to a site; `requests` what a site understood of it."""

    protocol: str
    address: str
    port: int
    name: str | None = None
    data: bytes = b""
    requests: list[Request] = field(default_factory=list)


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    fields: Sequence[tuple[str, str]]
    body: bytes

    def field(self, name: str) -> str | None:
        return next((value for key, value in self.fields if key == name), None)


@dataclass(frozen=True)
class Response:
    status: int = 200
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"hello"


Serve = Callable[[socket.socket, Arrival], None]
Answer = Callable[[Request], Response]


@dataclass(frozen=True)
class Site:
    name: str
    serve: Serve
    alpn: tuple[str, ...]
    signer: Authority


class Internet:
    """One for a session; `clear` makes it empty again. `public` signs the certificates of sites, and the gateway
    trusts it."""

    def __init__(self, public: Authority) -> None:
        self.public = public
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._calls: dict[socket.socket, None] = {}
        self.clear()
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            if family == socket.AF_INET or Path("/proc/net/if_inet6").exists():
                listener = socket.create_server((address, TCP_PORT), family=family, backlog=512)
                self._run(self._accept, listener)
                self._run(self._receive, _bound(family, address, UDP_PORT))
        self._run(self._resolve, _bound(socket.AF_INET, RESOLVER, 53))

    def clear(self) -> None:
        self.arrivals: list[Arrival] = []
        self.questions: list[tuple[str, str]] = []
        """Names and types that the host's resolver was asked for."""
        self.names: dict[str, list[list[str]]] = {}
        self._answers: dict[tuple[str, str], int] = {}
        self._replies: dict[tuple[object, bytes], bytes] = {}
        self._sites: dict[tuple[str, str], Site] = {}
        self._places: dict[tuple[str, int], Serve] = {}

    def site(
        self,
        name: str,
        answer: Answer | None = None,
        *,
        serve: Serve | None = None,
        address: str = ADDRESS,
        alpn: tuple[str, ...] = ("http/1.1",),
        signer: Authority | None = None,
    ) -> None:
        """An origin at any port, in clear and by TLS. `serve` takes the connection itself."""
        self.names.setdefault(name, [[address]])
        speak = serve or (lambda connection, arrival: speak_http(connection, arrival, answer or (lambda _: Response())))
        self._sites[address, name] = Site(name, speak, alpn, signer or self.public)

    def listen(self, address: str, port: int, serve: Serve) -> None:
        self._places[address, port] = serve

    def strays(self) -> list[object]:
        """All that should not have come: to where there is nobody, by datagram, and for names that there are not."""
        homes = {address for address, _ in self._sites}
        lost = [
            arrival
            for arrival in self.arrivals
            if arrival.protocol != "tcp"
            or (arrival.address not in homes and (arrival.address, arrival.port) not in self._places)
        ]
        return [*lost, *(question for question in self.questions if question[0] not in self.names)]

    def requests(self, name: str) -> list[Request]:
        """What a site was asked, in order."""
        return [request for arrival in self.arrivals if arrival.name == name for request in arrival.requests]

    def close(self) -> None:
        for one in [*self._sockets, *self._calls]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), "a server of the internet does not end"

    # -- one thread each

    def _run(self, work: Callable[..., None], listener: socket.socket, *arguments: object) -> None:
        if not arguments:
            self._sockets.append(listener)
        thread = threading.Thread(target=work, args=(listener, *arguments), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                call, _ = listener.accept()
            except OSError:
                return
            self._calls[call] = None
            address, port = original_destination(call)
            arrival = Arrival("tcp", address, port)
            self.arrivals.append(arrival)  # before anything else, so that nobody misses it
            self._run(self._attend, call, arrival)

    def _attend(self, call: socket.socket, arrival: Arrival) -> None:
        call.settimeout(PATIENCE_SECONDS)
        try:
            self._serve(call, arrival)
        except (OSError, h11.ProtocolError):
            pass  # whoever called has gone, or was no client
        finally:
            self._calls.pop(call, None)
            call.close()

    def _serve(self, call: socket.socket, arrival: Arrival) -> None:
        serve = self._places.get((arrival.address, arrival.port))
        if serve is not None:
            return serve(call, arrival)
        sites = {name: site for (address, name), site in self._sites.items() if address == arrival.address}
        begin = call.recv(_MOST_KEPT, socket.MSG_PEEK)
        if begin[:1] != b"\x16" or not sites:
            arrival.data = begin
            host = _host_of(begin)
            arrival.name = host if host in sites else next(iter(sites), None)
            return sites[arrival.name].serve(call, arrival) if arrival.name else None
        with self._shake(call, arrival, sites) as connection:
            return sites[arrival.name or next(iter(sites))].serve(connection, arrival)

    def _shake(self, call: socket.socket, arrival: Arrival, sites: dict[str, Site]) -> ssl.SSLSocket:
        """As behind a large provider: who asks for none of the sites is shown the first one."""

        def choose(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
            arrival.name = name
            connection.context = context(sites.get(name or "", first))

        def context(site: Site) -> ssl.SSLContext:
            made = site.signer.context(site.name)
            made.set_alpn_protocols(site.alpn)
            return made

        first = next(iter(sites.values()))
        begin = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        begin.sni_callback = choose
        begin.set_alpn_protocols(next((site.alpn for site in sites.values()), ()))
        return begin.wrap_socket(call, server_side=True)

    def _receive(self, listener: socket.socket) -> None:
        while True:
            try:
                data, _ = listener.recvfrom(_MOST_KEPT)
            except OSError:
                return
            self.arrivals.append(Arrival("udp", "", 0, data=data))

    def _resolve(self, listener: socket.socket) -> None:
        while True:
            try:
                data, client = listener.recvfrom(_MOST_KEPT)
            except OSError:
                return
            # A resolver that has waited for seconds asks again, by the same number and from the same port.
            asked = client, data
            with contextlib.suppress(dns.exception.DNSException):
                if asked not in self._replies:
                    self._replies[asked] = self._reply(dns.message.from_wire(data)).to_wire()
                listener.sendto(self._replies[asked], client)

    def _reply(self, query: dns.message.Message) -> dns.message.Message:
        name = query.question[0].name.to_text(omit_final_dot=True).lower()
        kind = dns.rdatatype.to_text(query.question[0].rdtype)
        self.questions.append((name, kind))
        reply = dns.message.make_response(query)
        answers = self.names.get(name)
        if answers is None:
            reply.set_rcode(dns.rcode.NXDOMAIN)
            return reply
        turn = self._answers.get((name, kind), 0)
        self._answers[name, kind] = turn + 1
        wanted = [one for one in answers[min(turn, len(answers) - 1)] if kind == ("AAAA" if ":" in one else "A")]
        if wanted:
            reply.answer.append(dns.rrset.from_text(f"{name}.", 0, "IN", kind, *wanted))
        return reply


def _bound(family: int, address: str, port: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.bind((address, port))
    return made


def _host_of(begin: bytes) -> str | None:
    for line in begin.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.lower() == b"host":
            return value.strip().decode("latin-1").partition(":")[0].lower()
    return None


def speak_http(connection: socket.socket, arrival: Arrival, answer: Answer) -> None:
    """HTTP/1.1 until the client has enough."""
    machine = h11.Connection(h11.SERVER)
    while machine.states[h11.CLIENT] is h11.IDLE:
        request = _request(connection, arrival, machine)
        if request is None:
            return
        arrival.requests.append(request)
        response = answer(request)
        fields = {"content-length": str(len(response.body)), **response.fields}
        connection.sendall(
            machine.send(
                h11.Response(status_code=response.status, headers=list(fields.items()), reason=_phrase(response.status))
            )
            + (machine.send(h11.Data(data=response.body)) if request.method != "HEAD" else b"")
            + machine.send(h11.EndOfMessage())
        )
        if machine.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
            return
        machine.start_next_cycle()


def _phrase(status: int) -> bytes:
    return http.client.responses.get(status, "").encode()


def _request(connection: socket.socket, arrival: Arrival, machine: h11.Connection) -> Request | None:
    head: h11.Request | None = None
    body = b""
    while True:
        event = machine.next_event()
        if event is h11.NEED_DATA:
            if machine.they_are_waiting_for_100_continue:
                connection.sendall(machine.send(h11.InformationalResponse(status_code=100, headers=[])))
            data = connection.recv(_MOST_KEPT)
            arrival.data = (arrival.data + data)[:_MOST_KEPT]
            machine.receive_data(data)
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            fields = [(key.decode("latin-1"), value.decode("latin-1")) for key, value in head.headers]
            return Request(head.method.decode(), head.target.decode("latin-1"), fields, body)
        else:
            return None


@dataclass(frozen=True)
class Records:
    """The audit log of the tests' state directory."""

    directory: Path

    def of(self, sandbox: str, tag: str = "egress", **detail: object) -> list[AuditRecord]:
        """Decisions about what left this sandbox, whose details are these; with a rule and a revision, all of them."""
        found = read_records(self.directory, ListAudit(sandbox=sandbox, tag=tag, limit=10_000))
        fitting = [one for one in found if detail.items() <= one.detail.items()]
        assert all(one.rule and one.detail.get("revision") for one in fitting if one.allowed is not None)
        return fitting

    def denied(self, sandbox: str, tag: str = "egress", **detail: object) -> list[AuditRecord]:
        return [one for one in self.of(sandbox, tag, **detail) if one.allowed is False]


@contextlib.contextmanager
def open_internet(public: Authority) -> Generator[Internet]:
    made = Internet(public)
    try:
        yield made
    finally:
        made.close()
