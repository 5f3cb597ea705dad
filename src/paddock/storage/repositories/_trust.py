"""Which authorities vouch for servers, where the environment of this program names some."""

from __future__ import annotations

import os
from pathlib import Path

from paddock.errors import NotConfigured
from paddock.model.caller import environment

_OURS, _EVERYBODYS = "GIT_SSL_CAINFO", ("SSL_CERT_FILE", "CURL_CA_BUNDLE")

ADVICE = f"name the file with its authority's certificate in {_OURS} where paddock runs, or give it to the machine"


def authorities() -> Path | None:
    """The file of certificates that stands in place of the machine's. NotConfigured: one is named that is none."""
    path = environment().get(_OURS, "")
    if path and not os.path.isfile(path):
        raise NotConfigured(f"{_OURS} is {path!r}, and that is no file")
    named = (path, *(environment().get(name, "") for name in _EVERYBODYS))
    return next((Path(os.path.realpath(path)) for path in named if path and os.path.isfile(path)), None)
