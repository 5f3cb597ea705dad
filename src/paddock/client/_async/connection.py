"""A connection to a port inside."""

from __future__ import annotations

from .handles import Incoming, Outgoing

_CHUNK_BYTES = 1 << 16


class AsyncConnection(Incoming, Outgoing):
    """Bytes both ways, to and from a program inside that listens on a port.

    `sandbox.dial` opens it. A `with` block closes it.

    Example:
        ```python
        async with await sandbox.dial(8000) as connection:
            await connection.write("ping")
            print(await connection.read())  # b'ping'
        ```
    """

    _ended_by = "eof"

    async def read(self, size: int = _CHUNK_BYTES) -> bytes:
        """Return some bytes as soon as there are any; b"" at the end.

        Args:
            size: At most so many bytes.

        Returns:
            The bytes.

        Raises:
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            async with await sandbox.dial(8000) as connection:
                await connection.write("ping")
                print(await connection.read(2))  # b'pi'
            ```
        """
        return await self._receive(size)

    async def write(self, data: str | bytes) -> None:
        """Write all of it, and wait until the other side has taken it.

        Args:
            data: Bytes, or a text, which goes as UTF-8.

        Raises:
            BrokenPipeError: The other side has closed the connection.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            async with await sandbox.dial(8000) as connection:
                await connection.write(b"ping")
            ```
        """
        await self._send(data.encode() if isinstance(data, str) else data)

    async def write_eof(self) -> None:
        """Tell the other side that no more follows. It can still answer.

        Raises:
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            async with await sandbox.dial(8000) as connection:
                await connection.write("ping")
                await connection.write_eof()
                print(await connection.read())  # b'ping'
            ```
        """
        await self._stream.call("eof")

    async def aclose(self) -> None:
        """Close both directions.

        Example:
            ```python
            connection = await sandbox.dial(8000)
            await connection.aclose()
            ```
        """
        await super().aclose()
