"""Which files stay as they are: by their path, however it is written."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.errors import PolicyInvalidError
from paddock.model.policy import FileRules
from paddock.policy.commands import Files
from paddock.policy.network import load

KEPT = Files(
    FileRules(protect=(".git/hooks", ".github/workflows/*.yml", "~/.ssh", "/etc")),
    workdir="/workspace",
    home="/home/me",
)
ASKED = Files(FileRules(protect=("kept",), approve=("delete",)), workdir="/workspace", home="/home/me")


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        (".git/hooks", 0),
        (".git/hooks/pre-commit", 0),
        ("/workspace/.git//hooks/./x", 0),
        ("src/../.git/hooks/x", 0),
        ("//workspace/.git/hooks/x", 0),
        (".github/workflows/ci.yml", 1),
        ("/home/me/.ssh/authorized_keys", 2),
        ("/etc/passwd", 3),
        ("/../etc", 3),
        (".git/config", None),
        (".git/hooks2", None),
        (".github/workflows/ci.yaml", None),
        (".github/workflows/deep/ci.yml", None),
        ("etc/passwd", None),
    ],
)
def test_what_is_protected_is_neither_written_nor_removed_nor_moved(path: str, rule: int | None) -> None:
    for found in (KEPT.write(path), KEPT.remove(path), KEPT.replace(path)):
        expected = ("allow", "files") if rule is None else ("deny", f"files.protect[{rule}]")
        assert (found.verdict, found.rule) == expected


@pytest.mark.parametrize("path", [".git", "/workspace", ".", "/", ".github", ".github/workflows", "/home"])
def test_what_holds_something_protected_is_not_removed_moved_or_filled_but_may_be_touched(path: str) -> None:
    assert KEPT.remove(path).verdict == KEPT.replace(path).verdict == "deny"
    assert KEPT.write(path).verdict == "allow"


def test_a_deletion_is_asked_for_where_it_is_not_forbidden() -> None:
    assert (ASKED.remove("kept").verdict, ASKED.remove("x").verdict) == ("deny", "approve")
    assert (ASKED.write("x").verdict, ASKED.replace("x").verdict) == ("allow", "allow")


def test_what_can_be_mounted_are_those_with_a_name() -> None:
    assert KEPT.fixed == ("/workspace/.git/hooks", "/home/me/.ssh", "/etc")


@pytest.mark.parametrize("path", ["", "/", "~", ".", "..", "a/../b", "a\0b", "//", "x" * 5000])
def test_a_path_that_says_nothing_or_everything_is_refused(path: str) -> None:
    with pytest.raises(PolicyInvalidError, match="protect"):
        load({"files": {"protect": [path]}})


@given(st.lists(st.sampled_from(["a", "b", ".", "..", "", "kept", " "]), max_size=8).map("/".join))
def test_however_it_is_written_it_is_the_same_path(path: str) -> None:
    plain = posixpath.normpath(posixpath.join("/workspace", path))
    within = plain == "/workspace/kept" or plain.startswith("/workspace/kept/")
    if not path.startswith("//"):
        assert (ASKED.write(path).verdict == "deny") == within
