"""Starting the guest as a program: `python -I -S <this directory, or a zip of it> CONFIG`.

CONFIG is an object in JSON, or `@` and the path of a file with one:

* `agents`: by identity, `{"listen": PATH or descriptor, "user": {...}, "workdir": ..., "exec_dir": ..., "env": ...}`
* `control`: PATH or descriptor of init's own socket, and `deadline`, `eager`, `grace_seconds`
* or, in place of all, `pilot`: see `_pilot`
* or, in place of these, `stream`: one such, and `agent`: one connection only
* `fatal_imports`: true in tests: an import from here on ends the process
* `host`: the writing end of a pipe. `ready` is written to it, and init ends when the pipe has no reader any more
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from ._frames import parse_json


def main(arguments: list[str]) -> NoReturn:
    if len(arguments) != 1:
        sys.stderr.write((__doc__ or "") + "\n")
        sys.exit(2)
    config: Any = parse_json(_configuration(arguments[0]))
    # Imported here: a pilot needs little of the guest, and somebody waits for it.
    if "pilot" in config:
        from ._pilot import run_pilot

        run_pilot(config["pilot"])
    from ._start import serve

    serve(config)


def _configuration(argument: str) -> bytes:
    if not argument.startswith("@"):
        return argument.encode("ascii", "replace")
    with open(argument[1:], "rb") as file:
        return file.read()
