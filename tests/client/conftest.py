from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.door import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()
    assert not rig.door.open, "handles that nobody closed"
