"""One request to one API: encrypted, verified, bounded in time and size, and never redirected."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ._refused import Refused

_SECONDS = 10.0
_BODY_BYTES = 1 << 20
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


def ask(source: str, url: str, headers: Mapping[str, str], *, body: object = None) -> tuple[int, bytes]:
    """Status and body; GET, or POST of a JSON `body`. Refused: it cannot be asked."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOCAL):
        raise Refused(source, f"{parts.scheme}://{parts.netloc} is neither https nor on this machine")
    data = None if body is None else msgspec.json.encode(body)
    known = {"User-Agent": "paddock", **({} if data is None else {"Content-Type": "application/json"}), **headers}
    request = urllib.request.Request(url, data=data, headers=known)  # noqa: S310 (checked above)
    # What proxies the environment names is the operator's affair, as with every client.
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=_SECONDS) as response:
            return response.status, _read(source, response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _read(source, error)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise Refused(source, f"{parts.netloc} cannot be reached: {type(reason).__name__}: {reason}") from None


def _read(source: str, response: Any) -> bytes:
    body: bytes = response.read(_BODY_BYTES + 1)
    if len(body) > _BODY_BYTES:
        raise Refused(source, f"it answered with more than {_BODY_BYTES >> 20} MiB")
    return body


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Whoever is redirected takes the credential along: to whom, the answer would choose."""

    def redirect_request(self, *arguments: Any, **options: Any) -> None:
        return None
