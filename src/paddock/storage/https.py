"""Requests over HTTPS: verified, bounded, and never redirected. A redirect would take the credential along."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from paddock.errors import PlatformError
from paddock.storage.certificates import ADVICE


class TooLong(Exception):
    """The answer has more bytes than the limit."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any, **options: Any) -> None:
        return None


def opener(*handlers: urllib.request.BaseHandler, authorities: Path | None = None) -> urllib.request.OpenerDirector:
    """Take the proxies of the environment. `authorities` stands in place of the machine's certificates."""
    context = ssl.create_default_context(cafile=authorities)
    return urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context), *handlers)


def ask(
    opener: urllib.request.OpenerDirector, request: urllib.request.Request, *, seconds: float, most_bytes: int
) -> tuple[int, bytes]:
    """Send a request and return the status and the body.

    Raises TooLong, and OSError or HTTPException without an answer.
    """
    response: Any
    try:
        response = opener.open(request, timeout=seconds)
    except urllib.error.HTTPError as error:
        response = error
    with response:
        body: bytes = response.read(most_bytes + 1)
        if len(body) > most_bytes:
            raise TooLong
        return response.status, body


def unreachable(
    server: str, error: BaseException, *, hint: str = "check this machine's network, then try again"
) -> PlatformError:
    """Return the error for a server that gave no answer."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        hint = ADVICE
    elif isinstance(reason, OSError):
        reason = reason.strerror or reason  # without its number
    return PlatformError(f"{server} cannot be reached: {reason}", hint=hint)
