"""`python -m paddock.egress`: the gateway of a state directory, whose options it reads from stdin."""

from __future__ import annotations

import json
import sys

from ._process import main

main(json.load(sys.stdin))
