"""The controller as a program: `python -I -S <directory or zip> [CONFIG]`, or the path of this file, compiled or not.

CONFIG is an object in JSON: see `controller`. Without it, the controller reads its orders from its standard input
(`control`).
"""

import sys

if not __package__:
    # Without a parent package, this directory (or zip) becomes the one for our imports.
    import types

    package = types.ModuleType("paddock_vmm")
    package.__path__ = [__file__.rpartition("/")[0] or "."]
    sys.modules["paddock_vmm"] = package
    from paddock_vmm.controller import main  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
else:
    from .controller import main

main(sys.argv[1:])  # pyright: ignore[reportUnknownArgumentType]
