"""Fidelity: what works without a gateway works through it, in every client's own words; and what two servers could read
differently goes to neither."""

from __future__ import annotations

import socket
from collections.abc import Generator, Iterator
from pathlib import Path

import grpc
import h2
import pytest
from wsproto import ConnectionType, WSConnection
from wsproto import events as ws

from paddock import Mount, Sandbox
from paddock.gateway.authority import _pem
from paddock.model import MountMode
from tests.conftest import SandboxFactory, gateway_pid

from .h2_site import Answer2, speak_h2
from .inside import ask
from .rig import Arrival, Internet, Records, Request, Response, speak_http

GRPC_ADDRESS = "93.184.216.40"
POLICY = {
    "egress": {
        "allow": [
            {"host": name, "methods": ["GET", "HEAD", "POST"], "paths": ["/ok/**", "/repo.git/**", "/t.Test/Say"]}
            for name in ("good.test", "h2.test", "grpc.test", "ws.test")
        ]
    }
}
PACKAGES = "/opt/packages"


@pytest.fixture
def made(sandbox: SandboxFactory, internet: Internet) -> Sandbox:
    """With this environment's packages, for the clients that are libraries of Python."""
    internet.site("good.test", answer_1)
    internet.site("h2.test", serve=lambda call, arrival: speak_h2(call, arrival, answer_2), alpn=("h2",))
    outside = {str(Path(h2.__file__).parents[1]): PACKAGES}
    outside |= {str(path): str(path) for path in Path("/etc").glob("java-*-openjdk")}  # Debian's java reads it
    mounts = [Mount(source=source, target=target, mode=MountMode.READ_ONLY) for source, target in outside.items()]
    return sandbox(policy=POLICY, mounts=mounts)


def answer_1(request: Request) -> Response:
    if request.target.startswith("/repo.git/info/refs"):
        return Response(fields={"content-type": "text/plain"}, body=b"a" * 40 + b"\trefs/heads/main\n")
    if request.target.startswith("/repo.git/HEAD"):
        return Response(body=b"ref: refs/heads/main\n")
    return Response(body=b"served " + request.target.encode() + b" " + request.body)


def answer_2(request: Request) -> Answer2:
    if request.target.startswith("/ok/large/"):
        return Answer2(body=zeros(int(request.target.rpartition("/")[2])))
    if request.target == "/ok/trailers":
        got = [value for name, value in request.fields if name == "x-mine"]
        return Answer2(body=[b"1", b"2"], trailers=(("x-sum", "3"), *(("x-yours", value) for value in got)))
    return Answer2(body=[b"served " + request.target.encode() + b" " + request.body])


def zeros(size: int) -> Iterator[bytes]:
    piece = bytes(1 << 16)
    while size:
        yield piece[:size]
        size -= min(size, len(piece))


# -- the matrix of clients ---------------------------------------------------------------------------------------------

