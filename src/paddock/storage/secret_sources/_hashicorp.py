"""HashiCorp Vault (and OpenBao), key-value engine version 2: `GET /v1/<mount>/data/<path>`.

Source: developer.hashicorp.com/vault/api-docs/secret/kv/kv-v2, "Read secret version".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from ._https import ask
from ._local import from_file
from ._refused import Refused

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
    """`place` is `<mount>/data/<path>#<field>`."""
    path, hash, field = place.partition("#")
    if not (hash and field and path.strip("/")) or {"", ".", ".."} & set(path.split("/")):
        raise Refused("vault", f"{place!r} is not of the form secret/data/path#field")
    address = environment.get("VAULT_ADDR", "").rstrip("/")
    if not address:
        raise Refused(
            "vault", "there was no variable VAULT_ADDR where the policy was set", "export VAULT_ADDR=https://…"
        )
    headers = {"X-Vault-Request": "true", "X-Vault-Token": _token(environment)}
    if namespace := environment.get("VAULT_NAMESPACE"):
        headers["X-Vault-Namespace"] = namespace
    status, body = ask("vault", f"{address}/v1/{quote(path)}", headers)
    if status != 200:
        raise Refused("vault", f"{path} at {address}: {_SAYS.get(status, 'it answered')} ({status})")
    try:
        values = msgspec.json.decode(body, type=_Answer).data.data
    except msgspec.DecodeError:
        raise Refused("vault", f"{path} at {address} is not of a key-value engine, version 2") from None
    value = (values or {}).get(field)
    if not isinstance(value, str):
        raise Refused("vault", f"{path} at {address} has no text {field!r}")
    return value.encode()


def _token(environment: Mapping[str, str]) -> str:
    token = environment.get("VAULT_TOKEN")
    if not token:
        try:
            token = from_file(os.path.join(environment.get("HOME", "/"), ".vault-token")).decode("ascii", "replace")
        except Refused:
            raise Refused("vault", "there is neither VAULT_TOKEN nor ~/.vault-token", "vault login") from None
    if not token.isascii() or not token.isprintable():
        raise Refused("vault", "the token has characters that no token has")
    return token
