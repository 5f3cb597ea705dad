"""A secret is only there: whoever is inside has a placeholder, which becomes the value on its way to where it is bound,
over verified TLS, and nowhere else; and the value comes back to nobody."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from paddock import Sandbox, local
from paddock.gateway.authority import Authority
from paddock.model import CreateSandbox, Level, RemoveSecret, SandboxSpec, SecretValue, SetSecret
from paddock.policy.network import load
from tests.in_process import in_process

from .inside import ask
from .rig import Internet, Records, Request, Response

VALUE, NEXT = b"correct-horse-battery-staple", b"another-value-another-day"
BOUND = {"host": "api.test", "methods": ["GET", "POST", "TRACE"], "paths": ["/v1/**"]}
PLACES = ({"header": "X-Key"}, {"basic": True}, {"query": "key"}, {"body": True})
POLICY = {
    "egress": {
        "allow": [
            {"host": "api.test", "ports": [80, 443, 8443], "paths": ["/**"], "secret": "TOKEN"},
            {"host": "other.test", "paths": ["/**"]},
        ]
    },
    "secrets": {"TOKEN": {"from": {"stored": "ACCEPTED"}, "bind": [{**BOUND, **place} for place in PLACES]}},
}

Make = Callable[..., Sandbox]


def echo(request: Request) -> Response:
    """All that it was sent, as a careless server gives it back: in a header, and in a body that may be compressed."""
    said = "\n".join([request.target, *(f"{name}: {value}" for name, value in request.fields)]).encode() + request.body
    if (request.field("accept-encoding") or "").startswith("gzip"):
        return Response(fields={"content-encoding": "gzip"}, body=gzip.compress(said))
    return Response(fields={"x-echo": request.field("x-key") or ""}, body=said)


@pytest.fixture
def level() -> str | None:
    return None


@pytest.fixture
def make(shared_state: Path, internet: Internet, level: str | None) -> Generator[Make]:
    """`make(policy)` gives sandboxes that may use the secret."""
    internet.site("api.test", echo)
    internet.site("other.test", echo)
    transport = local()
    transport.perform(SetSecret(name="ACCEPTED", value=SecretValue(VALUE)))
    with ExitStack() as stack:
        stack.callback(lambda: transport.perform(RemoveSecret(name="ACCEPTED")))

        def create(policy: dict[str, Any] = POLICY) -> Sandbox:
            spec = SandboxSpec(policy=load(policy).document, level=None if level is None else Level(level))
            made = Sandbox(transport.perform(CreateSandbox(spec=spec)), transport)
            stack.callback(made.kill)
            return made

        yield create


def heard(internet: Internet) -> bytes:
    """All that came to anybody outside, in clear."""
    whole = [repr((one.data, [(r.target, r.fields, r.body) for r in one.requests])) for one in internet.arrivals]
    return "".join(whole).encode()


ONE = r"""
import base64, gzip, os
token = os.environ["TOKEN"]
def tls(*said, to="api.test", port=443, **more):
    return exchange(to, port, get(to if port == 443 else f"{to}:{port}", *said, **more), tls=True, name=to)
"""

SENT = (
    ONE
    + r"""
basic = base64.b64encode(f"me:{token}".encode()).decode()
body = json.dumps({"pad": "x" * 70000, "key": token})
def chunked(cut):
    pieces = [body[:cut], body[cut:]]
    data = "".join(f"{len(p):x}\r\n{p}\r\n" for p in pieces) + "0\r\n\r\n"
    head = "POST /v1/chunks HTTP/1.1\r\nhost: api.test\r\ncontent-type: application/json\r\n"
    return exchange("api.test", 443, head + "transfer-encoding: chunked\r\nconnection: close\r\n\r\n" + data,
                    tls=True, name="api.test")
