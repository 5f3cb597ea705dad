"""JSON over HTTP to one forge: bounded, without redirects, and the credential goes to that forge alone."""

from __future__ import annotations

import asyncio
import http.client
import ssl
import urllib.error
import urllib.request
from typing import IO, Any
from urllib.parse import urlencode

import msgspec

from paddock.errors import PlatformError
from paddock.storage.repositories import ADVICE, authorities

_SECONDS = 30.0
_BODY_BYTES = 8 << 20
_WORDS = 300


class Answer(msgspec.Struct, frozen=True):
    status: int
    body: bytes

    def json(self, kind: Any) -> Any:
        """PlatformError: it is not what the API's description says."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except msgspec.DecodeError as error:
            raise PlatformError(
                f"the forge answered {self.status} with something else than its API says: {error}"
            ) from None

    def words(self) -> str:
        """What it says about a failure, in characters that drive no terminal."""
        try:
            said = msgspec.json.decode(self.body, type=_Problem)
        except msgspec.DecodeError:
            return f"{self.status}"
        text = " ".join([said.message, *(str(one) for one in said.errors or ())])
        return f"{self.status}: " + "".join(c if c.isprintable() else "?" for c in text)[:_WORDS]


class _Problem(msgspec.Struct):
    message: str = ""
    errors: list[Any] | None = None


class Http:
    """`base` is where the API begins; `authorization` is the header's value, or None."""

    def __init__(self, base: str, authorization: str | None) -> None:
        self.base, self._authorization = base, authorization
        trusted = authorities()
        context = ssl.create_default_context(cafile=trusted)
        self._opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context))

    async def get(self, path: str, **query: str) -> Answer:
        return await asyncio.to_thread(self._ask, "GET", path + (f"?{urlencode(query)}" if query else ""), None)

    async def post(self, path: str, content: object) -> Answer:
        return await asyncio.to_thread(self._ask, "POST", path, msgspec.json.encode(content))

    def _ask(self, method: str, path: str, data: bytes | None) -> Answer:
        headers = {"Accept": "application/json", "User-Agent": "paddock", "Content-Type": "application/json"}
        if self._authorization is not None:
            headers["Authorization"] = self._authorization
        request = urllib.request.Request(self.base + path, data=data, headers=headers, method=method)  # noqa: S310 (checked: http or https)
        try:
            with self._opener.open(request, timeout=_SECONDS) as response:
                return Answer(response.status, _read(response))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, _read(error))
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            untrusted = isinstance(reason, ssl.SSLCertVerificationError)
            hint = ADVICE if untrusted else "try again"
            raise PlatformError(f"{self.base} cannot be reached: {reason}", hint=hint) from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Whoever is redirected takes the credential along: to whom, the forge's owner would choose."""

    def redirect_request(self, *arguments: Any, **options: Any) -> None:
        return None


def _read(response: IO[bytes]) -> bytes:
    body = response.read(_BODY_BYTES + 1)
    if len(body) > _BODY_BYTES:
        raise PlatformError(f"the forge answered with more than {_BODY_BYTES >> 20} MiB")
    return body
