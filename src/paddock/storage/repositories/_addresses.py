"""Where the host of a repository is: paddock looks that up once, and the host's git gets no other answer."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from paddock.errors import PlatformError
from paddock.linux.own_addresses import is_own
from paddock.model.caller import environment
from paddock.policy.egress import is_public

from ._remote import SSH, Remote

_LOOKUP_SECONDS = 30.0
_MOST = 16
_NAMES = {"/etc/nsswitch.conf": "hosts: files\n", "/etc/resolv.conf": "", "/etc/host.conf": "multi on\n"}


async def located(remote: Remote) -> Remote:
    """Look up its host. A directory, a host behind a proxy and one of ssh stay as they are. PlatformError."""
    if remote.path is not None or remote.scheme == SSH or remote.addresses or _has_proxy(remote):
        return remote
    host = _host(remote)
    try:
        async with asyncio.timeout(_LOOKUP_SECONDS):
            entries = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "its name has no answer"
        raise PlatformError(f"{remote.url} cannot be reached: {host}: {why}", hint="try again") from None
    addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))[:_MOST]
    return msgspec.structs.replace(remote, addresses=addresses, public=all(map(_is_public, addresses)))


def names(remote: Remote) -> Mapping[str, str]:
    """Return what git looks names up by, as files: the host at its addresses, and nothing else."""
    lines = [f"{address} {_host(remote)}\n" for address in remote.addresses]
    return {"/etc/hosts": "".join(lines), **_NAMES} if lines else {}


def _is_public(address: str) -> bool:
    return is_public(address) and not is_own(address)


def _host(remote: Remote) -> str:
    return urlsplit(remote.url).hostname or ""


def _has_proxy(remote: Remote) -> bool:
    """The proxy looks the name up then, and connects."""
    given = {name.lower(): value for name, value in environment().items() if value}
    if remote.scheme == "git" or not {f"{remote.scheme}_proxy", "all_proxy"} & given.keys():
        return False
    direct = given.get("no_proxy", "").lower().replace(",", " ").split()
    return not any(_is_of(_host(remote).lower(), name.lstrip(".")) for name in direct)


def _is_of(host: str, name: str) -> bool:
    """Whether curl takes a host for one of this name of `no_proxy` (CURLOPT_NOPROXY)."""
    if name == "*" or host == name or host.endswith(f".{name}"):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False)
    except ValueError:
        return False
