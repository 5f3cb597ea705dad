"""A process of the controller's, forked from one that collects no garbage."""

from __future__ import annotations

import subprocess
import sys

from tests.vmm.controllers import SRC

FORKED = """
import gc, sys
gc.disable()
sys.path.insert(0, sys.argv[1])
from paddock.vmm.process import prepare_process
prepare_process(())
class Cycle:
    living = 0
    def __init__(self):
        self.itself = self
        Cycle.living += 1
    def __del__(self):
        Cycle.living -= 1
for _ in range(100_000):
    Cycle()
print(Cycle.living)
"""


def test_what_refers_to_itself_is_collected() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", FORKED, str(SRC)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 10_000
