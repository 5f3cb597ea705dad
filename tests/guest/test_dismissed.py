"""An agent that is wanted for a moment, again and again: a container's carrier, one for each copy."""

from __future__ import annotations

import subprocess
import sys

from tests.guest.agents import SRC

# Whoever died by itself as soon as it was there would be waited for till after the deadline.
_INIT = r"""
import os, signal, socket, sys, time
sys.path.insert(0, sys.argv[1])
from paddock.guest import _init
from paddock.guest._config import InitConfig

_init._FIRST_PAUSE_SECONDS = _init._LONGEST_PAUSE_SECONDS = 3600.0
ours, theirs = socket.socketpair()
ours.send(b"somebody always calls")
control, nobody = socket.socketpair()

class Rest:
    is_held = stands = True
    def begin(self, loop, clock): self.loop = loop
    def when_held_no_more(self, call): self.loop.soon(call)

rest, started = Rest(), []

def start_agent(name):
    pid = os.fork()
    if pid == 0:
        signal.pause()
    started.append(pid)
    if len(started) == 20:
        rest.loop.stop()
    return pid

config = InitConfig(
    control=control,
    agents={"carrier": theirs},
    deadline=time.clock_gettime(time.CLOCK_BOOTTIME) + 60.0,
    grace_seconds=0.0,
    attending=("carrier",),
)
try:
    _init.Init(config, start_agent, rest).run(lambda: None)
finally:
    _init.kill_descendants()
print(len(started))
"""


def test_one_that_was_dismissed_is_there_at_once_when_it_is_wanted_again() -> None:
    argv = [sys.executable, "-I", "-S", "-c", _INIT, str(SRC)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("20\n", "")
