"""A unit of the keeper's own: how systemd gives a program a part of the cgroup tree (systemd.scope(5)).

Without it the keeper would lie in the group of whoever started it first, beside processes that are none of its own.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_TOOLS = "/usr/bin:/bin"
_WANTED = {"memory", "pids", "cpu"}


def prefix() -> tuple[list[str], dict[str, str]] | None:
    """What to put before a command that is to have its own group, and the environment that this needs.

    None where nobody would give one: no systemd, no service manager of this user's, no controllers of version 2.
    The command itself gets no environment.
    """
    systemd_run, env = (shutil.which(name, path=_TOOLS) for name in ("systemd-run", "env"))
    if systemd_run is None or env is None or not os.path.isdir("/run/systemd/system") or not _has_controllers():
        return None
    argv = [systemd_run, "--scope", "--quiet", "--collect", "--property=Delegate=yes", "--property=TasksMax=infinity"]
    environment: dict[str, str] = {}
    if (uid := os.getuid()) != 0:
        runtime = Path(f"/run/user/{uid}")
        if not (runtime / "systemd/private").exists() and not (runtime / "bus").exists():
            return None
        argv.append("--user")
        environment = {"XDG_RUNTIME_DIR": str(runtime), "DBUS_SESSION_BUS_ADDRESS": f"unix:path={runtime}/bus"}
    return [*argv, "--description=paddock", "--", env, "-i"], environment


def _has_controllers() -> bool:
    try:
        return bool(_WANTED & set(Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()))
    except OSError:
        return False  # version 1, of which systemd hands nothing on
