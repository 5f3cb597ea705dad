"""The caller's environment, as far as its request needs it: the daemon that serves it has one of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextvars import ContextVar

ENVIRONMENT: ContextVar[Mapping[str, str] | None] = ContextVar("environment", default=None)
"""Set by the daemon for each request. What a request starts in the background keeps it. Unset: this process's own."""

_GIT = frozenset(
    (
        *("HOME", "USER", "LOGNAME", "PATH", "LANG", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("CURL_CA_BUNDLE", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"),
    )
)


def environment() -> Mapping[str, str]:
    """The caller's variables that came with his request: those that his policy names, those that his git goes by."""
    given = ENVIRONMENT.get()
    return os.environ if given is None else given


def is_git_variable(name: str) -> bool:
    return name in _GIT or name.startswith("GIT_") or name.lower().endswith("_proxy")
