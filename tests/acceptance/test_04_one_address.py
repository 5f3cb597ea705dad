"""One address: a name is resolved once, what came of it is checked, and that address is the one that is dialled."""

from __future__ import annotations

import pytest

from tests.conftest import SandboxFactory

from .inside import ask, refused
from .rig import ADDRESS, Internet, Records, Response
from .world import OWN_ADDRESS

POLICY = {"egress": {"allow": [{"host": "*.good.test"}, {"host": "good.test"}]}}

NOBODY = {
    "metadata": "169.254.169.254",
    "metadata-of-tasks": "169.254.170.2",
    "metadata-of-azure": "168.63.129.16",
    "metadata-of-alibaba": "100.100.100.200",
    "metadata-by-6": "fd00:ec2::254",
    "mapped": "::ffff:169.254.169.254",
    "mapped-loopback": "::ffff:127.0.0.1",
    "nat64": "64:ff9b::a9fe:a9fe",
    "six-to-four": "2002:a9fe:a9fe::1",
    "compatible": "::169.254.169.254",
    "teredo": "2001:0:a9fe:a9fe::1",
    "loopback": "127.0.0.1",
    "loopback-by-6": "::1",
    "resolver": "127.0.0.77",
    "unspecified": "0.0.0.0",
    "private": "10.0.0.1",
    "private-too": "192.168.1.1",
    "link": "fe80::1",
    "unique": "fd12::1",
    "multicast": "224.0.0.251",
    "this-machine": OWN_ADDRESS,
}
"""Where no name leads to, whoever is allowed it."""

CALLS = """
found = {}
for name in given[0]:
    found[name] = [exchange(name, 80, get(name)), exchange(name, 443, get(name), tls=True, name=name)]
answer(found)
"""


def test_an_allowed_name_leads_to_no_address_that_is_nobody_s_to_reach(
    sandbox: SandboxFactory, internet: Internet, records: Records
) -> None:
    internet.site("good.test")
    for name, address in NOBODY.items():
        internet.names[f"{name}.good.test"] = [[address]]
        internet.site(f"{name}.good.test", address=address)
    made = sandbox(policy=POLICY)
    told = ask(made, CALLS, [f"{name}.good.test" for name in NOBODY])

    assert internet.arrivals == []
    assert {name for name, (clear, _) in told.items() if not clear.startswith("HTTP/1.1 403 ")} == set()
    assert {name: said for name, (_, said) in told.items() if not refused(said)} == {}
    dialled = records.of(made.id, "egress.dial")
    assert len(dialled) == 2 * len(NOBODY)
    assert {one.allowed for one in dialled} == {False}
    assert {one.detail["address"] for one in dialled} == set(NOBODY.values())

    assert ask(made, "answer(exchange('good.test', 80, get('good.test')))").startswith("HTTP/1.1 200 ")
    assert [arrival.address for arrival in internet.arrivals] == [ADDRESS]


def test_each_connection_has_one_answer_and_goes_to_the_address_of_it(
    sandbox: SandboxFactory, internet: Internet, records: Records
) -> None:
    """The name is the attacker's own: it leads to him, then to whom he wants to reach, and the answer lives 0 s."""
    for address in (ADDRESS, "93.184.216.35"):
        internet.site("good.test", lambda _: Response(fields={"connection": "close"}), address=address)
    internet.names["good.test"] = [[ADDRESS], ["169.254.169.254"], [OWN_ADDRESS, "93.184.216.35"], ["127.0.0.1"]]
    made = sandbox(policy=POLICY)
    said = [ask(made, "answer(exchange('good.test', 80, get('good.test')))")[:12] for _ in range(4)]

    assert said == ["HTTP/1.1 200", "HTTP/1.1 403", "HTTP/1.1 200", "HTTP/1.1 403"]
    assert [arrival.address for arrival in internet.arrivals] == [ADDRESS, "93.184.216.35"]
    assert internet.questions.count(("good.test", "A")) == 4, "one for each connection"
    dialled = [(one.detail["address"], one.allowed) for one in records.of(made.id, "egress.dial")]
    assert dialled == [
        (ADDRESS, True),
        ("169.254.169.254", False),
        (OWN_ADDRESS, False),
        ("93.184.216.35", True),
        ("127.0.0.1", False),
    ]


@pytest.mark.parametrize("bad", ["::1", "::ffff:169.254.169.254", "fd00:ec2::254"])
def test_of_two_versions_of_ip_only_what_was_checked_is_dialled(
    sandbox: SandboxFactory, internet: Internet, records: Records, bad: str
) -> None:
    internet.site("good.test")
    internet.names["good.test"] = [[ADDRESS, bad]]
    made = sandbox(policy=POLICY)
    assert ask(made, "answer(exchange('good.test', 80, get('good.test')))").startswith("HTTP/1.1 200 ")
    assert [arrival.address for arrival in internet.arrivals] == [ADDRESS]
    assert {one.detail["address"]: one.allowed for one in records.of(made.id, "egress.dial")} == {
        ADDRESS: True,
        bad: False,
    }


def test_a_redirect_to_somewhere_else_is_judged_like_any_call(
    sandbox: SandboxFactory, internet: Internet, records: Records
) -> None:
    places = ["http://169.254.169.254/latest/meta-data/", "http://[::ffff:a9fe:a9fe]/", f"http://{OWN_ADDRESS}/"]
    places += ["http://2852039166/latest/", "http://metadata.good.test/", "http://evil.test/"]
    internet.site("good.test", lambda request: Response(302, {"location": places[int(request.target[1:])]}))
    internet.site("metadata.good.test", address="169.254.169.254")
    made = sandbox(policy=POLICY)
    for number, place in enumerate(places):
        done = made.exec(f"curl -sS -m 60 -L -w '%{{http_code}}' -o /dev/null http://good.test/{number}")
        assert done.stdout == "403" or done.exit_code == 6, (place, done)  # or there is no such name
    assert {arrival.address for arrival in internet.arrivals} == {ADDRESS}
    assert {one.detail["host"] for one in records.denied(made.id, "egress.connect")} >= {"169.254.169.254", OWN_ADDRESS}
    assert ("evil.test", "A") not in internet.questions


def test_what_a_rule_names_by_address_is_reached_and_only_there(sandbox: SandboxFactory, internet: Internet) -> None:
    internet.site("good.test")
    made = sandbox(policy={"egress": {"allow": [{"cidr": f"{ADDRESS}/32", "ports": [80]}]}})
    code = "answer([exchange(to, port, get(to))[:12] for to, port in given[0]])"
    targets = [(ADDRESS, 80), (f"::ffff:{ADDRESS}", 80), (ADDRESS, 81), ("93.184.216.35", 80), ("169.254.169.254", 80)]
    assert ask(made, code, targets)[0] == "HTTP/1.1 200"
    assert {(arrival.address, arrival.port) for arrival in internet.arrivals} == {(ADDRESS, 80)}