URLLIB = """
import sys, urllib.request, urllib.error
try: print(urllib.request.urlopen(sys.argv[1]).read().decode())
except urllib.error.HTTPError as error: print(error.code, error.read().decode())
"""
HTTPX = f"""
import sys; sys.path.append({PACKAGES!r})
import os, ssl, httpx
answer = httpx.Client(http2=True, verify=ssl.create_default_context()).get(sys.argv[1])
print(answer.http_version, answer.status_code, answer.text)
"""
FETCH = "fetch(process.argv[1]).then(async (a) => console.log(a.status, await a.text()))"
NODE_H2 = """
const url = new URL(process.argv[1]);
const session = require("http2").connect(url.origin);
const stream = session.request({":path": url.pathname});
let text = "";
stream.on("response", (head) => { text += head[":status"] + " "; });
stream.setEncoding("utf8").on("data", (data) => { text += data; });
stream.on("end", () => { console.log(text); session.close(); });
"""
JAVA = """
import java.net.URI;
import java.net.http.*;
public class Get {
    public static void main(String[] given) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(given[0])).build();
        var answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        System.out.println(answer.version() + " " + answer.statusCode() + " " + answer.body());
    }
}
"""
JAVA_RUNS = r"""
printf '%s' "$0" > /tmp/Get.java
keytool -importcert -noprompt -storepass changeit -keystore /tmp/trust -file "$SSL_CERT_FILE" >/dev/null 2>&1
exec java -Djavax.net.ssl.trustStore=/tmp/trust -Djavax.net.ssl.trustStorePassword=changeit /tmp/Get.java "$1"
"""
OPENSSL = r"""
url=${0#https://}; host=${url%%/*}
printf 'GET /%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "${url#*/}" "$host" |
    openssl s_client -quiet -verify_return_error -servername "$host" -connect "$host:443" 2>&1
"""
CLIENTS: dict[str, tuple[str, ...]] = {
    "curl, HTTP/1.1": ("curl", "-sS", "--http1.1"),
    "curl, HTTP/2 or 1.1": ("curl", "-sS", "--http2"),
    "wget": ("wget", "-qO-", "--content-on-error"),
    "Python": ("python3", "-c", URLLIB),
    "httpx, HTTP/2 or 1.1": ("python3", "-c", HTTPX),
    "node, fetch": ("node", "-e", FETCH),
    "node, HTTP/2": ("node", "-e", NODE_H2),
    "java": ("sh", "-c", JAVA_RUNS, JAVA),
    "openssl": ("sh", "-c", OPENSSL),
}
SPEAKS_2 = ("node, HTTP/2",)
"""And offer nothing else: who offers both gets HTTP/1.1."""


@pytest.mark.parametrize(
    "client", [pytest.param(name, marks=[pytest.mark.slow] if name == "java" else []) for name in CLIENTS]
)
def test_a_client_is_served_and_refused_in_words(
    client: str, made: Sandbox, internet: Internet, records: Records
) -> None:
    argv = CLIENTS[client]
    program = {"java": "keytool", "openssl": "openssl"}.get(client, argv[0])
    if made.exec(("sh", "-c", f"command -v {program}")).exit_code != 0:
        pytest.skip(f"{program} is not in this machine's /usr")
    for host in ("good.test", *(("h2.test",) if client in SPEAKS_2 else ())):
        done = made.exec((*argv, f"https://{host}/ok/a"), timeout_seconds=100)
        assert "served /ok/a" in done.stdout, done.stderr
        refused = made.exec((*argv, f"https://{host}/no"), timeout_seconds=100)
        assert "rule: default" in refused.stdout, refused.stderr
    assert [request.target for request in internet.requests("good.test")] == ["/ok/a"]
    assert records.denied(made.id, "egress.request", host="good.test")
    assert internet.strays() == []


def test_git_is_served(made: Sandbox, internet: Internet) -> None:
    done = made.exec(("git", "ls-remote", "https://good.test/repo.git"), timeout_seconds=100)
    assert "a" * 40 + "\trefs/heads/main\n" in done.stdout, done.stderr
    assert internet.strays() == []


GRPC = f"""
import sys; sys.path.append({PACKAGES!r})
import grpc
channel = grpc.secure_channel("grpc.test:443", grpc.ssl_channel_credentials())
print(channel.unary_unary("/t.Test/Say")(b"hello", timeout=60))
print(b"".join(channel.stream_stream("/t.Test/Say")(iter([b"a", b"b"]), timeout=60)))
try: channel.unary_unary("/t.Test/Other")(b"x", timeout=60)
except grpc.RpcError as error: print(error.code(), error.details())
"""


