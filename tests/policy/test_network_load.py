"""From text to document: what is refused, with its line and column, and what to write instead."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from paddock.errors import InvalidArgumentError, PolicyInvalidError
from paddock.model import Allow, EgressRules, PolicyDocument
from paddock.policy.network import Snapshot, _yaml, explain, load


def refused(text: str) -> PolicyInvalidError:
    with pytest.raises(PolicyInvalidError) as caught:
        load(dedent(text) + "\n")
    return caught.value


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("egress:\n  alow: []", (2, 3), "`allow`?"),
        ("egress:\n  allow:\n    - hots: a.test", (3, 7), "`host`?"),
        ("egress:\n  allow:\n    - domain: a.test", (3, 7), "`host`?"),
        ("netwrk: {}", (1, 1), "there is no key `netwrk`"),
        ("egress:\n  approve: []", (2, 3), "at the left margin, not below `egress`"),
        ("commands:\n  approve: [git push]", (2, 13), "{prefix: [git, push]}"),
        ("egress:\n  default: allow", (2, 12), "cannot be turned round"),
        ("egress:\n  allow:\n    - host: a.test\n      ports: 443", (4, 14), "in brackets"),
        ("egress:\n  allow:\n    - host: a.test\n      ports: [0]", (4, 15), "not a port"),
        ("egress:\n  allow:\n    - host: a.test\n      ports: ['9-8']", (4, 15), "not a port"),
        ("egress:\n  allow:\n    - host: a.test\n      methods: [get]", (4, 17), "write GET"),
        ("egress:\n  deny:\n    - host: a.test\n      methods: [GTE]", (4, 17), "write GET"),
        ("egress:\n  allow:\n    - host: a.test\n      methods: []", (4, 16), "matches nothing"),
        ("egress:\n  allow:\n    - host: a.test\n      paths: [api]", (4, 15), "does not begin with `/`"),
        ("egress:\n  allow:\n    - host: a.test\n      paths: ['/a?b']", (4, 15), "queries are not compared"),
        ("egress:\n  allow:\n    - host: a.test\n      tier: splyce", (4, 13), "splice or inspect"),
        ("egress:\n  allow:\n    - host: a.test\n      cidr: 10.0.0.0/8", (4, 13), "make two rules"),
        ("egress:\n  allow:\n    - ports: [1]", (3, 7), "host, cidr, registry or git"),
        ("egress:\n  allow:\n    - cidr: 10.0.0.0/8", (3, 7), "ports that are named"),
        ("egress:\n  allow:\n    - cidr: 10.0.0.1/8\n      ports: [1]", (3, 13), "10.0.0.0/8"),
        ("egress:\n  allow:\n    - cidr: 64:ff9b::/96\n      ports: [1]", (3, 13), "IPv4"),
        ("egress:\n  allow:\n    - registry: pypy", (3, 17), "pypi or npm"),
        ("egress:\n  allow:\n    - registry: pypi\n      fetch: true", (4, 14), "has no `fetch`"),
        ("egress:\n  allow:\n    - git: git@h.test:a/b", (3, 12), "not the URL of a repository"),
        ("egress:\n  allow:\n    - git: https://h.test/a/b\n      push: [main]", (4, 14), "refs/heads/"),
        ("egress:\n  allow:\n    - git: https://h.test/a/b\n      fetch: yes", (4, 14), "write true or false"),
        ("egress:\n  allow:\n    - host: a.test\n      secret: T", (4, 15), "describe it below"),
        ("secrets:\n  T: {from: {env: T}, bind: {host: a.test, header: x}}", (2, 3), "`secret: T`"),
        ("secrets:\n  T: {from: {env: T}, bind: {hots: a.test}}", (2, 30), "`host`?"),
        ("secrets:\n  T: {from: {}, bind: {host: a.test, header: x}}", (2, 13), "from one place, not 0"),
        ("secrets:\n  T: {from: {env: T}, bind: {host: a.test}}", (2, 29), "no place in a request"),
        ("approve: [git.pull]", (1, 11), "git.push, publish or delete"),
        ("version: 2", (1, 10), "version: 1"),
        ("version: 1\nversion: 1", (2, 1), "the first is at 1:1"),
        ("egress:\n\tallow: []", (2, 1), "indent with blanks"),
        ("egress: !!python/object:os.system {}", (1, 9), "means nothing here"),
        ("a: &a [*a]", (1, 4), "endless"),
        ("egress: &e {}\nother:\n  <<: *e", (3, 3), "not merged"),
        ("egress: [", (2, 1), "not YAML"),
    ],
)
def test_what_is_wrong_is_named_with_line_column_and_what_to_write(
    text: str, where: tuple[int, int], words: str
) -> None:
    error = refused(text)
    assert (error.details["line"], error.details["column"]) == where
    assert words in str(error)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("{host: a.test, tier: splice}", "{host: a.test, paths: [/x]}"),
        ("{host: a.test, tier: splice}", "{host: a.test, tier: inspect}"),
        ("{host: '*.b.test', tier: splice}", "{host: a.b.test, methods: [GET]}"),
        ("{host: a.test, paths: ['/a/**'], secret: S}", "{host: a.test, paths: ['/*/b']}"),
        ("{host: '*.b.test', secret: S}", "{host: a.b.test, secret: T}"),
        ("{host: a.test}", "{git: 'https://a.test/o/n'}"),
        ("{git: 'https://a.test/o/*'}", "{git: 'https://a.test/o/n', push: [refs/heads/x]}"),
        ("{registry: pypi}", "{host: pypi.org}"),
    ],
)
def test_rules_that_overlap_and_disagree_are_refused_with_both_places(one: str, other: str) -> None:
    secrets = "secrets:\n  S: {from: {env: S}, bind: {host: a.test, header: x}}\n"
    secrets += "  T: {from: {env: S}, bind: {host: a.test, header: x}}\n"
    used = "    - {host: c.test, secret: [S, T]}\n"
    for first, second in ((one, other), (other, one)):
        error = refused(f"egress:\n  allow:\n{used}    - {first}\n    - {second}\n{secrets}")
        assert error.details["line"] == 5
        assert "egress.allow[1] (line 4)" in str(error)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("{host: a.test, paths: ['/a/*'], secret: S}", "{host: a.test, paths: ['/a/*/*']}"),
        ("{host: a.test, methods: [GET], secret: S}", "{host: a.test, methods: [POST]}"),
        ("{host: a.test, ports: [443], secret: S}", "{host: a.test, ports: [8443], tier: splice}"),
        ("{host: '*.a.test', tier: splice}", "{host: a.test, paths: [/x], secret: S}"),
        ("{git: 'https://a.test/o/n', secret: S}", "{git: 'https://a.test/o/m'}"),
        ("{host: a.test, paths: ['/a/**'], secret: S}", "{host: a.test, paths: ['/**'], secret: S}"),
    ],
)
def test_rules_that_can_be_told_apart_are_not(one: str, other: str) -> None:
    secrets = "secrets:\n  S: {from: {env: S}, bind: {host: a.test, header: x}}\n"
    load(f"egress:\n  allow:\n    - {one}\n    - {other}\n{secrets}")


def test_a_mock_and_a_real_host_are_not_one() -> None:
    error = refused("egress:\n  allow: [{host: '*.a.test'}]\n  mock: [{host: b.a.test}]")
    assert "mocked or real" in str(error)


def test_words_are_words() -> None:
    """What YAML 1.1 makes of `no`, `22:22` and dates, we do not."""
    document = load("secrets:\n  T: {from: {env: no}, bind: {host: a.test, query: 2026-01-01}}\n"
                    "egress: {allow: [{host: a.test, secret: T}]}").document  # fmt: skip
    assert document.secrets["T"].source.env == "no"
    error = refused("egress:\n  allow:\n    - host: a.test\n      ports: [22:22]")
    assert "'22:22' is not a port" in str(error)


def test_aliases_stand_for_what_they_name() -> None:
    document = load(
        "egress:\n  allow:\n    - {host: a.test, paths: &p [/a]}\n    - {host: b.test, paths: *p}\n"
    ).document
    assert document.egress.allow[1].paths == ("/a",)


def test_aliases_of_aliases_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _yaml._MOST_NODES <= 2_000_000  # pyright: ignore[reportPrivateUsage] (seconds)
    monkeypatch.setattr(_yaml, "_MOST_NODES", 20_000)
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "endless" in str(refused("\n".join(lines)))


def test_ten_thousand_rules_are_read_and_asked() -> None:
    rules = "".join(f"    - {{host: h{n}.d{n % 97}.example.org, ports: [{443 + n % 3}]}}\n" for n in range(10_000))
    snapshot = load(f"egress:\n  allow:\n{rules}").snapshot
    assert len(snapshot.rules.allow) == 10_000
    assert snapshot.name("h9999.d8.example.org").rule == "egress.allow[9999]"


def test_an_empty_document_allows_nothing(tmp_path: Path) -> None:
    file = tmp_path / "paddock.yaml"
    file.write_text("# nothing\n")
    assert load(file).snapshot.name("a.test").allowed is False


def test_the_example_of_the_manual_means_what_the_manual_says() -> None:
    page = Path(__file__).parent.parent.parent / "docs/howto/policy.md"
    loaded = load(page.read_text().split("```yaml\n")[1].split("```")[0])
    asked = explain(loaded, "GET", "https://api.github.com/repos/acme/app")
    assert (asked.allowed, asked.secrets) == (True, ("GITHUB_TOKEN",))
    assert explain(loaded, "POST", "https://github.com/acme/app/git-receive-pack").approve == "git.push"
    assert not explain(loaded, "GET", "https://internal.example.com").allowed


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"none\.yaml"):
        load(tmp_path / "none.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgumentError, match="UTF-8"):
        load(tmp_path / "binary")


def test_a_document_without_a_text_is_refused_by_its_path() -> None:
    document = PolicyDocument(egress=EgressRules(allow=(Allow(host="a.test"), Allow(host="127.1"))))
    with pytest.raises(PolicyInvalidError, match=r"egress\.allow\[1\]\.host") as caught:
        load(document)
    assert caught.value.details == {"at": "egress.allow[1].host"}


def test_the_revision_is_of_what_is_meant_not_of_how_it_is_written() -> None:
    one = load("egress:\n  allow: [{host: EXAMPLE.test., ports: [443, 80], methods: [POST, GET]}]\n").snapshot
    other = load(
        {"egress": {"allow": [{"methods": ["GET", "POST"], "host": "example.test", "ports": [80, 443]}]}}
    ).snapshot
    different = load("egress:\n  allow: [{host: example.test}]\n").snapshot
    assert one.revision == other.revision != different.revision
    assert len(one.revision) == 64


def test_a_snapshot_goes_through_bytes_unchanged() -> None:
    snapshot = load("egress:\n  allow: [{host: a.test, secret: T}]\n"
                    "secrets: {T: {from: {env: T}, bind: {host: a.test, header: X-Token}}}\n").snapshot  # fmt: skip
    again = Snapshot.from_bytes(snapshot.to_bytes())
    assert (again.revision, again.document) == (snapshot.revision, snapshot.document)
    assert Snapshot.from_bytes(bytes(bytearray(snapshot.to_bytes()))) is again, "compiled once"
    for data in (b"", b"{", b'{"egress": 1}', b"\xff"):
        with pytest.raises(PolicyInvalidError):
            Snapshot.from_bytes(data)


def test_a_snapshot_does_not_change() -> None:
    snapshot = load("egress: {}\n").snapshot
    for name in ("revision", "document", "rules", "anything"):
        with pytest.raises(AttributeError):
            setattr(snapshot, name, 1)


@pytest.mark.parametrize("word", ["env", "stored"])
def test_a_source_by_its_word_alone_has_the_name_of_the_secret(word: str) -> None:
    rest = "bind: {host: a.test, header: x}}\negress:\n  allow:\n    - {host: a.test, secret: TOKEN}\n"
    short = load(f"secrets:\n  TOKEN: {{from: {word}, {rest}")
    assert short.document == load(f"secrets:\n  TOKEN: {{from: {{{word}: TOKEN}}, {rest}").document
    with pytest.raises(PolicyInvalidError) as caught:
        load(f"secrets:\n  TOKEN: {{from: file, {rest}")
    assert caught.value.details["line"] == 2
