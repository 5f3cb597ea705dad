"""Secrets that sandboxes can use and never see: `paddock.secrets`. Policies name them: `from: stored`."""

from __future__ import annotations

from paddock import model

from .daemon import default_async_transport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from paddock.model import Secret

    from .transport import AsyncTransport


async def set(name: str, value: str | bytes, *, transport: AsyncTransport | None = None) -> Secret:
    """Keep a value under a name, or replace it. Every sandbox that uses the secret has the new value on return.

    Args:
        name: Letters, digits and `_`, as a variable's.
        value: A text (as UTF-8) or bytes, of at least 8 bytes.
        transport: `paddock.local_async(DIR)` is another state directory.

    Returns:
        The name, the version and the times. Never the value.

    Raises:
        InvalidArgumentError: The name or the value isn't possible.

    Example:
        ```python
        secret = await async_secrets.set("API_TOKEN", "token-of-the-service")
        print(secret.name, secret.version)  # API_TOKEN 1
        ```
    """
    if not isinstance(value, str | bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"the value of a secret is a text or bytes, not a {type(value).__name__}")
    data = value.encode() if isinstance(value, str) else value
    action = model.SetSecret(name=name, value=model.SecretValue(data))
    return await (transport or default_async_transport()).perform(action)


async def list(*, transport: AsyncTransport | None = None) -> tuple[Secret, ...]:
    """List your secrets. It never returns values.

    Args:
        transport: `paddock.local_async(DIR)` is another state directory.

    Returns:
        A tuple of their names, versions and times, by name.

    Raises:
        DaemonUnavailableError: The daemon doesn't start, or doesn't answer.

    Example:
        ```python
        for secret in await async_secrets.list():
            print(secret.name, secret.used_at)
        ```
    """
    return await (transport or default_async_transport()).perform(model.ListSecrets())


async def remove(name: str, *, transport: AsyncTransport | None = None) -> None:
    """Revoke a secret. No sandbox can use it any more on return.

    Args:
        name: The secret's name.
        transport: `paddock.local_async(DIR)` is another state directory.

    Raises:
        NotFoundError: It doesn't exist.

    Example:
        ```python
        await async_secrets.set("OLD_TOKEN", "token-of-the-service")
        await async_secrets.remove("OLD_TOKEN")
        ```
    """
    await (transport or default_async_transport()).perform(model.RemoveSecret(name=name))
