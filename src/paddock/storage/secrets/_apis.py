"""Secrets from an API, by one request: encrypted, verified, with limits of time and size, and without redirects.

HashiCorp Vault (and OpenBao), key-value engine version 2, `GET /v1/<mount>/data/<path>`:
developer.hashicorp.com/vault/api-docs/secret/kv/kv-v2, "Read secret version".

A GitHub App proves itself with a signed statement of a few minutes, and gets a token of an hour for it:
docs.github.com, "Generating a JSON Web Token (JWT) for a GitHub App" and "Create an installation access token for an
app" (2022-11-28).
"""

from __future__ import annotations

import base64
import http.client
import os
import urllib.request
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from paddock.model import GitHubApp
from paddock.storage import https

from ._sources import SourceRefused, from_file

_SECONDS = 10.0
_BODY_BYTES = 1 << 20
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


def ask(source: str, url: str, headers: Mapping[str, str], *, body: object = None) -> tuple[int, bytes]:
    """Return status and body of a GET, or of a POST of a JSON `body`. Raises Refused without an answer."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOCAL):
        raise SourceRefused(source, f"{parts.scheme}://{parts.netloc} is neither https nor on this machine")
    data = None if body is None else msgspec.json.encode(body)
    known = {"User-Agent": "paddock", **({} if data is None else {"Content-Type": "application/json"}), **headers}
    request = urllib.request.Request(url, data=data, headers=known)  # noqa: S310 (checked above)
    try:
        return https.ask(https.opener(), request, seconds=_SECONDS, most_bytes=_BODY_BYTES)
    except https.TooLong:
        raise SourceRefused(source, f"it answered with more than {_BODY_BYTES >> 20} MiB") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise SourceRefused(source, f"{parts.netloc} cannot be reached: {type(reason).__name__}: {reason}") from None


_SAYS = {
    400: "the path is not one of a key-value engine, version 2",
    403: "the token may not read it",
    404: "there is nothing at that path, or what was there was deleted",
    429: "it is a standby, or asked too often",
    472: "it is a standby",
    473: "it is a standby",
    503: "it is sealed, or under maintenance",
}


class _Data(msgspec.Struct):
    data: dict[str, Any] | None = None


class _Answer(msgspec.Struct):
    data: _Data


def read(place: str, environment: Mapping[str, str]) -> bytes:
    """Read a value of a key-value engine. `place` is `<mount>/data/<path>#<field>`."""
    path, hash, field = place.partition("#")
    if not (hash and field and path.strip("/")) or {"", ".", ".."} & set(path.split("/")):
        raise SourceRefused("vault", f"{place!r} is not of the form secret/data/path#field")
    address = environment.get("VAULT_ADDR", "").rstrip("/")
    if not address:
        raise SourceRefused(
            "vault", "there was no variable VAULT_ADDR where the policy was set", "export VAULT_ADDR=https://…"
        )
    headers = {"X-Vault-Request": "true", "X-Vault-Token": _token(environment)}
    if namespace := environment.get("VAULT_NAMESPACE"):
        headers["X-Vault-Namespace"] = namespace
    status, body = ask("vault", f"{address}/v1/{quote(path)}", headers)
    if status != 200:
        raise SourceRefused("vault", f"{path} at {address}: {_SAYS.get(status, 'it answered')} ({status})")
    try:
        values = msgspec.json.decode(body, type=_Answer).data.data
    except msgspec.DecodeError:
        raise SourceRefused("vault", f"{path} at {address} is not of a key-value engine, version 2") from None
    value = (values or {}).get(field)
    if not isinstance(value, str):
        raise SourceRefused("vault", f"{path} at {address} has no text {field!r}")
    return value.encode()


def _token(environment: Mapping[str, str]) -> str:
    token = environment.get("VAULT_TOKEN")
    if not token:
        try:
            token = from_file(os.path.join(environment.get("HOME", "/"), ".vault-token")).decode("ascii", "replace")
        except SourceRefused:
            raise SourceRefused("vault", "there is neither VAULT_TOKEN nor ~/.vault-token", "vault login") from None
    if not token.isascii() or not token.isprintable():
        raise SourceRefused("vault", "the token has characters that no token has")
    return token


_CLOCKS_APART = 60
_STATEMENT_SECONDS = 540


class _Token(msgspec.Struct):
    token: str
    expires_at: str


def exchange(app: GitHubApp, private_key: bytes, now: float) -> tuple[bytes, float]:
    """Return a token, and until when it is valid, in seconds since the epoch as `now` is."""
    url = f"{app.api.rstrip('/')}/app/installations/{app.installation_id}/access_tokens"
    headers = {
        "Authorization": f"Bearer {statement(app.app_id, private_key, now)}",
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": "2022-11-28",
    }
    wanted = {"repositories": app.repositories, "permissions": app.permissions}
    status, body = ask("github_app", url, headers, body={k: v for k, v in wanted.items() if v is not None})
    if status != 201:
        raise SourceRefused("github_app", f"app {app.app_id}, installation {app.installation_id}: {_words(status)}")
    try:
        answer = msgspec.json.decode(body, type=_Token)
        return answer.token.encode("ascii"), datetime.fromisoformat(answer.expires_at).timestamp()
    except (msgspec.DecodeError, ValueError):
        raise SourceRefused("github_app", f"{app.api} answered with something else than a token") from None


def statement(app_id: str, private_key: bytes, now: float) -> str:
    """Sign a JWT with RS256."""
    from cryptography.hazmat.primitives.asymmetric import padding, rsa
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(private_key, password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise SourceRefused("github_app", "private_key is not an RSA key in PEM without a password")
    claims = {"iat": int(now) - _CLOCKS_APART, "exp": int(now) + _STATEMENT_SECONDS, "iss": app_id}
    signed = f"{_part({'alg': 'RS256', 'typ': 'JWT'})}.{_part(claims)}"
    return f"{signed}.{_encoded(key.sign(signed.encode(), padding.PKCS1v15(), SHA256()))}"


def _part(content: object) -> str:
    return _encoded(msgspec.json.encode(content))


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _words(status: int) -> str:
    known = {
        401: "GitHub does not take its signature: another key, or another app",
        403: "GitHub refuses it, perhaps because the installation is suspended",
        404: "there is no such installation of that app",
        422: "it asks for repositories or permissions that the installation has not",
    }
    return f"{known.get(status, 'GitHub answered')} ({status})"
