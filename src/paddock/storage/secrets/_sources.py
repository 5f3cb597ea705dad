"""The value of a secret from one source.

SecretUnavailableError names the source and the reason, never the value.

One newline at the end of a file or of a command's output doesn't count.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Mapping, Sequence

import msgspec

from paddock.errors import SecretUnavailableError
from paddock.model import SecretSource, SecretValue
from paddock.storage.commands import CommandFailed, output

LEAST_BYTES = 8
"""Shortest secret. paddock couldn't distinguish a shorter one from ordinary text in order to redact it."""
MOST_BYTES = 64 << 10


class SourceRefused(Exception):
    """A reason why a source has no value. It names the source and holds nothing of a value."""

    def __init__(self, source: str, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.source, self.hint = source, hint


COMMAND_SECONDS = 20.0


def from_environment(environment: Mapping[str, str], variable: str) -> bytes:
    value = environment.get(variable)
    if value is None:
        raise SourceRefused("env", f"there was no variable {variable} where the policy was set", f"export {variable}")
    return value.encode("utf-8", "surrogateescape")


def from_file(path: str) -> bytes:
    if not os.path.isabs(path):
        raise SourceRefused("file", f"{path} is not an absolute path")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SourceRefused("file", f"{path} is not a regular file")
            return _stripped(file.read(MOST_BYTES + 2))
    except OSError as error:
        raise SourceRefused("file", f"{path} cannot be read: {error.strerror}") from None


async def from_command(
    argv: Sequence[str], environment: Mapping[str, str], *, seconds: float = COMMAND_SECONDS
) -> bytes:
    """Return the command's output."""
    try:
        return _stripped(await output(argv, environment, seconds=seconds, most_bytes=MOST_BYTES))
    except CommandFailed as error:
        raise SourceRefused("command", str(error)) from None


def _stripped(data: bytes) -> bytes:
    return data.removesuffix(b"\n").removesuffix(b"\r")


class FetchedValue(msgspec.Struct, frozen=True):
    """A value from a source. `seconds`: how long it is valid, if its source says so."""

    value: SecretValue
    seconds: float | None = None


class Fetcher:
    """The sources of secrets.

    `environment` has the variables of the user who set the policy.

    `stored` reads paddock's store, and `wall` returns the time in seconds since the epoch.
    """

    def __init__(
        self, environment: Mapping[str, str], stored: Callable[[str], SecretValue], wall: Callable[[], float]
    ) -> None:
        self._environment, self._stored, self._wall = environment, stored, wall

    async def fetch(self, name: str, source: SecretSource) -> FetchedValue:
        """Return the value of a source. `name` is that of the secret, for errors."""
        try:
            return await self._fetch(name, source)
        except SourceRefused as refused:
            raise SecretUnavailableError(
                f"secret {name} has no value: {refused}", hint=refused.hint, secret=name, source=refused.source
            ) from None

    async def _fetch(self, name: str, source: SecretSource) -> FetchedValue:
        if source.stored is not None:
            return FetchedValue(self._stored(source.stored))
        if source.env is not None:
            return _fetched(from_environment(self._environment, source.env), "env")
        if source.file is not None:
            return _fetched(await asyncio.to_thread(from_file, source.file), "file")
        if source.command is not None:
            return _fetched(await from_command(source.command, self._environment), "command")
        if source.vault is not None:
            from . import _apis

            return _fetched(await asyncio.to_thread(_apis.read, source.vault, self._environment), "vault")
        if source.github_app is not None:
            from . import _apis

            app = source.github_app
            key = await self._fetch(name, app.private_key)
            now = self._wall()
            token, until = await asyncio.to_thread(_apis.exchange, app, key.value.data, now)
            return FetchedValue(_fetched(token, "github_app").value, until - now)
        raise SourceRefused("none", "no source is given", "env, file, command, stored, vault or github_app")


def is_kept(source: SecretSource) -> bool:
    """Tell whether the value is in paddock's store. The daemon reads every other source with its own rights."""
    return source.stored is not None


def _fetched(data: bytes, source: str) -> FetchedValue:
    if len(data) < LEAST_BYTES:
        raise SourceRefused(source, f"{source} has {len(data)} bytes, and a secret at least {LEAST_BYTES}")
    if len(data) > MOST_BYTES:
        raise SourceRefused(source, f"{source} has more than {MOST_BYTES} bytes")
    return FetchedValue(SecretValue(data))