@pytest.fixture
def grpc_port(internet: Internet) -> Generator[int]:
    """A server of gRPC on the host's loopback, which `grpc.test` leads to."""
    from concurrent.futures import ThreadPoolExecutor

    def say(pieces: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.set_trailing_metadata((("x-sum", "3"),))
        for piece in pieces:
            yield b"re: " + piece

    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads)
        handlers = {"Say": grpc.stream_stream_rpc_method_handler(say)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.Test", handlers),))
        key, certificate = _pem(internet.public._leaf_key), internet.public.leaf("grpc.test")
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
        server.start()
        yield port
        server.stop(0).wait()


def test_grpc_is_served_and_refused_in_its_words(
    made: Sandbox, internet: Internet, grpc_port: int, records: Records
) -> None:
    internet.names["grpc.test"] = [[GRPC_ADDRESS]]
    internet.listen(GRPC_ADDRESS, 443, lambda call, _: joined(call, grpc_port))
    done = made.exec(("python3", "-c", GRPC), timeout_seconds=100)
    said = done.stdout.splitlines()
    assert said[:2] == ["b're: hello'", "b're: are: b'"], done
    assert said[2].startswith("StatusCode.PERMISSION_DENIED paddock: ")
    assert "rule: default" in said[2]
    assert records.denied(made.id, "egress.request", host="grpc.test")
    assert internet.strays() == []


def joined(call: socket.socket, port: int) -> None:
    """Passes bytes between the two until one of them ends."""
    import threading

    with socket.create_connection(("127.0.0.1", port)) as other:

        def pass_on(source: socket.socket, sink: socket.socket) -> None:
            try:
                while data := source.recv(1 << 16):
                    sink.sendall(data)
            except OSError:
                pass
            for one in (source, sink):
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

        back = threading.Thread(target=pass_on, args=(other, call))
        back.start()
        pass_on(call, other)
        back.join()


# -- what messages are made of -----------------------------------------------------------------------------------------

STREAMS = """
import http.client, ssl
def connection(host): return http.client.HTTPSConnection(host, timeout=60)
events = connection("good.test")
events.request("GET", "/ok/events")
reader = events.getresponse()
told = [reader.fp.readline() for _ in range(2)]
reply = socket.create_connection(("good.test", 443), 60)
reply = ssl.create_default_context().wrap_socket(reply, server_hostname="good.test")
reply.sendall(get("good.test", "/ok/go", "expect: 100-continue", "content-length: 5", method="POST").encode())
interim = reply.recv(4096)
reply.sendall(b"hello")
final = end_of(reply.recv)
chunks = connection("good.test")
chunks.request("POST", "/ok/chunks", body=iter([b"a", b"b" * 70000]), encode_chunked=True,
               headers={"Transfer-Encoding": "chunked"})
answer([[line.decode() for line in told], interim.decode(), final, chunks.getresponse().read().decode()[:20]])
"""


def test_events_continue_and_chunks(made: Sandbox, internet: Internet) -> None:
    def serve(call: socket.socket, arrival: Arrival) -> None:
        if b"/ok/events" not in call.recv(4096, *(() if hasattr(call, "context") else (socket.MSG_PEEK,)))[:40]:
            raise AssertionError
        call.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in (b"data: 1\n", b"data: 2\n"):  # no end: each has to come as it is sent
            call.sendall(b"%x\r\n%b\r\n" % (len(event), event))
        call.recv(1)

    calls: list[Arrival] = []

    def first_events(call: socket.socket, arrival: Arrival) -> None:
        calls.append(arrival)
        if len(calls) == 1:
            serve(call, arrival)
        else:
            speak_http(call, arrival, answer_1)

    internet.site("good.test", serve=first_events)
    told, interim, final, chunks = ask(made, STREAMS)
    assert told == ["data: 1\n", "data: 2\n"] or told[1].startswith("data")
    assert interim.startswith("HTTP/1.1 100 ")
    assert final.endswith("served /ok/go hello")
    assert chunks == "served /ok/chunks ab"
    assert internet.strays() == []


TRAILERS = f"""
sys.path.append({PACKAGES!r})
import ssl, h2.connection, h2.config
context = ssl.create_default_context()
context.set_alpn_protocols(["h2"])
s = context.wrap_socket(socket.create_connection(("h2.test", 443), 60), server_hostname="h2.test")
from h2.events import ResponseReceived, StreamEnded, StreamReset, TrailersReceived
raw = dict(validate_outbound_headers=False, normalize_outbound_headers=False)
config = h2.config.H2Configuration(header_encoding="latin-1", **raw)
engine = h2.connection.H2Connection(config)
engine.initiate_connection()
def head(*more, **other):
    known = {{":method": "POST", ":scheme": "https", ":authority": "h2.test", ":path": "/ok/trailers"}} | other
    return [*known.items(), *more]
found, ended, number = {{}}, 0, 1
for fields in given[0]:
    engine.send_headers(number, head(*map(tuple, fields[0]), **fields[1]), end_stream=fields[2])
    if not fields[2]:
        engine.send_data(number, b"x")
        engine.send_headers(number, [("x-mine", "4")], end_stream=True)
    found[number] = []
    number += 2
s.sendall(engine.data_to_send())
while ended < len(found):
    for event in engine.receive_data(s.recv(65536)):
        if isinstance(event, (ResponseReceived, TrailersReceived)): found[event.stream_id] += event.headers
        if isinstance(event, (StreamEnded, StreamReset)): ended += 1
    s.sendall(engine.data_to_send())
answer(list(found.values()))
"""


def test_trailers_both_ways(made: Sandbox, internet: Internet) -> None:
    [fields] = ask(made, TRAILERS, [([("te", "trailers")], {}, False)])
    assert [":status", "200"] in fields
    assert ["x-sum", "3"] in fields
    assert ["x-yours", "4"] in fields
    assert internet.strays() == []


SOCKET = f"""
sys.path.append({PACKAGES!r})
import ssl, wsproto
from wsproto import events as ws
s = ssl.create_default_context().wrap_socket(socket.create_connection(("ws.test", 443), 60), server_hostname="ws.test")
peer, said = wsproto.WSConnection(wsproto.ConnectionType.CLIENT), []
s.sendall(peer.send(ws.Request(host="ws.test", target="/ok/chat")))
while not said or said[-1] != 3001:
    peer.receive_data(s.recv(65536) or None)
    for event in peer.events():
        if isinstance(event, ws.AcceptConnection): s.sendall(peer.send(ws.TextMessage("hi")))
        elif isinstance(event, ws.TextMessage):
            said.append(event.data)
            s.sendall(peer.send(ws.CloseConnection(3001, "done")))
        elif isinstance(event, ws.CloseConnection): said.append(event.code)
answer(said)
"""


def test_a_websocket(made: Sandbox, internet: Internet) -> None:
    def serve(call: socket.socket, arrival: Arrival) -> None:
        peer = WSConnection(ConnectionType.SERVER)
        while True:
            peer.receive_data(call.recv(4096) or None)
            for event in peer.events():
                if isinstance(event, ws.Request):
                    call.sendall(peer.send(ws.AcceptConnection()))
                elif isinstance(event, ws.TextMessage):
                    call.sendall(peer.send(ws.TextMessage(f"re: {event.data}")))
                elif isinstance(event, ws.CloseConnection):
                    return call.sendall(peer.send(event.response()))

    internet.site("ws.test", serve=serve)
    assert ask(made, SOCKET) == ["re: hi", 3001]
    assert internet.strays() == []


DOWNLOAD = """
const session = require("http2").connect("https://h2.test");
const stream = session.request({":path": "/ok/large/" + process.argv[1]});
let size = 0;
stream.on("data", (data) => { size += data.length; });
stream.on("end", () => { console.log(size); session.close(); });
"""


@pytest.mark.parametrize("size", [96 << 20, pytest.param(5 << 30, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_a_large_stream_takes_no_memory(size: int, made: Sandbox, internet: Internet, shared_state: Path) -> None:
    if made.exec(("sh", "-c", "command -v node")).exit_code != 0:
        pytest.skip("node is not in this machine's /usr")
    made.exec(("node", "-e", DOWNLOAD, "1000"), timeout_seconds=100)
    pid = gateway_pid(shared_state)
    assert pid is not None
    before = resident_mib(pid)
    done = made.exec(("node", "-e", DOWNLOAD, str(size)), timeout_seconds=900)
    assert done.stdout == f"{size}\n", done
    assert resident_mib(pid) - before < 24
    assert resident_mib(pid) < 100


def resident_mib(pid: int) -> float:
    """At the most, so far."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) / 1024


# -- what is read in two ways ------------------------------------------------------------------------------------------

SMUGGLING_1 = """
found = {}
for way, text in given[0].items():
    found[way] = exchange("good.test", 443, text.encode("latin-1"), tls=True, name="good.test")
answer(found)
"""
SECOND = "GET /ok/smuggled HTTP/1.1\r\nhost: good.test\r\n\r\n"
AMBIGUOUS_1 = {
    "both lengths": f"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{SECOND}",
    "two lengths": f"content-length: 0\r\ncontent-length: {len(SECOND)}\r\n\r\n{SECOND}",
    "another coding": f"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n{SECOND}",
    "a coding in disguise": f"transfer-encoding : chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n{SECOND}",
    "folded": f"transfer-encoding:\r\n chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n{SECOND}",
    "an extension": f"transfer-encoding: chunked\r\n\r\n0;a=b\r\n\r\n{SECOND}",
    "an extension with a newline": f"transfer-encoding: chunked\r\n\r\n1;a\nx\r\n0\r\n\r\n{SECOND}",
    "a bare newline": f"content-length: 0\nx: y\r\n\r\n{SECOND}",
    "a size with a sign": f"transfer-encoding: chunked\r\n\r\n+0\r\n\r\n{SECOND}",
}


def test_http1_that_can_be_read_in_two_ways_goes_nowhere(made: Sandbox, internet: Internet, records: Records) -> None:
    begin = "POST /ok/a HTTP/1.1\r\nhost: good.test\r\n"
    told = ask(made, SMUGGLING_1, {way: begin + rest for way, rest in AMBIGUOUS_1.items()})
    assert {way: said[:40] for way, said in told.items() if not said.startswith("HTTP/1.1 400 ")} == {}
    assert [request.target for request in internet.requests("good.test")] == []
    assert records.denied(made.id, "egress.request", host="good.test")
    assert internet.strays() == []


AMBIGUOUS_2: list[tuple[list[tuple[str, str]], dict[str, str]]] = [
    ([("transfer-encoding", "chunked")], {}),
    ([("connection", "x-a")], {}),
    ([("x", f"a\r\n\r\n{SECOND}")], {}),
    ([("x: y\r\nz", "a")], {}),
    ([("host", "evil.test")], {}),
    ([("x", "a\0")], {}),
    ([], {":path": f"/ok/a HTTP/1.1\r\nhost: good.test\r\n\r\n{SECOND}"}),
    ([], {":path": "https://evil.test/ok/a"}),
    ([], {":method": f"{SECOND}POST"}),
    ([], {":authority": "evil.test"}),
    ([], {":scheme": "http"}),
]


def test_http2_that_becomes_something_else_in_http1_goes_nowhere(
    made: Sandbox, internet: Internet, records: Records
) -> None:
    """To a server of HTTP/1.1, so that each would be written anew in it."""
    internet.site("h2.test", answer_1)
    told = ask(made, TRAILERS, [(*one, True) for one in AMBIGUOUS_2])
    assert [dict(fields)[":status"] for fields in told] == ["400"] * 9 + ["421", "400"]
    assert internet.arrivals == []
    assert records.denied(made.id, "egress.request", host="h2.test")
    [twin] = ask(made, TRAILERS, [([], {}, True)])
    assert [":status", "200"] in twin
    assert internet.strays() == []
