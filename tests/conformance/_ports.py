"""Connections to ports inside."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from paddock.errors import FileError, InvalidArgumentError
from paddock.model import ByteStream, ConnectPort

from ._box import Box, drain, read_until
from ._lab import Bench, Lab, guarantee

MIB = 1 << 20

# Binds port 0, prints what it got, answers one connection after the other.
_SERVER = """
import socket, sys
server = socket.create_server(('127.0.0.1', 0))
print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    exec(sys.argv[1])
    connection.close()
"""
_ECHO = "while data := connection.recv(65536): connection.sendall(data)"
_SUM = "total = 0\nwhile data := connection.recv(65536): total += len(data)\nconnection.sendall(b'%d' % total)"
_GREET = "connection.sendall(b'hello'); connection.shutdown(socket.SHUT_WR)\nassert connection.recv(1) == b'!'"
_RESET = "import struct; connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))"


class PortConformance(Bench):
    """port.connect."""

    @guarantee()
    async def test_bytes_flow_both_ways(self, lab: Lab) -> None:
        box = await lab.box()
        stream = await _connect(box, await _serve(box, _ECHO))
        for word in (b"one", b"\0\xff\xfe", b"x" * 10_000):
            await stream.write(word)
            assert await _exactly(stream, len(word)) == word
        await stream.aclose()

    @guarantee()
    async def test_half_a_connection_can_be_closed_from_here(self, lab: Lab) -> None:
        box = await lab.box()
        stream = await _connect(box, await _serve(box, _SUM))
        await stream.write(bytes(3 * MIB))
        await stream.write_eof()
        assert await drain(stream) == b"%d" % (3 * MIB)

    @guarantee()
    async def test_half_a_connection_can_be_closed_from_inside(self, lab: Lab) -> None:
        box = await lab.box()
        port = await _serve(box, _GREET)
        for _ in range(2):
            stream = await _connect(box, port)
            assert await read_until(stream, b"hello") == b"hello"
            assert await stream.read() == b""
            await stream.write(b"!")
            await stream.aclose()

    @guarantee()
    async def test_a_large_exchange_in_both_directions_at_once_does_not_deadlock(self, lab: Lab) -> None:
        box = await lab.box()
        stream = await _connect(box, await _serve(box, _ECHO))

        async def send() -> None:
            for _ in range(64):
                await stream.write(bytes(131072))
            await stream.write_eof()

        sending = asyncio.ensure_future(send())
        total = 0
        while part := await stream.read():
            total += len(part)
        await sending
        assert total == 8 * MIB
        await stream.aclose()

    @guarantee()
    async def test_the_server_is_held_back_while_nobody_reads(self, lab: Lab) -> None:
        box = await lab.box()
        stream = await _connect(box, await _serve(box, "for _ in range(1024): connection.sendall(bytes(65536))"))
        await stream.read(1)
        finished = await box.run("true")  # the door answers while the connection stands full
        assert finished.status.code == 0
        total = 1
        while part := await stream.read():
            total += len(part)
        assert total == 64 * MIB
        await stream.aclose()

    @guarantee()
    async def test_many_connections_at_once_do_not_mix(self, lab: Lab) -> None:
        box = await lab.box()
        ports = [await _serve(box, _ECHO) for _ in range(8)]

        async def talk(port: int) -> bytes:
            stream = await _connect(box, port)
            await stream.write(b"%d" % port)
            await stream.write_eof()
            return await drain(stream)

        assert await asyncio.gather(*map(talk, ports)) == [b"%d" % port for port in ports]

    @guarantee()
    async def test_a_port_without_a_server_is_refused(self, lab: Lab) -> None:
        box = await lab.box()
        with socket.socket() as held, pytest.raises(FileError) as caught:
            held.bind(("127.0.0.1", 0))  # and does not listen: nobody else on this machine begins to
            await _connect(box, held.getsockname()[1])
        assert caught.value.details["errno"] == "ECONNREFUSED"

    @guarantee("isolation")
    async def test_a_port_of_the_host_is_not_reached(self, lab: Lab) -> None:
        box = await lab.box()
        with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(FileError):
            await _connect(box, server.getsockname()[1])

    @guarantee()
    async def test_numbers_that_are_no_ports_are_refused(self, lab: Lab) -> None:
        box = await lab.box()
        for port in (0, -1, 65536):
            with pytest.raises(InvalidArgumentError):
                await _connect(box, port)

    @guarantee()
    async def test_a_reset_from_inside_ends_the_stream(self, lab: Lab) -> None:
        box = await lab.box()
        stream = await _connect(box, await _serve(box, _RESET))
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):  # saying that it was reset is as good
                assert await stream.read() == b""
        await stream.aclose()

    @guarantee()
    async def test_writing_to_a_closed_connection_is_a_broken_pipe(self, lab: Lab) -> None:
        box = await lab.box()
        stream = await _connect(box, await _serve(box, _RESET))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(2000):
                await stream.write(bytes(65536))
        await stream.aclose()


async def _serve(box: Box, behaviour: str) -> int:
    handle = await box.start_python(_SERVER, behaviour)
    assert handle.stdout is not None
    return int(await read_until(handle.stdout, b"\n"))


async def _connect(box: Box, port: int) -> ByteStream:
    return await box.file(ConnectPort, port=port)


async def _exactly(stream: ByteStream, size: int) -> bytes:
    seen = b""
    while len(seen) < size:
        part = await stream.read(size - len(seen))
        assert part, "the stream ended early"
        seen += part
    return seen
