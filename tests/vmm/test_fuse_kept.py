"""Parts of an export that are kept as they are, by mounts, stay so whatever the other kernel asks for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_UNSHARE = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--map-root-user"])


def test_what_is_kept_is_changed_by_nobody_and_all_else_as_before(tmp_path: Path) -> None:
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no mount namespace: {tried.stderr.strip()}")
    work, saved = tmp_path / "work", tmp_path / "saved"
    work.mkdir()
    saved.mkdir()
    command = [*_UNSHARE, sys.executable, "-m", "tests.vmm.kept_files", str(work), str(saved)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
