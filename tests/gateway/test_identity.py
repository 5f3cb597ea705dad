"""One identity: the name that was resolved, CONNECT, the TLS hello's, the request's and the Host field are one name, or
nothing goes anywhere. One address: the one that was checked is the one that is dialled."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from paddock.gateway.protocols.dns import GATEWAY
from paddock.gateway.protocols.tls_hello import ACCESS_DENIED
from paddock.gateway.proxy import network
from paddock.gateway.proxy.connection import PROXY_PORT
from paddock.model.egress import Tier
from tests.gateway.hellos import client_hello, message, records, with_extension
from tests.gateway.rig import Policy, Rig, answer_ok, get, running

ECH = 0xFE0D


def rig(tier: Tier = Tier.INSPECT) -> Rig:
    """Two allowed names, and one that is not, all at one address."""
    world = Rig(Policy({"a.test": tier, "b.test": tier}))
    world.names = {"a.test": ["127.0.0.1"], "b.test": ["127.0.0.1"], "evil.test": ["127.0.0.1"]}
    return world


class Origin:
    """A server that anybody could be behind; counts who comes."""

    def __init__(self) -> None:
        self.connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await answer_ok(reader, writer)


@pytest.mark.parametrize(
    "host", ["b.test", "evil.test", "127.0.0.1", "a.test.evil.test", "a.test@evil.test", "", "a.test:1"]
)
def test_another_host_in_the_request(host: str) -> None:
    async def work() -> None:
        async with running(rig()) as world:
            origin = Origin()
            port = await world.server(origin, tls="a.test")
            world.aim("a.test", port)
            data = get(host if ":" in host else f"{host}:{port}")
            reply = await world.ask(data, tls="a.test")
            assert reply.split(b" ")[1] in (b"421", b"400")
            assert origin.connections == 0
            assert world.resolved == []
            assert not world.audit_log.of("request")[0][1].allowed

    asyncio.run(work())


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("begin", ["\r\n", "\n" * 40, " ", "get", "M-SEARCH", "X"])
def test_no_request_of_http_passes_unread_however_it_begins(begin: str, *, silent: bool) -> None:
    seen = bytearray()

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\n")
        try:
            while not seen.endswith(b"\r\n\r\n") and (data := await reader.read(100)):
                seen.extend(data)
        except ConnectionError:
            pass
        writer.close()

    async def work() -> None:
        async with running(rig(Tier.SPLICE)) as world:
            world.aim("a.test", await world.server(keep))
            reader, writer = await world.connect()
            if silent:
                await reader.readline()
            line = begin + ("GET" if begin.isspace() else "") + " / HTTP/1.1\r\n"
            for letter in line:
                writer.write(letter.encode())
                await asyncio.sleep(0)
            writer.write(b"Host: evil.test\r\n\r\n")
            with pytest.raises(ConnectionError):
                await reader.read()
            writer.close()
            assert b"\r\n" not in seen.lstrip()
            assert "host can't be checked" in str(list(world.audit_log.outcomes.values()))

    asyncio.run(work())


@pytest.mark.parametrize(
    "data", [b"ruok", b"SSH-2.0-x y\r\n" + bytes(100_000), b'{"a": "HTTP/1.1"}\n', b"a b HTTP/1.1 c\n"]
)
def test_what_is_no_http_passes_at_once(data: bytes) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(len(data)))
        writer.close()

    async def work() -> None:
        async with running(rig(Tier.SPLICE)) as world:
            world.aim("a.test", await world.server(echo))
            assert await world.ask(data) == data

    asyncio.run(work())


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET https://a.test:{port}/a HTTP/1.1", b"200"),
        ("GET https://evil.test:{port}/a HTTP/1.1", b"421"),
        ("GET http://a.test:{port}/a HTTP/1.1", b"400"),
        ("GET https://u@a.test:{port}/a HTTP/1.1", b"400"),
        ("GET https://evil.test\\@a.test:{port}/a HTTP/1.1", b"400"),
        ("GET https:a.test HTTP/1.1", b"400"),
        ("GET a.test HTTP/1.1", b"400"),
        ("CONNECT evil.test:443 HTTP/1.1", b"400"),
        ("GET /..%2f..%5cx HTTP/1.1", b"400"),
    ],
)
def test_targets_of_other_forms(line: str, status: bytes) -> None:
    async def work() -> None:
        async with running(rig()) as world:
            origin = Origin()
            port = await world.server(origin, tls="a.test")
            world.aim("a.test", port)
            data = f"{line.format(port=port)}\r\nHost: a.test:{port}\r\nConnection: close\r\n\r\n"
            reply = await world.ask(data.encode(), tls="a.test")
            assert reply.split(b" ")[1] == status
            assert origin.connections == (status == b"200")

    asyncio.run(work())


@pytest.mark.parametrize("tier", [Tier.INSPECT, Tier.SPLICE])
@pytest.mark.parametrize(
    "hello",
    [
        client_hello("b.test"),
        client_hello("evil.test"),
        client_hello(None),
        client_hello("a.test")[:-1],  # and then nothing
        records(message(client_hello("evil.test")), 3),
        with_extension(client_hello("evil.test"), 0x1234, bytes(2000)),
        with_extension(client_hello(None), 0, b"\0\x0c\0\0\x09127.1.1.1"),
    ],
)
def test_another_name_in_the_hello(hello: bytes, tier: Tier) -> None:
    async def work() -> None:
        async with running(rig(tier)) as world:
            origin = Origin()
            port = await world.server(origin)
            world.aim("a.test", port)
            reader, writer = await world.connect()
            writer.write(hello)
            writer.write_eof()
            try:
                assert await reader.read() in (ACCESS_DENIED, b"")
            except ConnectionResetError:
                pass
            writer.close()
            assert origin.connections == 0
            assert world.resolved == []
            assert not world.audit_log.of("connect")[-1][1].allowed

    asyncio.run(work())


def test_a_hello_that_hides_a_name() -> None:
    hello = with_extension(client_hello("a.test"), ECH, bytes(40))

    async def work() -> None:
        async with running(rig(Tier.SPLICE)) as world:
            origin = Origin()
            port = await world.server(origin)
            world.aim("a.test", port)
            assert await world.ask(hello) == ACCESS_DENIED
            assert origin.connections == 0
        async with running(rig(Tier.INSPECT)) as world:
            # Here it ends in the gateway, which is a.test and nobody else: browsers send it to everybody.
            world.aim("a.test", 443)
            reader, writer = await world.connect()
            writer.write(hello)
            assert (await reader.readexactly(1)) == b"\x16"
            writer.close()

    asyncio.run(work())


def test_a_large_hello_in_pieces_passes() -> None:
    async def work() -> None:
        async with running(rig(Tier.SPLICE)) as world:
            seen = asyncio.get_running_loop().create_future()
            hello = with_extension(client_hello("a.test"), 0x1234, bytes(9000))

            async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                seen.set_result(await reader.readexactly(len(hello)))
                writer.close()

            world.aim("a.test", await world.server(take))
            _, writer = await world.connect()
            for at in range(0, len(hello), 700):
                writer.write(hello[at : at + 700])
                await writer.drain()
                await asyncio.sleep(0)
            assert await asyncio.wait_for(seen, 30) == hello
            writer.close()

    asyncio.run(work())


def test_connect_and_hello_agree() -> None:
    async def work() -> None:
        async with running(rig()) as world:
            origin = Origin()
            port = await world.server(origin, tls="a.test")
            world.origin = (GATEWAY, PROXY_PORT)
            for name, refused in (("a.test", False), ("b.test", True)):
                reader, writer = await world.connect()
                writer.write(f"CONNECT a.test:{port} HTTP/1.1\r\nHost: a.test:{port}\r\n\r\n".encode())
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
                if refused:
                    writer.write(client_hello(name))
                    assert await reader.read() == ACCESS_DENIED
                else:
                    await writer.start_tls(world.client_context(), server_hostname=name)
                    writer.write(get(f"a.test:{port}"))
                    assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
                writer.close()
            reply = await world.ask(
                b"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\nConnection: close\r\n\r\n"
            )
            assert reply.startswith(b"HTTP/1.1 403")
            reply = await world.ask(b"CONNECT a.test:443 HTTP/1.1\r\nHost: evil.test:443\r\nConnection: close\r\n\r\n")
            assert reply.startswith(b"HTTP/1.1 421")
            assert origin.connections == 1
            assert world.resolved == ["a.test"]

    asyncio.run(work())


def test_an_explicit_proxy_takes_absolute_urls() -> None:
    async def work() -> None:
        async with running(rig()) as world:
            port = await world.server(answer_ok)
            world.origin = (GATEWAY, PROXY_PORT)
            url = f"http://a.test:{port}/x"
            two = f"GET {url} HTTP/1.1\r\nHost: a.test:{port}\r\n\r\nGET {url.replace('a.', 'b.')} HTTP/1.1\r\n"
            reply = await world.ask(f"{two}Host: b.test:{port}\r\nConnection: close\r\n\r\n".encode())
            assert reply.count(b"HTTP/1.1 200 OK") == 2
            assert b"GET /x HTTP/1.1\r\nHost: a.test" in reply
            for bad, status in (
                (f"GET {url} HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n", b"421"),
                (f"GET /x HTTP/1.1\r\nHost: a.test:{port}\r\nConnection: close\r\n\r\n", b"400"),
                ("GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n", b"403"),
                ("GET http://2130706433/ HTTP/1.1\r\nHost: 2130706433\r\nConnection: close\r\n\r\n", b"400"),
            ):
                assert (await world.ask(bad.encode())).split(b" ")[1] == status

    asyncio.run(work())


def test_a_literal_address_is_nobody_else() -> None:
    async def work() -> None:
        world = Rig(Policy({"127.0.0.1": Tier.INSPECT, "a.test": Tier.INSPECT}))
        async with running(world):
            port = await world.server(answer_ok, tls="a.test")
            world.origin = ("127.0.0.1", port)
            assert (await world.ask(get(f"a.test:{port}"), tls="a.test")).startswith(b"HTTP/1.1 200 OK")
            assert await world.ask(client_hello("evil.test")) == ACCESS_DENIED
            plain = await world.server(answer_ok)
            world.origin = ("127.0.0.1", plain)
            assert (await world.ask(get(f"127.0.0.1:{plain}"))).startswith(b"HTTP/1.1 200 OK")
            assert (await world.ask(get(f"a.test:{plain}"))).startswith(b"HTTP/1.1 421")
            assert world.resolved == []

    asyncio.run(work())


def test_a_server_with_another_certificate_is_not_spoken_to() -> None:
    async def work() -> None:
        async with running(rig()) as world:
            port = await world.server(answer_ok, tls="evil.test")
            world.aim("a.test", port)
            reply = await world.ask(get(f"a.test:{port}"), tls="a.test")
            assert reply.startswith(b"HTTP/1.1 502")
            assert b"certificate" in reply
            world.public = world.inside  # nor one that only the sandbox trusts
            reply = await world.ask(get(f"a.test:{port}"), tls="a.test")
            assert reply.startswith(b"HTTP/1.1 502")

    asyncio.run(work())


@pytest.mark.parametrize("address", ["169.254.169.254", "127.0.0.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "10.0.0.1"])
def test_an_address_that_is_refused_is_not_dialled(address: str) -> None:
    async def work() -> None:
        async with running(rig()) as world:
            origin = Origin()
            port = await world.server(origin)
            world.names["a.test"] = [address]
            world.policy.addresses = {"93.184.216.34"}
            world.aim("a.test", port)
            reply = await world.ask(get(f"a.test:{port}"))
            assert reply.startswith(b"HTTP/1.1 403")
            assert b"no address of a.test may be connected to: so" in reply
            assert origin.connections == 0
            flow, verdict = world.audit_log.of("dial")[0]
            assert (flow.address, verdict.allowed) == (address, False)

    asyncio.run(work())


def test_whether_an_address_is_the_hosts_own_is_asked_of_the_one_behind_a_translator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(network, "is_own", asked.append)

    async def work() -> None:
        async with running(rig()) as world:
            world.names["a.test"] = ["64:ff9b::cb00:7207"]
            world.policy.addresses = {"93.184.216.34"}
            world.aim("a.test", 80)
            assert (await world.ask(get("a.test:80"))).startswith(b"HTTP/1.1 403")

    asyncio.run(work())
    assert asked == ["203.0.114.7"]


def test_a_name_is_resolved_once_for_each_connection_and_what_was_checked_is_dialled() -> None:
    async def work() -> None:
        async with running(rig()) as world:
            origin = Origin()
            port = await world.server(origin)
            answers = iter([["10.0.0.1", "127.0.0.1"], ["10.0.0.1"]])

            async def rebind(name: str) -> list[str]:
                world.resolved.append(name)
                return next(answers)

            world.resolve = rebind
            world.aim("a.test", port)
            assert (await world.ask(get(f"a.test:{port}"))).startswith(b"HTTP/1.1 200 OK")
            assert world.resolved == ["a.test"]
            checked = [(flow.address, verdict.allowed) for flow, verdict in world.audit_log.of("dial")]
            assert checked == [("10.0.0.1", False), ("127.0.0.1", True)]
            world.gateway.networks["sb_1"].pool.sweep(everything=True)
            assert (await world.ask(get(f"a.test:{port}"))).startswith(b"HTTP/1.1 403")
            assert origin.connections == 1

    asyncio.run(work())


def test_a_redirect_is_the_client_s_to_follow_and_is_judged_again() -> None:
    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def work() -> None:
        async with running(rig()) as world:
            port = await world.server(redirect)
            world.aim("a.test", port)
            assert b"Location: http://169.254.169.254/latest" in await world.ask(get(f"a.test:{port}"))
            world.origin = ("169.254.169.254", 80)
            assert (await world.ask(get("169.254.169.254", "/latest"))).startswith(b"HTTP/1.1 403")
            assert all(flow.address == "127.0.0.1" for flow, _ in world.audit_log.of("dial"))

    asyncio.run(work())


def test_nobody_outside_is_trusted_by_a_certificate_of_the_sandbox() -> None:
    async def work() -> None:
        async with running(rig()) as world:
            world.aim("a.test", 443)
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.open_connection(
                    "127.0.0.1", world.port, ssl=ssl.create_default_context(), server_hostname="a.test"
                )

    asyncio.run(work())
