"""The limits of an image. Its author may have made it to fill the disk or the memory."""

from __future__ import annotations

import msgspec

from paddock.errors import ImageInvalidError, ResourceExhaustedError

MANIFEST_BYTES = 4 << 20  # what the specification asks registries to take
HEADER_BYTES = 1 << 20  # of pax headers and long names of one entry; an attribute may have 64 KiB
INDEX_DEPTH = 3
MOST_LAYERS = 500
_HINT = "the image may be damaged or made to fill disks; with `paddock gc` there is more room"


class ImageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`unpacked_bytes` counts all layers of an image as they come out of their compression, `entries` their files."""

    unpacked_bytes: int = 64 << 30
    entries: int = 2_000_000

    def budget(self, room: int) -> Budget:
        """Return all of it, for a pool that has that much room."""
        return Budget(min(self.unpacked_bytes, room), self.entries, room < self.unpacked_bytes)


class Budget(msgspec.Struct):
    """The rest of the limits during the extraction of an image."""

    bytes: int
    entries: int
    short_of_room: bool

    def check(self, size: int) -> None:
        """Raise ImageInvalidError or ResourceExhaustedError if `size` exceeds the remaining bytes."""
        if size > self.bytes:
            if self.short_of_room:
                raise ResourceExhaustedError("the pool has no room for all of the image", hint=_HINT)
            raise ImageInvalidError("the image unpacks to more than is taken of one", hint=_HINT)
