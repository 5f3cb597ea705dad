"""Secrets that sandboxes can use and never see: `paddock.secrets`. Policies name them: `from: stored`."""

from __future__ import annotations

from paddock import model

from .daemon import default_async_transport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from paddock.model import Secret

    from .transport import AsyncTransport


async def set(name: str, value: str | bytes, *, transport: AsyncTransport | None = None) -> Secret:
    """Keep a value under a name, or replace it. Each sandbox that uses the secret has the new value on return."""
    if not isinstance(value, str | bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"the value of a secret is a text or bytes, not a {type(value).__name__}")
    data = value.encode() if isinstance(value, str) else value
    action = model.SetSecret(name=name, value=model.SecretValue(data))
    return await (transport or default_async_transport()).perform(action)


async def list(*, transport: AsyncTransport | None = None) -> tuple[Secret, ...]:
    """Return the properties of your secrets, by name, never their values."""
    return await (transport or default_async_transport()).perform(model.ListSecrets())


async def remove(name: str, *, transport: AsyncTransport | None = None) -> None:
    """Revoke a secret. No sandbox can use it any more on return."""
    await (transport or default_async_transport()).perform(model.RemoveSecret(name=name))
