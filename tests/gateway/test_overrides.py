"""A request that a server may take for another one is authorized as that one too."""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.gateway.protocols.refusal import Refused
from paddock.gateway.rules.overrides import FormWatch, readings
from paddock.policy.network import load
from tests.gateway import h2_peers
from tests.gateway.rig import Policy, Rig, answer_ok, running

URLENCODED, MULTIPART = b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=b"
JSON = b"application/vnd.api+json; charset=utf-8"


def read(path: str, *fields: tuple[bytes, bytes]) -> list[tuple[str, str]]:
    return [(method, other) for method, other, _ in readings("POST", path, list(fields))]


@pytest.mark.parametrize(
    ("path", "fields", "found"),
    [
        ("/a", [(b"X-HTTP-Method-Override", b"delete")], [("DELETE", "/a")]),
        ("/a", [(b"x-http-method", b"PUT")], [("PUT", "/a")]),
        ("/a", [(b"X_Method_Override", b" PATCH ")], [("PATCH", "/a")]),
        ("/a?b=1&_method=delete", [], [("DELETE", "/a?b=1&_method=delete")]),
        ("/a?%5Fmeth%6Fd=DELETE", [], [("DELETE", "/a?%5Fmeth%6Fd=DELETE")]),
        ("/a?b;X-HTTP-Method-Override=DELETE", [], [("DELETE", "/a?b;X-HTTP-Method-Override=DELETE")]),
        ("/a", [(b"X-Original-URL", b"/x/../b?c")], [("POST", "/b?c")]),
        ("/a", [(b"X-Rewrite-URL", b"/b"), (b"x-http-method", b"GET")], [("POST", "/b"), ("GET", "/a"), ("GET", "/b")]),
        ("/a", [(b"X-HTTP-Method", b"post"), (b"X-Original-URL", b"/a")], []),
        ("/a?method=DELETE&payment_method=x", [(b"X-Method", b"DELETE")], []),
        ("/a", [(b"Destination", b"/b")], []),
        (
            "/a",
            [(b"X-HTTP-Method", b"MOVE"), (b"Destination", b"https://a.test/x/../b")],
            [("POST", "/b"), ("MOVE", "/a"), ("MOVE", "/b")],
        ),
        ("/a?.method=PUT", [], [("PUT", "/a?.method=PUT")]),
        ("/a?%20_method%00x=PUT", [], [("PUT", "/a?%20_method%00x=PUT")]),
        ("/a;b=c/d;e?f;g", [], [("POST", "/a/d?f;g")]),
        ("/a/;x/%2Fb%3By", [], [("POST", "/a/%2Fb")]),
        ("/;x", [], [("POST", "/")]),
    ],
)
def test_fields_and_parameters_that_replace_method_or_path_are_read(
    path: str, fields: list[tuple[bytes, bytes]], found: list[tuple[str, str]]
) -> None:
    assert sorted(read(path, *fields)) == sorted(found)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/a", (b"X-HTTP-Method", b"")),
        ("/a", (b"X-HTTP-Method", b"GET, DELETE")),
        ("/a?_method=", (b"A", b"b")),
        ("/a", (b"X-Original-URL", b"https://other.test/")),
        ("/a?_method=copy", (b"Destination", b"b")),
        ("/a?" + "&".join(f"_method={letter}" for letter in "ABCDEFGHIJKLMNOPQ"), (b"A", b"b")),
        ("/a", (b"X-Rewrite-URL", b"/%2e%2e%2f..%2fb")),
    ],
)
def test_what_cannot_be_read_is_refused(path: str, field: tuple[bytes, bytes]) -> None:
    with pytest.raises(Refused):
        read(path, field)


def part(name: bytes, value: bytes = b"1") -> bytes:
    return b"--b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (name, value)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (URLENCODED, b"_method=delete"),
        (URLENCODED, b"a=1&_method=delete"),
        (URLENCODED, b"a=1&%5f%6D%65thod=delete"),
        (URLENCODED, b"a=1&++.method=delete"),
        (URLENCODED, b"a=1&_method%00b=delete"),
        (URLENCODED, b"a=1&X-HTTP-Method-Override=DELETE"),
        (MULTIPART, part(b'name="X-HTTP-Method-Override"', b"DELETE")),
        (JSON, b'{"a": 1, "_method": "delete"}'),
        (JSON, b'{"\\u005Fm\\u0065thod"\n:"delete"}'),
        (b"", b"a=1&_method=delete"),
        (MULTIPART, part(b"a=b") + part(b'name="_method"', b"DELETE")),
        (MULTIPART, part(b"name = _method")),
        (MULTIPART, part(b'NAME="_me\\thod"')),
        (MULTIPART, part(b"name*=utf-8''_method")),
    ],
)
def test_a_form_with_a_method_in_it_is_found_in_pieces_of_any_size(kind: bytes, body: bytes) -> None:
    for size in (1, 2, 3, 7, len(body)):
        watch = FormWatch.of([(b"Content-Type", kind)] if kind else [])
        assert watch is not None
        pieces = [body[start : start + size] for start in range(0, len(body), size)]
        with pytest.raises(Refused):
            deque(map(watch.feed, pieces), maxlen=0)


