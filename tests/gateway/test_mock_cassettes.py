"""A cassette answers what it has recorded, in its order, and nothing else."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine
from typing import Any

from paddock.gateway.rules.secrets import BoundSecret, SecretBook
from paddock.model import Binding, SecretValue
from paddock.policy.network import load
from tests.gateway.rig import Rig, running

BODY = b'{"token": "paddock-secret-KEY"}'
CASSETTE = [
    {"url": "https://api.test/a?page=1", "headers": {"Set-Cookie": ["x=1", "y=2"]}, "body": "first"},
    {"url": "https://api.test/a?page=1", "status": 500, "body": "second"},
    {"url": "https://api.test/b", "body_base64": "AAE=", "repeat": True},
    {"method": "POST", "url": "https://api.test/a", "body_sha256": hashlib.sha256(BODY).hexdigest(), "status": 201},
    {"url": "https://api.test/k?key=paddock-secret-KEY", "body": "keyed"},
]


def rig() -> Rig:
    made = Rig(load({"egress": {"mock": [{"host": "api.test", "with": {"cassette": CASSETTE}}]}}).snapshot)  # pyright: ignore[reportArgumentType]
    bind = Binding(host="api.test", header="authorization")
    made.secrets = SecretBook(
        [
            BoundSecret(
                name="KEY", placeholder="pdk_" + "a" * 40, bindings=(bind,), value=SecretValue(b"the value of the key")
            )
        ]
    )
    return made


def run(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scene, 100))


async def ask(world: Rig, path: str, method: str = "GET", body: bytes = b"") -> bytes:
    world.aim("api.test", 443)
    head = f"{method} {path} HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    return await world.ask(head.encode() + body, tls="api.test")


def test_what_matches_is_given_out_in_its_order_and_once() -> None:
    async def scene() -> None:
        async with running(rig()) as world:
            first, second, third = [await ask(world, "/a?page=1") for _ in range(3)]
            assert first.startswith(b"HTTP/1.1 200 OK\r\nSet-Cookie: x=1\r\nSet-Cookie: y=2\r\n")
            assert first.endswith(b"first")
            assert second.startswith(b"HTTP/1.1 500 ")
            assert third.startswith(b"HTTP/1.1 403 ")
            assert b"the cassette has no answer (left) to GET https://api.test/a?page=1" in third
            for _ in range(3):
                assert (await ask(world, "/b")).endswith(b"\r\n\r\n\x00\x01")
            assert world.resolved == []

    run(scene())


def test_another_method_query_or_body_is_a_miss_that_says_what_there_is() -> None:
    async def scene() -> None:
        async with running(rig()) as world:
            for path, method, near in (
                ("/a", "GET", b"it has GET https://api.test/a?page=1"),
                ("/a?page=2", "GET", b"it has GET https://api.test/a?page=1"),
                ("/b", "HEAD", None),
                ("/a", "POST", b"it has 1 for a request with another body"),
            ):
                missed = await ask(world, path, method)
                assert missed.startswith(b"HTTP/1.1 403 "), path
                assert near is None or near in missed
            outcomes = [error for _, _, error in world.audit_log.outcomes.values() if error]
            assert len([error for error in outcomes if "the cassette has no answer" in error]) == 4

    run(scene())


def test_a_placeholder_counts_as_the_name_of_its_secret() -> None:
    async def scene() -> None:
        async with running(rig()) as world:
            body = BODY.replace(b"paddock-secret-KEY", b"pdk_" + b"a" * 40)
            assert (await ask(world, "/a", "POST", body)).startswith(b"HTTP/1.1 201 ")
            assert (await ask(world, f"/k?key=pdk_{'a' * 40}")).endswith(b"keyed")

    run(scene())


def test_a_revision_begins_it_anew() -> None:
    async def scene() -> None:
        async with running(rig()) as world:
            assert (await ask(world, "/a?page=1")).endswith(b"first")
            policy = {"egress": {"mock": [{"host": "api.test", "with": {"cassette": CASSETTE[:1]}}]}}
            await world.gateway.networks["sb_1"].revise(load(policy).snapshot)
            assert (await ask(world, "/a?page=1")).endswith(b"first")

    run(scene())
