"""What the keeper writes down about sandboxes."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from paddock.keeper._records import Records


def test_a_directory_that_cannot_be_opened_is_not_left(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            Records(directory).make("sb_x")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(directory)
    assert os.listdir(tmp_path) == []
