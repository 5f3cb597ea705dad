"""Finds the daemon of a state directory, and starts a missing one.

Only the lock decides whether a daemon runs. A daemon holds it from before its first line to its last, so a process
that gets it may start the next one. A slow answer, a missing file or a dead pid doesn't justify another daemon.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
import time

from paddock.errors import DaemonUnavailableError, NotConfiguredError
from paddock.linux import local_sockets

TYPE_CHECKING = False

SOCKET = "daemon.sock"
LOCK = "daemon.lock"
LOG = "daemon.log"
WAIT_SECONDS = 120.0
"""Time for a daemon's start or end. The first start on a machine makes a pool."""
LOOK_SECONDS = 20.0
"""Period in which a caller that waits for an answer asks whether the daemon hangs. It does at the third silent one."""
TELL_SECONDS = 2.0
"""Time after which a caller learns the reason of its wait."""

_BOOTSTRAP = (
    "import gc,sys,json;gc.set_threshold(50_000,50,50);o=json.load(sys.stdin);sys.path[:0]=o['path'];"
    "from paddock.daemon.main.start import main;main(o)"
)
_CARRIED = frozenset(
    (
        *("DBUS_SESSION_BUS_ADDRESS", "DOCKER_CONFIG", "DOCKER_HOST", "CONTAINER_HOST", "HOME", "LANG", "LOGNAME"),
        *("PATH", "SHELL", "SSH_AUTH_SOCK", "SSH_ASKPASS", "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR", "TZ", "USER"),
        # Runners of continuous integration find a job's remaining processes by these (actions/runner#598).
        *("BUILD_ID", "JENKINS_NODE_COOKIE", "RUNNER_TRACKING_ID"),
    )
)
_FOR_ALL = frozenset(
    (
        *("CONTAINER_HOST", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_CONFIG", "DOCKER_HOST", "SSL_CERT_DIR"),
        *("SSL_CERT_FILE", "TMPDIR", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    )
)
"""Variables by which the daemon reaches engines, registries and forges, for all its clients."""
_MOVED = {
    "PADDOCK_ACCELERATOR": 'accelerator = "tcg"',
    "PADDOCK_APPROVAL_WEBHOOK": 'approval_webhook = "https://..."',
    "PADDOCK_APPROVAL_WEBHOOK_KEY": 'approval_webhook_key_file = "/..."',
    "PADDOCK_AUDIT_KEY_FILE": 'audit_key_file = "/..."',
    "PADDOCK_GVISOR_PLATFORM": 'gvisor_platform = "systrap"',
    "PADDOCK_KERNEL": 'kernel = "/..."',
    "PADDOCK_PACKAGE_CACHE_MIB": "package_cache_mib = 4096",
    "PADDOCK_POOL_DRIVER": 'pool_driver = "overlay"',
    "PADDOCK_RUNSC": 'runsc = "/..."',
    "PADDOCK_SUBORDINATE_IDS": "subordinate_ids = true",
    "PADDOCK_VAULT_KEY": 'vault_key_file = "/..."',
    "PADDOCK_WAITING": "spares = 1",
}
"""Variables of earlier versions, and the line in config.toml that replaces each."""


class NoDaemon(Exception):
    """No daemon runs, and the caller starts none."""


def connect(state_dir: str, *, start: bool = True) -> socket.socket:
    """Return a blocking connection to the daemon of `state_dir`.

    Raises the reason if it can't start one, and NoDaemon if it may not.
    """
    began, pause, warned = time.monotonic(), 0.002, False
    while True:
        if (peer := _try(state_dir)) is not None:
            return peer
        if not start and not os.path.exists(os.path.join(state_dir, LOCK)):
            raise NoDaemon
        free = lock(state_dir)
        if free is not None:
            try:
                # One that started, and left its lock, since we asked serves until its last client.
                if (peer := _try(state_dir)) is not None:
                    return peer
                if not start:
                    raise NoDaemon
                _start(state_dir, free)
            finally:
                os.close(free)
            continue
        waited = time.monotonic() - began
        if waited > TELL_SECONDS and not warned:
            import logging

            warned = True
            logging.getLogger("paddock").warning("waiting for the daemon of %s, which starts or leaves", state_dir)
        if waited > WAIT_SECONDS:
            raise DaemonUnavailableError(
                f"the daemon of {state_dir} holds its lock and does not listen",
                hint=f"see {os.path.join(state_dir, LOG)}; `paddock daemon status` names its process",
            )
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


def environment() -> dict[str, str]:
    """Return the variables that configure a daemon of this process."""
    return {name: value for name, value in os.environ.items() if _is_carried(name)}


def configuring() -> dict[str, str]:
    """Return the variables that the daemon uses for all clients, with "" for unset ones.

    The others come with requests.
    """
    return {name: os.environ.get(name, "") for name in _FOR_ALL}


def _is_carried(name: str) -> bool:
    return name in _CARRIED or name.startswith("XDG_") or name.lower().endswith("_proxy")


def refuse_moved(state_dir: str) -> None:
    """Raise NotConfiguredError if a variable of this program has no effect. The hint has the line that replaces it."""
    for name in _MOVED.keys() & os.environ.keys():
        raise NotConfiguredError(
            f"{name} has no effect: what it said is a setting of the state directory now",
            hint=f"unset {name}; write a line such as {_MOVED[name]} into {os.path.join(state_dir, 'config.toml')}",
        )


def _try(state_dir: str) -> socket.socket | None:
    try:
        peer = local_sockets.connect(state_dir, SOCKET)
    except FileNotFoundError:  # the directory itself
        return None
    except (PermissionError, NotADirectoryError) as error:
        raise _unusable(state_dir, error) from None
    if peer is not None:
        _, uid = listener(peer)  # another user's daemon would learn what this one sends
        if uid != os.geteuid():
            peer.close()
            raise _foreign(state_dir, f"is served by uid {uid}")
        peer.setblocking(True)
    return peer


def listener(peer: socket.socket) -> tuple[int, int]:
    """Return the process and the user that listened when `peer` connected (unix(7))."""
    pid, uid, _ = memoryview(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)).cast("i")
    return pid, uid


def _foreign(state_dir: str, how: str) -> NotConfiguredError:
    return NotConfiguredError(
        f"the state directory {state_dir} {how}, and this program runs as {os.geteuid()}",
        hint="run it as that user, or set PADDOCK_STATE_DIR",
    )


def _unusable(state_dir: str, error: OSError) -> NotConfiguredError:
    return NotConfiguredError(
        f"the state directory {state_dir} cannot be used: {error.strerror}", hint="PADDOCK_STATE_DIR names another one"
    )


def lock(state_dir: str) -> int | None:
    """Return the daemon's lock, or None where a daemon has it."""
    try:
        os.makedirs(state_dir, mode=0o700, exist_ok=True)
        directory = os.stat(state_dir)
        if directory.st_uid != os.geteuid():
            raise _foreign(state_dir, f"belongs to uid {directory.st_uid}")
        if directory.st_mode & 0o002:
            raise NotConfiguredError(
                f"anyone may write to the state directory {state_dir}",
                hint=f"chmod 700 {state_dir}; then look what is in it",
            )
        file = os.open(os.path.join(state_dir, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _unusable(state_dir, error) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return None
        raise NotConfiguredError(
            f"{state_dir} cannot be locked: {error.strerror}", hint="a network file system? set PADDOCK_STATE_DIR"
        ) from None
    return file


def _start(state_dir: str, lock: int) -> None:
    """Start a daemon with the lock, and wait until it listens. Raises the reason of a failed start."""
    import json
    import subprocess

    from paddock.linux.python import module_path

    reading, writing = os.pipe2(os.O_CLOEXEC)
    log = os.open(os.path.join(state_dir, LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    size = os.fstat(log).st_size
    options = {"path": module_path(), "state": os.path.abspath(state_dir), "lock": lock, "ready": writing}
    with open(reading, "rb") as ready:
        try:
            # It forks and ends: the daemon isn't this process's child.
            subprocess.run(
                [sys.executable, "-I", "-S", "-c", _BOOTSTRAP],
                input=json.dumps(options).encode(),
                stdout=log,
                stderr=log,
                pass_fds=(lock, writing),
                env=environment(),
                cwd="/",
                start_new_session=True,
                check=False,
            )
        finally:
            os.close(writing)
            os.close(log)
        outcome = ready.read()
    if not outcome:
        path = os.path.join(state_dir, LOG)
        with open(path, encoding="utf-8", errors="replace") as lines:
            lines.seek(size)
            last = [line.strip() for line in lines if line.strip()][-1:]
        raise DaemonUnavailableError(": ".join(("the daemon died while it started", *last)), hint=f"see {path}")
    if outcome != b"{}":
        from paddock.model import codec

        raise codec.decode_error(outcome)
