"""A layer is laid over a tree and over nothing else, whatever is in it; what hides, hides lower layers alone."""

from __future__ import annotations

import os
import random
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddock.errors import ImageInvalidError, ResourceExhaustedError
from paddock.storage.pool.removal import remove
from paddock.storage.templates.images._source import Piece, Stored, Unpacked
from paddock.storage.templates.images.layer import LayerWriter
from paddock.storage.templates.images.limits import ImageLimits
from tests.images.layouts import COMPRESSIONS, digest, directory, hard, layer, link, member
from tests.images.test_tar import Slow, read
from tests.orphans import descriptors, wait_until


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("precious")
    (tmp_path / "root").mkdir()
    return tmp_path


def lay(root: Path, data: bytes, *, base: int | None = None, entries: int = 10_000) -> LayerWriter:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    before = descriptors()
    try:
        budget = ImageLimits(entries=entries).budget(1 << 30)
        writer = LayerWriter(fd, base, budget)
        writer.apply(Slow(data))
    finally:
        assert wait_until(lambda: descriptors() <= before), "a descriptor was left open"
        os.close(fd)
    return writer


def outside(place: Path) -> tuple[object, ...]:
    """All that no archive may touch."""
    files = (place / "precious", place / "outside" / "precious")
    infos = [(path.lstat(), path.read_text()) for path in files]
    infos.append((place.lstat(), ""))
    shown = [(info.st_mode, info.st_uid, info.st_nlink, info.st_mtime_ns, text) for info, text in infos]
    return (sorted(os.listdir(place)), sorted(os.listdir(place / "outside")), shown)


HOSTILE = {
    "climbs": [member("../out")],
    "climbs in the middle": [directory("a"), member("a/../../out")],
    "is the directory above": [directory("..", 0o777, mtime=1)],
    "is its own top by the way of another": [directory("a"), directory("a/..", 0o777)],
    "through a link": [link("link", ".."), member("link/out")],
    "through an absolute link": [link("link", "/"), member("link/tmp/out")],
    "through a link of its own": [directory("d"), link("d/up", "../.."), member("d/up/out")],
    "below a file": [member("file"), member("file/out")],
    "hard link that climbs": [hard("h", "../outside/precious")],
    "hard link through a link": [link("link", ".."), hard("h", "link/outside/precious")],
    "hard link to nothing": [hard("h", "nothing")],
    "hard link to a directory": [directory("d"), hard("h", "d")],
    "hard link to the top": [hard("h", ".")],
    "hard link to itself": [member("h"), hard("h", "h")],
    "hides what climbs": [member("../.wh.precious")],
    "hides nothing": [member(".wh.")],
    "hides the top": [member(".wh..")],
    "hides what is above": [member("a/.wh...")],
    "a directory that hides": [directory(".wh.x")],
    "in what hides": [member(".wh.x/file")],
    "an overlay's attribute": [member("x", pax_headers={"SCHILY.xattr.trusted.overlay.opaque": "y"})],
    "an overlay's own attribute": [member("x", pax_headers={"SCHILY.xattr.user.overlay.redirect": "/"})],
    "nobody's": [member("x", uid=65536)],
    "less than nobody's": [member("x", pax_headers={"gid": "-1"})],
    "a long name": [member("x" * 256)],
    "a name with a zero in it": [member("x", pax_headers={"path": "a\0b"})],
    "a target with a zero in it": [member("x", kind=tarfile.SYMTYPE, target="y", pax_headers={"linkpath": "a\0b"})],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_leads_outside_or_means_something_to_the_host_is_refused(place: Path, name: str) -> None:
    before = outside(place)
    with pytest.raises(ImageInvalidError):
        lay(place / "root", layer(*HOSTILE[name]))
    assert outside(place) == before


def test_a_link_is_no_directory_in_which_something_could_be_hidden(place: Path) -> None:
    before = outside(place)
    lay(place / "root", layer(link("link", ".."), member("link/.wh.precious"), member("link/.wh..wh..opq")))
    assert outside(place) == before


def test_an_absolute_name_is_one_of_the_image(place: Path) -> None:
    lay(place / "root", layer(member(f"{place}/precious", b"of the image")))
    assert (place / "precious").read_text() == "precious"
    assert (place / "root" / str(place)[1:] / "precious").read_text() == "of the image"


parts = st.sampled_from(["a", "b", "c", "..", "", ".wh.a", ".wh.b", ".wh..wh..opq"])
paths = st.lists(parts, min_size=1, max_size=4).map("/".join)
kinds = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
entries = st.tuples(paths, kinds, paths | st.sampled_from(["/", "..", "../outside", "../outside/precious"]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(entries, max_size=12), st.lists(entries, max_size=12))
def test_no_layers_touch_what_is_outside(
    place: Path, first: list[tuple[str, bytes, str]], second: list[tuple[str, bytes, str]]
) -> None:
    before = outside(place)
    for entries in (first, second):
        data = layer(*(member(name, b"x" if kind == tarfile.REGTYPE else b"", kind=kind, target=target, mode=0o755)
                       for name, kind, target in entries))  # fmt: skip
        try:
            lay(place / "root", data)
        except ImageInvalidError:
            pass
    assert outside(place) == before
    parent = os.open(place, os.O_RDONLY)
    remove(parent, "root")
    os.close(parent)
    (place / "root").mkdir()


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) + ("/" if path.is_dir() and not path.is_symlink() else "")
            for path in root.rglob("*")}  # fmt: skip


