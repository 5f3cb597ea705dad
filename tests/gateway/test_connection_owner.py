"""The gateway records who made a connection, or why that can't be told. No connection waits long."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any

from paddock.gateway.processes import connection_owner
from paddock.gateway.processes.connection_owner import MOST_WAITING, ConnectionOwners
from paddock.gateway.proxy import network
from paddock.linux import sock_diag
from paddock.model.egress import Tier
from tests.gateway.rig import Policy, Rig, eventually, get

Scene = Callable[["Table"], Coroutine[Any, Any, None]]


class Table:
    """A connection on the loopback, and the process resolver's end of the gateway's questions."""

    def __init__(self) -> None:
        ours, self.witness = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.witness.setblocking(False)
        self.server = socket.create_server(("127.0.0.1", 0))
        self.client = socket.create_connection(self.server.getsockname())
        self.accepted, _ = self.server.accept()
        self.ends = self.accepted, self.server.getsockname()
        self.diag = sock_diag.open_here()
        self.owners = ConnectionOwners(ours, lambda what, sandbox, detail: None)
        self.told: list[dict[str, Any]] = []
        self.heard = asyncio.Event()

    async def ask(self, sandbox: str = "sb_a") -> None:
        """Return when it is in line, or answered."""
        asking = asyncio.ensure_future(self.owners.owner_of(self.diag, *self.ends, sandbox, (3, 4)))
        asking.add_done_callback(self._hear)
        await asyncio.sleep(0)

    def _hear(self, asking: asyncio.Future[dict[str, Any]]) -> None:
        if not asking.cancelled():
            self.told.append(asking.result())
            self.heard.set()

    async def hear(self, count: int) -> None:
        while len(self.told) < count:
            self.heard.clear()
            await self.heard.wait()

    async def question(self) -> dict[str, Any]:
        return json.loads(await asyncio.get_running_loop().sock_recv(self.witness, 4096))

    def answer(self, question: dict[str, Any], **origin: object) -> None:
        self.witness.send(json.dumps({"n": question["n"], "answer": origin}).encode())

    def close(self) -> None:
        self.owners.close()
        for one in (self.witness, self.server, self.client, self.accepted, self.diag):
            one.close()


def play(scene: Scene) -> None:
    async def act() -> None:
        async with asyncio.timeout(60):
            with closing(Table()) as table:
                await scene(table)

    asyncio.run(act())


def test_one_question_of_a_sandbox_is_under_way_at_a_time_and_others_do_not_wait_for_it() -> None:
    async def scene(table: Table) -> None:
        await table.ask()
        await table.ask()
        await table.ask("sb_b")
        first, other = await table.question(), await table.question()
        assert (first["sandbox"], first["first"], other["sandbox"]) == ("sb_a", [3, 4], "sb_b")
        table.answer(first, pid=1)
        assert (await table.question())["sandbox"] == "sb_a"
        await table.hear(1)
        assert table.told == [{"pid": 1}]

    play(scene)


def test_a_flood_is_told_that_it_is_one_and_costs_the_witness_nothing() -> None:
    async def scene(table: Table) -> None:
        for _ in range(MOST_WAITING + 5):
            await table.ask()
        await table.hear(5)
        assert table.told == [{"origin": "unknown", "why": "too many connections at once"}] * 5

    play(scene)


def test_a_connection_that_is_closed_already_is_told_so() -> None:
    async def scene(table: Table) -> None:
        table.client.close()
        await table.ask()
        await table.hear(1)
        assert table.told == [{"origin": "unknown", "why": "it was closed as soon as it was made"}]

    play(scene)


def test_when_the_witness_dies_all_that_wait_are_told_and_so_are_later_ones() -> None:
    async def scene(table: Table) -> None:
        await table.ask()
        await table.ask()
        table.witness.close()
        await table.hear(2)
        await table.ask("sb_b")
        await table.hear(3)
        assert {one["why"] for one in table.told} == {"the process resolver has died"}

    play(scene)


def test_an_answer_to_nothing_is_nobodys() -> None:
    async def scene(table: Table) -> None:
        await table.ask()
        question = await table.question()
        table.answer({"n": question["n"] + 7}, pid=7)
        table.answer(question, pid=1)
        await table.hear(1)
        assert table.told == [{"pid": 1}]

    play(scene)


def test_a_witness_that_does_not_answer_is_not_waited_for_without_end(monkeypatch: Any) -> None:
    monkeypatch.setattr(connection_owner, "ANSWER_SECONDS", 0)

    async def scene(table: Table) -> None:
        await table.ask()
        await table.hear(1)
        assert table.told == [{"origin": "unknown", "why": "the process resolver did not answer in time"}]

    play(scene)


def test_a_gateway_without_a_witness_serves_and_says_that_there_is_none() -> None:
    async def scene(table: Table) -> None:
        nobody = table.owners
        nobody.close()
        told = await nobody.owner_of(table.diag, *table.ends, "sb_a", (1, 1))
        assert told == {"origin": "unknown", "why": "there is no process resolver"}
        gateway = Rig(Policy({})).make_gateway(owners=nobody)
        await gateway.close_all()

    play(scene)


def test_a_connection_goes_on_without_the_witness_whose_late_answer_is_recorded(monkeypatch: Any) -> None:
    monkeypatch.setattr(network, "PATIENCE_SECONDS", 0)

    async def scene(table: Table) -> None:
        rig = Rig(Policy({"a.test": Tier.INSPECT}))
        rig.gateway = rig.make_gateway(owners=table.owners)
        network = rig.network()
        network.diag.close()
        network.diag = table.diag
        await rig.gateway.open(network)
        rig.origin = network.tcp[0].getsockname()
        assert b"403" in await rig.ask(get("b.test"))
        assert rig.audit_log.decisions
        assert rig.audit_log.owners == []
        table.answer(await table.question(), pid=7)
        await eventually(lambda: rig.audit_log.owners)
        assert rig.audit_log.owners == [(1, 0, {"pid": 7})]
        await rig.gateway.close_all()

    play(scene)
