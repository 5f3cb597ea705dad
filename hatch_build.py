"""The wheel's build hook: compiles the native guest and puts it into the wheel.

The wheel is for this machine, or for the one that `PADDOCK_WHEEL_ARCH` names: "x86_64" or "aarch64". Where there is no
compiler for this machine the wheel has no guest, and the hook says so: all levels but `process` work without.
"""

from __future__ import annotations

import os
import platform
import runpy
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TAG = "py3-none-manylinux_2_17_{0}.musllinux_1_1_{0}"
"""The guest is static and asks for no libc. So the wheel is for glibc and for musl, from the oldest version on that
has a tag on both architectures."""


class GuestHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """`version` is "editable" for a checkout, which runs what `native/build.py` keeps in its cache."""
        build = runpy.run_path(str(Path(self.root) / "native" / "build.py"))
        wanted = None if version == "editable" else os.environ.get("PADDOCK_WHEEL_ARCH")
        try:
            program: Path = build["build"](arch=wanted)
        except (build["NoCompiler"], subprocess.CalledProcessError, OSError) as error:
            if wanted or (version != "editable" and not isinstance(error, build["NoCompiler"])):
                raise
            self.app.display_warning(f"without the native guest, which level `process` needs: {error}")
            return
        if version == "editable":
            return
        machine = wanted or platform.machine()
        build_data["force_include"][str(program)] = f"paddock/native/paddock-guest-{machine}"
        build_data["pure_python"] = False
        build_data["tag"] = TAG.format(machine)
