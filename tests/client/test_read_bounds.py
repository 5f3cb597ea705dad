"""`filesystem.read` takes no more than it may, whatever the other side of the transport sends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from paddock.client._async.filesystem import AsyncFilesystem
from paddock.client._async.process import AsyncReader
from paddock.errors import FileError, ResourceExhaustedError


class Endless(AsyncReader):
    """A transport, and what it opens."""

    taken = 0

    def __init__(self) -> None:
        pass

    async def perform(self, action: Any) -> Endless:
        return self

    async def _receive(self, size: int) -> bytes:
        self.taken += 1000
        return bytes(1000)

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize(("most", "taken"), [(0, 1000), (999, 1000), (1000, 2000), (10_500, 11_000)])
def test_reading_ends_with_the_first_byte_too_many(most: int, taken: int) -> None:
    endless: Any = Endless()
    with pytest.raises(FileError, match="more than") as caught:
        asyncio.run(AsyncFilesystem("sb_1", endless).read("file", max_bytes=most))
    assert caught.value.details["errno"] == "EFBIG"
    assert endless.taken == taken


def test_a_reader_gives_up_with_the_first_byte_too_many() -> None:
    endless: Any = Endless()
    with pytest.raises(ResourceExhaustedError, match="more than 10500 bytes"):
        asyncio.run(endless.read_all(max_bytes=10_500))
    assert endless.taken == 11_000
