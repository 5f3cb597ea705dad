"""A request from inside, what it names, and the verdict on it."""

from __future__ import annotations

import msgspec

from paddock.model.egress import RequestVerdict, Target

from ._http1 import Request
from ._names import PORTS


class Judged(msgspec.Struct):
    """`path` is in its normal form, with its query. `verdict` may become another when the body was looked at."""

    request: Request
    target: Target
    scheme: str
    path: str
    verdict: RequestVerdict

    @property
    def host(self) -> str:
        """Return the host and its port as a Host field and a URL have them."""
        host = f"[{self.target.host}]" if ":" in self.target.host else self.target.host
        return host if self.target.port == PORTS[self.scheme] else f"{host}:{self.target.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}{self.path}"

    def depends_on_who_asks(self, fields: frozenset[bytes]) -> bool:
        """Tell whether the answer may be one for this sandbox only. `fields` are those that say so, in lower case."""
        if self.scheme != "https" or self.request.method != "GET" or self.verdict.secrets or self.verdict.approve:
            return True
        return any(name.lower() in fields for name, _ in self.request.fields)
