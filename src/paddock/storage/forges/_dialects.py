"""What forges call the same things.

GitHub: https://docs.github.com/rest/pulls/pulls. Gitea and Forgejo: /api/swagger of each server, `repository`.
"""

from __future__ import annotations

from typing import Protocol
from urllib.parse import quote

import msgspec

from paddock.errors import InvalidArgument, InvalidState, NotFound, PaddockError, PlatformError, PolicyDenied
from paddock.model import PullRequest
from paddock.storage.repositories import Credential

from ._http import Answer, Http

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


class Forge(Protocol):
    """One repository of one forge. NotFound, PolicyDenied (the credential does not let), PlatformError."""

    async def default_branch(self) -> str: ...
    async def find(self, branch: str, base: str) -> PullRequest | None:
        """The open pull request of `branch` into `base`."""
        ...

    async def create(self, branch: str, base: str, *, title: str, body: str, draft: bool) -> PullRequest:
        """InvalidState: there is one already, or there is nothing to pull. InvalidArgument."""
        ...


class GitHub:
    """github.com, and GitHub Enterprise Server below /api/v3."""

    name = "github"

    def __init__(self, base: str, owner: str, repository: str, credential: Credential | None) -> None:
        self._http = Http(base, None if credential is None else f"Bearer {credential.password}")
        self._owner = owner
        self._path = _path(owner, repository)

    async def default_branch(self) -> str:
        return (await _get(self._http, self._path)).json(_Repository).default_branch

    async def find(self, branch: str, base: str) -> PullRequest | None:
        # A filter that it does not understand it ignores: what comes is looked at.
        head = f"{self._owner}:{branch}"
        answer = await _get(self._http, f"{self._path}/pulls", state="open", head=head, base=base, per_page=str(_PAGE))
        pulls: list[_Pull] = answer.json(list[_Pull])
        return _pick([pull for pull in pulls if pull.head.label == head], branch, base)

    async def create(self, branch: str, base: str, *, title: str, body: str, draft: bool) -> PullRequest:
        content = {"title": title, "body": body, "head": branch, "base": base, "draft": draft}
        return _made(await self._http.post(f"{self._path}/pulls", content), branch, base)


class Gitea:
    """Gitea and Forgejo, below /api/v1."""

    name = "gitea"

    def __init__(self, base: str, owner: str, repository: str, credential: Credential | None) -> None:
        # A token is taken in the place of the password.
        self._http = Http(base, None if credential is None else credential.header())
        self._path = _path(owner, repository)

    async def default_branch(self) -> str:
        return (await _get(self._http, self._path)).json(_Repository).default_branch

    async def find(self, branch: str, base: str) -> PullRequest | None:
        # It has no filter by branch.
        for page in range(1, _PAGES + 1):
            answer = await _get(self._http, f"{self._path}/pulls", state="open", page=str(page), limit=str(_PAGE))
            pulls: list[_Pull] = answer.json(list[_Pull])
            if found := _pick([pull for pull in pulls if pull.head.repo_id == pull.base.repo_id], branch, base):
                return found
            if not pulls:
                return None
        raise PlatformError(f"{self._http.base} has more than {_PAGES * _PAGE} open pull requests")

    async def create(self, branch: str, base: str, *, title: str, body: str, draft: bool) -> PullRequest:
        content = {"title": f"WIP: {title}" if draft else title, "body": body, "head": branch, "base": base}
        return _made(await self._http.post(f"{self._path}/pulls", content), branch, base)


DIALECTS = (GitHub.name, Gitea.name)


def _path(owner: str, repository: str) -> str:
    return f"/repos/{quote(owner, safe='')}/{quote(repository, safe='')}"


async def _get(http: Http, path: str, **query: str) -> Answer:
    answer = await http.get(path, **query)
    if answer.status != 200:
        raise _problem(answer)
    return answer


def _pick(own: list[_Pull], branch: str, base: str) -> PullRequest | None:
    """`own` are of this repository's branches: one in a fork may have the same name."""
    found = next((pull for pull in own if pull.head.ref == branch and pull.base.ref == base), None)
    return None if found is None else _told(found, created=False)


def _made(answer: Answer, branch: str, base: str) -> PullRequest:
    if answer.status == 201:
        return _told(answer.json(_Pull), created=True)
    if answer.status == 409 or (answer.status == 422 and "already exists" in answer.words()):
        raise InvalidState(f"there is a pull request of {branch!r} into {base!r}: {answer.words()}")
    raise _problem(answer)


def _told(pull: _Pull, *, created: bool) -> PullRequest:
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
            return PolicyDenied(f"the forge does not let this credential do that ({answer.words()})", rule="forge")
        case 404:
            return NotFound(
                f"the forge has no such repository or branch, or not for this credential ({answer.words()})",
                hint="does the token have the right to write pull requests?",
            )
        case 423:
            return InvalidState(f"the repository takes nothing ({answer.words()})", hint="is it archived?")
        case 422 | 400:
            return InvalidArgument(f"the forge refuses ({answer.words()})")
        case 301 | 302 | 307 | 308:
            return InvalidState("the repository has moved to another place", hint="use its new URL")
        case _:
            return PlatformError(f"the forge failed ({answer.words()})", hint="try again")
