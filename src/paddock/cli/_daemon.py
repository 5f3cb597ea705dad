"""`paddock daemon`: the process that owns this state directory. The first use starts it."""

from __future__ import annotations

import argparse
import time

from paddock import client
from paddock.errors import InvalidArgumentError
from paddock.supervisor.layout import default_state_dir

from . import _render
from ._answer import answer
from ._usage import Verbs, argument, usage
from ._values import positive

_LOG_LINES = 50


@usage()
def _status(options: argparse.Namespace) -> int:
    """Say whether the daemon runs, and how many programs use it. Starts none. The exit code is 0 either way."""
    state_dir = default_state_dir()
    found = client.daemon_status(state_dir)
    status = {"running": found is not None, "state_dir": str(state_dir), "daemon": found}
    if found is None:
        return answer(options, status, f"no daemon runs for {state_dir}; the next use starts one")
    minutes = (time.time() - found.started_at) / 60
    return answer(
        options,
        status,
        f"running   pid {found.pid}, paddock {found.version}, for {minutes:.0f} min",
        f"state     {found.state_dir}",
        f"used by   {found.sessions} other programs, {found.requests} requests under way",
        f"leaves    {found.idle_exit_seconds:.0f} s after the last program and the last running sandbox",
        *([f"ends      with the control group {found.control_group}"] if found.control_group else []),
    )


@usage()
def _stop(options: argparse.Namespace) -> int:
    """End the daemon, and all sandboxes that aren't persistent.

    Persistent ones and their background commands go on. It returns after the daemon's end. The next use starts another
    one.
    """
    was_running = client.stop_daemon(default_state_dir())
    return answer(options, {"was_running": was_running}, "stopped" if was_running else "no daemon was running")


@usage()
def _restart(options: argparse.Namespace) -> int:
    """Replace the daemon, after a change of config.toml, of its environment or of paddock itself.

    Sandboxes and background commands go on. paddock repeats pending calls if that is safe. Otherwise they fail with
    DaemonLostError.
    """
    client.stop_daemon(default_state_dir(), ends_sessions=False)
    client.default_transport().control("status")  # the first call starts one
    return _status.run(options)


@usage(
    argument("-n", "--lines", type=positive, default=_LOG_LINES, metavar="N", help=f"the last N lines ({_LOG_LINES})"),
    argument("-f", "--follow", action="store_true", help="and what is logged from now on"),
)
def _logs(options: argparse.Namespace) -> int:
    """Print the log of this state directory's daemons.

    It starts no daemon. With -f it also prints later lines, of later daemons too, until Ctrl-C.
    """
    if options.follow and options.json:
        raise InvalidArgumentError("what is followed has no end yet", hint="leave out -f, or --json")
    logged = client.daemon_log(default_state_dir(), options.lines, follow=options.follow)
    if options.follow:
        for line in logged:
            _render.line(line)
            _render.flush()
    lines = list(logged)
    return answer(options, {"lines": lines}, *lines)


verb_daemon = Verbs(
    "The daemon owns this state directory: it makes sandboxes, decides and records. The first use starts it. It leaves"
    " by itself, ten minutes after the last program and the last running sandbox.",
    status=_status,
    stop=_stop,
    restart=_restart,
    logs=_logs,
)