@given(st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=9), st.integers(1, 20))
def test_other_forms_pass(form: dict[str, str], size: int) -> None:
    pairs = {key: value for key, value in form.items() if "method" not in key.lower()} | {"payment_method": "x"}
    body = "&".join(f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in pairs.items()).encode()
    watch = FormWatch.of([(b"Content-Type", URLENCODED)])
    assert watch is not None
    for start in range(0, len(body), size):
        watch.feed(body[start : start + size])
    watch = FormWatch.of([(b"Content-Type", MULTIPART)])
    assert watch is not None
    watch.feed(part(b'name="payment_method"') + part(b'name="file"; filename="a"', os.urandom(1000)))
    watch = FormWatch.of([(b"Content-Type", JSON)])
    assert watch is not None
    text = json.dumps({**form, "method": "_method", "code": '{"_method": "PUT"}', "other_method": '"_method":'})
    for start in range(0, len(text), size):
        watch.feed(text[start : start + size].encode())


def test_what_is_no_form_is_not_looked_at_and_an_encoded_form_is_refused() -> None:
    assert FormWatch.of([(b"Content-Type", b"text/plain")]) is None
    assert FormWatch.of([(b"Content-Type", JSON), (b"Content-Encoding", b"gzip")]) is None
    for fields in ([(b"Content-Encoding", b"gzip")], [(b"Content-Type", URLENCODED), (b"content-type", MULTIPART)]):
        with pytest.raises(Refused):
            FormWatch.of(fields)


RULES = """
egress:
  allow:
    - {{host: a.test, ports: [{port}], methods: [GET, POST], paths: [/open/**]}}
    - {{host: a.test, ports: [{port}], paths: [/any/**]}}
    - {{host: a.test, ports: [{port}], methods: [POST, DELETE], paths: [/asked/**]}}
    - {{cidr: 127.0.0.1/32, ports: [{port}]}}
  deny: [{{host: a.test, ports: [{port}], paths: [/any/secret/**]}}]
approve: [{{host: a.test, ports: [{port}], methods: [DELETE]}}]
"""
CASES = [
    ("/open/a", {}, b"", 200),
    ("/open/a", {"x-http-method-override": "GET"}, b"", 200),
    ("/open/a", {"x-http-method-override": "DELETE"}, b"", 403),
    ("/open/a?_method=PUT", {}, b"", 403),
    ("/open/a", {"x-original-url": "/open/b"}, b"", 200),
    ("/open/a", {"x-rewrite-url": "/secret"}, b"", 403),
    ("/open/a", {"content-type": "application/x-www-form-urlencoded"}, b"a=1&_method=delete", 403),
    ("/open/a", {"content-type": "application/x-www-form-urlencoded"}, b"a=1", 200),
    ("/open/a;v=1", {}, b"", 200),
    ("/any/a;v=1/b", {}, b"", 200),
    ("/any/secret;v=1/a", {}, b"", 403),
    ("/any/secret%3Bv=1/a", {}, b"", 403),
    ("/open/a", {"content-type": "application/json"}, b'{"_method": "delete"}', 403),
    ("/open/a", {"content-type": "application/json"}, b'{"method": "delete"}', 200),
    ("/any/a", {"x-http-method-override": "PUT"}, b"", 200),
    ("/any/a", {"x-http-method-override": "DELETE"}, b"", 403),
    ("/asked/a", {}, b"", 200),
    ("/asked/a", {"x-http-method": "DELETE"}, b"", 403),
]


@asynccontextmanager
async def ruled() -> AsyncGenerator[tuple[Rig, int]]:
    """A gateway with `RULES`, and the port of the server that they are about."""
    world = Rig(Policy({}))
    world.names = {"a.test": ["127.0.0.1"]}
    async with running(world):
        port = await world.server(answer_ok, tls="a.test")
        world.policy = load(RULES.format(port=port)).snapshot  # pyright: ignore[reportAttributeAccessIssue]
        await world.gateway.networks["sb_1"].revise(world.policy)
        world.aim("a.test", port)
        yield world, port


@pytest.mark.parametrize("h2", [False, True])
def test_an_override_goes_through_where_the_rules_allow_what_it_means(*, h2: bool) -> None:
    async def scene() -> None:
        async with ruled() as (world, port):
            statuses: list[int] = []
            for path, fields, body, _ in CASES:
                if h2:
                    more = [(name.encode(), value.encode()) for name, value in fields.items()]
                    peer = await h2_peers.client(world, "a.test")
                    statuses.append(
                        (await peer.ask(h2_peers.request(f"a.test:{port}", path, "POST", *more), body)).status
                    )
                    continue
                lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
                head = f"POST {path} HTTP/1.1\r\nHost: a.test:{port}\r\nConnection: close\r\n{lines}"
                said = await world.ask(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body, tls="a.test")
                statuses.append(int(said.split()[1]))
            assert statuses == [status for *_, status in CASES]
            assert world.approvals.asked == []

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("method", "field", "status"),
    [
        ("delete", "A: b", 403),
        ("Delete", "A: b", 403),
        ("patch", "A: b", 200),
        ("MOVE", "Destination: /any/secret/a", 403),
        ("COPY", "Destination: https://a.test/any/b", 200),
    ],
)
def test_a_method_is_authorized_as_a_server_may_read_it_and_with_its_destination(
    method: str, field: str, status: int
) -> None:
    async def scene() -> None:
        async with ruled() as (world, port):
            head = f"{method} /any/a HTTP/1.1\r\nHost: a.test:{port}\r\n{field}\r\nConnection: close\r\n\r\n"
            assert int((await world.ask(head.encode(), tls="a.test")).split()[1]) == status
            assert world.audit_log.of("request")[0][1].allowed is (status == 200)

    asyncio.run(scene())
