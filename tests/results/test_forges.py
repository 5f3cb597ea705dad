"""Pull requests, in both dialects, against what their published descriptions say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator

import pytest
from forge import TOKEN, ForgeServer

from paddock.errors import (
    InvalidArgumentError,
    InvalidStateError,
    NotFoundError,
    PaddockError,
    PlatformError,
    PolicyDeniedError,
    UnsupportedError,
)
from paddock.model import PullRequest
from paddock.storage.git import Credential, parse
from paddock.storage.git.forges import Forge, open_forge

CREDENTIAL = Credential("me", TOKEN)
DIALECTS = pytest.mark.parametrize("dialect", ["github", "gitea"])
Started = Callable[..., ForgeServer]


@pytest.fixture
def started() -> Generator[Started]:
    servers: list[ForgeServer] = []

    def start(dialect: str, prefix: str = "") -> ForgeServer:
        servers.append(ForgeServer(dialect, prefix))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def forge_of(server: ForgeServer, credential: Credential | None = CREDENTIAL, dialect: str | None = None) -> Forge:
    remote, _ = parse(server.url, local=False)
    return asyncio.run(open_forge(remote, credential, dialect))


def find(forge: Forge, branch: str = "topic", base: str = "main") -> PullRequest | None:
    return asyncio.run(forge.find(branch, base))


def create(forge: Forge, branch: str = "topic", *, draft: bool = False) -> PullRequest:
    return asyncio.run(forge.create(branch, "main", title="A title", body="words", draft=draft))


@DIALECTS
def test_a_request_is_made_and_found_again(started: Started, dialect: str) -> None:
    server = started(dialect)
    forge = forge_of(server)
    assert find(forge) is None
    made = create(forge)
    assert (made.number, made.branch, made.base, made.created) == (1, "topic", "main", True)
    found = find(forge)
    assert found is not None
    assert (found.number, found.url, found.created) == (1, made.url, False)
    assert asyncio.run(forge.default_branch()) == "main"
    (posted,) = (body for method, _, _, body in server.requests if method == "POST")
    assert (posted["title"], posted["head"], posted["base"], posted["body"]) == ("A title", "topic", "main", "words")


@DIALECTS
def test_one_that_is_there_is_said_to_be_there(started: Started, dialect: str) -> None:
    server = started(dialect)
    server.add("topic", "main", "theirs")
    with pytest.raises(InvalidStateError, match="already exists"):
        create(forge_of(server))


@DIALECTS
def test_what_cannot_become_one_is_refused_in_the_forges_words(started: Started, dialect: str) -> None:
    server = started(dialect)
    with pytest.raises(InvalidArgumentError, match=r"No commits between|no changes between"):
        create(forge_of(server), "main")
    server.archived = True
    with pytest.raises((InvalidStateError, PolicyDeniedError), match="archived"):
        create(forge_of(server))
    assert server.pulls == []


def test_a_forge_that_gives_less_than_was_asked_for_is_read_to_its_end(started: Started) -> None:
    server = started("gitea")
    server.page = 30
    for number in range(70):
        server.add(f"other{number}", "main", "x")
    server.add("topic", "main", "the one")
    found = find(forge_of(server))
    assert found is not None
    assert found.title == "the one"


def test_what_a_forge_gives_though_it_was_not_asked_for_is_not_taken(started: Started) -> None:
    server = started("github")
    server.filters = False
    server.add("topic", "main", "a stranger's", fork=True)
    assert find(forge_of(server)) is None


@DIALECTS
def test_only_this_repositorys_own_open_one_is_taken(started: Started, dialect: str) -> None:
    server = started(dialect)
    for number in range(120):
        server.add(f"other{number}", "main", "x")
    server.add("topic", "main", "a stranger's", fork=True)
    server.add("topic", "release", "into another")
    server.add("topic", "main", "closed", state="closed")
    forge = forge_of(server)
    assert find(forge) is None
    server.add("topic", "main", "the one")
    found = find(forge)
    assert found is not None
    assert found.title == "the one"


def test_each_dialect_has_its_draft(started: Started) -> None:
    for dialect in ("github", "gitea"):
        server = started(dialect)
        create(forge_of(server), draft=True)
        body = server.requests[-1][3]
        assert body.get("draft") is True or body["title"] == "WIP: A title"


def test_a_forge_below_a_path_is_found(started: Started) -> None:
    assert create(forge_of(started("gitea", "/code"))).number == 1


def test_who_is_asked_first_gets_no_credential(started: Started) -> None:
    server = started("github")
    forge_of(server)
    assert all("authorization" not in headers for _, _, headers, _ in server.requests)


def test_what_is_no_forge_is_said_to_be_none(started: Started) -> None:
    server = started("gitea")
    server.answer = (200, {"Content-Type": "text/html"}, b"<html>")
    with pytest.raises(UnsupportedError, match="neither"):
        forge_of(server)
    for url in ("http://example.org/a/b", "git://example.org/a/b"):
        with pytest.raises((InvalidArgumentError, UnsupportedError)):
            asyncio.run(open_forge(parse(url, local=False)[0], CREDENTIAL))
    with pytest.raises(InvalidArgumentError, match="no owner"):
        asyncio.run(open_forge(parse("https://github.com/a", local=False)[0], None))
    with pytest.raises(InvalidArgumentError, match="speaks"):
        forge_of(server, dialect="cvs")


@DIALECTS
@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (401, {"message": "Bad credentials"}, PolicyDeniedError),
        (403, {"message": "rate limit"}, PolicyDeniedError),
        (404, {"message": "Not Found"}, NotFoundError),
        (422, {"message": "Validation Failed", "errors": [{"field": "base"}]}, InvalidArgumentError),
        (500, {}, PlatformError),
        (200, {"no": "pull"}, PlatformError),
    ],
)
def test_each_refusal_is_an_error_of_its_own(
    started: Started, dialect: str, status: int, body: object, error: type[PaddockError]
) -> None:
    server = started(dialect)
    forge = forge_of(server)
    server.answer = (status, {}, json.dumps(body).encode())
    with pytest.raises(error):
        create(forge)


@DIALECTS
def test_a_redirect_takes_the_credential_nowhere(started: Started, dialect: str) -> None:
    server, elsewhere = started(dialect), started(dialect)
    forge = forge_of(server)
    server.answer = (302, {"Location": elsewhere.url}, b"{}")
    with pytest.raises(InvalidStateError, match="moved"):
        find(forge)
    assert elsewhere.requests == []


@DIALECTS
def test_an_answer_without_end_is_not_read(started: Started, dialect: str) -> None:
    server = started(dialect)
    forge = forge_of(server)
    server.answer = (200, {}, b"[" + b" " * (9 << 20) + b"]")
    with pytest.raises(PlatformError, match="more than 8 MiB"):
        find(forge)


def test_what_a_forge_says_drives_no_terminal(started: Started) -> None:
    server = started("gitea")
    forge = forge_of(server)
    server.answer = (422, {}, json.dumps({"message": "\x1b[2Jgone\n"}).encode())
    with pytest.raises(InvalidArgumentError) as refusal:
        create(forge)
    assert refusal.value.message.isprintable()
