"""A gateway that has a world of its own reaches nothing else: neither by a name, nor by an address, nor by trust."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from paddock.eval._world import World as Played
from paddock.gateway.authority import Authority
from paddock.gateway.evaluation_network import EvaluationNetwork
from paddock.gateway.proxy.upstream import trusting
from paddock.supervisor import layout


def test_without_a_file_of_one_there_is_the_real_world(tmp_path: Path) -> None:
    assert EvaluationNetwork.of(tmp_path) is None


def test_a_world_that_nobody_plays_any_more_reaches_nothing(tmp_path: Path) -> None:
    (tmp_path / layout.WORLD_TRUST).write_bytes(Authority.make("world").certificate)
    world = EvaluationNetwork.of(tmp_path)
    assert world is not None
    with pytest.raises(OSError):
        asyncio.run(world.resolve("localhost"))
    with socket.create_server(("127.0.0.1", 0)) as real, pytest.raises(OSError):
        asyncio.run(world.reach("127.0.0.1", real.getsockname()[1]))
    assert len(trusting(world.authorities).get_ca_certs()) == 1


def test_half_a_world_is_not_the_real_one(tmp_path: Path) -> None:
    (tmp_path / layout.WORLD_SOCKET).touch()
    with pytest.raises(FileNotFoundError):
        EvaluationNetwork.of(tmp_path)


def test_what_is_asked_and_sent_arrives_in_the_world_that_is_played(tmp_path: Path) -> None:
    async def talk(world: EvaluationNetwork) -> bytes:
        (address,) = await world.resolve("a.test")
        assert await world.resolve("a.test") == [address]
        sock = await world.reach(address, 443)
        reader, writer = await asyncio.open_connection(
            sock=sock, ssl=trusting(world.authorities), server_hostname="a.test"
        )
        writer.write(b"POST /x HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\nConnection: close\r\n\r\ndata")
        answer = await reader.read()
        writer.close()
        return answer

    with Played(tmp_path) as played:
        world = EvaluationNetwork.of(tmp_path)
        assert world is not None
        mark = played.mark()
        assert asyncio.run(talk(world)).startswith(b"HTTP/1.1 200 ")
        happened = played.since(mark)
    (arrival,) = happened.arrivals
    assert (arrival.host, arrival.port, arrival.tls) == ("a.test", 443, True)
    assert arrival.data.endswith(b"\r\n\r\ndata")
    assert happened.names == ("a.test", "a.test")
