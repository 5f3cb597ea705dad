"""Answers of a cassette: those that match, in their order. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

from paddock.model import Recorded, Target

from ._mock import MockAnswer
from ._refusal import Refused
from ._secret_book import SecretBook
from ._target import PORTS

_MOST_NEAR = 3


class Cassette:
    """Of one sandbox under one revision: what it has given out is gone."""

    def __init__(self, exchanges: Sequence[Recorded]) -> None:
        self._left: dict[tuple[str, str], list[Recorded]] = {}
        for one in exchanges:
            self._left.setdefault((one.method, one.url), []).append(one)

    def answer(self, method: str, url: str, body: bytes, rule: str) -> MockAnswer:
        """Refused: none that is left is about such a request."""
        left = self._left.get((method, url), [])
        digest = hashlib.sha256(body).hexdigest()
        for index, one in enumerate(left):
            if one.body_sha256 in (None, digest):
                if not one.repeat:
                    del left[index]
                return _answer(one)
        raise Refused(
            f"the cassette has no answer (left) to {method} {url[:200]}", rule=rule, hint=self._near(url, left)
        )

    def _near(self, url: str, left: Sequence[Recorded]) -> str:
        if left:
            return f"it has {len(left)} for a request with another body"
        path = url.partition("?")[0]
        near = [f"{method} {known}" for (method, known), some in self._left.items() if some and known.startswith(path)]
        return f"it has {', '.join(near[:_MOST_NEAR])}"[:400] if near else "record it again, or add the exchange"


def url_of(target: Target, scheme: str, path: str) -> str:
    host = target.host if target.port == PORTS[scheme] else f"{target.host}:{target.port}"
    return f"{scheme}://{host}{path}"


def anonymous(data: bytes, book: SecretBook) -> bytes:
    """With the names of secrets in the places of their placeholders, which each sandbox has its own of."""
    for placeholder, name in book.placeholders():
        data = data.replace(placeholder, b"paddock-secret-" + name.encode())
    return data


def _answer(one: Recorded) -> MockAnswer:
    fields = tuple(
        (name, value)
        for name, values in one.headers.items()
        for value in ((values,) if isinstance(values, str) else values)
    )
    body = one.body.encode() if one.body_base64 is None else base64.b64decode(one.body_base64)
    return MockAnswer(status=one.status, fields=fields, body=body)
