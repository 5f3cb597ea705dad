"""The URL of a repository, checked before git sees it.

paddock looks its host up once, and the host's git gets no other answer.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from paddock.errors import InvalidArgumentError, NotFoundError, PlatformError, PolicyDeniedError
from paddock.linux.routes import is_own
from paddock.model.caller import environment
from paddock.policy.network import is_public

_LONGEST = 2048
_HELPER = re.compile(r"[A-Za-z0-9+.-]*::")
_USER = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]*")
_SCP = re.compile(rf"(?:({_USER.pattern})@)?([A-Za-z0-9._-]+):(?!//)(.+)")
_SCP_PATH = re.compile(r"[!-&(-?A-~]+")  # an @ would come after a password
_HOST = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9-]{1,63}(?<!-))*")
SSH = "ssh"
OFFLINE = "check this machine's network, then try again"
_PORTS = {"https": 443, "http": 80, "git": 9418, SSH: 22}
_REF = re.compile(r"(?!.*(?:\.\.|//|/\.|\.lock/|@\{))(?![-/.])[^\x00-\x20\x7f~^:?*\[\\]+(?<![/.])(?<!\.lock)")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_LOOKUP_SECONDS = 30.0
_MOST = 16
_NAMES = {"/etc/nsswitch.conf": "hosts: files\n", "/etc/resolv.conf": "", "/etc/host.conf": "multi on\n"}


class Credential(msgspec.Struct, frozen=True):
    """The proof for a host over HTTP. paddock never stores it, and no `repr` shows it."""

    username: str
    password: str
    bearer: bool = False
    """`password` is a bearer token (RFC 6750)."""

    def __repr__(self) -> str:
        return "Credential(…)"

    def lines(self) -> str:
        """Return the lines of a credential helper (git-credential(1)). InvalidArgumentError: a value would break
        them."""
        if any(not text.isprintable() for text in (self.username, self.password)):
            raise InvalidArgumentError("a credential holds characters that cannot be sent")
        return f"username={self.username}\npassword={self.password}\n"

    def header(self) -> str:
        """Return the value of an HTTP Authorization header. InvalidArgumentError: a token would break it."""
        if not self.bearer:
            return f"Basic {base64.b64encode(f'{self.username}:{self.password}'.encode()).decode()}"
        if not _TOKEN.fullmatch(self.password):
            raise InvalidArgumentError("a token holds characters that cannot be sent")
        return f"Bearer {self.password}"


class Remote(msgspec.Struct, frozen=True, kw_only=True):
    """A repository to fetch from.

    `url` is its canonical spelling, without a credential, in records, messages and for git.

    `origin` is the part of it that a credential belongs to. `path` is the directory of a local repository.

    `port` is None where it is the scheme's own. `user` is one for ssh, if the URL names one.
    """

    url: str
    scheme: str
    origin: str
    host: str = ""
    port: int | None = None
    user: str = ""
    path: Path | None = None
    addresses: tuple[str, ...] = ()
    """The addresses of its host, from `located`. git connects only to these, through no proxy."""
    public: bool = False
    """All of `addresses` are public ones, so any user could fetch its content."""

    @property
    def sends_in_the_clear(self) -> bool:
        return self.scheme == "http" and not is_loopback(self.host)


def parse(text: str, *, local: bool) -> tuple[Remote, Credential | None]:
    """Return the remote, and the credential from the URL.

    `local`: the caller may name this machine's files.

    Raises InvalidArgumentError for a text that git could take for an option or a helper program, or that hides the host
    from a reader. Raises PolicyDeniedError and NotFoundError for directories.
    """
    if not text or len(text) > _LONGEST or not text.isprintable() or "\\" in text:
        raise _wrong(text, "a URL is one line of printable characters without a backslash")
    if text.startswith("-") or _HELPER.match(text):
        raise _wrong(text, "this is an option or the name of a helper program to git")
    if text.startswith(("/", "file://")):
        return _directory(text, local=local), None
    if "://" not in text:
        return _scp(text), None
    return _network(text)


def _network(text: str) -> tuple[Remote, Credential | None]:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise _wrong(text, "it cannot be read") from None
    scheme = parts.scheme
    if scheme not in _PORTS:
        raise _wrong(text, f"{scheme} is none of https, http, git, ssh and file")
    if parts.query or parts.fragment or "?" in text or "#" in text:
        raise _wrong(text, "the URL of a repository has no ? and no #")
    host = _host(text, parts.hostname or "")
    path = parts.path.rstrip("/")
    if not path or not unquote(path).isprintable() or {"..", "."} & set(unquote(path).split("/")):
        raise _wrong(text, "its path names no repository")
    if not path.isascii() or " " in path:
        raise _wrong(text, "characters beyond ASCII are written %XX in a URL")
    if scheme == SSH:
        return _over_ssh(text, parts.username, parts.password, host, port, path), None
    remote = _remote(scheme, host, port, path)
    if parts.username is None:
        return remote, None
    if scheme == "git":
        raise _wrong(text, "git:// knows no users")
    return remote, Credential(unquote(parts.username), unquote(parts.password or ""))


def _over_ssh(text: str, user: str | None, password: str | None, host: str, port: int | None, path: str) -> Remote:
    if password is not None or (user is not None and not _USER.fullmatch(user)):
        raise _wrong(text, "before the host stands a user's name, and no password: ssh knows you by a key")
    if "%" in path or "'" in path:
        raise _wrong(text, "a path for ssh is written as it is")
    return _remote(SSH, host, port, path, user or "")


def _remote(scheme: str, host: str, port: int | None, path: str, user: str = "") -> Remote:
    port = None if port == _PORTS[scheme] else port
    origin = f"{scheme}://{host}" if port is None else f"{scheme}://{host}:{port}"
    address = origin.replace("//", f"//{user}@") if user else origin
    return Remote(url=address + path, scheme=scheme, origin=origin, host=host.strip("[]"), port=port, user=user)


def _scp(text: str) -> Remote:
    """Parse user@host:path. A path that doesn't begin with / is relative to a place that the host knows."""
    match = _SCP.fullmatch(text)
    if match is None:
        raise _wrong(text, "it is not a URL")
    user, host, path = match[1], _host(text, match[2].lower()), match[3].rstrip("/")
    unclear = {"..", "."} & set(path.split("/")) or path.startswith("-") or not _SCP_PATH.fullmatch(path)
    if not path.strip("/") or unclear or "[" in host:
        raise _wrong(text, "its path names no repository")
    if path.startswith("/"):
        return _over_ssh(text, user, None, host, None, path)
    url = f"{user}@{host}:{path}" if user else f"{host}:{path}"
    return Remote(url=url, scheme=SSH, origin=f"ssh://{host}", host=host, user=user or "")


