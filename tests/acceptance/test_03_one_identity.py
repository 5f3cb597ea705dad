"""One identity: CONNECT, the hello's name, the request's and the Host field are one name, or nothing goes anywhere."""

from __future__ import annotations

import pytest

from paddock import Sandbox
from tests.conftest import SandboxFactory
from tests.gateway import hellos
from tests.gateway.hellos import client_hello, with_extension

from .inside import ask, refused
from .rig import Internet, Records

ECH = 0xFE0D
POLICY = {
    "egress": {
        "allow": [
            {"host": "good.test", "methods": ["GET"]},
            {"host": "spliced.test", "tier": "splice"},
            {"cidr": "93.184.216.50/32", "ports": [443]},
        ]
    }
}


@pytest.fixture
def made(sandbox: SandboxFactory, internet: Internet) -> Sandbox:
    """Its two hosts and one that it may not talk to are at one address, as behind a large provider."""
    for name in ("evil.test", "good.test", "spliced.test"):
        internet.site(name)
    internet.names["xn--gd-xka.test"] = internet.names["good.test"]
    return sandbox(policy=POLICY)


TWINS = """
proxied = dict(proxy="good.test:443", tls=True, name="good.test")
answer({
    "inspected": exchange("good.test", 443, get("good.test"), tls=True, name="good.test"),
    "spliced": exchange("spliced.test", 443, get("spliced.test"), tls=True, name="spliced.test"),
    "in clear": exchange("good.test", 80, get("good.test")),
    "its own port": exchange("good.test", 443, get("good.test:443"), tls=True, name="good.test"),
    "capitals and a final dot": exchange("Good.Test.", 80, get("GOOD.test.")),
    "by CONNECT": exchange("198.18.0.1", 3128, get("good.test"), **proxied),
    "absolute": exchange("198.18.0.1", 3128, get("good.test", "http://good.test/")),
})
"""


@pytest.mark.both
def test_those_who_say_one_name_are_let_through(made: Sandbox, internet: Internet, records: Records) -> None:
    told = ask(made, TWINS)
    assert {way: said[:15] for way, said in told.items() if not said.startswith("HTTP/1.1 200 OK")} == {}
    assert {arrival.name for arrival in internet.arrivals} == {"good.test", "spliced.test"}
    assert {one.detail["host"] for one in records.of(made.id, "egress.dial")} == {"good.test", "spliced.test"}
    assert internet.strays() == []


REQUESTS = """
hosts = ["evil.test", "spliced.test", "good.test.evil.test", "good.test@evil.test", "u:p@good.test",
         "good.test:8443", "good.test, evil.test",
         "g\u043e\u043ed.test", "xn--gd-xka.test", "93.184.216.34", "127.0.0.1", "good.test\\\\"]
targets = ["https://evil.test/", "http://good.test/", "https://u@good.test/", "https://good.test\\\\@evil.test/",
           "https://evil.test\\\\@good.test/", "https://evil.test#@good.test/", "https://good.test:8443/"]
found = {}
for port, tls in ((443, True), (80, False)):
    for host in hosts:
        found[f"host {host} {port}"] = exchange("good.test", port, get(host), tls=tls, name="good.test")
for target in targets:
    found[f"target {target}"] = exchange("good.test", 443, get("good.test", target), tls=True, name="good.test")
two = "GET / HTTP/1.1\\r\\nhost: good.test\\r\\nhost: evil.test\\r\\nconnection: close\\r\\n\\r\\n"
found["two hosts"] = exchange("good.test", 443, two, tls=True, name="good.test")
none = "GET / HTTP/1.1\\r\\nconnection: close\\r\\n\\r\\n"
found["no host"] = exchange("good.test", 443, none, tls=True, name="good.test")
for url in ("http://good.test\\\\@evil.test/", "http://evil.test\\\\@good.test/", "http://u@good.test/",
            "http://evil.test#@good.test/", "http://evil.test?@good.test/"):
    found[f"proxy {url}"] = exchange("198.18.0.1", 3128, get("good.test", url))
found["proxy for two"] = exchange("198.18.0.1", 3128, get("evil.test", "http://good.test/"))
found["CONNECT to another"] = exchange("198.18.0.1", 3128, None, proxy="evil.test:443")
found["CONNECT and another SNI"] = exchange(
    "198.18.0.1", 3128, get("evil.test"), proxy="good.test:443", tls=True, name="evil.test")
found["CONNECT and another host"] = exchange(
    "198.18.0.1", 3128, get("evil.test"), proxy="good.test:443", tls=True, name="good.test")
for spelled in ("2130706433", "0x7f.1", "017700000001", "127.1", "\u2460\u2461\u2466.0.0.1", "[::ffff:127.0.0.1]",
                "127.0.0.1.", "0", "localhost", "1.1", "93.184.216.34"):
    found[f"CONNECT {spelled}"] = exchange("198.18.0.1", 3128, None, proxy=f"{spelled}:443")
    found[f"absolute {spelled}"] = exchange("198.18.0.1", 3128, get(spelled, f"http://{spelled}/"))
    found[f"host {spelled}"] = exchange("good.test", 80, get(spelled))
answer(found)
"""


