"""What inspected requests are answered becomes a cassette that answers the same."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from paddock.gateway.mocks.recorder import MOST_BODY_BYTES
from paddock.gateway.rules.secrets import BoundSecret, SecretBook
from paddock.model import Binding, Recording, SecretValue
from paddock.policy.network import load, write_cassette
from tests.gateway.rig import Rig, running

PLACEHOLDER, VALUE = "pdk_" + "a" * 40, "the-real-value-0123"
POLICY = """
egress:
  allow:
    - {host: api.test, paths: ["/**"], secret: KEY}
    - {cidr: 127.0.0.1, ports: [1-65535]}
secrets:
  KEY: {from: env, bind: {host: api.test, header: x-key}}
"""


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Echoes the key, in chunks; a picture; something large; or half of an answer."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            path = head.split(b" ")[1]
            length = next(
                (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
            )
            body = await reader.readexactly(length)
            key = next(
                (line[6:].strip() for line in head.split(b"\r\n") if line.lower().startswith(b"x-key:")), b"none"
            )
            if path == b"/picture":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 3\r\n\r\n\x89\xff\x00")
            elif path == b"/large":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (MOST_BODY_BYTES + 1))
                writer.write(b"x" * (MOST_BODY_BYTES + 1))
            elif path == b"/half":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
                break
            else:
                said = b"you said " + body + b" with " + key
                writer.write(
                    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
                )
                writer.write(b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(said), said))
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def rig() -> Rig:
    made = Rig(load(POLICY).snapshot)  # pyright: ignore[reportArgumentType]
    bind = Binding(host="api.test", port=0, header="x-key")
    bound = BoundSecret(name="KEY", placeholder=PLACEHOLDER, bindings=(bind,), value=SecretValue(VALUE.encode()))
    made.secrets = SecretBook([bound])
    made.names = {"api.test": ["127.0.0.1"]}
    return made


def run(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scene, 100))


async def ask(world: Rig, port: int, path: str, body: bytes = b"", *fields: str) -> bytes:
    world.aim("api.test", port)
    more = "".join(f"{field}\r\n" for field in fields)
    head = f"POST {path} HTTP/1.1\r\nHost: api.test:{port}\r\nConnection: close\r\n{more}"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    try:
        return await world.ask(head.encode() + body, tls="api.test")
    except ConnectionError:
        return b""


@pytest.mark.parametrize("ending", [".yaml", ".json"])
def test_what_was_recorded_answers_in_the_place_of_the_host(tmp_path: Path, ending: str) -> None:
    recorded: list[Recording | None] = []
    answers: list[bytes] = []
    bodies = [("/say", b"one"), ("/say", b"two"), ("/picture", b""), ("/say?k=1", b"")]

    async def record() -> None:
        async with running(rig()) as world:
            port = await world.server(serve, tls="api.test")
            allow = {"host": "api.test", "ports": [port], "paths": ["/**"]}
            world.policy = load({"egress": {"allow": [allow, {"cidr": "127.0.0.1", "ports": ["1-65535"]}]}}).snapshot  # type: ignore
            await world.gateway.networks["sb_1"].revise(world.policy)
            assert world.gateway.networks["sb_1"].record(on=True) is None
            for path, body in bodies:
                answers.append(await ask(world, port, path, body))
            for path in ("/large", "/half"):
                await ask(world, port, path)
            recorded.append(world.gateway.networks["sb_1"].record(on=False))
            recorded.append(world.gateway.networks["sb_1"].record(on=False))

    async def replay(port: str) -> None:
        file = tmp_path / f"api{ending}"
        taken = recorded[0]
        assert taken is not None
        file.write_text(write_cassette(taken.exchanges, as_json=ending == ".json"))
        made = rig()
        mock = {"host": "api.test", "ports": [int(port)], "with": str(file)}
        made.policy = load({"egress": {"mock": [mock]}}).snapshot  # type: ignore
        async with running(made) as world:
            again = [await ask(world, int(port), path, body) for path, body in bodies]
            assert [answer.partition(b"\r\n\r\n")[2] for answer in again] == [
                b"you said one with none",
                b"you said two with none",
                b"\x89\xff\x00",
                b"you said  with none",
            ]
            assert all(b"set-cookie: a=1\r\nset-cookie: b=2\r\n" in answer for answer in (again[0], again[3]))
            assert (await ask(world, int(port), "/say", b"one")).startswith(b"HTTP/1.1 403 ")
            assert world.resolved == []

    run(record())
    taken, nothing = recorded
    assert nothing is None
    assert taken is not None
    assert [one.status for one in taken.exchanges] == [201, 201, 200, 201]
    large, half = taken.omitted
    assert "/large: a body of more than 1 MiB" in large
    assert "/half: the answer was cut off" in half
    port = taken.exchanges[0].url.split(":")[2].partition("/")[0]
    run(replay(port))


def test_neither_a_value_nor_a_placeholder_is_in_it() -> None:
    async def scene() -> None:
        world = rig()
        async with running(world):
            port = await world.server(serve, tls="api.test")
            document = load(
                POLICY.replace("host: api.test", f"host: api.test, ports: [{port}]", 1).replace(
                    "{host: api.test, header", f"{{host: api.test, port: {port}, header"
                )
            ).snapshot
            bound = BoundSecret(
                name="KEY",
                placeholder=PLACEHOLDER,
                bindings=(Binding(host="api.test", port=port, header="x-key"),),
                value=SecretValue(VALUE.encode()),
            )
            world.secrets.put(bound)
            world.policy = document  # type: ignore
            await world.gateway.networks["sb_1"].revise(document)
            world.gateway.networks["sb_1"].record(on=True)
            answer = await ask(world, port, f"/say?of={PLACEHOLDER[:9]}", b"", f"x-key: {PLACEHOLDER}")
            assert b"you said  with pdk_" in answer
            taken = world.gateway.networks["sb_1"].record(on=False)
            assert taken is not None
            (one,) = taken.exchanges
            assert one.body.startswith("you said  with ")
            text = write_cassette(taken.exchanges, as_json=True)
            assert VALUE not in text
            assert PLACEHOLDER not in text

    run(scene())