def web(url: str) -> str:
    """Return the URL for a browser: a repository behind ssh has its pages at https of that name."""
    if "://" not in url:
        host, _, path = url.rpartition("@")[2].partition(":")
        return f"https://{host}/{path}"
    parts = urlsplit(url)
    return f"https://{parts.hostname}{parts.path}" if parts.scheme == SSH else url


def _host(text: str, host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        host = host.rstrip(".")
        if not _HOST.fullmatch(host) or host.rpartition(".")[2].isdecimal():
            raise _wrong(text, "its host is not a valid name; write an international one in its xn-- form") from None
        return host
    return f"[{address}]" if address.version == 6 else str(address)


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine, to which connections need no encryption."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _directory(text: str, *, local: bool) -> Remote:
    path = text.removeprefix("file://")
    if not path.startswith("/"):
        raise _wrong(text, "file:// is followed by an absolute path")
    if not local:
        raise PolicyDeniedError("directories of this machine are for those who are on it", rule="local-repositories")
    found = Path(os.path.realpath(unquote(path) if text.startswith("file://") else path))
    if not found.is_dir():
        raise NotFoundError(f"there is no directory {str(found)!r}")
    return Remote(url=f"file://{found}", scheme="file", origin="file://", path=found)


def _wrong(text: str, why: str) -> InvalidArgumentError:
    """Return the error for a URL, without the part before an @, which may be a secret."""
    shown = text[: 4 * _LONGEST].rpartition("@")[2][:200]
    return InvalidArgumentError(
        f"{shown!r} is not a repository that paddock can fetch: {why}", hint="https://host/path/name.git"
    )


def check_ref(name: str) -> str:
    """Return `name`, if it names a branch, a tag or a ref (git-check-ref-format(1)). InvalidArgument."""
    if len(name) > 1024 or name == "@" or not name.isprintable() or not _REF.fullmatch(name):
        raise InvalidArgumentError(
            f"{name!r} is not the name of a branch or tag", hint="git check-ref-format --branch NAME"
        )
    return name


def is_commit(text: str) -> bool:
    """Tell whether `text` is a full id of a commit. A shorter one is a name."""
    return _COMMIT.fullmatch(text) is not None


async def located(remote: Remote) -> Remote:
    """Look up its host. A directory, a host behind a proxy and one of ssh stay as they are. PlatformError."""
    if remote.path is not None or remote.scheme == SSH or remote.addresses or _has_proxy(remote):
        return remote
    host = remote.host
    try:
        async with asyncio.timeout(_LOOKUP_SECONDS):
            entries = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "its name has no answer"
        raise PlatformError(f"{remote.url} cannot be reached: {host}: {why}", hint=OFFLINE) from None
    addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))[:_MOST]
    return msgspec.structs.replace(remote, addresses=addresses, public=all(map(_is_public, addresses)))


def names(remote: Remote) -> Mapping[str, str]:
    """Return the files by which git looks names up: the host at its addresses, and no others."""
    lines = [f"{address} {remote.host}\n" for address in remote.addresses]
    return {"/etc/hosts": "".join(lines), **_NAMES} if lines else {}


def _is_public(address: str) -> bool:
    return is_public(address) and not is_own(address)


def _has_proxy(remote: Remote) -> bool:
    """Tell whether git uses a proxy, which then looks the name up and connects."""
    variables = {name.lower(): value for name, value in environment().items() if value}
    if remote.scheme == "git" or not {f"{remote.scheme}_proxy", "all_proxy"} & variables.keys():
        return False
    direct = variables.get("no_proxy", "").lower().replace(",", " ").split()
    return not any(_is_of(remote.host, name.lstrip(".")) for name in direct)


def _is_of(host: str, name: str) -> bool:
    """Tell whether `name` of `no_proxy` covers a host, as curl reads it (CURLOPT_NOPROXY)."""
    if name == "*" or host == name or host.endswith(f".{name}"):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False)
    except ValueError:
        return False
