"""What a guest does when it is told what it is to be, the first time and in a copy."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from paddock.guest import _renewal
from paddock.guest._renewal import Renewal

LIMITS = {"open_files": 256, "processes": 64, "tmp_bytes": 1 << 20}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the machine was told, in this order."""
    seen: list[object] = []
    monkeypatch.setattr(_renewal.machine, "limit", lambda **limits: seen.append(limits))
    monkeypatch.setattr(_renewal.uplink, "lead", lambda *, out: seen.append(out))
    return seen


def test_what_is_as_it_was_is_not_done_again_and_what_is_not_is(told: list[object]) -> None:
    renewal = Renewal()
    for _ in range(2):
        assert renewal.renew({"limits": LIMITS, "network": False}) == {"done": ["limits", "network"], "failed": {}}
    assert told == [LIMITS, False]
    fewer = {**LIMITS, "processes": 32}
    renewal.renew({"limits": fewer, "network": True})
    assert told[2:] == [fewer, True]
    renewal.renew({"limits": LIMITS, "network": False})
    assert told[4:] == [LIMITS, False], "not as it was at first"


def test_what_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch, told: list[object]) -> None:
    renewal = Renewal()
    renewal.renew({"network": True})

    def fail(*, out: bool) -> None:
        raise OSError(errno.EIO, "")

    with monkeypatch.context() as broken:
        broken.setattr(_renewal.uplink, "lead", fail)
        assert renewal.renew({"network": False}) == {"done": [], "failed": {"network": "EIO"}}
    renewal.renew({"network": True})
    assert told == [True, True], "nobody knows what it is like after that"


@pytest.mark.parametrize("before", ["", "of the image\n", "0" * 32 + "\n", "0" * 64])
def test_a_machine_id_replaces_all_that_there_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: str) -> None:
    place = tmp_path / "machine-id"
    if before:
        place.write_text(before)
    monkeypatch.setattr(_renewal, "_MACHINE_ID", str(place))
    assert Renewal().renew({"machine_id": "ab" * 16})["done"] == ["machine_id"]
    assert place.read_text() == "ab" * 16 + "\n"
