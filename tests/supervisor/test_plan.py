"""What the supervisor accepts as a plan."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.supervisor.plan import JailPlan, PlanError, Tree, User, is_name


def plan(**changes: Any) -> JailPlan:
    values: dict[str, Any] = {
        "id": "sb_0123456789abcdef",
        "hostname": "sandbox",
        "tree": "sb_0123456789abcdef",
        "layers": ("tp_host_0123456789ab",),
        "host_usr": True,
        "users": (
            User(name="root", uid=0, gid=0, home="/root"),
            User(name="user", uid=1000, gid=1000, home="/home/user"),
        ),
        "default_user": "user",
        "workdir": "/workspace",
        "env": {"PATH": "/usr/bin"},
        "template": "{}",
        "deadline": 10.0,
        "cpus": 1.0,
        "memory_bytes": 1 << 30,
        "swap_bytes": 0,
        "processes": 100,
        "open_files": 100,
        "disk_bytes": 1 << 30,
        "inodes": 1000,
        "tmp_bytes": 1 << 20,
    }
    return JailPlan(**{**values, **changes})


def tree(**changes: Any) -> dict[str, Any]:
    return {"name": "ws_1", "target": "/workspace", "writable": True, "layers": [], **changes}


def test_a_plan_survives_the_wire() -> None:
    trees = (
        Tree(name="ws_1", target="/workspace", writable=True, layers=("bs_1", "bs_0"), disk_bytes=1 << 30),
        Tree(name="rp_1", target="/run/paddock/repository", writable=False),
    )
    for sent in (plan(), plan(trees=trees), plan(kind="microvm", devices=("kvm",))):
        assert JailPlan.from_message(json.loads(json.dumps(sent.to_message()))) == sent


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"id": "../../etc"}, "not an id"),
        ({"tree": "sb_x/../y"}, "not an id"),
        ({"layers": ["tp_a", "/etc"]}, "not an id"),
        ({"hostname": "a\nb"}, "not a host name"),
        ({"default_user": "nobody"}, "not among the users"),
        ({"memory_bytes": 0}, "memory_bytes must be positive"),
        ({"users": [{"name": "user", "uid": 70000, "gid": 0, "home": "/"}]}, "ids must lie in"),
        ({"trees": [tree(name="../ws_1")]}, "not an id"),
        ({"trees": [tree(layers=["bs_1", "/etc"])]}, "not an id"),
        ({"trees": [tree(target="/a/../b")]}, "the target of a mount"),
        ({"trees": [tree(name="rp_1")]}, "is a repository"),
        ({"trees": [tree(name="rp_1", writable=False, layers=["bs_1"])]}, "is a repository"),
        ({"trees": [{"name": "ws_1"}]}, "not a plan"),
        ({"devices": ["kvm"]}, "of kind 'jail' has no device 'kvm'"),
        ({"devices": ["kvm"], "kind": "container"}, "of kind 'container' has no device"),
        ({"devices": ["mem"], "kind": "microvm"}, "has no device 'mem'"),
        ({"devices": ["../kvm"], "kind": "microvm"}, "has no device"),
        ({"surprise": 1}, "unknown fields: surprise"),
    ],
)
def test_a_bad_plan_is_refused_with_the_field_and_the_reason(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        JailPlan.from_message({**plan().to_message(), **changes})


@given(st.text())
def test_no_text_that_names_another_directory_is_a_name(text: str) -> None:
    if is_name(text):
        assert "/" not in text
        assert "." not in text
        assert "\0" not in text
        assert "\n" not in text
