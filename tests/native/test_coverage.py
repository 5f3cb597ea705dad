"""Every branch of the guest's parsers is taken by a seed of their fuzz targets."""

from __future__ import annotations

import shutil

import pytest

from tests.native.coverage import untaken


def test_every_branch_of_the_parsers_is_taken() -> None:
    if not all(map(shutil.which, ("clang", "llvm-cov", "llvm-profdata"))):
        pytest.skip("counting branches needs clang: make check installs it")
    assert untaken() == []
