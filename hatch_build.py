"""The wheel's build hook: compiles the native guest for this machine and puts it into the wheel.

Where there is no compiler the wheel has none, and says so: all levels but `process` work without.
"""

from __future__ import annotations

import platform
import runpy
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class GuestHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """`version` is "editable" for a checkout, which runs what `native/build.py` keeps in its cache."""
        build = runpy.run_path(str(Path(self.root) / "native" / "build.py"))
        try:
            program: Path = build["build"]()
        except (build["NoCompiler"], subprocess.CalledProcessError, OSError) as error:
            if version != "editable" and not isinstance(error, build["NoCompiler"]):
                raise
            self.app.display_warning(f"without the native guest, which level `process` needs: {error}")
            return
        if version == "editable":
            return
        machine = platform.machine()
        build_data["force_include"][str(program)] = f"paddock/native/paddock-guest-{machine}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{machine}"
