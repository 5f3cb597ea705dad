"""What tells programs inside whom to trust, where they bring certificates of their own or look for none where the
system has them."""

from __future__ import annotations

_NAMES = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "PIP_CERT"),
    *("CURL_CA_BUNDLE", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "DENO_CERT", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"),
)


def environment(path: str) -> dict[str, str]:
    """For certificates that lie at `path`."""
    return dict.fromkeys(_NAMES, path)
