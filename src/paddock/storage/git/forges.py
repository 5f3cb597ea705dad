"""The forges: which one a repository is on, where its API begins, and the names that it uses.

JSON over HTTP to one forge: bounded, without redirects, and the credential goes to that forge alone.
GitHub: https://docs.github.com/rest/pulls/pulls. Gitea and Forgejo: /api/swagger of each server, `repository`.
"""

from __future__ import annotations

import asyncio
import http.client
import urllib.request
from abc import ABC, abstractmethod
from typing import Any, ClassVar
from urllib.parse import quote, unquote, urlencode, urlsplit

import msgspec

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
from paddock.storage.certificates import authorities
from paddock.storage.git import Credential, Remote
from paddock.storage.https import TooLong, ask, opener, unreachable

from ._process import plain

_SECONDS = 30.0
_BODY_BYTES = 8 << 20
_WORDS = 300


class Answer(msgspec.Struct, frozen=True):
    status: int
    body: bytes

    def json(self, kind: Any) -> Any:
        """Decode the body. Raises PlatformError if it differs from the API's description."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except msgspec.DecodeError as error:
            raise PlatformError(
                f"the forge answered {self.status} with something else than its API says: {error}"
            ) from None

    def words(self) -> str:
        """Return the forge's message about a failure, without characters that control a terminal."""
        try:
            problem = msgspec.json.decode(self.body, type=_Problem)
        except msgspec.DecodeError:
            return f"{self.status}"
        text = " ".join([problem.message, *(str(error) for error in problem.errors or ())])
        return f"{self.status}: {plain(text)[:_WORDS]}"


class _Problem(msgspec.Struct):
    message: str = ""
    errors: list[Any] | None = None


def _ask(base: str, path: str, authorization: str | None, content: object = None) -> Answer:
    """GET, or POST `content`, at the API with the root `base`. `authorization` is the header's value."""
    headers = {"Accept": "application/json", "User-Agent": "paddock", "Content-Type": "application/json"}
    if authorization is not None:
        headers["Authorization"] = authorization
    data = None if content is None else msgspec.json.encode(content)
    request = urllib.request.Request(base + path, data=data, headers=headers)  # noqa: S310 (checked: http or https)
    try:
        return Answer(*ask(opener(authorities=authorities()), request, seconds=_SECONDS, most_bytes=_BODY_BYTES))
    except TooLong:
        raise PlatformError(f"the forge answered with more than {_BODY_BYTES >> 20} MiB") from None
    except (OSError, http.client.HTTPException) as error:
        raise unreachable(base, error) from None


_PAGE = 50
_PAGES = 40


class _Side(msgspec.Struct):
    ref: str
    sha: str = ""
    label: str | None = None
    repo_id: int | None = None


class _Pull(msgspec.Struct):
    number: int
    html_url: str
    title: str
    head: _Side
    base: _Side
    state: str = "open"


class _Repository(msgspec.Struct):
    default_branch: str


class Forge(ABC):
    """One repository of one forge. NotFoundError, PolicyDeniedError (the credential does not let), PlatformError."""

    name: ClassVar[str]

    def __init__(self, base: str, owner: str, repository: str, credential: Credential | None) -> None:
        self._authorization = None if credential is None else self._header(credential)
        self._base, self._owner = base, owner
        self._path = f"/repos/{quote(owner, safe='')}/{quote(repository, safe='')}"

    async def default_branch(self) -> str:
        return (await self._get(self._path)).json(_Repository).default_branch

    @abstractmethod
    async def find(self, branch: str, base: str) -> PullRequest | None:
        """Return the open pull request of `branch` into `base`."""

    @abstractmethod
    async def create(self, branch: str, base: str, *, title: str, body: str, draft: bool) -> PullRequest:
        """Open a pull request. InvalidStateError: there is one already, or there is nothing to pull.
        InvalidArgument."""

    @staticmethod
    @abstractmethod
    def _header(credential: Credential) -> str: ...

    async def _get(self, path: str, **query: str) -> Answer:
        path += f"?{urlencode(query)}" if query else ""
        answer = await asyncio.to_thread(_ask, self._base, path, self._authorization)
        if answer.status != 200:
            raise _problem(answer)
        return answer

    async def _post(self, branch: str, base: str, **content: object) -> PullRequest:
        content |= {"head": branch, "base": base}
        answer = await asyncio.to_thread(_ask, self._base, f"{self._path}/pulls", self._authorization, content)
        if answer.status == 201:
            return _pull_request(answer.json(_Pull), created=True)
        if answer.status == 409 or (answer.status == 422 and "already exists" in answer.words()):
            raise InvalidStateError(f"there is a pull request of {branch!r} into {base!r}: {answer.words()}")
        raise _problem(answer)


class GitHub(Forge):
    """github.com, and GitHub Enterprise Server below /api/v3."""

    name = "github"

    async def find(self, branch: str, base: str) -> PullRequest | None:
        # A server ignores an unknown filter, so this checks the results.
        head = f"{self._owner}:{branch}"
        answer = await self._get(f"{self._path}/pulls", state="open", head=head, base=base, per_page=str(_PAGE))
        pulls: list[_Pull] = answer.json(list[_Pull])
        return _pick([pull for pull in pulls if pull.head.label == head], branch, base)

    async def create(self, branch: str, base: str, *, title: str, body: str, draft: bool) -> PullRequest:
        return await self._post(branch, base, title=title, body=body, draft=draft)

    @staticmethod
    def _header(credential: Credential) -> str:
        return f"Bearer {credential.password}"


