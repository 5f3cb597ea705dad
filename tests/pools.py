"""The pool of a supervisor, for tests that open it themselves."""

from __future__ import annotations

from paddock.backends.jail import JailBackend


async def descriptor(backend: JailBackend) -> int:
    """Return the pool's directory as the supervisor has it. It stays the backend's."""
    await backend.supervisor.connect()
    assert backend.supervisor.pool is not None
    return backend.supervisor.pool
