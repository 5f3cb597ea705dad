"""A handler of a mock answers as its author wrote, has no power, and ends when it has to."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from paddock.gateway.mocks.handler import HandlerHost, start_host
from paddock.gateway.proxy.network import Limits
from paddock.gateway.rules.secrets import BoundSecret, SecretBook
from paddock.model import Binding, SecretValue
from paddock.policy.network import Snapshot, load
from tests.gateway.rig import Rig, running

HANDLER = """
from __future__ import annotations
import dataclasses, datetime, json, os, socket, subprocess, threading
from paddock.gateway.mocking import Request, Response

@dataclasses.dataclass
class State:
    asked: int = 0

state = State()

def tried(action):
    try:
        return str(action())
    except BaseException as error:
        return f"{type(error).__name__} {getattr(error, 'errno', '')}"

def powers(secret_file, gateway):
    return {
        "socket": tried(lambda: socket.socket()),
        "file": tried(lambda: open(secret_file).read()),
        "passwd": tried(lambda: open("/etc/passwd").read()),
        "list": tried(lambda: os.listdir("/")),
        "write": tried(lambda: open("/tmp/written", "w")),
        "program": tried(lambda: os.execv("/bin/true", ["true"])),
        "fork": tried(os.fork),
        "thread": tried(lambda: threading.Thread(target=print).start()),
        "kill": tried(lambda: os.kill(gateway, 0)),
        "memory": tried(lambda: len(bytearray(1 << 30))),
        "descriptors": [fd for fd in range(3, 64) if not tried(lambda fd=fd: os.fstat(fd)).startswith("OSError")],
        "environment": len(os.environ),
    }

def handle(request: Request) -> Response | dict | str:
    state.asked += 1
    match request.path:
        case "/charge":
            paid = request.json()["amount"]
            return Response(201, {"X-Day": str(datetime.date(2026, 1, 2)), "Content-Length": "1"}, json.dumps([paid]))
        case "/count":
            return {"asked": state.asked, "query": request.query, "agent": request.headers.get("x-agent")}
        case "/powers":
            return powers(*request.json())
        case "/pair":
            return 418, "short and stout"
        case "/none":
            return None
        case "/forever":
            while True:
                pass
        case "/split":
            return Response(200, {"X-A": "b\\r\\nX-B: c"})
        case "/number":
            return 7
        case "/exit":
            os._exit(3)
    raise KeyError("no such path: " + request.path)
"""


def policy(python: str = HANDLER) -> Snapshot:
    return load({"egress": {"mock": [{"host": "pay.test", "with": {"python": python}}]}}).snapshot


@pytest.fixture
def host() -> Iterator[HandlerHost]:
    made = start_host()
    assert made is not None
    yield made
    made.close()


def rig(host: HandlerHost | None, limits: Limits | None = None, python: str = HANDLER) -> Rig:
    made = Rig(policy(python), limits)  # pyright: ignore[reportArgumentType]
    made.handlers = host
    return made


def run(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scene, 100))


async def ask(world: Rig, path: str, body: bytes = b"", method: str = "POST") -> tuple[bytes, bytes]:
    """Head and body of the answer."""
    world.aim("pay.test", 443)
    head = f"{method} {path} HTTP/1.1\r\nHost: pay.test\r\nX-Agent: a\r\nConnection: close\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    reply = await world.ask(head.encode() + body, tls="pay.test")
    answered, _, content = reply.partition(b"\r\n\r\n")
    return answered, content


def test_it_answers_in_the_place_of_its_host(host: HandlerHost) -> None:
    async def scene() -> None:
        async with running(rig(host)) as world:
            head, body = await ask(world, "/charge", b'{"amount": 12}')
            assert head.startswith(b"HTTP/1.1 201 Created\r\n")
            assert b"X-Day: 2026-01-02" in head
            assert b"Content-Length: 4" in head
            assert body == b"[12]"
            head, body = await ask(world, "/count?a=1&b=", method="GET")
            assert json.loads(body) == {"asked": 2, "query": {"a": "1", "b": ""}, "agent": "a"}
            assert b"Content-Type: application/json" in head
            head, body = await ask(world, "/pair")
            assert (head[:13], body) == (b"HTTP/1.1 418 ", b"short and stout")
            head, body = await ask(world, "/none")
            assert (head[:13], body) == (b"HTTP/1.1 204 ", b"")
            assert world.resolved == []
            assert {verdict.rule for _, verdict in world.audit_log.of("request")} == {"egress.mock[0]"}

    run(scene())


BINDINGS = [{"host": "pay.test", "header": "authorization"}, {"host": "pay.test", "body": True}]
ECHO = """
def handle(request):
    return {"key": request.headers.get("authorization"), "text": request.text, "path": request.path}
