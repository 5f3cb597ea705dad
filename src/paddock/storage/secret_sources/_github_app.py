"""A GitHub App proves itself with a signed statement of a few minutes, and is given a token of an hour for it.

Sources: docs.github.com, "Generating a JSON Web Token (JWT) for a GitHub App" and
"Create an installation access token for an app" (2022-11-28).
"""

from __future__ import annotations

import base64
from datetime import datetime

import msgspec

from paddock.model import GitHubApp

from ._https import ask
from ._refused import Refused

_CLOCKS_APART = 60
_STATEMENT_SECONDS = 540


class _Token(msgspec.Struct):
    token: str
    expires_at: str


def exchange(app: GitHubApp, private_key: bytes, now: float) -> tuple[bytes, float]:
    """The token, and until when it is good, in seconds since the epoch as `now` is."""
    url = f"{app.api.rstrip('/')}/app/installations/{app.installation_id}/access_tokens"
    headers = {
        "Authorization": f"Bearer {statement(app.app_id, private_key, now)}",
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": "2022-11-28",
    }
    wanted = {"repositories": app.repositories, "permissions": app.permissions}
    status, body = ask("github_app", url, headers, body={k: v for k, v in wanted.items() if v is not None})
    if status != 201:
        raise Refused("github_app", f"app {app.app_id}, installation {app.installation_id}: {_words(status)}")
    try:
        answer = msgspec.json.decode(body, type=_Token)
        return answer.token.encode("ascii"), datetime.fromisoformat(answer.expires_at).timestamp()
    except (msgspec.DecodeError, ValueError):
        raise Refused("github_app", f"{app.api} answered with something else than a token") from None


def statement(app_id: str, private_key: bytes, now: float) -> str:
    """A JWT, RS256."""
    from cryptography.hazmat.primitives.asymmetric import padding, rsa
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(private_key, password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise Refused("github_app", "private_key is no RSA key in PEM without a password")
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
