"""The filters of registries' pages: what is left of any page is old enough, its own, and on the rule's hosts."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.gateway.registries import npm, pypi
from paddock.gateway.registries.page import File, Filtered, Malformed, PackageFile, Page
from paddock.model import Allow

NOW = 1_700_000_000.0
DAY = 86_400.0
HOSTS = ("index.test", "files.test")

ages = st.none() | st.integers(-10, 30)
allows = st.sampled_from(["allow", "deny", None])
cooldowns = st.none() | st.integers(0, 14)


def page(cooldown: float | None, unknown: Any, *, registry: Any = "pypi", accept: str = "json") -> Page:
    rule = Allow(registry=registry, hosts=HOSTS, cooldown_days=cooldown, unknown_age=unknown)
    path = "/simple/demo/" if registry == "pypi" else "/demo"
    where = Page(scheme="https", host="index.test", port=443, path=path, package="demo", rule=rule, now=NOW)
    return msgspec.structs.replace(where, accept=accept)


def when(age: int | None) -> dict[str, str]:
    return {} if age is None else {"upload-time": datetime.fromtimestamp(NOW - age * DAY, UTC).isoformat()}


def may_be_seen(age: int | None, cooldown: int | None, unknown: str | None) -> bool:
    if cooldown is None and unknown is None:
        return True
    return unknown == "allow" if age is None else age >= (cooldown or 0)


def may_be_fetched(files: dict[File, PackageFile]) -> set[File]:
    return {file for file, kept in files.items() if kept.held is None}


@given(st.lists(ages, max_size=8), cooldowns, allows)
def test_of_a_python_index_stays_what_is_old_enough(
    found: list[int | None], cooldown: int | None, unknown: str | None
) -> None:
    files = [
        {"filename": f"Demo-1.{n}.tar.gz", "url": f"../../p/Demo-1.{n}.tar.gz", "hashes": {"sha256": "ab"}} | when(age)
        for n, age in enumerate(found)
    ]
    versions = [f"1.{n}" for n in range(len(found))]
    body = json.dumps({"name": "Demo", "files": files, "versions": versions}).encode()
    expected = [n for n, age in enumerate(found) if may_be_seen(age, cooldown, unknown)]
    filtered, linked = pypi.filter_json(page(cooldown, unknown), body)
    assert may_be_fetched(linked) == {("index.test", 443, f"/p/Demo-1.{n}.tar.gz") for n in expected}
    assert {kept.digest for kept in linked.values()} <= {"sha256:ab"}
    if found and not expected:
        assert filtered.nothing is not None
        assert filtered.body == b""
        return
    seen = json.loads(filtered.body)
    urls = [file["url"] for file in seen["files"] if "yanked" not in file]
    assert urls == [f"https://index.test/p/Demo-1.{n}.tar.gz" for n in expected]
    assert len(seen["files"]) == len(found)
    assert seen["versions"] == versions
    as_html, _ = pypi.filter_json(page(cooldown, unknown, accept="html"), body)
    _, again = pypi.filter_html(page(None, None), as_html.body)
    assert list(again) == list(linked)  # as HTML it says the same


@given(st.dictionaries(st.integers(0, 20), ages, max_size=8), cooldowns, allows)
def test_of_an_npm_registry_stays_what_is_old_enough_and_tags_lead_to_it(
    found: dict[int, int | None], cooldown: int | None, unknown: str | None
) -> None:
    versions = {
        f"1.{n}.0": {
            "name": "demo",
            "version": f"1.{n}.0",
            "dist": {"tarball": f"https://files.test/demo/-/demo-1.{n}.0.tgz"},
        }
        for n in found
    }
    times = {f"1.{n}.0": when(age)["upload-time"] for n, age in found.items() if age is not None}
    tags = {"latest": f"1.{max(found)}.0", "next": f"1.{min(found)}.0"} if found else {}
    body = json.dumps({"name": "demo", "versions": versions, "time": times, "dist-tags": tags}).encode()
    expected = [n for n, age in found.items() if may_be_seen(age, cooldown, unknown)]
    where = page(cooldown, unknown, registry="npm")
    if found and not expected:
        assert npm.filter_page(where, "", body)[0].nothing is not None
        return
    for accept in ("", npm.ABBREVIATED):
        filtered, linked = npm.filter_page(msgspec.structs.replace(where, accept=accept), "", body)
        seen = json.loads(filtered.body)
        assert set(seen["versions"]) == {f"1.{n}.0" for n in expected}
        assert may_be_fetched(linked) == {("files.test", 443, f"/demo/-/demo-1.{n}.0.tgz") for n in expected}
        restricted = seen.get("policyRestrictions", {"versions": {}})["versions"]
        assert set(restricted) == {f"1.{n}.0" for n in found} - set(seen["versions"])
        assert set(seen["dist-tags"].values()) <= set(seen["versions"])
        if expected:
            assert seen["dist-tags"]["latest"] == f"1.{max(expected)}.0"


anything = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=20) | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
links = st.sampled_from(
    [
        *(
            "/p/demo-1.0.zip",
            "https://files.test/demo/-/demo-1.0.0.tgz",
            "https://evil.test/p/demo-1.0.zip",
            "//[",
            "\\\\x",
        ),
        *(
            "https://files.test:9/p/demo-1.0.zip#x",
            "https://files.test@evil.test/demo-1.0.zip",
            "/a/../../demo-1.0.zip",
        ),
    ]
) | st.text(max_size=30)
keys = st.sampled_from(["hashes", "yanked", "upload-time", "core-metadata", "provenance", "size"])
entries = st.tuples(st.dictionaries(keys, anything, max_size=4), links).map(
    lambda one: {"filename": "demo-1.0.zip", "url": one[1]} | one[0]
)
TARBALLS = [f"https://{host}/demo/-/demo-1.0.0.tgz" for host in ("files.test", "evil.test", "files.test@evil.test")]
dists = st.fixed_dictionaries({"tarball": st.sampled_from(TARBALLS) | links})
manifests = st.fixed_dictionaries({"name": st.just("demo"), "version": st.just("1.0.0"), "dist": dists})


def held(work: Callable[[], Filtered]) -> None:
    try:
        filtered, linked = work()
    except Malformed:
        return
    assert all(host in HOSTS for host, _, _ in linked)
    for before in (b'"url":"', b'href="', b'"tarball":"', b'"provenance":"'):
        assert before + b"https://evil.test" not in filtered.body


@given(st.lists(entries | anything, max_size=5), st.sampled_from(["json", "html"]))
def test_whatever_a_python_index_says_leads_to_its_own_hosts(files: list[Any], accept: str) -> None:
    body = json.dumps({"name": "demo", "files": files}).encode()
    held(lambda: pypi.filter_json(page(None, None, accept=accept), body))
    text = "".join(f'<a href="{one.get("url")}">demo-1.0.zip</a>' for one in files if isinstance(one, dict))
    held(lambda: pypi.filter_html(page(None, None, accept=accept), text.encode("utf-8", "replace")))


@given(st.dictionaries(st.sampled_from(["1.0.0", "x"]), manifests, max_size=4), anything, anything)
def test_whatever_an_npm_registry_says_leads_to_its_own_hosts(versions: Any, times: Any, tags: Any) -> None:
    body = json.dumps({"name": "demo", "versions": versions, "time": times, "dist-tags": tags}).encode()
    where = msgspec.structs.replace(page(None, None, registry="npm"), accept=npm.ABBREVIATED)
    held(lambda: npm.filter_page(where, "", body))


@given(
    st.tuples(
        st.sampled_from(
            [
                "https://files.test",
                "https://index.test",
                "https://files.test.",
                "https://FILES.test",
                "http://files.test",
            ]
        ),
        st.text("/ab.~!-+_%2ef;=?# \\\t", max_size=12),
        st.sampled_from(["", "#sha256=00", "/demo-1.0.zip", "/../demo-1.0.zip", "/demo-1.0.zip#a b"]),
    ).map("".join)
)
def test_a_link_that_is_plain_is_what_any_link_is(link: str) -> None:
    plain = page(None, None)
    assert plain.file(link) == plain._resolved(link)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_page_are_malformed_or_empty(body: bytes) -> None:
    held(lambda: pypi.filter_json(page(1, None), body))
    held(lambda: pypi.filter_html(page(1, None), body))
    held(lambda: npm.filter_page(page(1, None, registry="npm"), "", body))


def test_deep_and_endless_pages_are_no_work() -> None:
    """Where it is not linear, this does not end."""
    for body in (b"[" * 1_000_000, b'{"name":' * 100_000):
        with pytest.raises(Malformed):
            pypi.filter_json(page(1, None), body)
    for text in (
        b"<a " * 300_000,
        b'<a x="' * 200_000,
        b"<a" + b" x" * 500_000,
        b"<a b=" + b"c" * 1_000_000,
        b"<a>" * 300_000,
    ):
        held(lambda text=text: pypi.filter_html(page(None, None), text))


def test_paths_of_pages_and_of_everything_else() -> None:
    assert pypi.package_of("/root/pypi/+simple/Zope.Interface/") == "zope-interface"
    assert [pypi.package_of(path) for path in ("/simple/", "/simple/a/b", "/pypi/a/json")] == [None] * 3
    assert [npm.package_of(path) for path in ("/a", "/@s/a", "/@s%2Fa", "/npm/a")] == ["a", "@s/a", "@s/a", "a"]
    assert [npm.package_of(path) for path in ("/-/all", "/", "/-/a.tgz", "/a/-/a-1.tgz", "/@s")] == [None] * 5
