"""Names of hosts, paths and addresses in the one form that is compared."""

from __future__ import annotations

import functools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.policy.network import NotAName, canonical_name, load, normal_path
from paddock.policy.network._addresses import parse_address, special, unwrapped
from paddock.policy.network._globs import Glob, compile_glob, overlap, tokens_of, union
from paddock.policy.network._paths import pattern


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("EXAMPLE.com", "example.com"),
        ("example.com.", "example.com"),
        ("Bücher.example", "xn--bcher-kva.example"),
        ("faß.de", "xn--fa-hia.de"),
        ("\uff25\uff38\uff21mple.com", "example.com"),
        ("日本語。jp", "xn--wgv71a119e.jp"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("localhost", "localhost"),
        ("3com.example", "3com.example"),
    ],
)
def test_a_name_has_one_form(text: str, name: str) -> None:
    assert canonical_name(text) == name
    assert canonical_name(name) == name


@pytest.mark.parametrize(
    "text",
    [
        *("2130706433", "0x7f.1", "017700000001", "127.1", "①②⑦.0.0.1", "127.0.0.1", "0x7f000001", "1.2.3.0x4", "a.0x"),
        *("", ".", "a..b", ".a", "a..", "-a.test", "a-.test", "a_b.test", "a b.test", "a\u00ad..test", "a\x00.test"),
        *("\u0430pple.com", "xn--pple-43d.com", "xn--zz.test", "ab--c.test", "a" * 64 + ".test", "a.b" * 100),
        *("evil.test\\@allowed.test", "user@a.test", "a.test:80", "a.test/b", "[::1]", "*.a.test", "a%2etest"),
    ],
)
def test_what_is_no_name_or_two_is_refused(text: str) -> None:
    with pytest.raises(NotAName):
        canonical_name(text)


@given(st.text(max_size=40))
def test_a_canonical_name_is_letters_digits_and_hyphens(text: str) -> None:
    try:
        name = canonical_name(text)
    except NotAName:
        return
    assert re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)*", name)
    assert not name.rpartition(".")[2].isdigit()
    assert canonical_name(name) == name
    assert parse_address(name) is None


@pytest.mark.parametrize(
    "host", ["*", "*.com", "*.co.uk", "*.github.io", "*.*.a.test", "a*.test", "*a.test", "*.127.1"]
)
def test_a_wildcard_is_narrow(host: str) -> None:
    with pytest.raises(Exception, match="host"):
        load({"egress": {"allow": [{"host": host}]}})
    load({"egress": {"deny": [{"host": "*.com"}]}})


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("/a/b", "/a/b"),
        ("/a//b///c", "/a/b/c"),
        ("/a/./b/../c", "/a/c"),
        ("/../../a", "/a"),
        ("/a/..", "/"),
        ("/a/.", "/a/"),
        ("/%61%2Db/%7euser", "/a-b/~user"),
        ("/a/%2e%2e/b", "/b"),
        ("/a%2fb", "/a%2Fb"),
        ("/@scope%2fname?x=%2F..", "/@scope%2Fname?x=%2F.."),
        ("/a%20b", "/a%20b"),
        ("/caf%c3%a9/%e0%b8%81/%f0%9f%98%80", "/caf%C3%A9/%E0%B8%81/%F0%9F%98%80"),
        ("/a?b?c", "/a?b?c"),
        ("*", "*"),
    ],
)
def test_a_path_has_one_form(text: str, normal: str) -> None:
    assert normal_path(text) == normal
    assert normal_path(normal) == normal


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "a/b", "http://x/", "/a b", "/a\\b", "/a%5Cb", "/a%5cb", "/a#b", "/a?b#c", "/ä", "/a\x00", "/a%00"),
        *("/a%c0%ae/b", "/%C0%AF", "/%c1%9c", "/%e0%80%ae", "/%E0%9F%BF", "/%f0%80%80%ae", "/%f8%80%80%80%ae", "/%C0."),
        *("/%fc%80%80%80%80%ae", "/a%252e%c0"),
        *("/a%0d%0a", "/a%7F", "/a%zz", "/a%2", "/a%", "/a%252e", "/a%2F..%2Fb", "/a%2F../b", "/a/..;/b", "/.;x/a"),
        *("/a?b\x01", "/a?b\\c", "/" + "a" * 16_384),
    ],
)
def test_what_cannot_be_made_normal_is_refused(text: str) -> None:
    assert normal_path(text) is None


@given(st.text("a./%2Ee;fF5cC?*", max_size=16).map(lambda text: "/" + text))
def test_a_normal_path_climbs_in_no_reading(text: str) -> None:
    normal = normal_path(text)
    if normal is None:
        return
    assert normal_path(normal) == normal
    path = normal.partition("?")[0]
    for reading in (path, path.replace("%2F", "/")):
        assert not {".", ".."} & set(reading.split("/"))
        assert "//" not in path


PATTERNS = st.lists(st.sampled_from(["a", "b", "/", "*", "**"]), max_size=8).map(
    lambda parts: "/" + re.sub(r"\*{3,}", "**", "".join(parts))
)
TEXTS = st.text("ab/", max_size=8).map(lambda text: "/" + text)


