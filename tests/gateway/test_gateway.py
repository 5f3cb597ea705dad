"""What comes through an open network: what is allowed arrives, what is not is told at once."""

from __future__ import annotations

import asyncio
import json
import ssl

import pytest

from paddock.gateway.protocols.tls_hello import ACCESS_DENIED
from paddock.model.egress import Tier
from tests.gateway.hellos import client_hello
from tests.gateway.rig import Policy, Rig, answer_ok, get, running


def run(work: object) -> None:
    asyncio.run(work)  # pyright: ignore[reportArgumentType]


def rig(**hosts: Tier) -> Rig:
    return Rig(Policy({name.replace("_", "."): tier for name, tier in hosts.items()}))


def test_a_request_over_tls_is_inspected_and_arrives() -> None:
    async def work() -> None:
        async with running(rig(a_test=Tier.INSPECT)) as world:
            port = await world.server(answer_ok, tls="a.test")
            world.names["a.test"] = ["127.0.0.1"]
            world.aim("a.test", port)
            reply = await world.ask(get(f"a.test:{port}"), tls="a.test")
            head, _, body = reply.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert body == f"GET /a HTTP/1.1\r\nHost: a.test:{port}\r\n\r\n".encode()
            kinds = [flow.kind for flow, _ in world.audit_log.decisions]
            assert kinds == ["name", "connect", "request", "dial"]
            flow = world.audit_log.of("request")[0][0]
            assert (flow.host, flow.port, flow.method) == ("a.test", port, "GET")
            assert world.audit_log.of("dial")[0][0].address == "127.0.0.1"

    run(work())


def test_requests_on_one_connection_share_an_upstream() -> None:
    accepted = 0

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        await answer_ok(reader, writer)

    async def work() -> None:
        async with running(rig(a_test=Tier.INSPECT)) as world:
            port = await world.server(count, tls="a.test")
            world.names["a.test"] = ["127.0.0.1"]
            world.aim("a.test", port)
            for _ in range(2):
                reader, writer = await world.connect("a.test")
                for number in range(5):
                    writer.write(get(f"a.test:{port}", f"/{number}", close=False))
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
                    assert (await reader.readexactly(length)).startswith(b"GET /%d " % number)
                writer.close()
            assert accepted == 1
            assert world.resolved == ["a.test"]

    run(work())


def test_spliced_bytes_are_the_server_s_own() -> None:
    async def work() -> None:
        async with running(rig(a_test=Tier.SPLICE)) as world:
            port = await world.server(answer_ok, tls="a.test")
            world.names["a.test"] = ["127.0.0.1"]
            world.aim("a.test", port)
            world.inside = world.public  # the client sees the server's own certificate
            reply = await world.ask(get("a.test"), tls="a.test")
            assert reply.startswith(b"HTTP/1.1 200 OK")
            assert world.audit_log.of("request") == []

    run(work())


def test_a_server_that_speaks_first() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        writer.write(b"you said " + await reader.readline())
        writer.close()

    async def work() -> None:
        async with running(rig(mail_test=Tier.SPLICE)) as world:
            port = await world.server(greet)
            world.names["mail.test"] = ["127.0.0.1"]
            world.aim("mail.test", port)
            reader, writer = await world.connect()
            assert await reader.readline() == b"220 hello\r\n"
            writer.write(b"helo\r\n")
            assert await reader.read() == b"you said helo\r\n"
            writer.close()

    run(work())


def test_a_denied_name_is_told_so_by_http() -> None:
    async def work() -> None:
        async with running(rig(a_test=Tier.INSPECT)) as world:
            world.aim("a.test", 80)
            world.policy.hosts = {}
            reply = await world.ask(get("a.test"))
            assert reply.startswith(b"HTTP/1.1 403 Forbidden (paddock: so)\r\n")
            assert b"rule: default" in reply
            asked = b"GET / HTTP/1.1\r\nHost: a.test\r\nAccept: application/json\r\n\r\n"
            body = json.loads((await world.ask(asked)).partition(b"\r\n\r\n")[2])
            assert body["rule"] == "default"
            assert world.audit_log.decisions[int(body["id"])][1].reason == body["reason"]
            assert world.resolved == []

    run(work())


def test_a_denied_name_is_told_so_by_tls() -> None:
    async def work() -> None:
        async with running(rig(a_test=Tier.INSPECT)) as world:
            world.aim("a.test", 443)
            world.policy.hosts = {}
            assert await world.ask(client_hello("a.test")) == ACCESS_DENIED
            with pytest.raises(ssl.SSLError, match="ACCESS_DENIED"):
                await world.connect("a.test")

    run(work())


def test_all_else_that_is_denied_is_reset() -> None:
    async def work() -> None:
        async with running(rig(a_test=Tier.INSPECT)) as world:
            world.aim("a.test", 25)
            world.policy.hosts = {}
            with pytest.raises(ConnectionResetError):
                await world.ask(b"SSH-2.0-client\r\n")
            with pytest.raises(ConnectionResetError):  # who waits for the server to speak does not wait for ever
                await world.ask(b"")

    run(work())


def test_a_denied_request_is_refused_and_the_next_one_passes() -> None:
    async def work() -> None:
        async with running(rig(a_test=Tier.INSPECT)) as world:
            port = await world.server(answer_ok)
            world.names["a.test"] = ["127.0.0.1"]
            world.aim("a.test", port)
            world.policy.deny_paths = {"/secret"}
            reply = await world.ask(get(f"a.test:{port}", "/secret", close=False) + get(f"a.test:{port}", "/%61"))
            assert reply.startswith(b"HTTP/1.1 403 Forbidden")
            assert reply.count(b"HTTP/1.1 200 OK") == 1
            assert b"GET /a HTTP/1.1\r\n" in reply

    run(work())


def test_nothing_passes_that_cannot_be_recorded() -> None:
    async def work() -> None:
        async with running(rig(a_test=Tier.INSPECT)) as world:
            port = await world.server(answer_ok)
            world.names["a.test"] = ["127.0.0.1"]
            world.aim("a.test", port)
            reader, writer = await world.connect()
            writer.write(get(f"a.test:{port}", close=False))
            await reader.readuntil(b"\r\n\r\n")
            world.audit_log.broken = True
            writer.write(get(f"a.test:{port}"))
            assert b"HTTP/1.1 503 Service Unavailable" in await reader.read()
            writer.close()
            with pytest.raises(ConnectionResetError):
                await world.ask(get(f"a.test:{port}"))

    run(work())
