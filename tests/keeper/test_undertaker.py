"""Burials, where the kernel does not let go at once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from paddock.keeper._jail import Jail
from paddock.keeper._records import Ended, Record, Records
from paddock.keeper._undertaker import Undertaker
from paddock.linux import cgroups, pidfd, proc
from tests.orphans import wait_until

pytestmark = pytest.mark.root


@pytest.fixture
def base() -> Generator[cgroups.Base]:
    made = cgroups.Base.open(f"paddock_test_{os.urandom(4).hex()}")
    yield made
    made.remove()


def dead_child() -> tuple[int, int]:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return pid, pidfd.open(pid)


def test_a_group_that_does_not_get_empty_holds_up_nobody_and_goes_when_it_is(
    base: cgroups.Base, tmp_path: Path
) -> None:
    group = base.create("gr_test", cgroups.GroupLimits())
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as stubborn:
        for tree in base.trees:
            Path(tree.path, "gr_test", "cgroup.procs").write_text(str(stubborn.pid))
        pid, descriptor = dead_child()
        record = Record(
            id="sb_x",
            pid=pid,
            start=0,
            boot="b",
            slot=None,
            group="gr_test",
            deadline=1e12,
            tree="t",
            template="",
            limits={},
        )
        told: list[tuple[str, Ended]] = []
        records = Records(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY))
        house = cast("Any", SimpleNamespace(records=records, spares=records.directory, groups=base, slots=None))
        undertaker = Undertaker(house, lambda id, ended: told.append((id, ended)))
        undertaker.add(Jail(pid=pid, pidfd=descriptor, group=group, slot=None, record=record))
        undertaker.bury(undertaker.lives["sb_x"])
        assert stubborn.poll() is None
        assert [id for id, _ in told] == ["sb_x"]
        assert base.children() == {"gr_test"}
        assert undertaker.next_removal() is not None
        undertaker.remove_groups(proc.boottime() + 10)
        assert base.children() == {"gr_test"}
        stubborn.communicate()

    def gone() -> bool:
        undertaker.remove_groups(proc.boottime() + 10)
        return not base.children()

    assert wait_until(gone)
    assert undertaker.next_removal() is None
    os.close(records.directory)
