"""`paddock daemon`: the process that owns this state directory. Nobody has to start it: the first use does."""

from __future__ import annotations

import argparse
import time

from . import _render
from ._values import add_json


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "The daemon of this state directory. The first use starts it, and it leaves ten minutes after the last session"
        " and the last running sandbox."
    )
    verbs = parser.add_subparsers(metavar="ACTION", required=True)
    status = verbs.add_parser("status", help="whether it runs, and who uses it")
    add_json(status)
    status.set_defaults(run=_status)
    stop = verbs.add_parser("stop", help="end it, and all sandboxes that are not persistent")
    add_json(stop)
    stop.set_defaults(run=_stop)
    restart = verbs.add_parser("restart", help="replace it; sandboxes and background commands go on")
    add_json(restart)
    restart.set_defaults(run=_restart)
    logs = verbs.add_parser("logs", help="what it has logged")
    logs.add_argument("-n", "--lines", type=int, default=50, metavar="N", help="the last N lines (50)")
    add_json(logs)
    logs.set_defaults(run=_logs)


def _status(options: argparse.Namespace) -> int:
    from paddock.client import daemon_status
    from paddock.keeper.layout import default_state_dir

    state_dir = default_state_dir()
    found = daemon_status(state_dir)
    if options.json:
        _render.document({"running": found is not None, "state_dir": str(state_dir), "daemon": found})
    elif found is None:
        _render.line(f"no daemon runs for {state_dir}; the next use starts one")
    else:
        minutes = (time.time() - found.started_at) / 60
        _render.line(f"running   pid {found.pid}, version {found.version}, for {minutes:.0f} min")
        _render.line(f"state     {found.state_dir}")
        _render.line(f"sessions  {found.sessions}, {found.requests} requests under way")
    return 0


def _stop(options: argparse.Namespace) -> int:
    return _leave(options, ends_sessions=True)


def _restart(options: argparse.Namespace) -> int:
    from paddock.client import default_transport

    _leave(options, ends_sessions=False, says=False)
    default_transport().control("status")
    return _status(options)


def _leave(options: argparse.Namespace, *, ends_sessions: bool, says: bool = True) -> int:
    from paddock.client import stop_daemon
    from paddock.keeper.layout import default_state_dir

    was_running = stop_daemon(default_state_dir(), ends_sessions=ends_sessions)
    if says and options.json:
        _render.document({"was_running": was_running})
    elif says:
        _render.line("stopped" if was_running else "no daemon was running")
    return 0


def _logs(options: argparse.Namespace) -> int:
    from collections import deque

    from paddock.keeper.layout import default_state_dir

    try:
        with open(default_state_dir() / "daemon.log", errors="replace") as log:
            lines = [line.rstrip("\n") for line in deque(log, maxlen=max(options.lines, 0))]
    except FileNotFoundError:
        lines = []
    if options.json:
        _render.document({"lines": lines})
    else:
        for line in lines:
            _render.line(line)
    return 0
