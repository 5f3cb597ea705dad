"""Start a supervisor: this is all that the daemon knows of its code."""

from __future__ import annotations

# What the daemon runs: `python -I -S -c BOOTSTRAP`, with {"source", "guest", "state", "for_tests"} as JSON on stdin.
# Not in arguments: every process inside a sandbox that is a copy of the supervisor would show them.
BOOTSTRAP = (
    "import gc,sys,json;gc.disable();o=json.load(sys.stdin);sys.path.insert(0,o['source']);"
    "from paddock.supervisor._main import main;main(o)"
)
READY = b"ready\n"
VERSION = 12
"""The version of the messages between supervisor and daemon. The first frames never change: docs/supervisor.md."""
