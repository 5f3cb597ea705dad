"""What came of moving a tree."""

from __future__ import annotations

from paddock.model import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Moved: TypeAlias = Callable[[int], object]
    """Told how many bytes have just gone."""


class TransferReport(Value):
    """`entries` counts files, directories and links; `skipped` names what was passed over, as untrusted text."""

    entries: int
    total_bytes: int
    skipped: tuple[str, ...] = ()
