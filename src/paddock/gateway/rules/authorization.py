"""A request from inside, its target, and the verdict on it. If it needs approval, also the question for a person."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from paddock.gateway.protocols.http1 import Request
from paddock.gateway.protocols.names import written
from paddock.model import ApprovalAnswer, ApprovalRequest
from paddock.model.approval import arguments_digest
from paddock.model.egress import RequestVerdict, Target

from .git import Update


class AuthorizedRequest(msgspec.Struct):
    """A request with its verdict.

    `path` is in its normal form, with its query. `verdict` may change after a look at the body, which also says whether
    it pushes (of git LFS), or the updates of a push.
    """

    request: Request
    target: Target
    scheme: str
    path: str
    verdict: RequestVerdict
    is_push: bool | None = None
    pushed: tuple[Update, ...] = ()

    @property
    def host(self) -> str:
        return written(self.scheme, self.target.host, self.target.port)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}{self.path}"

    def may_be_personal(self, fields: frozenset[bytes]) -> bool:
        """Tell whether the answer may be one for this sandbox only. `fields` are those that say so, in lower case."""
        if self.scheme != "https" or self.request.method != "GET" or self.verdict.secrets or self.verdict.approve:
            return True
        return any(name.lower() in fields for name, _ in self.request.fields)


# Fields that a client changes each time without a meaning.
_VOLATILE = frozenset(
    {b"user-agent", b"date", b"traceparent", b"tracestate", b"x-request-id", b"x-amzn-trace-id", b"baggage"}
    | {b"accept", b"accept-encoding", b"accept-language", b"connection", b"content-length", b"transfer-encoding"}
    | {b"expect", b"keep-alive", b"te", b"proxy-connection"}
)
_SUMMARY_CHARS = 400
_MOST_REFS = 8


Claim = Callable[[ApprovalRequest], Awaitable[ApprovalAnswer]]
"""Asks for an approval, and uses it up. A missing answer means no approval."""


def of_request(authorized: AuthorizedRequest, body: bytes, *, sandbox: str, instance_id: int) -> ApprovalRequest:
    """Describe a whole request as the sandbox sent it: with placeholders, and with its `body` or the changes
    of a push.
    """
    method, target, kind = authorized.request.method, authorized.target, authorized.verdict.approve or ""
    upgrade = authorized.request.upgrade
    fields = [(name.lower(), value) for name, value in authorized.request.fields]
    if upgrade is not None:  # after which anything may follow
        fields.append((b"upgrade", upgrade))
    parts = [part for field in sorted(fields) if field[0] not in _VOLATILE for part in field]
    changes = [str(update).encode() for update in authorized.pushed]
    where = f"{authorized.scheme}://{target.host}:{target.port}"
    return ApprovalRequest(
        kind=kind,
        sandbox=sandbox,
        instance_id=instance_id,
        revision=authorized.verdict.revision,
        digest=arguments_digest(
            kind.encode(), method.encode(), where.encode(), authorized.path.encode(), *parts, b"", body, *changes
        ),
        summary=_cut(f"{method} {where}{authorized.path}")
        + (f", to go on as {_cut(upgrade.decode('latin-1'))}" if upgrade is not None else "")
        + (f", with {len(body)} bytes" if body else "")
        + _changes([*map(str, authorized.pushed)]),
    )


def _cut(text: str) -> str:
    return text if len(text) <= _SUMMARY_CHARS else f"{text[: _SUMMARY_CHARS - 3]}..."


def _changes(pushed: Sequence[str]) -> str:
    if not pushed:
        return ""
    more = f" and {len(pushed) - _MOST_REFS} more" if len(pushed) > _MOST_REFS else ""
    return f": {', '.join(pushed[:_MOST_REFS])}{more}"
