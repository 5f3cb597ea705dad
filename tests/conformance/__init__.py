"""Every promise of `paddock.backends.base`, as tests that any backend can run.

    class TestMine(BackendConformance):
        @pytest.fixture
        def harness(self, tmp_path):
            return MyHarness(tmp_path)

A chapter can be run by itself by subclassing it instead. Each test runs on an event loop of its own; a test of what the
backend doesn't claim in its `capabilities` is skipped with that reason.
"""

from __future__ import annotations

from ._adoption import AdoptionConformance as AdoptionConformance
from ._archives import ArchiveConformance as ArchiveConformance
from ._background import BackgroundConformance as BackgroundConformance
from ._box import Box as Box
from ._box import Finished as Finished
from ._directories import DirectoryConformance as DirectoryConformance
from ._exec import ExecConformance as ExecConformance
from ._files import FileConformance as FileConformance
from ._killing import KillConformance as KillConformance
from ._lab import Bench as Bench
from ._lab import ConformanceHarness as ConformanceHarness
from ._lab import Lab as Lab
from ._lab import eventually as eventually
from ._lab import guarantee as guarantee
from ._life import LifeConformance as LifeConformance
from ._load import LimitConformance as LimitConformance
from ._load import LoadConformance as LoadConformance
from ._mounts import MountConformance as MountConformance
from ._names import NameConformance as NameConformance
from ._pausing import PauseConformance as PauseConformance
from ._ports import PortConformance as PortConformance
from ._pty import PtyConformance as PtyConformance
from ._search import SearchConformance as SearchConformance
from ._streams import StreamConformance as StreamConformance


class BackendConformance(
    ExecConformance,
    StreamConformance,
    KillConformance,
    BackgroundConformance,
    PtyConformance,
    FileConformance,
    DirectoryConformance,
    SearchConformance,
    NameConformance,
    ArchiveConformance,
    MountConformance,
    PortConformance,
    LifeConformance,
    AdoptionConformance,
    PauseConformance,
    LoadConformance,
    LimitConformance,
):
    """All chapters. Subclass it and override the fixture `harness`."""