answer({
    "header": tls("/v1/header", f"x-key: Bearer {token}"),
    "basic": tls("/v1/basic", f"authorization: Basic {basic}"),
    "query": tls(f"/v1/query?a=b&key={token}"),
    "json": tls("/v1/json", "content-type: application/json", method="POST", body=body),
    "form": tls("/v1/form", "content-type: application/x-www-form-urlencoded", method="POST", body=f"key={token}"),
    "chunks": chunked(body.index(token) + 5),
    "gzip": tls("/v1/gzip", f"x-key: {token}", "accept-encoding: gzip"),
})
"""
)


def test_it_arrives_in_each_place_that_it_is_bound_to_and_comes_back_in_none(make: Make, internet: Internet) -> None:
    made = make()
    told = ask(made, SENT)
    assert {way: said[:15] for way, said in told.items() if not said.startswith("HTTP/1.1 200 OK")} == {}
    requests = internet.requests("api.test")
    assert len(requests) == len(told)
    encoded = base64.b64encode(b"me:" + VALUE)
    for request in requests:
        said = repr((request.target, request.fields, request.body)).encode()
        assert VALUE in said or encoded in said, request
    squeezed = told["gzip"].encode("latin-1").partition(b"\r\n\r\n")[2]
    returned = "".join(told.values()).encode("latin-1") + (
        gzip.decompress(squeezed) if squeezed[:1] == b"\x1f" else b""
    )
    assert VALUE not in returned
    assert encoded not in returned
    assert internet.strays() == []


ASTRAY = (
    ONE
    + r"""
key = f"x-key: {token}"
basic = base64.b64encode(f"me:{token}".encode()).decode()
packed = gzip.compress(token.encode())
answer({
    "another host": tls("/v1/", key, to="other.test"),
    "another host, Basic": tls("/v1/", f"authorization: Basic {basic}", to="other.test"),
    "another host, body": tls("/v1/", method="POST", body=token, to="other.test"),
    "in clear": exchange("api.test", 80, get("api.test", "/v1/", key)),
    "another port": tls("/v1/", key, port=8443),
    "another path": tls("/v2/", key),
    "a path that climbs": tls("/v1/../v2/", key),
    "another method": tls("/v1/", key, method="PUT"),
    "TRACE": tls("/v1/", key, method="TRACE"),
    "another header": tls("/v1/", f"x-other: {token}"),
    "the name of a header": tls("/v1/", f"{token}: x"),
    "the path": tls(f"/v1/{token}"),
    "another parameter": tls(f"/v1/?other={token}"),
    "the user of Basic": tls("/v1/", "authorization: Basic " + base64.b64encode(f"{token}:x".encode()).decode()),
})
"""
)


def test_on_its_way_to_anywhere_else_it_is_refused_and_found(
    make: Make, internet: Internet, records: Records, who: str | None
) -> None:
    made = make()
    told = ask(made, ASTRAY, user=who)
    wrong = {way: said[:80] for way, said in told.items() if not said.startswith("HTTP/1.1 403 ")}
    assert wrong == {}
    del told["TRACE"]  # which no rule allows, whatever it carries
    assert {way: said for way, said in told.items() if "placeholder of secret TOKEN" not in said} == {}
    assert VALUE not in heard(internet) + "".join(told.values()).encode()
    assert internet.requests("api.test") == internet.requests("other.test") == []
    found = [one for one in records.denied(made.id, "egress.secret") if "TOKEN" in (one.reason or "")]
    assert len(found) == len(told)
    assert {one.detail["revision"] for one in found} == {made.policy}


def test_a_redirect_does_not_take_it_along(make: Make, internet: Internet) -> None:
    internet.site("api.test", lambda _: Response(302, {"location": "https://other.test/"}))
    done = make().exec('curl -sS -m 60 -L -H "X-Key: $TOKEN" https://api.test/v1/')
    assert "placeholder of secret TOKEN" in done.stdout, done
    assert internet.requests("api.test")[0].field("x-key") == VALUE.decode()
    assert internet.requests("other.test") == []


@pytest.mark.parametrize("signer", ["stranger", "another name"])
def test_it_is_sent_to_nobody_whose_certificate_is_not_that_of_the_host(
    make: Make, internet: Internet, signer: str
) -> None:
    if signer == "stranger":
        internet.site("api.test", echo, signer=Authority.make("stranger"))
    else:
        internet.names["api.test"] = [["93.184.216.90"]]
        internet.site("other.test", echo, address="93.184.216.90")
    told = ask(make(), ONE + "answer(tls('/v1/', f'x-key: {token}'))")
    assert told.startswith("HTTP/1.1 502 "), told
    assert internet.arrivals
    assert internet.requests("api.test") == internet.requests("other.test") == []
    assert VALUE not in heard(internet)


def test_another_sandbox_s_placeholder_is_nothing(make: Make, internet: Internet) -> None:
    """Nor is that of a snapshot's or a fork's parent, each of which has its own."""
    parent = make()
    snapshot = parent.snapshot()
    child = parent.fork()
    restored = Sandbox.create(snapshot=snapshot.id, policy=POLICY)
    try:
        tokens = [one.exec("printf %s $TOKEN").stdout for one in (parent, make(), child, restored)]
        assert len(set(tokens)) == 4
        for one, own in ((child, tokens[2]), (restored, tokens[3])):
            assert VALUE not in heard(internet)
            ask(one, ONE + "answer(tls('/v1/', f'x-key: {given[0]}'))", tokens[0])
            assert VALUE not in heard(internet), "the parent's is nothing here"
            ask(one, ONE + "answer(tls('/v1/', f'x-key: {given[0]}'))", own)
            assert internet.requests("api.test")[-1].field("x-key") == VALUE.decode()
            internet.clear()
            internet.site("api.test", echo)
    finally:
        child.kill()
        restored.kill()


def test_rotation_and_revocation_hold_for_the_next_request(make: Make, internet: Internet) -> None:
    made, transport, use = make(), local(), ONE + "answer(tls('/v1/', f'x-key: {token}')[:13])"
    assert ask(made, use) == "HTTP/1.1 200 "
    transport.perform(SetSecret(name="ACCEPTED", value=SecretValue(NEXT)))
    assert ask(made, use) == "HTTP/1.1 200 "
    transport.perform(RemoveSecret(name="ACCEPTED"))
    assert ask(made, use) == "HTTP/1.1 424 "
    assert [request.field("x-key") for request in internet.requests("api.test")] == [VALUE.decode(), NEXT.decode()]
    transport.perform(SetSecret(name="ACCEPTED", value=SecretValue(VALUE)))


MEMORY = (
    ONE
    + r"""
