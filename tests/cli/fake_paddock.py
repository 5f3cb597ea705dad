"""`paddock` with the door of the client's tests behind it: `fake_paddock.py DIRECTORY ARGUMENTS…`.

What was asked of the door is written to `DIRECTORY/performed` at the end.
"""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from paddock import _compose
from paddock.cli import main
from paddock.model import AuditReport
from tests.client.door import FakeDoor


async def open_fake(path: Path, stack: AsyncExitStack) -> FakeDoor:
    door = FakeDoor(path)
    if (path / "useless").exists():
        door.jail = "missing"
        door.audit = AuditReport(ok=False, segments=1, records=2, head="abc", problem="line 3\x1b]0;title\x07")

    def report() -> None:
        text = "".join(f"{type(action).__name__}\n" for action in door.performed)
        (path / "performed").write_text(text + f"open {len(door.open)}\n")

    stack.callback(report)
    return door


_compose.connector = _compose.LocalConnector(open_fake)
_compose.install(_compose.connector)
raise SystemExit(main(sys.argv[2:]))
