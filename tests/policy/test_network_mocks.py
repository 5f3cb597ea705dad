"""The files of mocks become part of the policy, and of its digest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paddock.errors import PolicyInvalidError
from paddock.model import EgressRules, Mock, MockSource, PolicyDocument, Target
from paddock.policy.network import Snapshot, compile, diff, load, to_yaml

POLICY = """\
egress:
  mock:
    - {host: a.test, with: ./mocks/a.py}
    - {host: b.test, with: mocks/b.yaml}
    - {host: c.test, with: mocks/c.json}
"""
PYTHON = "def handle(request):\n    return {}\n"
CASSETTE = "version: 1\nexchanges:\n  - {url: 'HTTPS://B.test:443/x/../y?q=1', status: 404}\n"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    (tmp_path / "mocks").mkdir()
    (tmp_path / "mocks" / "a.py").write_text(PYTHON)
    (tmp_path / "mocks" / "b.yaml").write_text(CASSETTE)
    (tmp_path / "mocks" / "c.json").write_text('{"exchanges": [{"url": "http://c.test:8080", "body": "c"}]}')
    (tmp_path / "paddock.yaml").write_text(POLICY)
    return tmp_path / "paddock.yaml"


def test_they_are_read_beside_the_policy_and_are_part_of_what_is_digested(policy: Path) -> None:
    before = load(policy).snapshot
    a, b, c = (rule.source for rule in before.document.egress.mock)
    assert isinstance(a, MockSource)
    assert a.python == PYTHON
    assert isinstance(b, MockSource)
    assert isinstance(c, MockSource)
    assert [one.url for one in b.cassette or ()] == ["https://b.test/y?q=1"]
    assert [one.url for one in c.cassette or ()] == ["http://c.test:8080/"]
    (policy.parent / "mocks" / "a.py").write_text(PYTHON + "\n")
    after = load(policy).snapshot
    assert after.revision != before.revision
    assert {change.where for change in diff(before, after)} == {"a.test"}
    assert Snapshot.from_bytes(before.to_bytes()).document == before.document
    assert load(to_yaml(before.document)).snapshot.revision == before.revision, "what is shown can be given back"


def test_whoever_compiles_a_document_opens_no_file(policy: Path) -> None:
    named = Mock(host="a.test", source=str(policy.parent / "mocks" / "a.py"))
    with pytest.raises(PolicyInvalidError, match="was not read"):
        compile(PolicyDocument(egress=EgressRules(mock=(named,))))


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.py", None, "cannot be read"),
        ("a.py", "def other(): ...\n", "has no function `handle`"),
        ("a.py", "def handle(:\n", "line 1"),
        ("a.py", "x = 1\n" * 60_000, "has more than 256 KiB"),
        ("b.yaml", "exchanges: [{url: 'https://b.test/%2e%2e/%2f'}]", "read differently"),
        ("b.yaml", "exchanges: [{url: 'ftp://b.test/'}]", "not the URL of a request"),
        ("b.yaml", "exchanges: [{url: 'https://b.test/', statuus: 7}]", "statuus"),
        ("b.yaml", "exchanges: [{url: 'https://b.test/', status: 7}]", "7 is not a status"),
        ("b.yaml", "exchanges: [{url: 'https://b.test/', headers: {a: \"b\\r\\nc: d\"}}]", "not a valid header"),
        ("b.yaml", "exchanges: [{url: 'https://b.test/', body_base64: '?'}]", "not Base64"),
        ("b.yaml", "- 1", "not a cassette"),
        ("c.json", "{", "not a cassette"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_at_the_line_that_names_it(
    policy: Path, name: str, content: str | None, why: str
) -> None:
    file = policy.parent / "mocks" / name
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(PolicyInvalidError, match=why) as error:
        load(policy)
    assert error.value.details["line"] == {"a.py": 3, "b.yaml": 4, "c.json": 5}[name]


def test_what_is_no_file_keeps_nobody_waiting(policy: Path) -> None:
    (policy.parent / "mocks" / "a.py").unlink()
    os.mkfifo(policy.parent / "mocks" / "a.py")
    with pytest.raises(PolicyInvalidError, match="is not a regular file"):
        load(policy)


@pytest.mark.parametrize(
    ("mock", "why"),
    [
        ({"with": {"python": "x", "cassette": []}}, "one of them"),
        ({"with": {}}, "one of them"),
        ({"with": {"python": "x"}, "status": 201}, "leave one or the other out"),
        ({"with": "a.txt"}, "neither a handler nor a cassette"),
        ({"with": {"python": "x" * (300 << 10)}}, "more than 256 KiB"),
        ({"with": {"pyton": "x"}}, "python"),
    ],
)
def test_a_mock_answers_in_one_way(mock: dict[str, object], why: str) -> None:
    with pytest.raises(PolicyInvalidError) as error:
        load({"egress": {"mock": [{"host": "a.test", **mock}]}})
    assert why in f"{error.value} {error.value.hint}"


def test_a_secret_may_be_bound_to_a_mocked_host() -> None:
    document = {
        "egress": {"mock": [{"host": "a.test", "body": "ok", "secret": "KEY"}]},
        "secrets": {"KEY": {"from": "stored", "bind": {"host": "a.test", "header": "authorization"}}},
    }
    snapshot = load(document).snapshot
    target = Target("a.test", 443)
    assert snapshot.request(target, "https", "GET", "/").secrets == ("KEY",)
    assert snapshot.request(target, "http", "GET", "/").secrets == ()
    assert Snapshot.from_bytes(snapshot.to_bytes()).revision == snapshot.revision
    with pytest.raises(PolicyInvalidError, match="there is no secret 'KEY'"):
        load({"egress": document["egress"]})
    with pytest.raises(PolicyInvalidError, match="no rule lets it out"):
        load({"egress": {"mock": [{"host": "a.test"}]}, "secrets": document["secrets"]})
