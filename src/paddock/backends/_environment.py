"""Set variables for programs that ignore control groups, or the system's store of certificates."""

from __future__ import annotations

from paddock.backends.base import SandboxPlan
from paddock.model import Limits

_NAMES = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "PIP_CERT"),
    *("CURL_CA_BUNDLE", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "DENO_CERT", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"),
)


def certificates(path: str) -> dict[str, str]:
    """For certificates that lie at `path`."""
    return dict.fromkeys(_NAMES, path)


def of_commands(plan: SandboxPlan, trusted: dict[str, str], *, hinted: bool = True) -> dict[str, str]:
    """Return the environment of every command. `trusted`: the variables for certificates. `hinted`: the limits can't be
    seen inside."""
    hints = _hints(plan.spec.limits) if hinted else {}
    return {**hints, **(trusted if plan.exits else {}), **plan.template.env, **plan.spec.env}


def _hints(limits: Limits) -> dict[str, str]:
    """Return variables for a sandbox with these limits. Its template and its caller may replace them.

    V8 takes half of the memory for its heap by default. A quarter is enough for the rest, so it gets three quarters.
    """
    return {"NODE_OPTIONS": f"--max-old-space-size={limits.memory_mib * 3 // 4}"}