"""


def test_it_is_shown_the_name_of_a_bound_secret_where_the_real_host_would_get_its_value(host: HandlerHost) -> None:
    placeholder, value = "pdk_" + "a" * 40, "sk-the-real-value-0123"
    document = {
        "egress": {"mock": [{"host": "pay.test", "with": {"python": ECHO}, "secret": "KEY"}]},
        "secrets": {"KEY": {"from": "stored", "bind": BINDINGS}},
    }

    async def scene() -> None:
        made = Rig(load(document).snapshot)  # pyright: ignore[reportArgumentType]
        made.handlers = host
        bindings = tuple(Binding(**where) for where in BINDINGS)  # pyright: ignore[reportArgumentType]
        bound = BoundSecret(name="KEY", placeholder=placeholder, bindings=bindings, value=SecretValue(value.encode()))
        made.secrets = SecretBook([bound])
        async with running(made) as world:

            async def asked(line: str, field: str, body: str) -> str:
                world.aim("pay.test", 443)
                head = f"{line} HTTP/1.1\r\nHost: pay.test\r\nConnection: close\r\n{field}\r\n"
                head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                return (await world.ask((head + body).encode(), tls="pay.test")).decode()

            reply = await asked("POST /pay", f"Authorization: Bearer {placeholder}", f'{{"key": "{placeholder}"}}')
            assert json.loads(reply.partition("\r\n\r\n")[2]) == {
                "key": "Bearer paddock-secret-KEY",
                "text": '{"key": "paddock-secret-KEY"}',
                "path": "/pay",
            }
            assert value not in reply
            for line, field in (("POST /pay", f"X-Key: {placeholder}"), (f"POST /{placeholder}", "X-Key: none")):
                reply = await asked(line, field, "")
                assert reply.startswith("HTTP/1.1 403 ")
                assert "the placeholder of secret KEY in" in reply
            assert len(world.audit_log.of("secret")) == 2
            assert world.resolved == []

    run(scene())


@pytest.mark.both
def test_it_has_no_power(host: HandlerHost, tmp_path: Path) -> None:
    async def scene() -> None:
        secret = tmp_path / "secret"
        secret.write_text("s3cret")
        async with running(rig(host)) as world:
            _, body = await ask(world, "/powers", json.dumps([str(secret), os.getpid()]).encode())
            powers = json.loads(body)
            assert len(powers.pop("descriptors")) == 1, "it has its own socket"
            assert powers.pop("environment") == 0
            assert powers.pop("thread").startswith("RuntimeError")
            assert powers.pop("memory").startswith("MemoryError")
            assert all(word.startswith("PermissionError") for word in powers.values()), powers

    run(scene())


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/other", b"KeyError: 'no such path: /other', line "),
        ("/number", b"TypeError: handle returned int"),
        ("/split", b"'X-A' is not a valid header"),
        ("/exit", b"the mock's handler died"),
    ],
)
def test_what_it_does_wrong_is_a_502_that_says_so_and_the_next_request_is_answered(
    host: HandlerHost, path: str, why: bytes
) -> None:
    async def scene() -> None:
        async with running(rig(host)) as world:
            head, body = await ask(world, path)
            assert head.startswith(b"HTTP/1.1 502 ")
            assert why in body
            assert b"rule: egress.mock[0]" in body
            outcome = next(iter(world.audit_log.outcomes.values()))
            assert outcome[2] is not None
            assert why in outcome[2].encode()
            assert (await ask(world, "/count"))[0].startswith(b"HTTP/1.1 200 ")

    run(scene())


@pytest.mark.both
def test_one_that_does_not_come_to_an_end_is_killed(host: HandlerHost) -> None:
    async def scene() -> None:
        async with running(rig(host)) as world:
            assert json.loads((await ask(world, "/count"))[1])["asked"] == 1
            world.gateway.networks["sb_1"].limits = Limits(handler=0.5)
            head, body = await ask(world, "/forever")
            assert head.startswith(b"HTTP/1.1 504 ")
            assert b"took longer than 0.5 s" in body
            world.gateway.networks["sb_1"].limits = Limits()
            assert json.loads((await ask(world, "/count"))[1])["asked"] == 1, "that is another one"
            assert world.gateway.handlers.living == 1

    run(scene())


def test_a_revision_begins_it_anew_and_the_end_of_the_door_ends_it(host: HandlerHost) -> None:
    async def scene() -> None:
        async with running(rig(host)) as world:
            for asked in (1, 2):
                assert json.loads((await ask(world, "/count"))[1])["asked"] == asked
            await world.gateway.networks["sb_1"].revise(policy())
            assert json.loads((await ask(world, "/count"))[1])["asked"] == 3, "the same revision goes on"
            await world.gateway.networks["sb_1"].revise(policy(HANDLER + "\n"))
            assert world.gateway.handlers.living == 0
            assert json.loads((await ask(world, "/count"))[1])["asked"] == 1
            await world.gateway.close("sb_1")
            assert world.gateway.handlers.living == 0

    run(scene())


def test_what_is_not_python_is_told_to_whoever_asks(host: HandlerHost) -> None:
    async def scene() -> None:
        async with running(rig(host, python="def handle(request:")) as world:
            head, body = await ask(world, "/")
            assert head.startswith(b"HTTP/1.1 502 ")
            assert b"SyntaxError" in body

    run(scene())


@pytest.mark.both
def test_where_it_cannot_be_confined_it_is_not_run() -> None:
    async def scene() -> None:
        async with running(rig(None)) as world:
            head, body = await ask(world, "/count")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"Landlock" in body

    run(scene())
