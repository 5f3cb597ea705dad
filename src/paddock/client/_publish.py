"""Pushes a branch, or opens a pull request, as the caller, in a program that this process starts and waits for.

The daemon has decided about the push, and has checked every object. The program has this process's environment, so git
and ssh find the caller's credentials as in a shell. The daemon never sees one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from paddock.errors import PlatformError
from paddock.linux.python import module_path
from paddock.model import Published, codec

_BOOTSTRAP = (
    "import sys,json;o=json.loads(sys.stdin.readline());sys.path[:0]=o['path'];"
    "from paddock.storage.git.publish import main;main(o['state'],o['plan'])"
)


def publish(plan: codec.Handle, state_dir: str) -> Published:
    """Carry out `plan`. Its result is for the daemon, errors too."""
    if plan.push is None and plan.pull_request is None:
        return Published()
    order = json.dumps(
        {"path": module_path(), "state": os.path.abspath(state_dir), "plan": codec.encode(plan).decode()}
    )
    program = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _BOOTSTRAP],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )
    with program:
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            program.stdin.write(order.encode() + b"\n")
            program.stdin.flush()  # it ends when stdin does: it outlives no caller
            output = program.stdout.read()
        except BaseException:
            program.kill()
            raise
    try:
        return codec.decode(output, Published)
    except codec.Malformed:
        lost = PlatformError(
            f"the program that acts as the caller ended with {program.returncode}", hint="look at what is there now"
        )
        return Published(error=codec.encode_error(lost).decode())
