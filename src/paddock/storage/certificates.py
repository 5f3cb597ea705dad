"""The certificate authorities that paddock trusts in TLS connections to servers."""

from __future__ import annotations

import os
from pathlib import Path

from paddock.errors import NotConfiguredError
from paddock.model.caller import environment

_OURS, _EVERYBODYS = "GIT_SSL_CAINFO", ("SSL_CERT_FILE", "CURL_CA_BUNDLE")

ADVICE = f"name the file with its authority's certificate in {_OURS} where paddock runs, or give it to the machine"


def authorities() -> Path | None:
    """Return the file of certificates that replaces the machine's.

    NotConfiguredError: a variable names one that isn't a file.
    """
    path = environment().get(_OURS, "")
    if path and not os.path.isfile(path):
        raise NotConfiguredError(
            f"{_OURS} is {path!r}, and that is not a file", hint=f"unset {_OURS}, or name a file in PEM"
        )
    named = (path, *(environment().get(name, "") for name in _EVERYBODYS))
    return next((Path(os.path.realpath(path)) for path in named if path and os.path.isfile(path)), None)
