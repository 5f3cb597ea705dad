"""What struck a command in a virtual machine is what its kernel has counted since the command began."""

from __future__ import annotations

from pathlib import Path

from paddock.guest._ceilings import Ceilings


def counted(group: Path, *, killed: int, refused: int) -> None:
    (group / "memory.events").write_text(f"low 0\nhigh 0\nmax 9\noom 3\noom_kill {killed}\noom_group_kill 7\n")
    (group / "pids.events").write_text(f"max {refused}\n")


def test_what_was_counted_before_is_no_later_commands(tmp_path: Path) -> None:
    counted(tmp_path, killed=5, refused=5)
    ceilings = Ceilings(str(tmp_path))
    first = ceilings.counts()
    assert ceilings.struck(first) is None
    counted(tmp_path, killed=5, refused=6)
    second = ceilings.counts()
    assert (ceilings.struck(first), ceilings.struck(second)) == ("processes", None)
    counted(tmp_path, killed=6, refused=7)
    assert (ceilings.struck(first), ceilings.struck(second)) == ("memory", "memory")
    assert ceilings.struck(ceilings.counts()) is None


def test_what_does_not_count_says_nothing(tmp_path: Path) -> None:
    ceilings = Ceilings(str(tmp_path / "gone"), str(tmp_path))
    assert ceilings.struck(ceilings.counts()) is None
    (tmp_path / "memory.events").write_bytes(b"oom_kill many\n\xff")
    ceilings = Ceilings(str(tmp_path), str(tmp_path / "gone"))
    assert ceilings.struck(ceilings.counts()) is None
