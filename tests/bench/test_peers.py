"""Every peer of the table can be asked for, and one that is not here says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.contest import contest
from bench.peers import containers, frameworks
from bench.peers.table import ABSENT, PEERS, contenders


def test_every_peer_names_a_subject_that_exists() -> None:
    for peer in PEERS:
        assert hasattr(frameworks if peer.framework else containers, peer.subject), peer.name
        assert peer.walls


def test_a_peer_that_is_not_installed_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = [
        replace(peer, python="/nowhere/python") for peer in contenders("cycle") if "frameworks" in peer.subject
    ]
    records = contest(elsewhere[:1], rounds=1, block=1)
    assert "/nowhere/python" in (records[elsewhere[0].name].failure or "")
    monkeypatch.setenv("PATH", "/nowhere")
    crun = next(peer for peer in contenders("cycle") if peer.subject.endswith(":Crun"))
    assert "apt-get install crun" in (contest([crun], rounds=1, block=1)[crun.name].failure or "")


def test_what_could_not_be_measured_has_its_reason() -> None:
    assert all(reason.strip() for reason in ABSENT.values())
