"""Find the native guest's program: in the wheel, or built from the sources beside this package."""

from __future__ import annotations

import importlib.util
import platform
import subprocess
from pathlib import Path
from types import ModuleType

import paddock
from paddock.errors import NotConfiguredError
from paddock.model import Check

PACKAGE = Path(paddock.__file__).parent
"""The content of the wheel."""
SOURCES = PACKAGE.parent.parent / "native"


def shipped() -> Path:
    """Where a wheel has it; `hatch_build.py` puts it there."""
    return PACKAGE / "native" / f"paddock-guest-{platform.machine()}"


def program() -> Path:
    """Return the program's path. Compiles it if that wasn't done before, which takes some seconds. Raises
    NotConfiguredError if there is neither a program nor a way to build it."""
    carried = shipped()
    if carried.exists():
        return carried
    if not (SOURCES / "build.py").exists():
        raise NotConfiguredError(
            f"this installation of paddock has no native guest for {platform.machine()}",
            hint="install a wheel that was built for this machine, or from a checkout where gcc or clang is installed",
        )
    build = _build_module()
    try:
        return build.build()
    except build.NoCompiler as error:
        raise NotConfiguredError(f"the native guest is not built: {error}") from None
    except OSError as error:
        raise NotConfiguredError(f"the native guest cannot be kept: {error}", hint="set XDG_CACHE_HOME") from None
    except subprocess.CalledProcessError as error:
        raise NotConfiguredError(
            f"the native guest could not be compiled: {error.cmd[0]} ended with {error.returncode}",
            hint=f"run python {SOURCES / 'build.py'} to see why",
        ) from None


def check() -> Check:
    """Return a line for `doctor`. Compiles nothing."""
    status, detail, fix = "ok", "compiled with this installation", None
    if not shipped().exists():
        if not (SOURCES / "build.py").exists():
            status, detail, fix = "missing", "this installation has none", "install a wheel for this machine"
        else:
            build = _build_module()
            try:
                is_kept = build.kept().exists()
                detail = "compiled from this checkout" if is_kept else "will be compiled from this checkout"
            except build.NoCompiler as error:
                status, detail, fix = "missing", str(error), "apt-get install gcc"
            except OSError as error:
                status, detail = "missing", f"it cannot be kept: {error}"
    return Check(area="guest", name="native guest", status=status, detail=detail, fix=fix)


def _build_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("paddock_native_build", SOURCES / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