def slow_match(tokens: str, text: str) -> bool:
    """As the documentation says it, and no cleverer."""
    if not tokens:
        return not text
    if tokens.startswith("**"):
        return slow_match(tokens[2:], text) or (bool(text) and slow_match(tokens, text[1:]))
    if tokens.startswith("*"):
        return slow_match(tokens[1:], text) or (bool(text) and text[0] != "/" and slow_match(tokens, text[1:]))
    return bool(text) and text[0] == tokens[0] and slow_match(tokens[1:], text[1:])


def states_only(one: Glob) -> Glob:
    return Glob(one.tokens, None, one.literals, one.stars, one.ends)


@given(PATTERNS, TEXTS)
def test_a_pattern_means_what_is_documented_in_both_ways_it_is_matched(text: str, path: str) -> None:
    one = compile_glob(tokens_of(text))
    assert one.matches(path) == states_only(one).matches(path) == slow_match(text, path)


@given(st.lists(PATTERNS, max_size=4), TEXTS)
def test_patterns_that_step_together_match_what_each_of_them_matches(texts: list[str], path: str) -> None:
    globs = [compile_glob(tokens_of(text)) for text in texts]
    all_of_them = union(globs)
    found = all_of_them.matched(functools.reduce(all_of_them.step, path, all_of_them.start))
    assert found.bit_count() == sum(one.matches(path) for one in globs)


@given(PATTERNS, PATTERNS, TEXTS)
def test_patterns_overlap_where_one_text_matches_both(one: str, other: str, path: str) -> None:
    a, b = compile_glob(tokens_of(one)), compile_glob(tokens_of(other))
    if a.matches(path) and b.matches(path):
        assert overlap(a, b)


@given(PATTERNS, PATTERNS)
def test_patterns_that_overlap_have_a_text_that_matches_both(one: str, other: str) -> None:
    a, b = compile_glob(tokens_of(one)), compile_glob(tokens_of(other))
    seen, waiting = {(a.start, b.start)}, [(a.start, b.start)]
    found = False
    while waiting and not found:
        x, y = waiting.pop()
        found = a.matched(x) != 0 and b.matched(y) != 0
        for character in "ab/c":
            state = a.step(x, character), b.step(y, character)
            if all(state) and state not in seen:
                seen.add(state)
                waiting.append(state)
    assert overlap(a, b) == found


def test_a_long_path_of_an_attacker_takes_no_time_for_a_pattern_with_many_stars() -> None:
    """A regular expression would go back for hours."""
    one = pattern("/" + "**a" * 12 + "b")
    path = "/" + "a" * 16_000
    assert one.allows(path, path) is False


def test_an_escaped_slash_is_allowed_only_in_both_readings_and_denied_in_either() -> None:
    inside = pattern("/repos/acme/**")
    path, other = "/repos/acme%2Fsecret", "/repos/acme/secret"
    assert not inside.allows(path, other)
    assert inside.denies(path, other)
    assert not pattern("/repos/*").allows("/repos/acme%2Fsecret", other)
    assert pattern("/repos/acme%2fsecret").allows(path, other)
    assert not pattern("/repos/acme%2fsecret").allows(other, other)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *(("127.0.0.1", "loopback"), ("10.1.2.3", "private"), ("172.31.0.1", "private"), ("192.168.1.1", "private")),
        *(("169.254.169.254", "metadata"), ("168.63.129.16", "metadata"), ("fd00:ec2::254", "metadata")),
        *(("fd20:ce::254", "metadata"), ("fd00:42::42", "metadata"), ("fd00:ec2::23", "metadata")),
        *(("169.254.170.23", "metadata"), ("64:ff9b::a9fe:aa17", "metadata"), ("::ffff:0:a00:1", "SIIT")),
        *(("169.254.1.1", "link-local"), ("100.64.0.1", "CGNAT"), ("100.100.100.200", "metadata")),
        *(("224.0.0.1", "multicast"), ("255.255.255.255", "reserved"), ("0.0.0.0", "unspecified"), ("0.1.2.3", "unsp")),
        *(("198.18.0.1", "benchmarks"), ("::", "unspecified"), ("::1", "loopback"), ("fe80::1", "link-local")),
        *(("fc00::1", "private"), ("ff02::1", "multicast"), ("2001::1", "Teredo"), ("64:ff9b:1::1", "NAT64")),
        *(("::ffff:127.0.0.1", "loopback"), ("::127.0.0.1", "loopback"), ("64:ff9b::7f00:1", "loopback")),
        *(("2002:7f00:1::", "loopback"), ("2002:a9fe:a9fe::1", "metadata"), ("::ffff:a9fe:a9fe", "metadata")),
    ],
)
def test_special_addresses_are_known_in_every_disguise(text: str, kind: str) -> None:
    found = parse_address(text)
    assert found is not None
    block = special(unwrapped(found))
    assert block is not None
    assert kind in block.name


@pytest.mark.parametrize("text", ["93.184.216.34", "2606:2800:220::1", "64:ff9b::5db8:d822", "11.0.0.1", "172.32.0.1"])
def test_ordinary_addresses_are_not_special(text: str) -> None:
    found = parse_address(text)
    assert found is not None
    assert special(unwrapped(found)) is None


@pytest.mark.parametrize(
    "text", ["127.1", "0x7f.0.0.1", "2130706433", "017.0.0.1", "1.2.3.4 ", "fe80::1%eth0", "①.0.0.1"]
)
def test_what_only_resolvers_take_for_an_address_is_none(text: str) -> None:
    assert parse_address(text) is None
