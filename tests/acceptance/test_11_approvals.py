"""A person's yes is to exactly one action, once: what is altered, replayed, late or another's is not done, and nobody
inside can give it."""

from __future__ import annotations

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paddock import Sandbox, local
from paddock.errors import InvalidStateError
from paddock.model import Approval, DenyApproval, GrantApproval, ListApprovals
from paddock.supervisor import layout
from tests.conftest import SandboxFactory

from .inside import ask, refused
from .rig import Internet, Records, Request, Response

POLICY = {
    "egress": {"allow": [{"host": "pay.test", "methods": ["GET", "POST"], "paths": ["/**"]}, {"host": "good.test"}]},
    "approve": [{"host": "pay.test", "methods": ["POST"]}],
}
PAY = r"""
def pay(amount=100, path="/payments", *fields):
    fields = ("accept: application/json", *fields)
    request = get("pay.test", path, *fields, method="POST", body=json.dumps({"amount": amount}))
    return exchange("pay.test", 443, request, tls=True, name="pay.test")
"""
ONE = PAY + "answer(pay(*given))"


def paid(request: Request) -> Response:
    return Response(201, body=b"paid " + request.body)


@pytest.fixture
def payer(sandbox: SandboxFactory, internet: Internet) -> Sandbox:
    internet.site("pay.test", paid)
    internet.site("good.test")
    return sandbox(policy=POLICY)


def question(answer: str) -> str:
    """The id of the approval that a refusal asks for."""
    assert answer.startswith("HTTP/1.1 403 "), answer
    said = json.loads(answer.partition("\r\n\r\n")[2])
    assert said["error"].startswith("refused by paddock")
    assert said["rule"] == "egress.allow[0]"
    return said["approval_id"]


def pending(sandbox: Sandbox) -> list[Approval]:
    return [one for one in local().perform(ListApprovals()) if one.sandbox == sandbox.id]


def payments(internet: Internet) -> list[bytes]:
    return [request.body for request in internet.requests("pay.test") if request.method == "POST"]


@pytest.mark.both
def test_exactly_that_action_goes_through_once(
    payer: Sandbox, internet: Internet, records: Records, who: str | None
) -> None:
    id = question(ask(payer, ONE, user=who))
    assert payments(internet) == [], "nothing is sent before a yes"
    (shown,) = pending(payer)
    assert (shown.id, shown.kind) == (id, "host")
    assert shown.summary.startswith("POST https://pay.test:443/payments, with ")
    local().perform(GrantApproval(approval=id))
    altered = ([101], [100, "/payments/"], [100, "/payments?again"], [100, "/payments", "x-other: 1"])
    others = {question(ask(payer, ONE, *arguments, user=who)) for arguments in altered}
    assert len(others | {id}) == 5, "each is a question of its own"
    assert payments(internet) == []
    assert "\r\n\r\npaid {" in ask(payer, ONE, user=who)
    replayed = question(ask(payer, ONE, user=who))
    assert replayed not in others | {id}, "once never becomes a session"
    assert payments(internet) == [b'{"amount": 100}']

    (used,) = records.of(payer.id, "approval.used")
    assert used.detail["approval"] == id
    assert used.detail["what"]["revision"] == payer.policy
    requests = [one.detail["method"] for one in records.of(payer.id, "egress.request", host="pay.test") if one.allowed]
    assert requests == ["POST"] * 7

    twin = ask(payer, 'answer(exchange("pay.test", 443, get("pay.test"), tls=True, name="pay.test"))', user=who)
    assert twin.startswith("HTTP/1.1 201 "), "what needs no yes is not asked for"
    assert internet.strays() == []


def test_a_yes_is_of_one_sandbox_and_of_one_revision(
    payer: Sandbox, sandbox: SandboxFactory, internet: Internet
) -> None:
    local().perform(GrantApproval(approval=question(ask(payer, ONE))))
    other, fork = sandbox(policy=POLICY), payer.fork()
    with fork:
        for one in (other, fork):
            question(ask(one, ONE))
    payer.set_policy({**POLICY, "approve": [*POLICY["approve"], "git.push"]})
    question(ask(payer, ONE))
    assert payments(internet) == []
    payer.set_policy(POLICY)
    assert ask(payer, ONE).startswith("HTTP/1.1 201 "), "the same revision again, and the yes was not used"


