"""Addresses that stand for names."""

from __future__ import annotations

from paddock.gateway.protocols.dns import GATEWAY, NETWORK, SandboxNames, is_synthetic


def test_a_name_keeps_its_address_and_the_address_its_name() -> None:
    names = SandboxNames()
    first, second = names.address("a.test"), names.address("b.test")
    assert first is not None
    assert first != second
    assert is_synthetic(first)
    assert names.address("a.test") == first
    assert names.name(first) == "a.test"
    assert names.name(GATEWAY) is None
    assert names.name(str(NETWORK.broadcast_address)) is None


def test_it_is_bounded_and_the_least_used_makes_room() -> None:
    names = SandboxNames(most=2)
    a, b = names.address("a.test"), names.address("b.test")
    assert a is not None
    assert b is not None
    names.name(a)
    c = names.address("c.test")
    assert c not in (a, b)
    assert (names.name(a), names.name(b)) == ("a.test", None)


def test_what_is_connected_to_stays() -> None:
    names = SandboxNames(most=2)
    a = names.address("a.test")
    assert a is not None
    with names.held("g.test"):
        with names.held("a.test"):
            for letter in "bcdefg":
                assert names.address(f"{letter}.test") is not None
            assert names.name(a) == "a.test"
            assert names.address("h.test") is None
        assert names.address("h.test") is not None
    assert names.name(a) is None


def test_an_address_is_used_again_as_late_as_possible() -> None:
    names = SandboxNames(most=2, first=3323068672, last=3323068672 + 9)
    given = [names.address(f"n{number}.test") for number in range(10)]
    assert len(set(given)) == 10
    assert names.address("n10.test") == given[0]
