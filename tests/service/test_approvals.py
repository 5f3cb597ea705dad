"""A person's yes: to exactly what was asked, once, from outside."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http.server
import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from service_world import ME, Rig, until

from paddock.daemon.access.approvals import MOST_PENDING, WAIT_SECONDS
from paddock.daemon.clock import Clock
from paddock.daemon.main.service import Service
from paddock.errors import ApprovalNeededError, InvalidStateError, NotFoundError, PolicyDeniedError
from paddock.gateway.protocols.http1 import Request as HttpRequest
from paddock.gateway.rules.authorization import AuthorizedRequest, of_request
from paddock.model import (
    APPROVAL_MOVES,
    Approval,
    ApprovalRequest,
    ApprovalState,
    DenyApproval,
    GrantApproval,
    ListApprovals,
    ListSandboxes,
    Principal,
    Target,
    nested_principal,
    replace,
)
from paddock.model.config import Config
from paddock.model.egress import RequestVerdict
from paddock.policy import Policy

REQUEST = ApprovalRequest(
    kind="host", sandbox="sb_1", instance_id=2, revision="r1", digest="d" * 64, summary="POST https://api.test:443/pay"
)
EVERYBODY = Policy({"everybody": lambda _, __: (True, "a test")})
CHANGES: list[dict[str, Any]] = [
    {"kind": "publish"},
    {"sandbox": "sb_2"},
    {"instance_id": 3},
    {"revision": "r2"},
    {"digest": "e" * 64},
]


def claim(service: Service, request: ApprovalRequest = REQUEST, owner: str = ME.id) -> Any:
    return service.approvals.consume(owner, request)


async def pending(service: Service) -> tuple[Approval, ...]:
    return await service.perform(ListApprovals(), ME)


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def clock(self) -> Clock:
        return Clock(wall=lambda: self.now, boottime=lambda: self.now)


async def test_a_caller_waits_for_the_answer_and_no_longer_than_it_says(rig: Rig) -> None:
    async with rig.service(policy=EVERYBODY) as service:
        asked = claim(service)
        (unanswered,) = await service.perform(ListApprovals(approval=asked.id, wait_seconds=0.01), ME)
        assert unanswered.state is ApprovalState.PENDING
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(service.perform(ListApprovals(approval=asked.id, wait_seconds=600), ME))
            await until(lambda: len(service.approvals._answered._waiters) == 1)  # pyright: ignore
            await service.perform(DenyApproval(approval=asked.id, reason="no"), ME)
        (answered,) = waiting.result()
        assert (answered.state, answered.reason) == (ApprovalState.DENIED, "no")
        (again,) = await service.perform(ListApprovals(approval=asked.id, wait_seconds=600), ME)
        assert again == answered


async def test_acceptance_11_approvals_exactly_that_action_once(rig: Rig) -> None:
    async with rig.service() as service:
        first = claim(service)
        assert (first.granted, first.state) == (False, ApprovalState.PENDING)
        assert claim(service).id == first.id  # who asks again and again has one question, not many
        (shown,) = await pending(service)
        assert (shown.id, shown.summary, shown.kind) == (first.id, REQUEST.summary, "host")
        assert (await service.perform(GrantApproval(approval=first.id), ME)).state is ApprovalState.GRANTED
        for change in CHANGES:
            altered = claim(service, replace(REQUEST, **change))
            assert not altered.granted, change
        assert claim(service, owner="local:99999").granted is False
        assert claim(service).granted
        again = claim(service)  # a replay, or the same after an answer that was lost
        assert not again.granted
        assert again.id != first.id
        used = (await service.perform(ListApprovals(approval=first.id), ME))[0]
        assert (used.state, used.decided_by) == (ApprovalState.USED, ME.id)


async def test_of_two_who_answer_the_second_is_told_what_the_first_has_said(rig: Rig) -> None:
    async with rig.service() as service:
        id = claim(service).id
        await service.perform(GrantApproval(approval=id), ME)
        with pytest.raises(InvalidStateError, match=f"is granted by {ME.name}"):
            await service.perform(GrantApproval(approval=id), ME)
        await service.perform(DenyApproval(approval=id, reason="no\x1b[31m after all"), ME)  # not used yet
        denied = claim(service)
        assert (denied.granted, denied.state) == (False, ApprovalState.DENIED)
        assert "\x1b" not in denied.reason
        with pytest.raises(InvalidStateError, match="is denied"):
            await service.perform(GrantApproval(approval=id), ME)


async def test_what_is_not_answered_or_used_in_time_is_a_no(rig: Rig) -> None:
    time = Time()
    async with rig.service(clock=time.clock()) as service:
        late = claim(service).id
        time.now += WAIT_SECONDS
        with pytest.raises(InvalidStateError, match="is expired"):
            await service.perform(GrantApproval(approval=late), ME)
        fresh = claim(service).id
        assert fresh != late
        await service.perform(GrantApproval(approval=fresh), ME)
        time.now += WAIT_SECONDS
        assert not claim(service).granted
        states = [one.state for one in await service.perform(ListApprovals(all=True), ME)]
        assert states == [ApprovalState.EXPIRED, ApprovalState.EXPIRED, ApprovalState.PENDING]


async def test_nobody_inside_says_yes_whatever_the_policy_says(rig: Rig) -> None:
    async with rig.service(policy=EVERYBODY) as service:
        id = claim(service, owner="nested:sb_1").id
        inside = nested_principal("sb_1")
        for action in (GrantApproval(approval=id), DenyApproval(approval=id), ListApprovals(all=True)):
            with pytest.raises(PolicyDeniedError, match="inside a sandbox"):
                await service.perform(action, inside)
    async with rig.service() as service:
        with pytest.raises(PolicyDeniedError):
            await service.perform(GrantApproval(approval=id), inside)


async def test_nobody_answers_for_another(rig: Rig) -> None:
    other = Principal("local:99999")
    async with rig.service(policy=EVERYBODY) as service:
        id = claim(service).id
        assert await service.perform(ListApprovals(all=True), other) == ()
        for reference in (id, id[:10]):
            with pytest.raises(NotFoundError):
                await service.perform(GrantApproval(approval=reference), other)
        assert (await service.perform(GrantApproval(approval=id[:18]), ME)).id == id


async def test_a_sandbox_cannot_flood_a_person_nor_drive_his_terminal(rig: Rig) -> None:
    async with rig.service() as service:
        for number in range(MOST_PENDING):
            asked = replace(REQUEST, digest=f"{number:064}", summary="\x1b]0;x\x07\u202e" + "a" * 9999)
            assert claim(service, asked).state is ApprovalState.PENDING
        more = claim(service, replace(REQUEST, digest="f" * 64))
        assert (more.granted, more.state, more.id) == (False, ApprovalState.DENIED, None)
        shown = await pending(service)
        assert len(shown) == MOST_PENDING
        assert all(one.summary.isprintable() and len(one.summary) <= 512 for one in shown)
        assert claim(service, replace(REQUEST, sandbox="sb_2")).state is ApprovalState.PENDING


async def test_an_action_at_the_door_goes_through_once_after_a_yes(rig: Rig) -> None:
    async with rig.service() as service:
        approvals, action = service.approvals, ListSandboxes()

        def attempt(action: ListSandboxes = action) -> None:
            with service._authorizer.open(ME, action) as entry:
                approvals.require("git.push", action, entry, about="ws_1", revision="r1", what="push\na branch")

        with pytest.raises(ApprovalNeededError, match="a person has to say yes") as caught:
            attempt()
        id = caught.value.details["approval"]
        assert f"paddock approvals approve {id}" in str(caught.value)
        await service.perform(GrantApproval(approval=str(id)), ME)
        with pytest.raises(ApprovalNeededError):
            attempt(ListSandboxes(ended=True))
        attempt()
        with pytest.raises(ApprovalNeededError) as caught:
            attempt()
        await service.perform(DenyApproval(approval=str(caught.value.details["approval"]), reason="not today"), ME)
        with pytest.raises(PolicyDeniedError, match="somebody said no: not today"):
            attempt()


async def test_what_was_asked_and_used_is_recorded(rig: Rig) -> None:
    async with rig.service() as service:
        id = claim(service).id
        await service.perform(GrantApproval(approval=id), ME)
        claim(service)
    lines = [json.loads(x) for p in (rig.state_dir / "audit").glob("*.jsonl") for x in p.read_text().splitlines()]
    told = [(r["action"], r["kind"]) for r in lines if r["action"].startswith("approval")]
    assert told == [
        ("approval.asked", "event"),
        ("approval.grant", "decision"),
        ("approval.grant", "outcome"),
        ("approval.used", "event"),
    ]


def test_the_moves_are_those_of_a_question_and_no_yes_comes_twice() -> None:
    assert set(APPROVAL_MOVES) == set(ApprovalState)
    assert [state for state, legal in APPROVAL_MOVES.items() if ApprovalState.USED in legal] == [ApprovalState.GRANTED]
    assert [state for state, legal in APPROVAL_MOVES.items() if ApprovalState.GRANTED in legal] == [
        ApprovalState.PENDING
    ]


def request(**changes: Any) -> ApprovalRequest:
    said: dict[str, Any] = {
        "scheme": "https",
        "target": Target("api.test", 443),
        "method": "POST",
        "path": "/pay?to=me",
        "fields": [(b"Content-Type", b"text/plain"), (b"X-A", b"1"), (b"User-Agent", b"curl/1")],
        "body": b"10",
        **changes,
    }
    upgrade = said.get("upgrade")
    asked = HttpRequest(method=said["method"], target=said["path"], fields=said["fields"], upgrade=upgrade)
    verdict = RequestVerdict(allowed=True, rule="allow[0]", reason="", revision="r", approve="host")
    judged = AuthorizedRequest(asked, said["target"], said["scheme"], said["path"], verdict)
    return of_request(judged, said["body"], sandbox="sb_1", instance_id=0)


@pytest.mark.parametrize(
    "change",
    [
        {"scheme": "http"},
        {"target": Target("api.test", 444)},
        {"target": Target("evil.test", 443)},
        {"method": "PUT"},
        {"path": "/pay?to=you"},
        {"fields": [(b"Content-Type", b"text/plain"), (b"X-A", b"2")]},
        {"fields": [(b"Content-Type", b"text/plain"), (b"X-A1", b"")]},
        {"fields": [(b"Content-Type", b"text/plain")]},
        {"body": b"1"},
        {"body": b"100"},
        {"upgrade": b"websocket"},
    ],
)
def test_whatever_is_altered_in_a_request_is_another_request(change: dict[str, Any]) -> None:
    assert request(**change).digest != request().digest


def test_a_summary_tells_what_it_leaves_out_and_what_a_connection_becomes() -> None:
    assert request(path="/pay?" + "x" * 1000).summary.endswith("xxx..., with 2 bytes")
    assert request(upgrade=b"websocket", body=b"").summary.endswith("/pay?to=me, to go on as websocket")


def test_what_a_client_says_anew_each_time_is_the_same_request() -> None:
    fields = [(b"x-a", b"1"), (b"User-Agent", b"curl/2"), (b"Traceparent", b"9"), (b"content-type", b"text/plain")]
    assert request(fields=fields).digest == request().digest


@contextmanager
def receiver(statuses: list[int]) -> Generator[tuple[str, list[tuple[str, bytes]]]]:
    """A server that answers with these, one after the other; what it was sent."""
    came: list[tuple[str, bytes]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            came.append((self.headers["Paddock-Signature"], body))
            self.send_response(statuses[min(len(came), len(statuses)) - 1])
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/hook", came
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


Hooked = Callable[..., Config]


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hooked:
    def settings(url: str, key: str = "k" * 32) -> Config:
        monkeypatch.setattr("paddock.daemon.access._webhook.PAUSES", (0.0, 0.0))
        (tmp_path / "key").write_text(f"{key}\n")
        return Config(approval_webhook=url, approval_webhook_key_file=str(tmp_path / "key"))

    return settings


async def test_a_webhook_is_told_once_signed_and_again_until_it_takes_it(rig: Rig, hooked: Hooked) -> None:
    with receiver([500, 302, 204]) as (url, came):
        async with rig.service(config=hooked(url)) as service:
            id = claim(service).id
            claim(service)
            await until(lambda: len(came) == 3)
            await service._tasks.aclose()
    assert {body for _, body in came} == {came[0][1]}
    assert json.loads(came[0][1])["approval"]["id"] == id
    signature, body = came[0]
    at, _, mac = signature.removeprefix("t=").partition(",v1=")
    assert hmac.new(b"k" * 32, at.encode() + b"." + body, hashlib.sha256).hexdigest() == mac


@pytest.mark.parametrize("wrong", [("ftp://x/", "k" * 32), ("http://evil.test/", "k" * 32), ("https://x/", "short")])
async def test_a_webhook_that_cannot_be_used_is_recorded_and_stops_nothing(
    rig: Rig, hooked: Hooked, wrong: tuple[str, str]
) -> None:
    async with rig.service(config=hooked(*wrong)) as service:
        assert claim(service).state is ApprovalState.PENDING
        audit = rig.state_dir / "audit"
        await until(lambda: any("approval.webhook" in p.read_text() for p in audit.glob("*.jsonl")))


async def test_a_webhook_that_never_answers_well_is_given_up_and_recorded(rig: Rig, hooked: Hooked) -> None:
    with receiver([503]) as (url, came):
        async with rig.service(config=hooked(url)) as service:
            claim(service)
            audit = rig.state_dir / "audit"
            await until(lambda: any("it answered 503" in p.read_text() for p in audit.glob("*.jsonl")))
        assert len(came) == 3
