"""microsandbox's wheel, which carries libkrun and its kernel: what the lane `kvm` measures beside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

VERSION = "0.7.11"


def provide(directory: Path) -> list[Path]:
    """Return the wheel in `directory`, fetched once; none, with the reason, where it can't be had."""
    found = sorted(directory.glob(f"microsandbox-{VERSION}-*.whl"))
    if found:
        return found
    argv = ["/usr/bin/python3", "-m", "pip", "download", "-q", "--no-deps", "-d", directory, f"microsandbox=={VERSION}"]
    fetched = subprocess.run(argv, capture_output=True, text=True, check=False)
    if fetched.returncode:
        print(f"without microsandbox, which pip can't fetch: {fetched.stderr.strip()[-300:]}", file=sys.stderr)
    return sorted(directory.glob(f"microsandbox-{VERSION}-*.whl"))
