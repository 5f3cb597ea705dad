"""Pages are read in processes that have nothing, beside the gateway: what makes one slow or breaks it is nobody else's
business."""

from __future__ import annotations

import asyncio
import gzip
import os
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from paddock.gateway.protocols.refusal import Refused
from paddock.gateway.registries.page import Page
from paddock.gateway.registries.protocols import Job
from paddock.gateway.registries.reader import MOST_AT_ONCE, Reader
from paddock.gateway.rules.redaction import ResponseRedaction
from paddock.gateway.rules.secrets import BoundSecret
from paddock.linux import seccomp
from paddock.linux.seccomp_profile import build_only, names
from paddock.model import Allow, SecretValue
from tests.gateway.registry_clients import JSON, fetch, through
from tests.gateway.registry_files import Outside
from tests.gateway.rig import Rig, eventually
from tests.linux import bpf

PAGE = "/simple/demo/"


def job(body: bytes, *, coded: bool = False) -> Job:
    rule = Allow(registry="pypi", hosts=("index.test",), cooldown_days=7)
    page = Page(
        scheme="https",
        host="index.test",
        port=443,
        path=PAGE,
        package="demo",
        rule=rule,
        now=time.time(),
        accept="json",
    )
    return Job(page=page, kind=JSON, gzip=coded, body=body)


def _start(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work)


def reader_of(world: Rig) -> Reader:
    found = world.gateway.networks["sb_1"].gateway.reader
    assert found is not None
    return found


def test_while_one_page_is_read_all_else_goes_on() -> None:
    """The one who reads is stopped; a page waits, and everything else is answered."""

    async def work(world: Rig, outside: Outside) -> None:
        reader = reader_of(world)
        os.kill(reader.pid, signal.SIGSTOP)
        try:
            page = _start(fetch(world, "index.test", PAGE))
            await eventually(lambda: reader._turns._value < MOST_AT_ONCE)
            other = _start(fetch(world, "evil.test", "/"))
            assert (await other)[0] == 404
            assert not page.done()
        finally:
            os.kill(reader.pid, signal.SIGCONT)
        assert (await page)[0] == 200

    through(work)


def test_a_huge_hostile_page_costs_who_asks_for_it_and_nobody_else() -> None:
    async def work(world: Rig, outside: Outside) -> None:
        body = b'{"name":"demo","files":[' + b",".join([b"[]"] * (12 << 20)) + b"]}"
        outside.answers["index.test" + PAGE] = (JSON, body)
        reader = reader_of(world)
        os.kill(reader.pid, signal.SIGSTOP)  # it is not read before that was seen
        page = _start(fetch(world, "index.test", PAGE))
        await eventually(lambda: reader._turns._value < MOST_AT_ONCE)
        os.kill(reader.pid, signal.SIGCONT)
        answered = 0
        while not page.done():
            assert (await fetch(world, "evil.test", "/"))[0] == 404
            answered += 1
        assert answered > 0
        status, _, said = await page
        assert status == 502, said

    through(work)


def test_who_goes_away_leaves_no_process_that_reads_his_page() -> None:
    async def work() -> None:
        reader = Reader()
        turn = asyncio.Semaphore(1)
        os.kill(reader.pid, signal.SIGSTOP)
        first = _start(reader.read(job(b"{}"), turn))
        await eventually(turn.locked)
        first.cancel()
        await asyncio.wait([first])
        os.kill(reader.pid, signal.SIGCONT)
        await eventually(lambda: not reading(reader))
        answer = await reader.read(job(b"{}"), turn)
        assert answer.malformed == "it is not about demo"
        reader.close()

    asyncio.run(work())


def test_without_a_reader_pages_are_refused() -> None:
    async def work(world: Rig, outside: Outside) -> None:
        reader = reader_of(world)
        os.kill(reader.pid, signal.SIGKILL)
        await asyncio.to_thread(os.waitid, os.P_PID, reader.pid, os.WEXITED | os.WNOWAIT)
        status, _, body = await fetch(world, "index.test", PAGE)
        assert status == 503
        assert b"their reader is gone" in body

    through(work)


def reading(reader: Reader) -> list[str]:
    """The processes that read pages."""
    return Path(f"/proc/{reader.pid}/task/{reader.pid}/children").read_text().split()


def test_it_has_no_file_no_socket_and_no_program() -> None:
    reader = Reader()

    def status() -> dict[str, str]:
        lines = Path(f"/proc/{reading(reader)[0]}/status").read_text().splitlines()
        return dict(line.split(":\t") for line in lines if ":\t" in line)

    async def work() -> None:
        with reader.start():
            await eventually(lambda: reading(reader))
            await eventually(lambda: status()["Seccomp"] == "2")  # the last that it gives up
            assert status()["NoNewPrivs"] == "1"
            assert {status()[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
        await eventually(lambda: not reading(reader))  # it ends with its socket

    try:
        asyncio.run(work())
    finally:
        reader.close()
    from paddock.gateway.registries.reader import _CALLS

    machine = os.uname().machine
    program, known = build_only(machine, _CALLS.split()), names.numbers(machine)
    for name in ("openat", "socket", "connect", "execve", "ptrace", "kill", "unlinkat", "socketpair"):
        assert bpf.run(program, seccomp.AUDIT_ARCH[machine], known[name]) == seccomp.fail_with(1), name


def test_a_page_that_becomes_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paddock.gateway.registries.protocols.MOST_PAGE_BYTES", 1 << 20)

    async def work() -> None:
        reader = Reader()  # with what holds now
        for body, why in ((b"0" * (80 << 20), "200 bytes of each"), (os.urandom(2 << 20), "more than 1 MiB")):
            packed = gzip.compress(body, 1)
            answer = await reader.read(job(packed, coded=True), asyncio.Semaphore(1))
            assert why in (answer.malformed or "")
        reader.close()

    asyncio.run(work())


def test_a_page_that_wants_all_memory_ends_its_own_process_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paddock.gateway.registries.reader._MOST_MEMORY_BYTES", 256 << 20)

    async def work() -> None:
        reader = Reader()  # with what holds now
        turn = asyncio.Semaphore(1)
        with pytest.raises(Refused, match="can't be read within"):
            await reader.read(job(b"[" + b"[]," * (4 << 20) + b"[]]"), turn)
        answer = await reader.read(job(b"{}"), turn)
        assert answer.malformed is not None
        reader.close()

    asyncio.run(work())


def test_a_large_page_is_looked_through_for_secrets_while_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret, turns = b"correct-horse-battery-staple", 0
    pieces: list[tuple[int, int]] = []
    feed = ResponseRedaction.feed

    def counted(redaction: ResponseRedaction, data: bytes) -> bytes:
        pieces.append((len(data), turns))
        return feed(redaction, data)

    async def work(world: Rig, outside: Outside) -> None:
        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        world.secrets.put(BoundSecret(name="S", placeholder="PLACEHOLDER", bindings=(), value=SecretValue(secret)))
        outside.packument["readme"] = (os.urandom((1 << 19) - 5).hex() + secret.decode()) * 8
        monkeypatch.setattr(ResponseRedaction, "feed", counted)
        beside = _start(others())
        status, head, body = await fetch(world, "npm.test", "/demo")
        beside.cancel()
        assert status == 200
        assert secret not in body
        assert body.count(b"PLACEHOLDER") == 8
        assert b"content-length: %d" % len(body) in head.lower()

    through(work, ", unknown_age: allow")
    assert len(pieces) > 100
    assert max(size for size, _ in pieces) <= 64 << 10
    assert len({turn for _, turn in pieces}) == len(pieces)