tls("/v1/", f"x-key: {token}")
masked = [bytes.fromhex(one) for one in given]
def holds(data):
    "Whether a value is in there; this process never has it as a whole."
    return any(bytes(b ^ 0x55 for b in data[at : at + len(one)]) == one
               for one in masked for at in begins(data, one[0] ^ 0x55, one[1] ^ 0x55))
def begins(data, *first):
    at, head = -1, bytes(first)
    while (at := data.find(head, at + 1)) >= 0: yield at
found = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline"):
        try:
            if holds(open(f"/proc/{pid}/{name}", "rb").read()): found.append(f"{name} of {pid}")
        except OSError: pass
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in maps:
                first, last = (int(part, 16) for part in line.split()[0].split("-"))
                if "rw" in line and last - first < 1 << 28:
                    memory.seek(first)
                    if holds(memory.read(last - first)): found.append(f"{line.strip()} of {pid}")
    except OSError: pass
for top in ("/tmp", "/workspace", "/etc", "/home", "/root", "/.paddock", "/run", "/var", "/dev/shm"):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            try:
                if os.path.isfile(path) and holds(open(path, "rb").read(1 << 20)): found.append(path)
            except OSError: pass
answer(found)
"""
)


def masked(data: bytes) -> str:
    return bytes(byte ^ 0x55 for byte in data).hex()


@pytest.mark.both
def test_neither_the_value_nor_the_authority_s_key_is_inside_or_on_a_disk(
    make: Make, shared_state: Path, who: str | None
) -> None:
    with in_process(shared_state) as daemon:
        made = make()
        made.snapshot()
        keys = [door.authority.key for door in daemon.service.gateways._networks.values() if door.authority]
    assert keys
    lines = [key.splitlines()[2] for key in keys]  # of the PEM: the part that is secret
    assert ask(made, MEMORY, *map(masked, (VALUE, *lines)), user=who) == []
    placeholder = made.exec("printf %s $TOKEN").stdout.encode()
    assert any("environ" in place for place in ask(made, MEMORY, masked(placeholder), user=who)), "and it can search"
    wanted = [VALUE, base64.b64encode(VALUE), VALUE.hex().encode(), *lines]
    for path in [one for one in shared_state.rglob("*") if one.is_file()]:
        if path.stat().st_size < 64 << 20:
            data = path.read_bytes()
            assert not [one for one in wanted if one in data], path