def test_a_no_and_a_yes_that_comes_too_late_are_no(payer: Sandbox, internet: Internet, shared_state: Path) -> None:
    local().perform(DenyApproval(approval=question(ask(payer, ONE)), reason="not on a Friday"))
    assert "not approved: not on a Friday" in ask(payer, ONE)
    late = question(ask(payer, ONE, 7))
    local().perform(GrantApproval(approval=late))
    with sqlite3.connect(shared_state / layout.DATABASE) as store:  # its quarter of an hour is over
        assert store.execute("UPDATE approvals SET deadline = 1 WHERE id = ?", (late,)).rowcount == 1
    assert question(ask(payer, ONE, 7)) != late
    with pytest.raises(InvalidStateError):
        local().perform(GrantApproval(approval=late))
    assert payments(internet) == []


def test_an_answer_that_is_lost_is_not_asked_for_twice(payer: Sandbox, internet: Internet) -> None:
    def vanish(request: Request) -> Response:
        raise OSError("the line is dead")

    internet.site("pay.test", vanish)
    id = question(ask(payer, ONE))
    local().perform(GrantApproval(approval=id))
    assert ask(payer, ONE).startswith("HTTP/1.1 502 ")
    assert len(payments(internet)) == 1
    internet.site("pay.test", paid)
    assert question(ask(payer, ONE)) != id
    assert len(payments(internet)) == 1, "it may have been paid: nobody pays again unasked"


def test_of_two_who_answer_and_of_two_who_claim_one_succeeds(payer: Sandbox, internet: Internet) -> None:
    for round in range(3):
        id = question(ask(payer, ONE, round))

        def answer(action: GrantApproval | DenyApproval) -> str:
            try:
                return local().perform(action).state.value
            except InvalidStateError:
                return "too late"

        with ThreadPoolExecutor() as pool:
            answers = [*pool.map(answer, (GrantApproval(approval=id), GrantApproval(approval=id)))]
        assert sorted(answers) == ["granted", "too late"]
        race = PAY + (
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor(8) as pool: answer([*pool.map(pay, given * 8)])"
        )
        told = [one.split(" ")[1] for one in ask(payer, race, round)]
        assert sorted(told) == ["201"] + ["403"] * 7
    assert len(payments(internet)) == 3


def test_who_asks_again_and_again_has_one_question_and_goes_on_after_the_answer(
    payer: Sandbox, internet: Internet, records: Records
) -> None:
    storm = PAY + "answer([pay() for _ in range(20)])"
    ids = {question(one) for one in ask(payer, storm)}
    assert len(ids) == 1
    assert [one.id for one in pending(payer)] == [*ids]
    assert len(records.of(payer.id, "approval.asked")) == 1
    local().perform(GrantApproval(approval=ids.pop()))
    assert ask(payer, ONE).startswith("HTTP/1.1 201 ")


def test_nobody_inside_answers_himself(payer: Sandbox, internet: Internet, who: str | None) -> None:
    id = question(ask(payer, ONE, user=who))
    tries = (
        PAY
        + r"""
said = []
for port in (80, 443, 3128, 8080, 15001):
    for to in ("127.0.0.1", "198.18.0.1", "::1"):
        said.append(exchange(to, port, get("localhost", f"/approvals/{given[0]}/grant", method="POST")))
for proxy in ("127.0.0.1:8080", "localhost:80", "169.254.169.254:80", "[::1]:80"):
    said.append(exchange("198.18.0.1", 3128, get("localhost"), proxy=proxy))
for path in ("/run/paddock/gateway.sock", "/.paddock/gateway.sock"):
    with socket.socket(socket.AF_UNIX) as s:
        try: s.connect(path); said.append("connected")
        except OSError: said.append("")
said.append(pay(100, "/payments", f"x-paddock-approval: {given[0]}", f"approval_id: {given[0]}"))
answer(said)
"""
    )
    *others, asked = ask(payer, tries, id, user=who)
    assert all(map(refused, others)), others
    question(asked)
    assert {one.id for one in pending(payer)} >= {id}
    assert payments(internet) == []
    assert internet.strays() == []