def test_a_request_that_names_somebody_else_goes_nowhere(
    made: Sandbox, internet: Internet, records: Records, who: str | None
) -> None:
    told = ask(made, REQUESTS, user=who)
    assert {way: said[:60] for way, said in told.items() if not refused(said)} == {}
    assert internet.arrivals == []
    assert internet.questions == []
    written = records.denied(made.id, "egress.request", host="good.test")
    assert written, "what was refused is on record"
    assert {one.detail["revision"] for one in written} == {made.policy}


HELLOS = """
found = {}
for way, (to, hello) in given[0].items():
    found[way] = exchange(to, 443, bytes.fromhex(hello))
answer(found)
"""


def test_a_hello_that_names_somebody_else_or_nobody_goes_nowhere(
    made: Sandbox, internet: Internet, records: Records
) -> None:
    evil = client_hello("evil.test")
    said = {
        "another name": evil,
        "another allowed name": client_hello("93-184-216-34.test"),
        "no name": client_hello(None),
        "in pieces": hellos.records(hellos.message(evil), 3),
        "large": with_extension(evil, 0x1234, bytes(4000)),
        "an address": with_extension(client_hello(None), 0, b"\0\x0c\0\0\x09127.1.1.1"),
        "a confusable": client_hello("xn--gd-xka.test"),
    }
    tried = {f"{way} {to}": (to, data.hex()) for way, data in said.items() for to in ("good.test", "spliced.test")}
    hidden = with_extension(client_hello("spliced.test"), ECH, bytes(100))
    tried["a hidden name"] = ("spliced.test", hidden.hex())
    tried["a name for an address"] = ("93.184.216.50", evil.hex())
    told = ask(made, HELLOS, tried)
    assert {way: said[:60] for way, said in told.items() if not refused(said)} == {}
    assert internet.arrivals == []
    assert internet.questions == []
    assert records.denied(made.id, "egress.connect", host="good.test")


LARGE = """
def patient(to, protocols, size):
    context = ssl.create_default_context()
    context.set_alpn_protocols(protocols)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    talk = context.wrap_bio(incoming, outgoing, server_hostname=to)
    with socket.create_connection((to, 443), 60) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        def go(step):
            while True:
                try: return step()
                except ssl.SSLWantReadError: send(); incoming.write(s.recv(65536))
                finally: send()
        def send():
            data = outgoing.read()
            sizes.append(len(data))
            while data: data = data[s.send(data[:size]):]
        go(talk.do_handshake)
        go(lambda: talk.write(get(to).encode()))
        return go(lambda: talk.read(4096)).decode()
sizes = []
protocols = ["http/1.1", *(f"p{number:04}" + "x" * 200 for number in range(12))]
said = [patient(to, protocols, size) for to in ("good.test", "spliced.test") for size in (61, 1024)]
answer([said, max(sizes)])
"""


def test_a_large_hello_to_an_allowed_host_is_let_through(made: Sandbox, internet: Internet) -> None:
    told, largest = ask(made, LARGE)
    assert largest > 2500
    assert all(said.startswith("HTTP/1.1 200 OK") for said in told), told
    assert internet.strays() == []
