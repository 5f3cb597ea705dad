"""What a refusal says, to people and to programs."""

from __future__ import annotations

import json

from paddock.gateway.protocols.http1 import write_response
from paddock.gateway.protocols.refusal import Refused, response_of

REFUSAL = Refused("evil.test\x1b[2J is not allowed", rule="deny[0]", hint="ask", approval="ap_1", number=17)


def test_in_words() -> None:
    response, body = response_of(REFUSAL, accept=b"*/*")
    head = write_response(response, keep_alive=True)
    assert head.startswith(b"HTTP/1.1 403 Forbidden (paddock: evil.test?[2J is not allowed)\r\n")
    assert b"Connection" not in head
    assert f"Content-Length: {len(body)}".encode() in head
    text = body.decode()
    assert "rule: deny[0]" in text
    assert "id: 17" in text
    assert "approval_id: ap_1" in text
    assert "\x1b" not in text


def test_as_json() -> None:
    _, body = response_of(REFUSAL, accept=b"application/json")
    assert json.loads(body)["approval_id"] == "ap_1"
    assert json.loads(body)["rule"] == "deny[0]"


def test_to_head_it_has_no_body() -> None:
    assert response_of(REFUSAL, accept=None, head_only=True)[0].bodiless
