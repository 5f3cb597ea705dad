"""The certificate authorities that paddock trusts in TLS connections to servers."""

from __future__ import annotations

import os
from pathlib import Path

from paddock.errors import NotConfiguredError
from paddock.model.caller import environment

_VARIABLE, _COMMON_VARIABLES = "GIT_SSL_CAINFO", ("SSL_CERT_FILE", "CURL_CA_BUNDLE")

ADVICE = f"name the file with its authority's certificate in {_VARIABLE} where paddock runs, or give it to the machine"


def authorities() -> Path | None:
    """Return the file of certificates that replaces the machine's.

    NotConfiguredError: a variable names one that isn't a file.
    """
    path = environment().get(_VARIABLE, "")
    if path and not os.path.isfile(path):
        raise NotConfiguredError(
            f"{_VARIABLE} is {path!r}, and that is not a file", hint=f"unset {_VARIABLE}, or name a file in PEM"
        )
    candidates = (path, *(environment().get(name, "") for name in _COMMON_VARIABLES))
    return next((Path(os.path.realpath(path)) for path in candidates if path and os.path.isfile(path)), None)
