"""`paddock` with the door of the client's tests behind it: `fake_paddock.py DIRECTORY ARGUMENTS…`.

What was asked of the door is written to `DIRECTORY/performed` at the end.
"""

from __future__ import annotations

import fcntl
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from paddock.cli import main
from paddock.client import session
from paddock.client._daemon import LOCK
from paddock.model import AuditReport
from paddock.supervisor.layout import default_state_dir
from tests.client.door import FakeDoor, Served

state_dir = default_state_dir()
state_dir.mkdir(parents=True, exist_ok=True)
door = FakeDoor(state_dir)
if (state_dir / "useless").exists():
    door.jail = "missing"
    door.audit = AuditReport(ok=False, segments=1, records=2, head="abc", problem="line 3\x1b]0;title\x07")
lock = (state_dir / LOCK).open("w")  # until this process has ended: a thread that copies starts no real daemon
fcntl.flock(lock, fcntl.LOCK_EX)
served = Served(door, state_dir)
try:
    code = main(sys.argv[2:])
except SystemExit as ended:
    code = ended.code
session(state_dir).close()
served.close()
text = "".join(f"{type(action).__name__}\n" for action in door.performed)
(state_dir / "performed").write_text(text + f"open {len(door.open)}\n")
raise SystemExit(code)
