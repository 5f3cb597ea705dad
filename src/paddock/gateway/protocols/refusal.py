"""The answer to a refused request: immediate, with the reason and the next step."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from .http1 import Response

_MOST_IN_HEAD = 300


class Refused(Exception):
    """A refusal.

    `status` is the one of HTTP, `rule` the rule that decided, and `number` the audit record, if there is one.

    `as_type`: the client reports an unusable content type to its user, but not the text of a refusal. So the answer
    puts the reason into the type.
    """

    def __init__(
        self,
        reason: str,
        *,
        status: int = 403,
        rule: str = "",
        hint: str = "",
        approval: str | None = None,
        number: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason, self.status, self.rule, self.hint, self.approval = reason, status, rule, hint, approval
        self.number, self.as_type = number, False

    @property
    def id(self) -> str:
        return "none" if self.number is None else str(self.number)


class BadMessage(Refused):
    """A message, or a name in one, that breaks its protocol or that two readers could take for different things."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, status=400, rule="http")


class UpstreamFailed(Refused):
    """The server doesn't connect, or sends no answer that can pass."""

    def __init__(self, reason: str, *, status: int = 502) -> None:
        super().__init__(reason, status=status, rule="upstream")


def response_of(refused: Refused, *, accept: bytes | None, head_only: bool = False) -> tuple[Response, bytes]:
    """Make a whole response: JSON for clients that accept it, plain text for others."""
    from .http1 import Response

    as_json = accept is not None and b"json" in accept.lower() and not refused.as_type
    body = _json(refused) if as_json else _text(refused)
    kind = "application/problem+json" if as_json else "text/plain; charset=utf-8"
    status, phrase = refused.status, f"{HTTPStatus(refused.status).phrase} (paddock: {_ascii(refused.reason)})"
    if refused.as_type:
        status, phrase, kind = 200, "OK", f'text/plain; refused="{_ascii(refused.reason)}"'
    fields = [(b"Content-Type", kind.encode("ascii")), (b"Cache-Control", b"no-store")]
    fields.append((b"Paddock-Refusal", refused.id.encode("ascii")))
    response = Response(
        status=status, phrase=phrase.encode("ascii"), fields=fields, length=len(body), bodiless=head_only
    )
    return response, body


def wanted_form(accept: bytes | None, user_agent: bytes | None) -> bytes | None:
    """Choose the form of an answer for a client. Some clients understand more than their Accept field says."""
    return b"application/problem+json" if user_agent is not None and user_agent.startswith(b"uv/") else accept


def _json(refused: Refused) -> bytes:
    # `title` and `detail` are the ones of RFC 9457, which uv shows. npm shows `error`.
    reply: dict[str, object] = {"error": f"refused by paddock: {refused.reason}"}
    reply |= {"title": "refused by paddock", "detail": refused.reason}
    reply |= {"status": refused.status, "id": refused.id, "rule": refused.rule, "reason": refused.reason}
    reply |= {"hint": refused.hint, "approval_id": refused.approval}
    return json.dumps({name: value for name, value in reply.items() if value not in ("", None)}).encode("ascii") + b"\n"


def _text(refused: Refused) -> bytes:
    lines = [f"paddock: {refused.reason}"]
    lines += [f"rule: {refused.rule}"] if refused.rule else []
    lines += [f"approval_id: {refused.approval}"] if refused.approval else []
    lines += [f"id: {refused.id}"]
    lines += [refused.hint] if refused.hint else []
    return ("\n".join(_printable(line) for line in lines) + "\n").encode()


def _printable(line: str) -> str:
    """Escape a name from inside, which must not drive a terminal."""
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in line)


def _ascii(reason: str) -> str:
    """Write a text in ASCII for the head of a response: many clients show only that."""
    shown = "".join(letter if " " <= letter <= "~" and letter not in '"\\' else "?" for letter in reason)
    return shown if len(shown) <= _MOST_IN_HEAD else f"{shown[: _MOST_IN_HEAD - 3]}..."


_STATUS = {400: 3, 403: 7, 408: 4, 413: 8, 421: 7, 424: 9, 501: 12, 502: 14, 503: 14, 504: 4}
_UNKNOWN = 2
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if code != 0x25)


def refusal_fields(fields: list[tuple[bytes, bytes]], body: bytes) -> list[tuple[bytes, bytes]]:
    """Write an HTTP answer as a gRPC client reads it: in the fields that end a call (Trailers-Only), because it reads
    no body."""
    known = dict(fields)
    status = _STATUS.get(int(known[b":status"]), _UNKNOWN)
    words = "; ".join(body.decode(errors="replace").splitlines())
    return [
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        (b"grpc-status", b"%d" % status),
        (b"grpc-message", quote(words, safe=_PLAIN).encode("ascii")),
        (b"paddock-refusal", known[b"paddock-refusal"]),
    ]