def test_what_hides_takes_away_what_lower_layers_have_brought(place: Path) -> None:
    root = place / "root"
    lay(root, layer(member("a"), directory("d"), member("d/x"), directory("d/e"), member("d/e/y"), member("keep")))
    lay(root, layer(member(".wh.a"), member("d/.wh.e"), member(".wh.was-never-there"), member("no/where/.wh.x")))
    assert tree(root) == {"d/", "d/x", "keep"}
    lay(root, layer(member("d/.wh..wh..opq"), member("d/new")))
    assert tree(root) == {"d/", "d/new", "keep"}
    lay(root, layer(member(".wh..wh.plnk"), member(".wh..wh..opq")))
    assert tree(root) == set()


def test_what_the_same_layer_brings_stays_in_whichever_order(place: Path) -> None:
    below = layer(directory("d"), member("d/old"), directory("d/e"), member("d/e/old"), member("f", b"old"))
    above = [member("d/e/new"), member("d/.wh..wh..opq"), member("f", b"new"), member(".wh.f"), member(".wh.d")]
    shuffled = random.Random(5)
    for number in range(12):
        root = place / f"root{number}"
        root.mkdir()
        lay(root, below)
        shuffled.shuffle(above)
        lay(root, layer(*above))
        assert tree(root) == {"d/", "d/e/", "d/e/new", "f"}, [info.name for info, _ in above]
        assert (root / "f").read_text() == "new"


def test_kinds_replace_one_another_and_the_later_of_two_holds(place: Path) -> None:
    root = place / "root"
    lay(root, layer(directory("a"), member("a/x"), link("b", "a"), member("c"), member("c", b"later")))
    lay(root, layer(member("a"), directory("b"), member("b/y"), link("c", "/outside")))
    assert tree(root) == {"a", "b/", "b/y", "c"}
    assert (root / "a").is_file()
    assert os.readlink(root / "c") == "/outside"
    lay(root, layer(hard("b", "a"), hard("c", "a")))
    assert (root / "a").stat().st_nlink == 3


def test_devices_are_left_out_and_counted_and_attributes_that_mean_power_are_named(place: Path) -> None:
    left = lay(
        place / "root",
        layer(
            member("null", kind=tarfile.CHRTYPE, devmajor=1, devminor=3),
            member("white", kind=tarfile.CHRTYPE, devmajor=0, devminor=0),
            member("sda", kind=tarfile.BLKTYPE, devmajor=8),
            member("ping", pax_headers={"SCHILY.xattr.security.capability": "\1\0\0\2"}),
        ),
    )
    assert left.devices == 3
    assert left.attributes == {"security.capability"}
    assert tree(place / "root") == {"ping"}
    assert os.listxattr(place / "root" / "ping") == []


def test_names_differ_in_case_and_in_their_bytes(place: Path) -> None:
    names = ["readme", "README", "caf\u00e9", "cafe\u0301", "a\nb", "\\"]
    lay(place / "root", layer(*(member(name, name.encode()) for name in names)))
    assert {path.name: path.read_text() for path in (place / "root").iterdir()} == {name: name for name in names}


@pytest.mark.root
def test_owners_are_kept_in_their_range_with_modes_and_times(place: Path) -> None:
    base = 0x7000_0000
    data = layer(
        directory("d", 0o2755, uid=3, gid=4, mtime=1_000_000_000),
        member("d/su", b"x", mode=0o4755, uid=0, gid=65535, mtime=1_000_000_001),
        link("d/l", "nowhere"),
        member("made/by/its/file", b"x"),
    )
    lay(place / "root", data, base=base)
    root = place / "root"
    for path, mode, uid, gid in (("d", 0o2755, 3, 4), ("d/su", 0o4755, 0, 65535), ("made/by", 0o755, 0, 0)):
        info = (root / path).stat()
        assert (stat.S_IMODE(info.st_mode), info.st_uid - base, info.st_gid - base) == (mode, uid, gid), path
    assert (root / "d/l").lstat().st_uid == base
    assert ((root / "d").stat().st_mtime, (root / "d/su").stat().st_mtime) == (1_000_000_000, 1_000_000_001)


