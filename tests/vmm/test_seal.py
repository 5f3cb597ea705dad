"""After the seal nothing is imported, not even by code that would hide its failure."""

from __future__ import annotations

import subprocess
import sys

from tests.vmm.controllers import SRC

BEFORE = (
    f"import sys; sys.path.insert(0, {str(SRC)!r}); import paddock.vmm.controller; import paddock.linux.python as g; "
)


def run(code):
    return subprocess.run([sys.executable, "-I", "-S", "-c", BEFORE + code], capture_output=True, text=True)


def test_what_is_imported_stays_and_nothing_comes():
    found = run("g.seal_imports(); g.seal_imports(); import os, json; import colorsys")
    assert "colorsys is not imported yet" in found.stderr


def test_a_fatal_seal_cannot_be_hidden_from():
    found = run("g.seal_imports(fatal=True); g.seal_imports()\ntry: import colorsys\nexcept ImportError: pass")
    assert found.returncode == 77
    assert "colorsys" in found.stderr


def test_a_controller_needs_nothing_but_the_standard_library_and_two_packages():
    found = run("print({m.split('.')[1] for m in sys.modules if m.startswith('paddock.')} - {'vmm', 'linux', 'wire'})")
    assert found.stdout == "set()\n"
