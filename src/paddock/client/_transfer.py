"""The result of a transfer of a tree."""

from __future__ import annotations

from paddock.model import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Moved: TypeAlias = Callable[[int], object]
    """Gets the number of bytes of each step."""


class TransferReport(Value):
    """The result of a transfer.

    `entries` counts files, directories and links. `skipped` names the ones left out, as untrusted text.
    """

    entries: int
    total_bytes: int
    skipped: tuple[str, ...] = ()
