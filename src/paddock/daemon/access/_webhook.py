"""Report a pending approval to a URL: one signed POST, repeated a few times if it doesn't arrive.

`Paddock-Signature: t=<seconds>,v1=<HMAC-SHA256 of "<seconds>.<body>", hexadecimal>`; the receiver compares both, and
refuses old ones. It follows no redirects: only the configured address learns of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http.client
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from paddock.daemon.context import Component
from paddock.errors import NotConfiguredError
from paddock.model import Approval
from paddock.storage.https import opener

PAUSES = (1.0, 4.0, 16.0)
_SECONDS = 10.0
_LEAST_KEY, _MOST_KEY = 16, 4096
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class Webhook(Component):
    """Post to the address in `approval_webhook`. A failure is recorded."""

    def asked(self, approval: Approval) -> None:
        self._tasks.start(self._tell(approval), name=f"webhook {approval.id}")

    async def _tell(self, approval: Approval) -> None:
        body = msgspec.json.encode({"event": "approval.asked", "approval": approval})
        problem = ""
        for pause in (*PAUSES, None):
            try:
                problem = await asyncio.to_thread(self._post, body)
            except NotConfiguredError as error:
                problem = error.message
                break
            if not problem:
                return
            if pause is not None:
                await asyncio.sleep(pause)
        self._audit.event("approval.webhook", sandbox=approval.sandbox, approval=approval.id, message=problem[:300])

    def _post(self, body: bytes) -> str:
        """Return why it did not arrive, or an empty string. Raises NotConfigured."""
        url, key = self._place()
        at = f"{self._clock.wall():.0f}"
        signature = hmac.new(key, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
        headers = {"Content-Type": "application/json", "Paddock-Signature": f"t={at},v1={signature}"}
        request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310 (checked)
        try:
            with opener().open(request, timeout=_SECONDS):
                return ""
        except urllib.error.HTTPError as error:
            with error:
                return f"it answered {error.code}"
        except (OSError, http.client.HTTPException) as error:
            return f"{getattr(error, 'reason', error)}"

    def _place(self) -> tuple[str, bytes]:
        url = self._config.approval_webhook or ""
        parts = urlsplit(url)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOCAL):
            raise NotConfiguredError("approval_webhook is an https address, or http on this machine")
        try:
            key = Path(self._config.approval_webhook_key_file or "").read_bytes()[:_MOST_KEY].strip()
        except OSError as error:
            raise NotConfiguredError(f"approval_webhook_key_file can't be read: {error.strerror}") from None
        if len(key) < _LEAST_KEY:
            raise NotConfiguredError(
                f"approval_webhook_key_file has to have {_LEAST_KEY} characters or more: what is sent is signed with it"
            )
        return url, key
