"""Starting a pilot as a program: `python -I -S <this directory, or a zip of it> CONFIG`.

CONFIG is an object in JSON:

* `pilot`: see `_pilot`
* `fatal_imports`: true in tests: an import after the start ends the process
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from ._frames import parse_json
from ._pilot import run_pilot


def main(arguments: list[str]) -> NoReturn:
    if len(arguments) != 1:
        sys.stderr.write((__doc__ or "") + "\n")
        sys.exit(2)
    config: Any = parse_json(arguments[0].encode("ascii", "replace"))
    run_pilot(config["pilot"], fatal_imports=config.get("fatal_imports") is True)
