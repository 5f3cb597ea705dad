"""One program behind each wall that this machine has: the same answer, from another kernel.

`python examples/levels.py`. What a level needs that is missing here, `paddock doctor` says.
"""

from __future__ import annotations

from paddock import Sandbox
from paddock.errors import LevelUnavailableError

PROGRAM = """
import os, pathlib
pathlib.Path("squares").write_text(" ".join(str(n * n) for n in range(10)))
print(os.uname().release)
"""

for level in ("container", "jail", "gvisor", "microvm"):
    try:
        sandbox = Sandbox.create(level=level, ttl=120)
    except LevelUnavailableError as refusal:
        print(f"{level}: {refusal}")
        continue
    with sandbox:
        result = sandbox.exec(["python3", "-c", PROGRAM], cwd="/workspace", check=True)
        print(f"{level}: {sandbox.files.read_text('/workspace/squares')} on Linux {result.stdout.strip()}")
