"""A snapshot answers as its document reads, rule by rule."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from paddock.errors import PolicyInvalidError
from paddock.model import PolicyDocument, Target, Tier
from paddock.policy.network import Snapshot, compile, index_variables, load
from tests.policy import policy_reading as reading
from tests.policy.policy_drawing import ADDRESSES, GIT_PATHS, METHODS, NAMES, PATHS, PORTS, documents

thorough = settings(deadline=None, suppress_health_check=list(HealthCheck))


def compiled(document: PolicyDocument) -> Snapshot:
    try:
        return compile(document)
    except PolicyInvalidError:
        assume(False)  # rules that disagree
        raise


@thorough
@given(documents)
def test_connections_and_names_are_judged_as_the_document_reads(document: PolicyDocument) -> None:
    snapshot = compiled(document)
    for name in NAMES:
        for port in PORTS:
            verdict = snapshot.connect(Target(name, port))
            assert (verdict.allowed, verdict.rule) == reading.connect(document, name, port), (name, port)
            assert (verdict.tier is not None) == verdict.allowed
            assert verdict.revision == snapshot.revision
    for name in NAMES:
        assert snapshot.name(name).allowed == reading.name(document, name, PORTS), name


@thorough
@given(documents)
def test_requests_are_judged_as_the_document_reads(document: PolicyDocument) -> None:
    snapshot = compiled(document)
    for name in NAMES:
        paths = GIT_PATHS if name == "github.test" else PATHS
        for port in (80, 443, 444):
            connected = snapshot.connect(Target(name, port))
            for method in (*METHODS, "TRACE"):
                for path in paths:
                    verdict = snapshot.request(Target(name, port), "https", method, path)
                    wanted = reading.request(document, name, port, method, path)
                    assert (verdict.allowed, verdict.rule) == wanted, (name, port, method, path)
                    assert connected.allowed or not verdict.allowed
                    if connected.tier is Tier.SPLICE and method != "TRACE":
                        assert verdict.allowed, "what is passed on unseen is allowed, whatever it is"
                    if verdict.allowed and verdict.mock is None:
                        asked = reading.approve(document, name, port, method, path)
                        assert (verdict.approve == "host") == asked


@thorough
@given(documents, st.sampled_from(NAMES))
def test_addresses_are_judged_as_the_document_reads(document: PolicyDocument, name: str) -> None:
    snapshot = compiled(document)
    for port in PORTS:
        named = snapshot.connect(Target(name, port)).allowed
        for address in ADDRESSES:
            wanted = reading.to_address(document, address, port, named=False)
            literal = snapshot.connect(Target(address, port))
            assert literal.allowed == wanted.allowed, (address, port)
            assert snapshot.address(Target(address, port), address).allowed == wanted.allowed
            if not wanted.allowed and wanted.rule != "default":
                assert literal.rule.startswith("egress.deny")  # of several, the narrowest network
            by_name = snapshot.address(Target(name, port), address).allowed
            assert by_name == (named and reading.to_address(document, address, port, named=True).allowed)


@thorough
@given(documents)
def test_a_snapshot_from_bytes_answers_the_same(document: PolicyDocument) -> None:
    snapshot = compiled(document)
    again = Snapshot.from_bytes(snapshot.to_bytes())
    assert again.revision == snapshot.revision
    for name in NAMES:
        for port in (80, 443):
            assert again.connect(Target(name, port)) == snapshot.connect(Target(name, port))
            for path in PATHS:
                asked = Target(name, port), "https", "GET", path
                assert again.request(*asked) == snapshot.request(*asked)


@thorough
@given(documents, st.data())
def test_the_order_of_rules_does_not_matter(document: PolicyDocument, data: st.DataObject) -> None:
    snapshot = compiled(document)
    egress = document.egress
    shuffled = PolicyDocument(
        egress=type(egress)(
            allow=tuple(data.draw(st.permutations(egress.allow))),
            deny=tuple(data.draw(st.permutations(egress.deny))),
            mock=egress.mock,
        ),
        approve=document.approve,
    )
    other = compile(shuffled)
    for name in NAMES:
        for port in (80, 443):
            one, two = snapshot.connect(Target(name, port)), other.connect(Target(name, port))
            assert (one.allowed, one.tier) == (two.allowed, two.tier)


@given(st.text(max_size=30), st.integers(-1, 70_000), st.text(max_size=30), st.text(max_size=30))
def test_no_question_raises(host: str, port: int, method: str, path: str) -> None:
    snapshot = load(
        "egress:\n  allow: [{host: '*.a.test', paths: ['/**']}, {cidr: 8.8.0.0/16, ports: [53]}]\n"
    ).snapshot
    target = Target(host, port)
    assert not snapshot.name(host).allowed
    assert not snapshot.connect(target).allowed
    assert not snapshot.request(target, "https", method, path).allowed
    assert not snapshot.address(target, path).allowed


SECRETS = """
egress:
  allow:
    - {host: api.test, paths: ['/v1/**'], secret: TOKEN}
    - {host: api.test, paths: ['/public/**']}
    - {host: '*.api.test', secret: TOKEN}
