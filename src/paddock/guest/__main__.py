"""`python -I -S <directory or zip> CONFIG`. See `_start`."""

import sys

if not __package__:
    # Started by path: there is no parent package, so this directory (or zip) becomes the one that we import from.
    import types

    package = types.ModuleType("paddock_guest")
    package.__path__ = [sys.path[0]]
    sys.modules["paddock_guest"] = package
    from paddock_guest._start import main  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
else:
    from ._start import main

main(sys.argv[1:])  # pyright: ignore[reportUnknownArgumentType]
