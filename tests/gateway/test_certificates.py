"""A server's certificate holds for a time, and outside it nobody speaks with that server."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, tzinfo

import pytest

from paddock.gateway import authority
from paddock.model.egress import Tier
from tests.gateway.rig import Policy, Rig, answer_ok, get, running


@pytest.mark.parametrize("off", [timedelta(days=-1000), timedelta(days=1000)], ids=["expired", "not yet valid"])
def test_a_server_out_of_its_time_is_not_spoken_to_and_the_reason_is_told(
    off: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Elsewhen(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + off

    async def work() -> None:
        async with running(Rig(Policy({"a.test": Tier.INSPECT}))) as world:
            world.names = {"a.test": ["127.0.0.1"]}
            with monkeypatch.context() as patch:
                patch.setattr(authority, "datetime", Elsewhen)
                port = await world.server(answer_ok, tls="a.test")
            world.aim("a.test", port)
            reply = await world.ask(get(f"a.test:{port}"), tls="a.test")
            assert reply.startswith(b"HTTP/1.1 502")
            assert b"certificate has expired" in reply or b"certificate is not yet valid" in reply

    asyncio.run(work())


def test_what_the_gateway_signs_is_believed_by_a_clock_that_is_days_late() -> None:
    """A sandbox has the host's clock, a machine that was asleep has yesterday's."""
    leaf = authority.x509.load_pem_x509_certificate(authority.Authority.make("sandbox").leaf("a.test"))
    assert datetime.now(leaf.not_valid_before_utc.tzinfo) - leaf.not_valid_before_utc > timedelta(days=6)
