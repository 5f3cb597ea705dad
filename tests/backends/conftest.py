from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def long_directory(tmp_path: Path) -> Path:
    """Longer than the address of a unix socket may be."""
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    return directory
