"""Tells a URL that somebody waits for an answer: one signed POST, repeated a few times if it does not arrive.

`Paddock-Signature: t=<seconds>,v1=<HMAC-SHA256 of "<seconds>.<body>", hexadecimal>`; the receiver compares both, and
refuses what is old. No redirects: who is told is who was named.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http.client
import os
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import msgspec

from paddock.errors import NotConfigured
from paddock.model import Approval

from ._context import Component, Context

VARIABLE = "PADDOCK_APPROVAL_WEBHOOK"
KEY_VARIABLE = "PADDOCK_APPROVAL_WEBHOOK_KEY"
PAUSES = (1.0, 4.0, 16.0)
_SECONDS = 10.0
_LEAST_KEY = 16
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


def tell(context: Context, approval: Approval) -> None:
    """Tell the address in the environment of a new question. Where it can't be used, the record says so."""
    try:
        Webhook(context, os.environ[VARIABLE], os.environ.get(KEY_VARIABLE, "").encode()).asked(approval)
    except NotConfigured as error:
        event, message = "approval.webhook", str(error)
        context.audit.event(event, sandbox=approval.sandbox, approval=approval.id, message=message)


class Webhook(Component):
    def __init__(self, context: Context, url: str, key: bytes) -> None:
        super().__init__(context)
        parts = urlsplit(url)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOCAL):
            raise NotConfigured(f"{VARIABLE} is an https address, or http on this machine")
        if len(key) < _LEAST_KEY:
            raise NotConfigured(
                f"{KEY_VARIABLE} has to have {_LEAST_KEY} characters or more: what is sent is signed with it",
                hint="openssl rand -hex 32",
            )
        self._url, self._key = url, key
        self._opener = urllib.request.build_opener(_NoRedirect)

    def asked(self, approval: Approval) -> None:
        self._tasks.start(self._tell(approval), name=f"webhook {approval.id}")

    async def _tell(self, approval: Approval) -> None:
        body = msgspec.json.encode({"event": "approval.asked", "approval": approval})
        problem = ""
        for pause in (*PAUSES, None):
            problem = await asyncio.to_thread(self._post, body)
            if not problem:
                return
            if pause is not None:
                await asyncio.sleep(pause)
        self._audit.event("approval.webhook", sandbox=approval.sandbox, approval=approval.id, message=problem[:300])

    def _post(self, body: bytes) -> str:
        """What went wrong, in words; nothing if it arrived."""
        at = f"{self._clock.wall():.0f}"
        signature = hmac.new(self._key, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
        headers = {"Content-Type": "application/json", "Paddock-Signature": f"t={at},v1={signature}"}
        request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")  # noqa: S310 (checked)
        try:
            with self._opener.open(request, timeout=_SECONDS):
                return ""
        except urllib.error.HTTPError as error:
            with error:
                return f"it answered {error.code}"
        except (OSError, http.client.HTTPException) as error:
            return f"{getattr(error, 'reason', error)}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any, **options: Any) -> None:
        return None
