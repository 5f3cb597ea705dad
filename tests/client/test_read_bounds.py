"""`filesystem.read` takes no more than it may, whatever the other side of the transport sends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from paddock.client._async.filesystem import AsyncFilesystem
from paddock.errors import FileError


class Endless:
    taken = 0

    async def perform(self, action: Any) -> Endless:
        return self

    async def read(self, size: int) -> bytes:
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