secrets:
  TOKEN:
    from: {env: TOKEN}
    bind: {host: api.test, header: Authorization, methods: [GET, POST]}
"""


def test_a_secret_goes_where_its_rule_and_its_binding_agree() -> None:
    snapshot = load(SECRETS).snapshot

    def secrets(host: str, port: int = 443, scheme: str = "https", method: str = "GET", path: str = "/v1/x") -> object:
        return snapshot.request(Target(host, port), scheme, method, path).secrets

    assert secrets("api.test") == ("TOKEN",)
    assert secrets("api.test", method="PUT") == ()
    assert secrets("api.test", method="TRACE") == ()
    assert secrets("api.test", scheme="http") == ()
    assert secrets("api.test", port=80, scheme="https") == ()
    assert secrets("api.test", path="/public/x") == ()
    assert secrets("b.api.test") == ()
    assert secrets("other.test") == ()


def test_what_a_person_has_to_be_asked() -> None:
    snapshot = load(
        "egress:\n  allow:\n    - {host: api.test}\n    - {git: 'https://git.test/o/n', push: [refs/heads/x]}\n"
        "    - {registry: npm}\n"
        "approve: [git.push, publish, {host: api.test, methods: [DELETE]}]\n"
    ).snapshot

    def asked(host: str, method: str, path: str) -> tuple[bool, str | None]:
        verdict = snapshot.request(Target(host, 443), "https", method, path)
        return verdict.allowed, verdict.approve

    assert asked("api.test", "GET", "/x") == (True, None)
    assert asked("api.test", "DELETE", "/x") == (True, "host")
    assert asked("git.test", "POST", "/o/n.git/git-receive-pack") == (True, "git.push")
    assert asked("git.test", "POST", "/o/n.git/git-upload-pack") == (True, None)
    assert asked("registry.npmjs.org", "GET", "/left-pad") == (True, None)
    assert asked("registry.npmjs.org", "PUT", "/left-pad") == (True, "publish")
    assert snapshot.connect(Target("api.test", 443)).tier is Tier.INSPECT


LFS = "/o/n.git/info/lfs/"


@pytest.mark.parametrize(
    ("method", "path", "push"),
    [
        ("GET", "objects/" + "1" * 64, False),
        ("HEAD", "objects/" + "1" * 64, False),
        ("GET", "locks?path=a", False),
        ("POST", "locks", True),
        ("POST", "locks/verify", True),
        ("POST", "locks/12/unlock", True),
        ("POST", "verify", True),
        ("PUT", "objects/" + "1" * 64, True),
        ("PATCH", "objects/" + "1" * 64, True),
        ("POST", "objects/batch?operation=upload", True),
        ("POST", "objects/batch/", True),
        ("POST", "objects%2Fbatch", True),
        ("POST", "x/git-upload-pack", True),
        ("POST", "unheard/of", True),
    ],
)
def test_on_a_path_of_git_lfs_all_but_a_read_is_a_push(method: str, path: str, push: bool) -> None:
    for fetch, refs in ((True, ""), (False, "refs/heads/x"), (True, "refs/heads/x")):
        rule = f"{{git: 'https://git.test/o/n', fetch: {str(fetch).lower()}, push: [{refs}]}}"
        snapshot = load(f"egress: {{allow: [{rule}]}}\napprove: [git.push]").snapshot
        for said in (None, False, True):
            verdict = snapshot.request(Target("git.test", 443), "https", method, LFS + path, said)
            assert verdict.allowed == (bool(refs) if push else fetch)
            assert verdict.approve == ("git.push" if push and refs else None)


def test_the_body_of_a_git_lfs_batch_says_whether_it_is_a_push() -> None:
    def asked(rule: str, push: bool | None) -> tuple[bool, str | None]:
        snapshot = load(f"egress: {{allow: [{{git: 'https://git.test/o/n', {rule}}}]}}\napprove: [git.push]").snapshot
        verdict = snapshot.request(Target("git.test", 443), "https", "POST", LFS + "objects/batch", push)
        return verdict.allowed, verdict.approve

    assert [asked("push: []", push) for push in (None, False, True)] == [(True, None), (True, None), (False, None)]
    only = "fetch: false, push: [refs/heads/x]"
    assert [asked(only, push) for push in (None, False, True)] == [(True, None), (False, None), (True, "git.push")]


@pytest.mark.parametrize("pack", ["git-upload-pack", "git-receive-pack"])
def test_a_pack_is_asked_for_without_a_query(pack: str) -> None:
    snapshot = load("egress:\n  allow: [{git: 'https://git.test/o/n', push: [refs/heads/x]}]").snapshot
    for query, allowed in (("", True), ("?a=b", False)):
        assert snapshot.request(Target("git.test", 443), "https", "POST", f"/o/n/{pack}{query}").allowed == allowed


def test_nothing_is_published_unless_a_person_is_asked() -> None:
    snapshot = load("egress: {allow: [{registry: npm}]}\n").snapshot
    verdict = snapshot.request(Target("registry.npmjs.org", 443), "https", "PUT", "/left-pad")
    assert not verdict.allowed
    assert snapshot.request(Target("registry.npmjs.org", 443), "https", "GET", "/left-pad").registry == "npm"


@pytest.mark.parametrize("address", ["203.0.114.7", "::ffff:203.0.114.7", "64:ff9b::cb00:7207"])
def test_the_hosts_own_addresses_are_refused_but_where_a_rule_names_exactly_that_one(address: str) -> None:
    target = Target("a.test", 443)
    wide = load("egress: {allow: [{host: a.test}, {cidr: 203.0.114.0/24, ports: [443]}]}\n").snapshot
    assert wide.address(target, address).allowed
    assert not wide.address(target, address, own=True).allowed
    narrow = load("egress: {allow: [{host: a.test}, {cidr: 203.0.114.7, ports: [443]}]}\n").snapshot
    assert narrow.address(target, address, own=True).allowed
    assert not narrow.address(Target("a.test", 80), address, own=True).allowed


def test_metadata_is_not_reached_by_a_network_that_is_wider_than_it() -> None:
    snapshot = load("egress: {allow: [{host: a.test}, {cidr: 169.254.0.0/16, ports: [80]}]}\n").snapshot
    assert not snapshot.address(Target("a.test", 80), "169.254.169.254").allowed
    assert not snapshot.connect(Target("169.254.169.254", 80)).allowed
    assert snapshot.connect(Target("169.254.1.1", 80)).allowed


def test_an_index_of_one_s_own_is_one_line_and_may_be_at_a_private_address_but_no_other() -> None:
    text = (
        "egress: {allow: [{registry: pypi, index: 'https://Pypi.corp.test:8443/simple/', hosts: [files.corp.test]}]}\n"
    )
    snapshot = load(text).snapshot
    (rule,) = snapshot.document.egress.allow
    assert (rule.index, rule.hosts) == ("https://pypi.corp.test:8443/simple/", ("pypi.corp.test", "files.corp.test"))
    assert index_variables(snapshot.document) == dict.fromkeys(("PIP_INDEX_URL", "UV_DEFAULT_INDEX"), rule.index)
    target = Target("pypi.corp.test", 8443)
    for address, allowed in {"10.1.2.3": True, "169.254.169.254": False, "127.0.0.1": False, "::1": False}.items():
        assert snapshot.address(target, address).allowed is allowed, address
    assert not snapshot.address(target, "10.1.2.3", own=True).allowed, "the host itself"
    assert not snapshot.connect(Target("10.1.2.3", 8443)).allowed, "by its name alone"
    denied = load(text.replace("}]}", "}], deny: [{cidr: 10.0.0.0/8}]}")).snapshot
    assert not denied.address(target, "10.1.2.3").allowed
    assert compile(snapshot.document).revision == snapshot.revision


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("registry: crates, index: 'https://a.test/'", "`hosts` names a mirror"),
        ("registry: pypi, index: 'http://a.test/simple'", "https://host/simple"),
        ("registry: pypi, index: 'https://me@a.test/simple'", "without a user in it"),
        ("registry: pypi, index: 'https://a.test/*/simple'", "is not the URL of an index"),
        ("host: a.test, index: 'https://a.test/simple'", "has no `index`"),
    ],
)
def test_an_index_that_no_installer_could_be_told_of_is_refused(rule: str, said: str) -> None:
    with pytest.raises(PolicyInvalidError) as refused:
        load(f"egress: {{allow: [{{{rule}}}]}}\n")
    assert said in str(refused.value)


@pytest.mark.parametrize("address", ["10.0.0.1", "169.254.169.254", "::1", "203.0.113.9", "::ffff:10.0.0.1"])
@pytest.mark.parametrize("named", [True, False])
def test_the_rule_that_a_refused_address_is_told_of_would_allow_it(address: str, named: bool) -> None:
    text = "egress:\n  allow:\n    - {host: a.test}\n"
    target = Target("a.test" if named else address, 443)
    refused = load(text).snapshot.address(target, address)
    assert not refused.allowed
    rule = re.search("`(.*)`", refused.reason)
    assert rule is not None
    assert load(f"{text}    - {rule[1]}\n").snapshot.address(target, address).allowed


def test_an_ordinary_address_is_told_of_its_rule_too() -> None:
    refused = load("egress: {allow: [{host: a.test}]}\n").snapshot.connect(Target("93.184.216.34", 22))
    assert refused.reason == "no rule names `{cidr: 93.184.216.34, ports: [22]}`"
