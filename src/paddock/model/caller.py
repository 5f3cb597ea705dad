"""The caller's environment, mounts and process, as far as its request needs them: the daemon has its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextvars import ContextVar

from .value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .policy import SecretSource

ENVIRONMENT: ContextVar[Mapping[str, str] | None] = ContextVar("environment", default=None)
"""The caller's environment variables, set by the daemon for each request.

Background work of a request keeps them. Unset: this process's own.
"""
DIRECTORIES: ContextVar[Mapping[str, tuple[int, int]] | None] = ContextVar("directories", default=None)
"""The caller's mounts, set like `ENVIRONMENT`. Unset: the caller has this process's mounts."""


class SessionProcess(Value):
    """The client process of a session. A pid means it only with its start time and boot."""

    token: str
    pid: int
    start_time: str
    boot_id: str

    @property
    def name(self) -> str:
        """The pid and the start time, as `linux.proc.is_running` takes them."""
        return f"{self.pid} {self.start_time}"


SESSION: ContextVar[SessionProcess | None] = ContextVar("session", default=None)
"""The caller's session, set like `ENVIRONMENT`. Unset: the caller can't repeat a request."""

_GIT = frozenset(
    (
        *("HOME", "USER", "LOGNAME", "PATH", "LANG", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("CURL_CA_BUNDLE", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"),
    )
)

_VAULT = ("VAULT_ADDR", "VAULT_TOKEN", "VAULT_NAMESPACE", "HOME")


def environment() -> Mapping[str, str]:
    """Return the caller's variables from the request: the ones that the policy names, and the ones for git."""
    overrides = ENVIRONMENT.get()
    return os.environ if overrides is None else overrides


def of_source(source: SecretSource, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables in `variables` that determine the value of `source`. For a command that is all of them."""
    while source.github_app is not None:
        source = source.github_app.private_key
    if source.command is not None:
        return {name: value for name, value in variables.items() if _is_text(name) and _is_text(value)}
    names = _VAULT if source.vault is not None else () if source.env is None else (source.env,)
    return {name: variables[name] for name in names if name in variables}


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # bytes that are no UTF-8
        return False
    return True


def directories() -> Mapping[str, tuple[int, int]]:
    """Return device and inode of the directories that the caller wants to mount, by the caller's paths."""
    return DIRECTORIES.get() or {}


def is_git_variable(name: str) -> bool:
    return name in _GIT or name.startswith("GIT_") or name.lower().endswith("_proxy")
