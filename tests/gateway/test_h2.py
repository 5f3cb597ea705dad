"""HTTP/2 through the gateway: authorized, swapped, refused and recorded as HTTP/1.1 is, to servers of both kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from paddock.gateway.proxy.network import Limits
from paddock.gateway.rules.secrets import BoundSecret
from paddock.model import Binding, SecretValue
from paddock.model.egress import Tier
from tests.gateway.h2_peers import Answer, Message, Peer, client, echo, origin, request
from tests.gateway.rig import Policy, Rig, answer_ok, eventually, running

PLACEHOLDER, VALUE = "pdk_0123456789abcdef", b"sk-the-real-value-0123"
Work = Callable[[Rig, Peer, str], Awaitable[None]]


def through(
    work: Work,
    *,
    serve: Answer | None = echo,
    http1: object = answer_ok,
    secrets: bool = False,
    limits: Limits | None = None,
) -> Rig:
    """`work` gets a client that speaks to `a.test`, and the name and port of that; the server speaks HTTP/2 if
    `serve` is given."""

    async def scene() -> Rig:
        world = Rig(Policy({"a.test": Tier.INSPECT, "b.test": Tier.INSPECT}, deny_paths=["/no"]), limits)
        world.names = {"a.test": ["127.0.0.1"]}
        async with running(world):
            world.owners = []  # pyright: ignore[reportAttributeAccessIssue]
            if serve is None:
                port = await world.server(http1, tls="a.test")  # pyright: ignore[reportArgumentType]
            else:
                port = await origin(world, "a.test", serve, world.owners)  # pyright: ignore[reportAttributeAccessIssue]
            if secrets:
                world.policy.secrets = ("KEY",)
                places = ({"header": "authorization"}, {"body": True})
                bound = BoundSecret(
                    name="KEY",
                    placeholder=PLACEHOLDER,
                    bindings=tuple(Binding(host="a.test", port=port, **where) for where in places),
                    value=SecretValue(VALUE),
                )
                world.secrets.put(bound)
            world.aim("a.test", port)
            peer = await client(world, "a.test")
            await work(world, peer, f"a.test:{port}")
            peer.writer.close()
            await peer.closed.wait()
        return world

    return asyncio.run(scene())


def test_streams_share_one_connection_to_a_server_of_http2() -> None:
    async def work(world: Rig, peer: Peer, host: str) -> None:
        answers = await asyncio.gather(*[peer.ask(request(host, f"/{n}")) for n in range(50)])
        assert [(one.status, one.get(b"x-served")) for one in answers] == [(200, b"h2")] * 50
        assert [b":path=/%d\n" % n in one.body for n, one in enumerate(answers)] == [True] * 50
        assert len(world.audit_log.of("dial")) == 1
        assert len(world.audit_log.of("request")) == 50
        assert {flow.flow for flow, _ in world.audit_log.of("request")} == {1}
        assert len(world.audit_log.outcomes) >= 50

    through(work)


def test_a_server_of_http1_is_spoken_to_in_its_own_way() -> None:
    async def work(world: Rig, peer: Peer, host: str) -> None:
        message = await peer.ask([*request(host, "/x", "POST"), (b"cookie", b"a=1"), (b"cookie", b"b=2")], b"")
        assert message.body.startswith(b"POST /x HTTP/1.1\r\nHost: " + host.encode())
        assert b"cookie: a=1; b=2\r\n" in message.body
        assert message.get(b"content-length") == b"%d" % len(message.body)

    through(work, serve=None)


def test_bodies_and_trailers_both_ways() -> None:
    async def serve(peer: Peer, number: int, message: Message) -> None:
        await message.ended.wait()
        peer.engine.send_headers(number, [(b":status", b"103"), (b"link", b"</a>")])
        peer.engine.send_headers(number, [(b":status", b"200")])
        await peer.send(number, message.body)
        peer.engine.send_headers(number, [(b"x-sum", b"1"), *message.trailers], end_stream=True)
        peer.flush()

    async def work(world: Rig, peer: Peer, host: str) -> None:
        number, message = peer.begin(request(host, "/up", "POST", (b"te", b"trailers")), end=False)
        await peer.send(number, bytes(300_000))
        peer.engine.send_headers(number, [(b"x-mine", b"2")], end_stream=True)
        peer.flush()
        await message.ended.wait()
        assert (message.status, message.body) == (200, bytes(300_000))
        assert message.trailers == [(b"x-sum", b"1"), (b"x-mine", b"2")]
        assert message.interim == [[(b":status", b"103"), (b"link", b"</a>")]]

    through(work, serve=serve)


def test_refused_in_words_and_the_connection_goes_on() -> None:
    async def work(world: Rig, peer: Peer, host: str) -> None:
        refused = await peer.ask(request(host, "/no", "POST"), bytes(1000))
        assert (refused.status, refused.reset) == (403, None)
        assert b"rule: default" in refused.body
        assert f"id: {refused.get(b'paddock-refusal').decode()}".encode() in refused.body  # pyright: ignore
        flow, verdict = world.audit_log.decisions[int(refused.get(b"paddock-refusal") or b"0")]
        assert (flow.kind, flow.method, verdict.allowed) == ("request", "POST", False)
        other = await peer.ask(request("b.test"))
        assert (other.status, b"the connection is to a.test" in other.body) == (421, True)
        assert (await peer.ask(request(host))).status == 200

    through(work)


def test_an_early_refusal_does_not_wait_for_the_body() -> None:
    async def work(world: Rig, peer: Peer, host: str) -> None:
        _, refused = peer.begin(request(host, "/no", "POST"), end=False)
        await refused.ended.wait()
        assert (refused.status, b"rule: default" in refused.body) == (403, True)

    through(work)


def test_a_body_on_its_way_when_it_is_refused_is_taken_to_its_end() -> None:
    """A client that is cut off in the middle of its request may not look at the answer."""

    async def work(world: Rig, peer: Peer, host: str) -> None:
        number, refused = peer.begin(request(host, "/no", "POST"), end=False)
        await refused.ended.wait()
        assert (await peer.ask(request(host))).status == 200  # whatever was to follow the refusal has come
        assert (refused.status, refused.reset) == (403, None)
        peer.engine.send_data(number, bytes(1000), end_stream=True)
        peer.flush()
        assert (await peer.ask(request(host))).status == 200
        assert refused.reset is None
        number, refused = peer.begin(request(host, "/no", "POST", (b"content-length", b"5")), end=False)
        await refused.ended.wait()
        peer.engine.send_data(
            number, b"", end_stream=True
        )  # as curl does, seeing the answer: less than it had promised
        peer.flush()
        assert (await peer.ask(request(host))).status == 200
        assert peer.gone is None

    through(work)


def test_grpc_is_refused_in_its_own_words() -> None:
    async def work(world: Rig, peer: Peer, host: str) -> None:
        grpc = ((b"content-type", b"application/grpc"), (b"te", b"trailers"))
        refused = await peer.ask(request(host, "/no", "POST", *grpc), b"\0\0\0\0\0")
        assert (refused.get(b":status"), refused.get(b"grpc-status"), refused.body) == (b"200", b"7", b"")
        assert b"rule: default" in (refused.get(b"grpc-message") or b"")

    through(work)


def test_grpc_is_not_sent_to_who_cannot_speak_it() -> None:
    async def work(world: Rig, peer: Peer, host: str) -> None:
        assert (await peer.ask(request(host))).status == 200  # its connection is kept
        refused = await peer.ask(request(host, "/a", "POST", (b"content-type", b"application/grpc")), b"\0\0\0\0\0")
        assert refused.get(b"grpc-status") == b"14"
        assert b"does not speak HTTP/2" in (refused.get(b"grpc-message") or b"")

    through(work, serve=None)


def test_secrets_go_in_and_do_not_come_back() -> None:
    async def work(world: Rig, peer: Peer, host: str) -> None:
        auth = (b"authorization", b"Bearer " + PLACEHOLDER.encode())
        seen: list[Message] = []
        body = b'{"key": "%b"}' % PLACEHOLDER.encode()
        answer = await peer.ask(request(host, "/a", "POST", auth, (b"content-type", b"application/json")), body)
        seen += world.owners[0].streams.values()  # pyright: ignore[reportAttributeAccessIssue]
        assert seen[0].get(b"authorization") == b"Bearer " + VALUE
        assert seen[0].body == b'{"key": "%b"}' % VALUE
        assert answer.status == 200
        assert VALUE not in answer.body
        assert answer.body.count(PLACEHOLDER.encode()) == 2
        misdirected = await peer.ask(request(host, "/a", "GET", (b"x-other", PLACEHOLDER.encode())))
        assert (misdirected.status, b"placeholder of secret KEY" in misdirected.body) == (403, True)

    through(work, secrets=True)


@pytest.mark.parametrize("what", ["reader", "writer"])
def test_who_does_not_go_on_holds_only_its_own_stream(what: str) -> None:
    size = 3 << 20

    async def serve(peer: Peer, number: int, message: Message) -> None:
        if message.get(b":path") != b"/big":
            return await echo(peer, number, message)
        peer.engine.send_headers(number, [(b":status", b"200")])
        await peer.send(number, bytes(size), end=True)

    async def work(world: Rig, peer: Peer, host: str) -> None:
        if what == "reader":
            peer.take = False
            _, slow = peer.begin(request(host, "/big"))
            await slow.more.wait()
            held = world.gateway.networks["sb_1"]
            await eventually(lambda: len(slow.body) >= 65_535)
            peer.take = True
            assert held.streams == 1
        else:
            peer.begin(request(host, "/up", "POST"), end=False)
        peer.engine.increment_flow_control_window(1 << 20)
        peer.flush()
        answers = await asyncio.gather(*[peer.ask(request(host, f"/{n}")) for n in range(5)])
        assert [one.status for one in answers] == [200] * 5

    through(work, serve=serve)


async def turns(peer: Peer, host: str) -> None:
    """Time enough for all that would go on."""
    for _ in range(40):
        assert (await peer.ask(request(host))).status == 200


def test_what_the_client_does_not_take_the_server_is_not_asked_for() -> None:
    size = 8 << 20

    async def serve(peer: Peer, number: int, message: Message) -> None:
        if message.get(b":path") != b"/big":
            return await echo(peer, number, message)
        peer.engine.send_headers(number, [(b":status", b"200")])
        await peer.send(number, bytes(size), end=True)

    async def work(world: Rig, peer: Peer, host: str) -> None:
        peer.take = False
        peer.engine.increment_flow_control_window(1 << 20)
        number, message = peer.begin(request(host, "/big"))
        await eventually(lambda: len(message.body) == 65_535)
        await turns(peer, host)
        [server] = world.owners  # pyright: ignore[reportAttributeAccessIssue]
        assert server.sent < 2 << 20
        peer.take = True
        peer.engine.increment_flow_control_window(1 << 30)
        peer.engine.increment_flow_control_window(1 << 30, number)
        peer.flush()
        await message.ended.wait()
        assert len(message.body) == size

    through(work, serve=serve)


async def deaf(peer: Peer, number: int, message: Message) -> None:
    """Takes nothing of what is sent to /up."""
    peer.take = False
    if message.get(b":path") != b"/up":
        await echo(peer, number, message)


def test_what_the_server_does_not_take_the_client_may_not_send() -> None:
    async def work(world: Rig, peer: Peer, host: str) -> None:
        number, _ = peer.begin(request(host, "/up", "POST"), end=False)
        sending = asyncio.ensure_future(peer.send(number, bytes(8 << 20)))
        await eventually(lambda: peer.sent > 65_535)
        await turns(peer, host)
        assert peer.sent < 2 << 20
        sending.cancel()

    through(work, serve=deaf)


def test_a_stream_that_ends_gives_back_what_it_held() -> None:
    async def work(world: Rig, peer: Peer, host: str) -> None:
        await peer.ask(request(host))
        for _ in range(30):  # together they would hold more than the window of the connection
            number, _ = peer.begin(request(host, "/up", "POST"), end=False)
            sending = asyncio.ensure_future(peer.send(number, bytes(1 << 20)))
            await eventually(lambda n=number: peer.engine.local_flow_control_window(n) <= 0)
            assert (await peer.ask(request(host))).status == 200
            sending.cancel()
            await asyncio.wait([sending])
            peer.engine.reset_stream(number)
            peer.flush()
        assert (await peer.ask(request(host))).status == 200
        assert peer.engine.outbound_flow_control_window > 1 << 19

    async def rude(peer: Peer, number: int, message: Message) -> None:
        peer.engine.update_settings({4: 0})  # nothing of a body any more: it stays in the gateway
        peer.engine.increment_flow_control_window(1 << 20)
        await deaf(peer, number, message)

    async def scene(peer: Peer, number: int, message: Message) -> None:
        await (rude if message.get(b":path") == b"/up" else echo)(peer, number, message)

    through(work, serve=scene)


def test_more_streams_than_a_door_has() -> None:
    async def work(world: Rig, peer: Peer, host: str) -> None:
        kept = [peer.begin(request(host, "/up", "POST"), end=False)[0] for _ in range(3)]
        _, refused = peer.begin(request(host))
        await refused.ended.wait()
        assert refused.reset == 7  # REFUSED_STREAM: nothing was done
        for number in kept:
            peer.engine.end_stream(number)
        peer.flush()
        await asyncio.gather(*[peer.streams[number].ended.wait() for number in kept])
        await eventually(lambda: not world.gateway.networks["sb_1"].streams)
        assert (await peer.ask(request(host))).status == 200

    through(work, limits=Limits(streams=3))


def test_a_stream_that_the_server_did_not_begin_is_sent_again_if_all_of_it_is_there() -> None:
    begun: list[Message] = []

    async def refuse_once(peer: Peer, number: int, message: Message) -> None:
        begun.append(message)
        await message.ended.wait()
        if len(begun) % 3 != 2:
            return await echo(peer, number, message)
        peer.engine.reset_stream(number, 7)
        peer.flush()

    async def work(world: Rig, peer: Peer, host: str) -> None:
        assert (await peer.ask(request(host))).status == 200
        assert (await peer.ask(request(host, "/whole", "POST"), b"x" * 100)).status == 200
        assert len(begun) == 3
        assert (await peer.ask(request(host))).status == 200
        number, message = peer.begin(request(host, "/late", "POST"), end=False)
        peer.engine.send_data(number, b"x" * 100)
        peer.flush()
        await eventually(lambda: len(begun) == 5 and begun[4].body)
        await peer.send(number, b"y", end=True)
        await asyncio.wait_for(message.ended.wait(), 60)
        assert message.status == 502

    through(work, serve=refuse_once)


def test_a_new_revision_resets_what_it_refuses_and_nothing_else() -> None:
    async def serve(peer: Peer, number: int, message: Message) -> None:
        peer.engine.send_headers(number, [(b":status", b"200")])
        peer.engine.send_data(number, b"begun")
        peer.flush()

    async def work(world: Rig, peer: Peer, host: str) -> None:
        _, goes_on = peer.begin(request(host, "/kept"))
        _, cut = peer.begin(request(host, "/taken-back"))
        await goes_on.more.wait()
        await cut.more.wait()
        await world.gateway.networks["sb_1"].revise(
            Policy({"a.test": Tier.INSPECT}, deny_paths=["/taken-back"], revision="r2")
        )
        await cut.ended.wait()
        assert cut.reset is not None
        assert not goes_on.ended.is_set()
        await world.gateway.networks["sb_1"].revise(Policy({}, revision="r3"))
        await peer.closed.wait()
        assert goes_on.reset is not None
        assert peer.gone is not None
        await eventually(lambda: not world.gateway.networks["sb_1"].pool._links)

    through(work, serve=serve)


def test_an_answer_that_is_cut_off_is_seen_to_be() -> None:
    async def serve(peer: Peer, number: int, message: Message) -> None:
        peer.engine.send_headers(number, [(b":status", b"200")])
        peer.engine.send_data(number, b"half")
        peer.flush()
        await half.wait()
        peer.engine.reset_stream(number, 2)
        peer.flush()

    half = asyncio.Event()

    async def work(world: Rig, peer: Peer, host: str) -> None:
        _, message = peer.begin(request(host))
        await message.more.wait()
        half.set()
        await message.ended.wait()
        assert (message.body, message.reset) == (b"half", 2)

    through(work, serve=serve)


def test_a_server_that_goes_away_is_asked_anew_where_it_had_not_begun() -> None:
    served: list[int] = []

    async def serve(peer: Peer, number: int, message: Message) -> None:
        served.append(number)
        if message.get(b":path") == b"/first":
            return await echo(peer, number, message)
        if number > 1:  # the second on a connection: it had left before that came
            from hyperframe.frame import GoAwayFrame

            peer.writer.write(GoAwayFrame(0, last_stream_id=1).serialize())
            return
        await echo(peer, number, message)

    async def work(world: Rig, peer: Peer, host: str) -> None:
        assert (await peer.ask(request(host, "/first"))).status == 200
        assert (await peer.ask(request(host, "/again", "POST"), b"once")).status == 200
        assert len(world.audit_log.of("dial")) == 2
        assert served == [1, 3, 1]

    through(work, serve=serve)
