"""Variables that tell programs what they have, and whom to trust where they look for no certificates of the system."""

from __future__ import annotations

from paddock.model import Limits

_NAMES = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "PIP_CERT"),
    *("CURL_CA_BUNDLE", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "DENO_CERT", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"),
)


def certificates(path: str) -> dict[str, str]:
    """For certificates that lie at `path`."""
    return dict.fromkeys(_NAMES, path)


def hints(limits: Limits) -> dict[str, str]:
    """Return what a sandbox of these limits has in its environment, unless its template or its caller says else.

    By itself V8 takes half of the memory for its heap. A quarter is enough for what isn't its heap.
    """
    return {"NODE_OPTIONS": f"--max-old-space-size={limits.memory_mib * 3 // 4}"}
