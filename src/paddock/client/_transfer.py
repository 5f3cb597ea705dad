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
    """What `upload` or `download` has copied.

    `entries` counts files, directories and links. `skipped` names what it left out: untrusted text.

    Example:
        ```python
        report = sandbox.files.upload("project", "copy")
        print(report.entries, report.skipped)  # 1 ()
        ```
    """

    entries: int
    total_bytes: int
    skipped: tuple[str, ...] = ()
