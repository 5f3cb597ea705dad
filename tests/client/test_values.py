"""What a program may do with the values that it gets: compare, match, copy, pickle, replace, never change."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from datetime import UTC, datetime

import pytest

from paddock import ExecResult, ExitStatus, Limits, Mount
from paddock.model import ExecId, Output, Principal, SandboxSpec, Secret, SecretValue, codec, replace

RESULT = ExecResult(id=ExecId("ex_1"), status=ExitStatus(code=3), out=Output(head=b"out", total_bytes=3), err=Output())


def test_values_with_the_same_fields_are_equal_and_nothing_else_is() -> None:
    assert Limits(cpus=1.5) == Limits(cpus=1.5)
    assert Limits(cpus=1.5) != Limits()
    assert Output() != ExitStatus()
    assert len({Limits(), Limits(), Limits(cpus=1.0)}) == 2


def test_a_value_cannot_be_changed_and_two_share_nothing_that_can() -> None:
    with pytest.raises(AttributeError, match="replace"):
        RESULT.status = ExitStatus()  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del RESULT.status
    one, other = SandboxSpec(), SandboxSpec()
    one.env["A"] = "1"
    assert other.env == {}
    assert SandboxSpec().env == {}


def test_a_time_is_there_as_a_datetime_too() -> None:
    secret = Secret(name="A", version=1, created_at=0.5, updated_at=1.0, key="k")
    assert secret.created == datetime(1970, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)
    assert secret.used is None
    assert replace(secret, used_at=2.0).used == datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)
    assert "created" not in codec.plain(secret)  # type: ignore[operator]


def test_arguments_that_a_value_lacks_or_has_not_are_named() -> None:
    with pytest.raises(TypeError, match="'memory'"):
        Limits(memory=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'source'"):
        Mount()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Limits(1.0)  # type: ignore[misc]


def test_it_shows_its_fields_and_a_secret_shows_none() -> None:
    assert repr(Mount(source="/a")) == "Mount(source='/a', target='/workspace', mode=<MountMode.COPY_ON_WRITE: 'cow'>)"
    assert "abc" not in repr(SecretValue(b"abc"))


def test_it_is_matched_copied_pickled_and_replaced() -> None:
    match RESULT:
        case ExecResult(status=ExitStatus(code=3), out=out):
            assert out.head == b"out"
        case _:
            pytest.fail("no match")
    assert copy.deepcopy(RESULT) == copy.copy(RESULT) == pickle.loads(pickle.dumps(RESULT)) == RESULT
    assert replace(Limits(), cpus=1.0) == dataclasses.replace(Limits(), cpus=1.0) == Limits(cpus=1.0)
    assert dataclasses.asdict(RESULT)["status"]["code"] == 3
    assert [field.name for field in dataclasses.fields(Mount)] == ["source", "target", "mode"]


def test_a_principal_is_shown_by_its_users_name_where_there_is_one_or_its_sandbox() -> None:
    shown = [Principal(id).name for id in ("local:0", "local:4294967294", "local:x", "nested:sb_1", f"local:{2**70}")]
    assert shown == ["root", "local:4294967294", "local:x", "a program inside sb_1", f"local:{2**70}"]
