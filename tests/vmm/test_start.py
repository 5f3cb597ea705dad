"""A controller as a program of its own, which somebody waits for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.vmm.controllers import SRC


@pytest.mark.parametrize(
    "modules",
    [("controller", "_driver_microvm", "_qemu", "_shares"), ("controller", "_driver_gvisor")],
    ids=lambda m: m[-1],
)
def test_it_loads_nothing_of_the_library_that_costs_more_than_it_gives(modules: tuple[str, ...]) -> None:
    """Data classes bring the parser of Python with them."""
    look = (
        "import importlib, sys; sys.path.insert(0, sys.argv[1])\n"
        "for name in sys.argv[2:]: importlib.import_module('paddock.vmm.' + name)\n"
        "print(*({'dataclasses', 'inspect', 'ast', 'asyncio', 'subprocess'} & set(sys.modules)))"
    )
    argv = [sys.executable, "-I", "-S", "-c", look, str(SRC), *modules]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip() == ""
