"""Run a program in gVisor once, by hand: `python -I -c …` with the configuration of a sandbox's controller."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from paddock.linux import prctl
from paddock.linux.python import SOURCE
from paddock.model import Limits
from paddock.vmm.control import Json
from paddock.vmm.controller import Controller

from ._bundle import filter, flags, served, specification

_RAN, _TERMINALS, _STATS = 40, 1, 2
"""Exit code of the program, which no other program has: the first, plus bits for the features that work."""
# A terminal counts if it can switch to raw mode and back at once. It must deliver signals for Ctrl-C and a new size.
# The test uses stat with AT_NO_AUTOMOUNT, like coreutils from 9.1 on: without it `ls` fails.
_LOOK = f"""
import ctypes, fcntl, os, signal, termios, tty
master, slave = os.openpty()
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    before = termios.tcgetattr(slave)
    try:
        tty.setraw(slave)
        termios.tcsetattr(slave, termios.TCSAFLUSH, before)
    except termios.error:
        os._exit(1)
    signal.signal(signal.SIGWINCH, lambda *_: None)
    both = {{signal.SIGINT, signal.SIGWINCH}}
    signal.pthread_sigmask(signal.SIG_BLOCK, both)
    signal.alarm(20)
    os.write(writer, b'r')
    came = set()
    while signal.SIGINT not in came:
        came.add(signal.sigwait(both))
    os._exit(7 if signal.SIGWINCH in came | signal.sigpending() else 1)
os.close(writer)
if os.read(reader, 1):
    termios.tcsetwinsize(master, (33, 44))
    os.write(master, b'\\3')
ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
statx = ctypes.CDLL(None).statx
looked = statx(-100, b'/', 0x800, 0x7ff, ctypes.create_string_buffer(256))
raise SystemExit({_RAN} + {_TERMINALS} * (ended == 7) + {_STATS} * (looked == 0))
"""
_SECONDS = 60.0
_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from paddock.backends.gvisor import _trial; _trial.main()"


def attempt(runsc: Path, platform: str, date: int) -> dict[str, bool] | str:
    """Return why `runsc` runs no program here on that platform, which needs no device, or the features that work."""
    argv = (str(Path(sys.executable).resolve()), "-I", "-S", "-c", _LOOK)
    options = {
        "runsc": str(runsc),
        "flags": flags(platform, date, one_id=os.getuid() != 0),
        "filter": filter(),
        "served": served(date),
        "spec": specification(argv=argv, hostname="trial", uid=os.getuid(), limits=Limits()),
        "cpus": 1,
        "memory_bytes": 1 << 28,
        "device": None,
    }
    config: Json = {
        "name": f"paddock-trial-{os.urandom(8).hex()}",
        "identities": (),
        "driver": "gvisor",
        "options": options,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _PROGRAM, SOURCE],
            input=json.dumps(config).encode(),
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"a program in it has not ended in {_SECONDS:g} s"
    try:
        ending: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return _last(done.stderr.decode("utf-8", "replace")) or "it could not be started"
    works = (ending["code"] or 0) - _RAN
    if 0 <= works <= _TERMINALS + _STATS:
        return {"terminals": bool(works & _TERMINALS), "stats": bool(works & _STATS)}
    return _last(ending["log"]) or f"it ended with {ending['code']}, signal {ending['signal']}"


def main() -> None:
    prctl.set_no_new_privileges()  # filters need it; in a jail it is so
    _Trial(json.load(sys.stdin)).run()


class _Trial(Controller):
    def end(self, status: Json) -> None:
        print(json.dumps({**status, "log": self.log_text()}), flush=True)
        os._exit(0)  # what is left ends with us


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
