"""URLs and names, before git sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddock.errors import InvalidArgumentError, NotFoundError, PolicyDeniedError
from paddock.storage.git import Credential, check_ref, parse, web
from paddock.storage.git._ambient import header, parse_fill


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://Git.Example.ORG:443/a/b.git/", "https://git.example.org/a/b.git"),
        ("https://git.example.org./a", "https://git.example.org/a"),
        ("http://127.0.0.1:8080/a%20b", "http://127.0.0.1:8080/a%20b"),
        ("git://[::1]/a", "git://[::1]/a"),
        ("https://u:p@git.example.org/a", "https://git.example.org/a"),
        ("ssh://git@Git.example.org:22/a/b.git/", "ssh://git@git.example.org/a/b.git"),
        ("ssh://git.example.org:2222/~/a", "ssh://git.example.org:2222/~/a"),
        ("git@Git.example.org:a/b.git", "git@git.example.org:a/b.git"),
        ("git.example.org:~u/a/", "git.example.org:~u/a"),
        ("git@git.example.org:/srv/a", "ssh://git@git.example.org/srv/a"),
    ],
)
def test_one_repository_has_one_spelling_without_credentials(text: str, url: str) -> None:
    assert parse(text, local=False)[0].url == url
    assert parse(url, local=False)[0].url == url


def test_a_credential_is_taken_out_and_never_shown() -> None:
    remote, credential = parse("https://u%40x:p%2Fw@git.example.org/a", local=False)
    assert credential == Credential("u@x", "p/w")
    assert "p/w" not in repr(credential) + repr(remote)
    assert remote.origin == "https://git.example.org"


@pytest.mark.parametrize(
    "text",
    [
        "ext::sh -c touch% /tmp/canary",
        "EXT::sh",
        "fd::17/foo",
        "https::https://git.example.org/a",
        "--upload-pack=touch /tmp/canary",
        "-oProxyCommand=touch /tmp/canary",
        "ssh://-oProxyCommand=touch/a",
        "ssh://git:secret@git.example.org/a",
        "ssh://-l@git.example.org/a",
        "ssh://git.example.org/a'b",
        "ssh://git.example.org/a%27b",
        "ssh://git.example.org/",
        "-git@git.example.org:a",
        "git@-git.example.org:a",
        "git@git.example.org:-a",
        "git@git.example.org:a/../b",
        "git@git.example.org:a'b",
        "git@git.example.org:a b",
        "git@git.example.org:",
        "git@git.example.org:/",
        "git.example.org/a",
        "ftp://git.example.org/a",
        "https://-git.example.org/a",
        "https://git.example.org/a?x=y",
        "https://git.example.org/a#b",
        "https://git.example.org/",
        "https://git.example.org/a/../b",
        "https://git.example.org/a/%2e%2e/b",
        "https://git.example.org/a%0ahost=evil",
        "https://git.example.org/a\nhost=evil",
        "https://evil.test\\@git.example.org/a",
        "https://g\u0131t.example.org/a",
        "https://2130706433/a",
        "https://0x7f.1/a",
        "https://git.example.org:99999/a",
        "https://git.example.org/a b",
        "https://[::1/a",
        "git://u@git.example.org/a",
        "file://host/a",
        "",
        "https://git.example.org/" + "a" * 3000,
    ],
)
def test_what_git_could_take_for_something_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse(text, local=True)


@pytest.mark.parametrize(
    "text",
    [
        "ssh://u:hunter2@git.example.org/a",
        "https://u:hunter2@git.example.org/?a",
        "ext::https://u:hunter2@h/a",
        "u:hunter2@h:a",
    ],
)
def test_a_refusal_does_not_repeat_a_secret(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse(text, local=True)
    assert "hunter2" not in str(caught.value)


def test_directories_are_for_those_who_are_here(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    remote, _ = parse(f"{tmp_path}/link", local=True)
    assert (remote.url, remote.path) == (f"file://{tmp_path}", tmp_path)
    with pytest.raises(PolicyDeniedError):
        parse(str(tmp_path), local=False)
    with pytest.raises(PolicyDeniedError):
        parse(f"file://{tmp_path}", local=False)
    with pytest.raises(NotFoundError):
        parse(f"{tmp_path}/none", local=True)


@pytest.mark.parametrize("name", ["main", "fix/deep", "v1.0", "ümläut", "refs/pull/1/head", "a" * 40])
def test_names_of_branches(name: str) -> None:
    assert check_ref(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("-b", "--upload-pack=x", "", "@", "a..b", "a b", "a~1", "a^", "a:b", "a?", "a*", "a[", "a\\b", "a\nb", "/a"),
        *("a/", "a//b", ".a", "a/.b", "a.lock", "a.lock/b", "a.", "a@{b", "x" * 2000, "a\u202eb"),
    ],
)
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        check_ref(name)


def test_a_credential_is_one_line_each() -> None:
    with pytest.raises(InvalidArgumentError):
        Credential("u", "p\nhost=evil").lines()
    for token in ('x"\n[core]', "a b", ""):
        with pytest.raises(InvalidArgumentError):
            Credential("", token, bearer=True).header()


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("git@git.example.org:a/b.git", "https://git.example.org/a/b.git"),
        ("ssh://git@git.example.org:2222/a/b", "https://git.example.org/a/b"),
        ("https://git.example.org:8443/a/b", "https://git.example.org:8443/a/b"),
    ],
)
def test_the_pages_of_what_is_reached_by_ssh_are_at_https(url: str, where: str) -> None:
    assert web(url) == where


def test_what_a_git_that_is_newer_answers_and_what_build_servers_configure() -> None:
    assert parse_fill("username=u\npassword=p\n") == Credential("u", "p")
    assert parse_fill("capability[]=authtype\nauthtype=Bearer\ncredential=t\n") == Credential("", "t", bearer=True)
    assert parse_fill("username=u\n") is None
    assert header("AUTHORIZATION: basic dTpwOnE=") == Credential("u", "p:q")
    assert header("Authorization: Bearer t") == Credential("", "t", bearer=True)
    assert header("X-Other: 1") is header("Authorization: basic !") is None
