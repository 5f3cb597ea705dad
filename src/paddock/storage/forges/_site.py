"""Which forge a repository is on, and where its API begins."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import msgspec

from paddock.errors import InvalidArgument, PlatformError, Unsupported
from paddock.storage.repositories import Credential, Remote

from ._dialects import DIALECTS, Forge, Gitea, GitHub
from ._http import Http

_GITHUB, _GITHUB_API = "github.com", "https://api.github.com"


class _Version(msgspec.Struct):
    version: str


class _Meta(msgspec.Struct):
    installed_version: str


async def open_forge(remote: Remote, credential: Credential | None, dialect: str | None = None) -> Forge:
    """`dialect=None`: the forge is asked. InvalidArgument, Unsupported: it is none that we know, PlatformError."""
    if remote.scheme not in ("https", "http"):
        raise Unsupported(f"{remote.url} is on no forge: it has no API over HTTP")
    if remote.sends_in_the_clear:
        raise InvalidArgument(f"{remote.url} would be sent a credential in the clear", hint="use https")
    if dialect is not None and dialect not in DIALECTS:
        raise InvalidArgument(f"no forge speaks {dialect!r}", hint=f"--forge {' or '.join(DIALECTS)}", field="forge")
    prefix, owner, repository = _parts(remote)
    if urlsplit(remote.origin).hostname == _GITHUB:
        return GitHub(_GITHUB_API, owner, repository, credential)
    v1, v3 = f"{remote.origin}{prefix}/api/v1", f"{remote.origin}/api/v3"
    if dialect == Gitea.name or (dialect is None and await _answers(v1, "/version", _Version)):
        return Gitea(v1, owner, repository, credential)
    if dialect == GitHub.name or await _answers(v3, "/meta", _Meta):
        return GitHub(v3, owner, repository, credential)
    raise Unsupported(
        f"{remote.origin} has neither Gitea's nor Forgejo's API, nor GitHub's",
        hint=f"--forge {' or '.join(DIALECTS)}; or push the branch and open the request there: paddock branch",
    )


def _parts(remote: Remote) -> tuple[str, str, str]:
    """What comes before the owner, the owner, and the repository."""
    parts = unquote(urlsplit(remote.url).path).strip("/").split("/")
    if len(parts) < 2:
        raise InvalidArgument(f"{remote.url} names no owner: a repository on a forge is OWNER/NAME")
    *before, owner, repository = parts
    return "".join(f"/{part}" for part in before), owner, repository.removesuffix(".git")


async def _answers(base: str, path: str, kind: type[msgspec.Struct]) -> bool:
    """Asked without a credential: until it has answered, nobody knows who it is."""
    answer = await Http(base, None).get(path)
    if answer.status != 200:
        return False
    try:
        answer.json(kind)
    except PlatformError:
        return False
    return True