def test_where_all_is_ours_set_ids_are_lost_and_directories_stay_open_to_us(place: Path) -> None:
    lay(place / "root", layer(directory("d", 0o555), member("d/su", mode=0o6755, uid=7), directory("e", 0)))
    lay(place / "root", layer(member("d/later"), member("e/later")))
    assert stat.S_IMODE((place / "root/d/su").stat().st_mode) == 0o755
    assert (place / "root/d/su").stat().st_uid == os.geteuid()


def test_times_that_no_file_system_keeps_do_no_harm(place: Path) -> None:
    lay(place / "root", layer(member("x", pax_headers={"mtime": "9" * 19}), member("y", pax_headers={"mtime": "-5"})))
    assert (place / "root/x").stat().st_mtime > (place / "root/y").stat().st_mtime == 0


def test_more_files_than_are_taken_are_refused_and_deep_ways_count(place: Path) -> None:
    with pytest.raises(ImageInvalidError, match="more files"):
        lay(place / "root", layer(*(member(str(number)) for number in range(20))), entries=30)
    with pytest.raises(ImageInvalidError, match="more files"):
        lay(place / "root", layer(member("/".join("abcdefghijklmnopqrstuvwxyz"))), entries=20)


# -- bytes on their way


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Any]:
    fds: list[int] = []

    def store(data: bytes) -> Piece:
        (tmp_path / "blob").write_bytes(data)
        fds.append(os.open(tmp_path / "blob", os.O_RDONLY))
        return Piece(fds[-1], 0, len(data))

    yield store
    for fd in fds:
        os.close(fd)


def unpacked(
    piece: Piece, *, diff_id: str, digest: str | None = None, limit: int = 1 << 30, room: int = 1 << 40
) -> int:
    source = Stored(piece, digest)
    stream = Unpacked(source, ImageLimits(unpacked_bytes=limit).budget(room), diff_id)
    total = 0
    while data := stream.read(1 << 20):
        total += len(data)
    stream.finish()
    source.finish()
    return total


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_compression_is_read_and_both_digests_are_held(stored: Any, compression: str) -> None:
    data = layer(member("x", bytes(range(256)) * 4000))
    packed = COMPRESSIONS[compression](data)
    piece = stored(packed)
    assert unpacked(piece, diff_id=digest(data), digest=digest(packed)) == len(data)
    with pytest.raises(ImageInvalidError, match="configuration says"):
        unpacked(piece, diff_id=digest(b"other"), digest=digest(packed))
    with pytest.raises(ImageInvalidError, match="its digest is"):
        unpacked(piece, diff_id=digest(data), digest=digest(b"other"))
    with pytest.raises(ImageInvalidError):
        unpacked(stored(packed[: len(packed) // 2]), diff_id=digest(data))


def test_gzip_in_many_members_is_one_stream(stored: Any) -> None:
    data = os.urandom(100_000)
    packed = b"".join(COMPRESSIONS["+gzip"](data[at : at + 9999]) for at in range(0, len(data), 9999)) + bytes(512)
    assert unpacked(stored(packed), diff_id=digest(data)) == len(data)


@pytest.mark.parametrize("compression", ["+gzip", "+zstd"])
def test_a_bomb_ends_at_the_limit(stored: Any, compression: str) -> None:
    packed = COMPRESSIONS[compression](bytes(64 << 20))
    with pytest.raises(ImageInvalidError, match="more than is taken"):
        unpacked(stored(packed), diff_id=digest(b""), limit=1 << 20)
    with pytest.raises(ResourceExhaustedError, match="no room"):
        unpacked(stored(packed), diff_id=digest(b""), limit=1 << 30, room=1 << 20)


def test_a_reader_of_archives_takes_what_a_layer_gives(stored: Any) -> None:
    data = layer(member("x", b"y" * 5000))
    stream = Unpacked(Stored(stored(COMPRESSIONS["+zstd"](data)), None), ImageLimits().budget(1 << 30), digest(data))
    assert [content for _, content in read(b"".join(iter(lambda: stream.read(512), b"")))] == [b"y" * 5000]
