"""Remotes behind HTTPS and a login: who is trusted, what is sent to whom, and what is said when it goes wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from paddock.errors import InvalidStateError, NotConfiguredError, NotFoundError, PlatformError
from paddock.storage.git import Credential, RemoteRefused, parse
from paddock.storage.git.forges import open_forge
from tests.remotes.git_host import Host, serving
from tests.repositories.shelf import ALICE, Shelf
from tests.results.forge import Contract

BASIC = Credential("alice", "s3cret-4711")
BEARER = Credential("", "t0ken-4711", bearer=True)


def acquire(shelf: Shelf, url: str, ref: str | None = None) -> str:
    return asyncio.run(shelf.acquire(url, ref)).commit


@pytest.mark.parametrize(("scheme", "credential"), [("Basic", BASIC), ("Bearer", BEARER)])
@pytest.mark.usefixtures("trusted")
def test_a_login_is_shown_and_one_that_is_not_taken_is_said(
    shelf: Shelf, host: Host, scheme: str, credential: Credential
) -> None:
    host.admit(scheme, "alice", credential.password)
    shelf.credentials[ALICE.id] = credential
    assert acquire(shelf, host.url) == host.git("rev-parse", "main")
    host.admit(scheme, "alice", "another")  # revoked, expired, or wrong from the start
    with pytest.raises(NotFoundError, match=f"not for {ALICE.name}") as refusal:
        acquire(shelf, host.url)
    assert "expired" in (refusal.value.hint or "")
    assert "4711" not in str(refusal.value)


@pytest.mark.parametrize("credential", [BASIC, BEARER])
@pytest.mark.usefixtures("trusted")
def test_a_redirect_to_another_host_takes_no_login_along(
    shelf: Shelf, host: Host, certificates: Path, credential: Credential
) -> None:
    shelf.credentials[ALICE.id] = credential
    with serving(host.root, Contract("gitea"), certificates) as thief:
        thief.logins = {"of somebody"}
        host.redirect = thief.address
        with pytest.raises((NotFoundError, InvalidStateError)):
            acquire(shelf, host.url)
        assert {login for _, _, login in thief.asked} <= {None}


@pytest.mark.usefixtures("trusted")
def test_a_server_that_redirects_only_those_with_a_token_gets_it_sent_nowhere(
    shelf: Shelf, host: Host, certificates: Path
) -> None:
    remote, _ = parse(host.url, local=False)
    with serving(host.root, Contract("gitea"), certificates) as thief:
        host.redirect = thief.address
        with pytest.raises(InvalidStateError, match="sends on"):
            asyncio.run(shelf.git.look(remote, BEARER))
        assert thief.asked == []


def test_who_vouches_for_a_server_is_named_by_the_one_who_asks(
    shelf: Shelf, host: Host, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GIT_SSL_CAINFO", "SSL_CERT_FILE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    remote, _ = parse(host.url, local=False)
    with pytest.raises(PlatformError, match="does not prove who it is") as refusal:
        acquire(shelf, host.url)
    assert "GIT_SSL_CAINFO" in (refusal.value.hint or "")
    with pytest.raises(PlatformError, match="cannot be reached") as refusal:
        asyncio.run(open_forge(remote, BASIC))
    assert "GIT_SSL_CAINFO" in (refusal.value.hint or "")
    assert host.asked == []
    own = certificates / "own.pem"  # for nobody else to read
    own.write_bytes((certificates / "certificate.pem").read_bytes())
    own.chmod(0o600)
    monkeypatch.setenv("GIT_SSL_CAINFO", str(own))
    assert acquire(shelf, host.url) == host.git("rev-parse", "main")
    assert asyncio.run(open_forge(remote, BASIC)).name == "gitea"
    monkeypatch.setenv("GIT_SSL_CAINFO", str(certificates / "none"))
    with pytest.raises(NotConfiguredError, match="GIT_SSL_CAINFO"):
        acquire(shelf, host.url)


@pytest.mark.parametrize("when", ["before", "within"])
@pytest.mark.usefixtures("trusted")
def test_a_server_that_dies_during_a_fetch_leaves_nothing_and_the_next_one_has_it_all(
    shelf: Shelf, host: Host, when: str
) -> None:
    host.dies = {when: "/git-upload-pack"}
    with pytest.raises(PlatformError):
        acquire(shelf, host.url)
    assert all(one.observed_at is None for one in shelf.store.list(ALICE.id))
    host.dies = {}
    assert acquire(shelf, host.url) == host.git("rev-parse", "main")


@pytest.mark.usefixtures("trusted")
def test_a_server_that_dies_during_a_push_is_said_and_the_same_push_again_succeeds(shelf: Shelf, host: Host) -> None:
    remote, _ = parse(host.url, local=False)
    acquired = asyncio.run(shelf.acquire(host.url))
    git, ref = shelf.git, "refs/heads/topic"

    def push(expect: str | None) -> None:
        asyncio.run(git.push(acquired.repository, remote, BASIC, commit=acquired.commit, ref=ref, expect=expect))

    host.dies = {"before": "/git-receive-pack"}
    with pytest.raises(PlatformError):
        push(None)
    assert host.branches() == {"main"}
    host.dies = {"after": "/git-receive-pack"}
    with pytest.raises(PlatformError):
        push(None)
    host.dies = {}
    assert asyncio.run(git.look(remote, BASIC)).refs[ref].oid == acquired.commit
    push(acquired.commit)


@pytest.mark.usefixtures("trusted")
def test_what_the_server_says_of_a_push_that_it_refuses_is_told(shelf: Shelf, host: Host) -> None:
    remote, _ = parse(host.url, local=False)
    main = host.git("rev-parse", "main")
    host.git("branch", "new", host.git("commit-tree", "-p", main, "-m", "new", "main^{tree}"))
    acquired = asyncio.run(shelf.acquire(host.url, "new"))

    def push(ref: str, expect: str | None) -> None:
        commit = acquired.commit
        asyncio.run(shelf.git.push(acquired.repository, remote, BASIC, commit=commit, ref=ref, expect=expect))

    hook = host.bare / "hooks/pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nprintf 'main is \\033[31mprotected\\n' >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(InvalidStateError, match=r"hook declined.*main is .*protected") as refusal:
        push("refs/heads/main", main)
    assert refusal.value.message.isprintable()
    hook.unlink()
    with pytest.raises(InvalidStateError, match="stale info"):
        push("refs/heads/main", acquired.commit)  # which is not what is there
    assert host.git("rev-parse", "main") == main
    host.admit("Basic", "alice", "another")
    with pytest.raises(RemoteRefused):
        push("refs/heads/main", main)
