"""The common part of both kinds of endpoint: their SDK is an extra, and they fail in the same ways."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from paddock.errors import ModelFailedError, NotConfiguredError

T = TypeVar("T")

TIMEOUT_SECONDS = 300.0
MAX_RETRIES = 2
MAX_OUTPUT_TOKENS = 16_384
_SAID_CHARS = 500


def missing(extra: str) -> NotConfiguredError:
    return NotConfiguredError(
        f"the SDK for {extra}-compatible endpoints isn't installed", hint=f"pip install 'paddock-sandbox[{extra}]'"
    )


def unusable(extra: str, error: Exception | str, variable: str) -> NotConfiguredError:
    """Return the error for an SDK that makes no client."""
    return NotConfiguredError(f"no client for {extra}: {error}", hint=f"set {variable}, or give api_key")


def failure(model: str, error: Exception, secret: str | None) -> ModelFailedError:
    """Return the SDK's own words, without the key."""
    status = getattr(error, "status_code", None)
    message = f"{type(error).__name__}: {error}"
    cause = error.__cause__
    if cause is not None and status is None:
        message += f" ({type(cause).__name__}: {cause})"
    if secret:
        message = message.replace(secret, "[redacted]")
    hint = {
        400: "the endpoint does not take this request: does the model know tools?",
        401: "is the key right?",
        403: "may this key use this model?",
        404: "is the name of the model right, and the base_url?",
        429: "slow down, raise max_retries, or ask for a higher quota",
    }.get(status or 0, "is the endpoint up? base_url, timeout_seconds and max_retries are arguments of the model")
    return ModelFailedError(f"{model} gave no answer: {message[:_SAID_CHARS]}", hint=hint, http_status=status)


def read_answer(model: str, body: bytes, kind: type[T]) -> T:
    """Decode an answer strictly in the fields of `kind`, and ignore others. Raises ModelFailedError."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        start = body[:80].decode("utf-8", "replace")
        raise ModelFailedError(
            f"{model} answered what is not its protocol: {error}; it starts {start!r}", hint="is the base_url right?"
        ) from None


def arguments_object(arguments: str) -> dict[str, Any]:
    """Return a model's arguments as an object, which endpoints require, even if they aren't one."""
    try:
        value: object = json.loads(arguments)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"invalid": arguments}  # pyright: ignore[reportUnknownVariableType]
