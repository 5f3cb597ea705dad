"""The wheel's build hook: compiles the native guest and puts it into the wheel.

`PADDOCK_WHEEL_ARCH` names the machine that the wheel is for: `x86_64` or `aarch64`, else this one. Without a compiler
for a named machine the build fails. Without one for this machine the wheel has no guest, and the hook says so.
`PADDOCK_WHEEL_COMPILER=ziglang` compiles it with the pinned wheel, so that a release doesn't depend on this machine's.
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
"""The guest is static: the wheel needs no libc of any version. A package index refuses `linux_…`, so these tags name
the oldest glibc and musl that installers know on both architectures (PEP 600, PEP 656)."""


class GuestHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """`version` is "editable" for a checkout, which runs what `native/build.py` keeps in its cache."""
        build = runpy.run_path(str(Path(self.root) / "native" / "build.py"))
        wanted = None if version == "editable" else os.environ.get("PADDOCK_WHEEL_ARCH")
        try:
            program: Path = build["build"](arch=wanted, compiler=os.environ.get("PADDOCK_WHEEL_COMPILER") if wanted else None)
        except (build["NoCompiler"], subprocess.CalledProcessError, OSError) as error:
            if wanted or (version != "editable" and not isinstance(error, build["NoCompiler"])):
                raise
            self.app.display_warning(f"without the native guest, which every sandbox needs: {error}")
            return
        if version == "editable":
            return
        machine = wanted or platform.machine()
        build_data["force_include"][str(program)] = f"paddock/native/paddock-guest-{machine}"
        build_data["pure_python"] = False
        build_data["tag"] = TAG.format(machine)