class Gitea(Forge):
    """Gitea and Forgejo, below /api/v1."""

    name = "gitea"

    async def find(self, branch: str, base: str) -> PullRequest | None:
        # The API has no filter by branch.
        for page in range(1, _PAGES + 1):
            answer = await self._get(f"{self._path}/pulls", state="open", page=str(page), limit=str(_PAGE))
            pulls: list[_Pull] = answer.json(list[_Pull])
            if found := _pick([pull for pull in pulls if pull.head.repo_id == pull.base.repo_id], branch, base):
                return found
            if not pulls:
                return None
        raise PlatformError(f"{self._base} has more than {_PAGES * _PAGE} open pull requests")

    async def create(self, branch: str, base: str, *, title: str, body: str, draft: bool) -> PullRequest:
        return await self._post(branch, base, title=f"WIP: {title}" if draft else title, body=body)

    @staticmethod
    def _header(credential: Credential) -> str:
        return credential.header()  # a token is taken in the place of the password


DIALECTS = (GitHub.name, Gitea.name)


def _pick(own: list[_Pull], branch: str, base: str) -> PullRequest | None:
    """Find the pull request. `own` are of this repository's branches: one in a fork may have the same name."""
    found = next((pull for pull in own if pull.head.ref == branch and pull.base.ref == base), None)
    return None if found is None else _pull_request(found, created=False)


def _pull_request(pull: _Pull, *, created: bool) -> PullRequest:
    return PullRequest(
        number=pull.number,
        url=pull.html_url,
        title=pull.title,
        branch=pull.head.ref,
        base=pull.base.ref,
        commit=pull.head.sha or None,
        created=created,
    )


def _problem(answer: Answer) -> PaddockError:
    match answer.status:
        case 401 | 403:
            return PolicyDeniedError(f"the forge does not let this credential do that ({answer.words()})", rule="forge")
        case 404:
            return NotFoundError(
                f"the forge has no such repository or branch, or not for this credential ({answer.words()})",
                hint="does the token have the right to write pull requests?",
            )
        case 423:
            return InvalidStateError(f"the repository takes nothing ({answer.words()})", hint="is it archived?")
        case 422 | 400:
            return InvalidArgumentError(f"the forge refuses ({answer.words()})")
        case 301 | 302 | 307 | 308:
            return InvalidStateError("the repository has moved to another place", hint="use its new URL")
        case _:
            return PlatformError(f"the forge failed ({answer.words()})", hint="try again")


_GITHUB, _GITHUB_API = "github.com", "https://api.github.com"


class _Version(msgspec.Struct):
    version: str


class _Meta(msgspec.Struct):
    installed_version: str


async def open_forge(remote: Remote, credential: Credential | None, dialect: str | None = None) -> Forge:
    """Open the forge of a remote, and ask it for its dialect if `dialect` is None.

    Raises InvalidArgumentError and PlatformError, and UnsupportedError for an unknown forge.
    """
    if remote.scheme not in ("https", "http"):
        raise UnsupportedError(f"{remote.url} is on no forge: it has no API over HTTP")
    if remote.sends_in_the_clear:
        raise InvalidArgumentError(f"{remote.url} would be sent a credential in the clear", hint="use https")
    if dialect is not None and dialect not in DIALECTS:
        raise InvalidArgumentError(
            f"no forge speaks {dialect!r}", hint=f"--forge {' or '.join(DIALECTS)}", field="forge"
        )
    prefix, owner, repository = _parts(remote)
    if remote.host == _GITHUB:
        return GitHub(_GITHUB_API, owner, repository, credential)
    v1, v3 = f"{remote.origin}{prefix}/api/v1", f"{remote.origin}/api/v3"
    if dialect == Gitea.name or (dialect is None and await _answers(v1, "/version", _Version)):
        return Gitea(v1, owner, repository, credential)
    if dialect == GitHub.name or await _answers(v3, "/meta", _Meta):
        return GitHub(v3, owner, repository, credential)
    raise UnsupportedError(
        f"{remote.origin} has neither Gitea's nor Forgejo's API, nor GitHub's",
        hint=f"--forge {' or '.join(DIALECTS)}; or push the branch and open the request there: paddock branch",
    )


def _parts(remote: Remote) -> tuple[str, str, str]:
    """Return the path before the owner, the owner, and the repository."""
    parts = unquote(urlsplit(remote.url).path).strip("/").split("/")
    if len(parts) < 2:
        raise InvalidArgumentError(f"{remote.url} names no owner: a repository on a forge is OWNER/NAME")
    *before, owner, repository = parts
    return "".join(f"/{part}" for part in before), owner, repository.removesuffix(".git")


async def _answers(base: str, path: str, kind: type[msgspec.Struct]) -> bool:
    """Tell whether an API answers. It gets no credential: it may be anything until it has answered."""
    answer = await asyncio.to_thread(_ask, base, path, None)
    if answer.status != 200:
        return False
    try:
        answer.json(kind)
    except PlatformError:
        return False
    return True
