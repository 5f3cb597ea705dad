"""Finding files by name and content, and being told of changes."""

from __future__ import annotations

import asyncio

import pytest

from paddock.errors import InvalidArgumentError
from paddock.model import (
    FileChange,
    FileKind,
    FindFiles,
    GrepFiles,
    WatchFiles,
)

from ._host import PeakMemory
from ._lab import Bench, Lab, eventually, guarantee

MIB = 1 << 20


class SearchConformance(Bench):
    """find, grep, watch."""

    @guarantee()
    async def test_find_matches_names_at_every_depth(self, lab: Lab) -> None:
        box = await lab.box()
        await box.sh("mkdir -p a/b; : >a/x.py; : >a/b/y.py; : >a/b/z.txt; ln -s / a/root")
        found = await box.file(FindFiles, path=".", name="*.py")
        assert sorted(info.name for info in found) == ["x.py", "y.py"]
        assert {info.kind for info in found} == {FileKind.FILE}

    @guarantee()
    async def test_find_stops_at_its_limit(self, lab: Lab) -> None:
        box = await lab.box()
        await box.python("import os\nfor n in range(200): os.close(os.open(f'{n}', os.O_CREAT))")
        assert len(await box.file(FindFiles, path=".", limit=50)) == 50

    @guarantee()
    async def test_grep_tells_file_line_and_text(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("a/one.txt", b"first\nsecond needle\nthird\nneedle 42 last")
        await box.write("a/two.md", b"needle elsewhere\n")
        found = await box.file(GrepFiles, path="a", pattern=r"needle( \d+)?", name="*.txt")
        assert [(match.path.rpartition("/")[2], match.line_number, match.line) for match in found] == [
            ("one.txt", 2, "second needle"),
            ("one.txt", 4, "needle 42 last"),
        ]

    @guarantee()
    async def test_grep_passes_over_binaries_and_what_would_block(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("binary", b"needle\0needle")
        await box.write("text", b"needle\n")
        await box.sh("mkfifo fifo; ln -s text link")
        async with asyncio.timeout(60):
            found = await box.file(GrepFiles, path=".", pattern="needle")
        assert {match.path.rpartition("/")[2] for match in found} - {"link"} == {"text"}

    @guarantee()
    async def test_grep_stops_at_its_limit(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("text", b"needle\n" * 5000)
        assert len(await box.file(GrepFiles, path=".", pattern="needle", limit=7)) == 7

    @guarantee()
    async def test_a_pattern_that_is_none_is_an_invalid_argument(self, lab: Lab) -> None:
        with pytest.raises(InvalidArgumentError):
            await (await lab.box()).file(GrepFiles, path=".", pattern="(")

    @guarantee()
    async def test_a_line_without_an_end_does_not_fill_the_memory_here(self, lab: Lab) -> None:
        box = await lab.box()
        await box.python("with open('line', 'wb') as file:\n    for _ in range(32): file.write(b'needle ' * 150_000)")
        peak = PeakMemory()
        await box.file(GrepFiles, path=".", pattern="needle")
        assert peak.growth_bytes() < 24 * MIB

    @guarantee()
    async def test_a_watch_tells_what_happens(self, lab: Lab) -> None:
        box = await lab.box()
        watch = await box.file(WatchFiles, path=".")
        await box.sh("echo x >made; echo y >>made; mv made moved; rm moved")
        wanted = {
            ("made", "created"),
            ("made", "modified"),
            ("made", "moved_from"),
            ("moved", "moved_to"),
            ("moved", "removed"),
        }
        seen: set[tuple[str, str]] = set()
        async with asyncio.timeout(60):
            while not wanted <= seen:
                changes: tuple[FileChange, ...] = await watch.next()
                assert changes, "the watch ended by itself"
                seen |= {(change.path.rpartition("/")[2], change.kind) for change in changes}
        await watch.aclose()

    @guarantee()
    async def test_a_recursive_watch_sees_directories_that_are_made_later(self, lab: Lab) -> None:
        box = await lab.box()
        watch = await box.file(WatchFiles, path=".", recursive=True)
        await box.sh("mkdir -p a/b")
        seen: set[str] = set()

        async def look() -> None:
            while True:
                seen.update(change.path for change in await watch.next())

        looking = asyncio.ensure_future(look())

        async def noticed() -> bool:
            await box.sh("echo x >>a/b/file")
            return any(path.endswith("a/b/file") for path in seen)

        await eventually("a change below a new directory is told", noticed)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await watch.aclose()

    @guarantee()
    async def test_a_watch_of_one_directory_does_not_look_below(self, lab: Lab) -> None:
        box = await lab.box()
        await box.sh("mkdir -p a/b")
        watch = await box.file(WatchFiles, path="a")
        await box.sh("echo x >a/b/below; echo x >a/here")
        seen: set[str] = set()
        async with asyncio.timeout(60):
            while "here" not in seen:
                seen |= {change.path.rpartition("/")[2] for change in await watch.next()}
        assert "below" not in seen
        await watch.aclose()

    @guarantee()
    async def test_a_flood_of_changes_is_held_in_bounds_and_never_silent(self, lab: Lab) -> None:
        box = await lab.box()
        watch = await box.file(WatchFiles, path=".")
        peak = PeakMemory()
        await box.python(
            "import os\nfor n in range(40_000): os.close(os.open(f'f{n % 100}', os.O_CREAT)); os.unlink(f'f{n % 100}')"
        )
        await box.write("last", b"")
        seen: set[str] = set()
        async with asyncio.timeout(60):
            while not seen & {"last", "overflow"}:
                for change in await watch.next():
                    seen |= {change.path.rpartition("/")[2], change.kind}
        assert peak.growth_bytes() < 24 * MIB
        await watch.aclose()
