"""One source, one value: SecretUnavailable names the source and the reason, never the value."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from paddock.errors import SecretUnavailable
from paddock.model import SecretSource, SecretValue

from . import _local
from ._local import LEAST_BYTES, MOST_BYTES, Refused


class Fetched(msgspec.Struct, frozen=True):
    """`seconds`: so long it is good for, if its source says so."""

    value: SecretValue
    seconds: float | None = None


class Fetcher:
    """`environment` has the variables of who set the policy, `stored` looks into paddock's store, `wall` is the time in
    seconds since the epoch."""

    def __init__(
        self, environment: Mapping[str, str], stored: Callable[[str], SecretValue], wall: Callable[[], float]
    ) -> None:
        self._environment, self._stored, self._wall = environment, stored, wall

    async def fetch(self, name: str, source: SecretSource) -> Fetched:
        """`name` is that of the secret, for errors."""
        try:
            return await self._fetch(name, source)
        except Refused as refused:
            raise SecretUnavailable(
                f"secret {name} has no value: {refused}", hint=refused.hint, secret=name, source=refused.source
            ) from None

    async def _fetch(self, name: str, source: SecretSource) -> Fetched:
        if source.stored is not None:
            return Fetched(self._stored(source.stored))
        if source.env is not None:
            return _fetched(_local.from_environment(self._environment, source.env), "env")
        if source.file is not None:
            return _fetched(await asyncio.to_thread(_local.from_file, source.file), "file")
        if source.command is not None:
            return _fetched(await _local.from_command(source.command, self._environment), "command")
        if source.vault is not None:
            from . import _apis

            return _fetched(await asyncio.to_thread(_apis.read, source.vault, self._environment), "vault")
        if source.github_app is not None:
            from . import _apis

            app = source.github_app
            key = await self._fetch(name, app.private_key)
            now = self._wall()
            token, until = await asyncio.to_thread(_apis.exchange, app, key.value.data, now)
            return Fetched(_fetched(token, "github_app").value, until - now)
        raise Refused("none", "no source is given", "env, file, command, stored, vault or github_app")


def is_kept(source: SecretSource) -> bool:
    """It is one's own in paddock's store; every other source is opened with what the service's user may do."""
    return source.stored is not None


def _fetched(data: bytes, source: str) -> Fetched:
    if len(data) < LEAST_BYTES:
        raise Refused(source, f"{source} has {len(data)} bytes, and a secret at least {LEAST_BYTES}")
    if len(data) > MOST_BYTES:
        raise Refused(source, f"{source} has more than {MOST_BYTES} bytes")
    return Fetched(SecretValue(data))
