"""A mock answers in the place of its host, of which nobody outside hears; registries without filters are read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from paddock.model.egress import Target
from paddock.policy.network import load
from tests.gateway.rig import Rig, answer_ok, get, running

MOCKED = """
egress:
  mock:
    - host: payments.test
      methods: [GET, POST, HEAD]
      paths: [/charge]
      status: 201
      headers: {Content-Type: application/json, Content-Length: "7", Connection: upgrade}
      body: '{"paid": true}'
    - host: gone.test
      status: 204
      body: never sent
  allow:
    - registry: pypi
    - registry: crates
      cooldown_days: 7
    - cidr: 127.0.0.1
      ports: [1-65535]
"""


def rig() -> Rig:
    return Rig(load(MOCKED).snapshot)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("tls", [True, False])
def test_a_mock_answers_in_the_place_of_its_host(tls: bool) -> None:
    async def work() -> None:
        async with running(rig()) as world:
            world.aim("payments.test", 443 if tls else 80)
            reader, writer = await world.connect("payments.test" if tls else None)
            body = b"x" * 100_000
            for _ in range(2):  # the connection goes on, behind a body that was read to its end
                writer.write(
                    b"POST /charge HTTP/1.1\r\nHost: payments.test\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                )
                head = await reader.readuntil(b"\r\n\r\n")
                assert head == (b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n")
                assert await reader.readexactly(14) == b'{"paid": true}'
            writer.write(b"HEAD /charge HTTP/1.1\r\nHost: payments.test\r\n\r\n" + get("payments.test", "/other"))
            assert b"Content-Length: 14\r\n\r\n" in await reader.readuntil(b"\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 403 ")  # what it does not mock is not the real host's
            writer.close()
            assert world.resolved == []
            verdicts = [verdict for _, verdict in world.audit_log.of("request")]
            assert [verdict.rule for verdict in verdicts][:3] == ["egress.mock[0]"] * 3
            assert not verdicts[-1].allowed

    asyncio.run(work())


def test_an_answer_without_a_body_has_none() -> None:
    async def work() -> None:
        async with running(rig()) as world:
            world.aim("gone.test", 443)
            reply = await world.ask(get("gone.test"), tls="gone.test")
            assert reply == b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"

    asyncio.run(work())


def test_a_registry_without_filters_is_read_and_not_written_to() -> None:
    async def work() -> None:
        async with running(rig()) as world:
            world.names["pypi.org"] = ["127.0.0.1"]
            world.aim("pypi.org", 443)
            written = await world.ask(
                b"PUT /legacy/ HTTP/1.1\r\nHost: pypi.org\r\nConnection: close\r\n\r\n", tls="pypi.org"
            )
            assert written.startswith(b"HTTP/1.1 403 ")
            assert world.resolved == []
            port = await world.server(answer_ok, tls="pypi.org")
            world.gateway.dialer._connect = _to(world.gateway.dialer._connect, port)
            reply = await world.ask(get("pypi.org", "/simple/six/"), tls="pypi.org")
            assert reply.startswith(b"HTTP/1.1 200 "), reply
            assert world.resolved == ["pypi.org"]

    asyncio.run(work())


Connect = Callable[[list[str], Target], Awaitable[Any]]


def _to(connect: Connect, port: int) -> Connect:
    """Nobody but root may listen on 443."""
    return lambda addresses, target: connect(addresses, Target(target.host, port))
