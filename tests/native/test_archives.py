"""Archives in and out, beside GNU tar and Python's tarfile; archives made by an attacker."""

from __future__ import annotations

import errno
import io
import os
import random
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from paddock.wire.guest import Op, Upload
from tests.native.driver import Connection, GuestError
from tests.native.filing import Files, Operation
from tests.native.test_guest_files import plant, refused, snapshot


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "r").mkdir()
    yield tmp_path / "r"
    subprocess.run(["rm", "-rf", tmp_path / "r"], check=True)  # pytest's own removal recurses, and some are deep


@pytest.fixture
def files(host: Connection, root: Path) -> Files:
    return Files(host, root)


def inventory(path: Path) -> list[str]:
    """With the times of all but links, and the names that share a file."""
    lines: list[str] = []
    inodes: dict[int, str] = {}
    for place, directories, names in sorted(os.walk(path)):
        for name in sorted(directories + names):
            entry = Path(place, name)
            is_ = entry.lstat()
            same = inodes.setdefault(is_.st_ino, name)
            time = 0 if entry.is_symlink() else int(is_.st_mtime)
            lines.append(f"{os.path.relpath(entry, path)} {same} {time}")
    return lines + snapshot(path)


def test_an_archive_of_gnu_tar_is_unpacked_as_tar_does(files: Files, root: Path) -> None:
    plant(root)
    (root / "a/fifo").unlink()
    os.link(root / "a/file", root / "a/b/hard")
    (root / "a/b" / ("long" * 60)).mkdir()
    (root / "a/b" / ("long" * 60) / ("name" * 60)).write_bytes(b"long")
    (root / "a/pointer").symlink_to("x" * 300)
    os.utime(root / "a/file", (-100, -100))
    for format in ("gnu", "pax", "posix", "ustar"):
        long = ["--exclude=long*", "--exclude=pointer"] if format == "ustar" else []
        if format == "ustar":
            os.utime(root / "a/file", (100, 100))
        made = subprocess.run(
            ["tar", "-C", root / "a", f"--format={format}", "--owner=root", "--group=root", *long, "-cf", "-", "."],
            capture_output=True,
            check=True,
        )
        files.upload(f"ours-{format}", made.stdout)
        (root / f"theirs-{format}").mkdir()
        subprocess.run(["tar", "-C", root / f"theirs-{format}", "-xf", "-"], input=made.stdout, check=True)
        ours, theirs = inventory(root / f"ours-{format}"), inventory(root / f"theirs-{format}")
        assert ours == theirs, format


def test_a_download_is_read_by_gnu_tar_and_by_python(files: Files, root: Path) -> None:
    plant(root)
    os.link(root / "a/file", root / "a/b/hard")
    (root / "a/b" / ("long" * 60)).mkdir()
    (root / "a/b" / ("long" * 60) / ("name" * 60)).write_bytes(b"long")
    (root / "a/pointer").symlink_to("x" * 300)
    (root / "a/\u00fc").touch()
    os.utime(root / "a/file", (5, -5))
    archive = files.download("a")
    (root / "a/fifo").unlink()
    (root / "theirs").mkdir()
    subprocess.run(["tar", "-C", root / "theirs", "-xpf", "-"], input=archive, check=True)
    assert inventory(root / "theirs") == inventory(root / "a")
    with tarfile.open(fileobj=io.BytesIO(archive), encoding="utf-8", errors="surrogateescape") as tar:
        assert sorted(tar.getnames()) == sorted(
            os.path.relpath(os.path.join(place, name), root / "a")
            for place, directories, names in os.walk(root / "a")
            for name in directories + names
        )
    files.upload("ours", archive)
    assert inventory(root / "ours") == inventory(root / "theirs")


def test_numbers_that_ustar_cannot_say_go_out_and_come_back(files: Files, root: Path) -> None:
    (root / "a").mkdir()
    (root / "a/old").touch()
    os.utime(root / "a/old", (0, -(1 << 31)))
    (root / "a/new").touch()
    os.utime(root / "a/new", (0, 1 << 33))
    if os.getuid() == 0:
        os.chown(root / "a/new", 3_000_000, 4_000_000)
    with tarfile.open(fileobj=io.BytesIO(files.download("a"))) as tar:
        members = {member.name: member for member in tar}
    assert (members["old"].mtime, members["new"].mtime) == (-(1 << 31), os.stat(root / "a/new").st_mtime)
    assert members["new"].uid == os.stat(root / "a/new").st_uid


def test_a_file_that_is_asked_for_alone_is_one_member(files: Files, root: Path) -> None:
    (root / "file").write_bytes(b"x")
    (root / "link").symlink_to("file")
    for name in ("file", "link"):
        with tarfile.open(fileobj=io.BytesIO(files.download(name))) as tar:
            assert [(member.name, member.isreg(), member.size) for member in tar] == [(name, True, 1)]
    assert refused(lambda: files.download("none")) == errno.ENOENT


def test_what_is_unpacked_replaces_files_and_stays_the_users(files: Files, root: Path) -> None:
    (root / "file").write_bytes(b"old and longer")
    (root / "link").symlink_to("file")
    files.upload("", tar(member("file", b"new", mode=0o6755, uid=77), member("link", b"was a link")))
    assert ((root / "file").read_bytes(), (root / "link").read_bytes()) == (b"new", b"was a link")
    is_ = (root / "file").stat()
    assert (is_.st_mode & 0o7777, is_.st_uid) == (0o755, os.getuid())
    files.upload("", tar(member("file", b"first"), member("file", b"second")))
    assert (root / "file").read_bytes() == b"second"


def test_a_large_archive_streams(files: Files, root: Path) -> None:
    data = os.urandom(5_000_001)
    files.upload("u", tar(member("large", data), member("after", b"x")))
    assert (root / "u/large").read_bytes() == data
    assert (root / "u/after").read_bytes() == b"x"


# hostile archives

Part = tuple[tarfile.TarInfo, bytes]


def member(name: str, data: bytes = b"", **fields: object) -> Part:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = 0o644
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def tar(*parts: Part, format: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.TarFile(fileobj=file, mode="w", format=format) as archive:
        for info, data in parts:
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def link(name: str, target: str) -> Part:
    return member(name, type=tarfile.SYMTYPE, linkname=target)


def hard(name: str, target: str) -> Part:
    return member(name, type=tarfile.LNKTYPE, linkname=target)


def header(
    name: bytes, *, size: bytes = b"0" * 11 + b"\0", kind: bytes = b"0", data: bytes = b"", **at: bytes
) -> bytes:
    """A header with any bytes in its fields, and a right sum."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:107] = b"0000644"
    block[124:136] = size
    block[136:147] = b"0" * 11
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    for place, value in at.items():
        start = int(place.removeprefix("at"))
        block[start : start + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + data + bytes(-len(data) % 512)


def octal(size: int) -> bytes:
    return b"%011o\0" % size


def pax(records: bytes, kind: bytes = b"x") -> bytes:
    return header(b"pax", size=octal(len(records)), kind=kind, data=records)


def record(key: bytes, value: bytes) -> bytes:
    rest = len(key) + len(value) + 3
    size = rest + len(str(rest))
    size = rest + len(str(size))
    return b"%d %s=%s\n" % (size, key, value)


END = bytes(1024)
FILE = header(b"file", size=octal(1), data=b"x")

HOSTILE: dict[str, bytes] = {
    "name that leads outside: dots": tar(member("../evil", b"x")),
    "name that leads outside: dots inside": tar(member("a/../../evil", b"x")),
    "name that leads outside: absolute": tar(member("/tmp/paddock-native-evil", b"x")),
    "name that leads outside: by extension": pax(record(b"path", b"../evil")) + FILE + END,
    "name that leads outside: directory": tar(member("../evil", type=tarfile.DIRTYPE)),
    "hard link that leads outside: dots": tar(hard("linked", "../secret")),
    "hard link that leads outside: absolute": tar(hard("linked", "/etc/passwd")),
    "hard link to no member: there before": tar(hard("linked", "before")),
    "hard link to no member: a link": tar(link("way", "../secret"), hard("linked", "way")),
    "device": tar(member("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)),
    "device: block": tar(member("disk", type=tarfile.BLKTYPE, devmajor=8)),
    "FIFO": tar(member("fifo", type=tarfile.FIFOTYPE)),
    "sparse member": tar(member("sparse", type=tarfile.GNUTYPE_SPARSE)),
    "sparse member: pax": pax(record(b"GNU.sparse.major", b"1")) + FILE + END,
    "unknown type of member": header(b"x", kind=b"Z") + END,
    "header that is none: garbage": b"this is not a tar archive" * 1000,
    "header that is none: compressed": b"\x1f\x8b" + b"x" * 10_000,
    "header that is none: sum": FILE[:100] + b"1" + FILE[101:] + END,
    "size that is none: negative": header(b"file", size=b"\xff" * 12) + END,
    "size that is none: no digits": header(b"file", size=b"0x000000000\0") + END,
    "size that is none: base 256": header(b"file", size=b"\x81" + b"\0" * 11) + END,
    "end in the middle: of a member": tar(member("file", bytes(4096)))[:2000],
    "end in the middle: of a header": FILE[:300],
    "end in the middle: size that lies": header(b"file", size=b"\x80" + b"\0" * 3 + b"\x10" + b"\0" * 7) + END,
    "end in the middle: of an extension": pax(record(b"path", b"x" * 3000))[:1000],
    "no end": FILE,
    "no end: nothing": b"",
    "extension that is too large": header(b"x", size=octal(1 << 20), kind=b"x", data=bytes(1 << 20)) + FILE + END,
    "extension that is too large: 2^40": header(b"x", size=b"\x80" + b"\0" * 5 + b"\1" + b"\0" * 5, kind=b"x") + END,
    "extension that is too large: long name": header(b"x", size=octal(1 << 17), kind=b"L", data=b"n" * (1 << 17)) + END,
    "malformed extension: length": pax(b"99 path=x\n") + FILE + END,
    "malformed extension: no digits": pax(b"xx path=x\n") + FILE + END,
    "malformed extension: no key": pax(b"6 =ab\n\n") + FILE + END,
    "malformed extension: no end": pax(b"10 path=xy") + FILE + END,
    "malformed extension: behind the records": pax(record(b"path", b"x") + b"\0\0") + FILE + END,
    "malformed extension: length 0": pax(b"0 path=x\n") + FILE + END,
    "malformed extension: length 2^64": pax(b"18446744073709551617 path=x\n") + FILE + END,
    "extension that means nothing: size": pax(record(b"size", b"-1")) + FILE + END,
    "extension that means nothing: size 2^63": pax(record(b"size", b"9223372036854775808")) + FILE + END,
    "extension that means nothing: NUL": pax(record(b"path", b"a\0b")) + FILE + END,
    "extension that means nothing: no name": pax(record(b"path", b"")) + FILE + END,
    "extension that means nothing: time": pax(record(b"mtime", b"1e9")) + FILE + END,
    "extension that means nothing: long name": pax(record(b"path", b"x" * 4096)) + FILE + END,
    "global extension": pax(record(b"path", b"x"), b"g") + FILE + END,
    "global extension: size": pax(record(b"size", b"9"), b"g") + FILE + END,
    "extension before an extension: pax": pax(record(b"path", b"x")) * 2 + FILE + END,
    "extension before an extension: both": pax(record(b"path", b"x"))
    + header(b"L", size=octal(2), kind=b"L", data=b"y\0")
    + FILE
    + END,
    "extension before an extension: global": pax(record(b"path", b"x"))
    + pax(record(b"comment", b"x"), b"g")
    + FILE
    + END,
    "extension without its member": pax(record(b"path", b"x")) + END,
    "content of what has none": header(b"d", kind=b"5", size=octal(512), data=bytes(512)) + END,
    "content of what has none: link": header(b"l", kind=b"2", size=octal(1), at157=b"x", data=b"x") + END,
    "content of what has none: pax": pax(record(b"size", b"1024")) + header(b"d", kind=b"5") + FILE + END,
    "file with a directory's name": header(b"file/") + END,
    "member without a name": header(b"") + END,
    "link without a target": header(b"l", kind=b"2") + END,
    "old header with a prefix": header(b"x", at257=b"ustar  \0", at345=b"../..") + END,
    "long name that is none": header(b"L", size=octal(4), kind=b"L", data=b"a\0bc") + FILE + END,
    "long name that is none: empty": header(b"L", size=octal(0), kind=b"L") + FILE + END,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_archive_that_is_hostile_or_unclear_is_refused_by_name(name: str, files: Files, root: Path) -> None:
    (root / "secret").write_bytes(b"kept")
    (root / "into").mkdir()
    (root / "into/before").write_bytes(b"kept")
    with pytest.raises(GuestError) as caught:
        files.upload("into", HOSTILE[name])
    assert (caught.value.errno, caught.value.step) == (errno.EILSEQ, name.partition(":")[0])
    assert sorted(os.listdir(root)) == ["into", "secret"]
    assert ((root / "secret").read_bytes(), (root / "secret").stat().st_nlink) == (b"kept", 1)
    assert set(os.listdir(root / "into")) <= {"before", "file", "way"}
    assert not os.path.exists("/tmp/paddock-native-evil")


def through(root: Path) -> dict[str, bytes]:
    outside = os.fspath(root / "outside")
    return {
        "link, then file below": tar(link("way", "../outside"), member("way/evil", b"x")),
        "absolute link": tar(link("way", outside), member("way/evil", b"x")),
        "link, then directory": tar(link("way", "../outside"), member("way", type=tarfile.DIRTYPE, mode=0)),
        "link of two steps": tar(link("a", "."), link("a/b", ".."), member("a/b/outside/evil", b"x")),
        "there before": tar(member("there/evil", b"x")),
        "there before, directory": tar(member("there", type=tarfile.DIRTYPE), member("there/evil", b"x")),
        "hard link through one": tar(link("way", "../outside"), hard("linked", "way/kept")),
        "file that becomes a link": tar(member("d/file", b"x"), link("d", "../outside"), member("d/evil", b"x")),
        "directory that becomes a link": tar(
            member("d", type=tarfile.DIRTYPE), link("d", "../outside"), member("d/evil", b"x")
        ),
    }


def test_nothing_is_made_through_a_link(files: Files, root: Path) -> None:
    (root / "outside").mkdir(mode=0o751)
    (root / "outside/kept").write_bytes(b"kept")
    before = (root / "outside").stat()
    for name, archive in through(root).items():
        (root / "into").mkdir()
        (root / "into/there").symlink_to("../outside")
        with pytest.raises(GuestError) as caught:
            files.upload("into", archive)
        assert caught.value.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENOTEMPTY), name
        after = (root / "outside").stat()
        assert os.listdir(root / "outside") == ["kept"], name
        assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns), name
        assert (root / "outside/kept").stat().st_nlink == 1, name
        subprocess.run(["rm", "-rf", root / "into"], check=True)


def test_a_file_over_a_link_replaces_the_link(files: Files, root: Path) -> None:
    (root / "kept").write_bytes(b"kept")
    files.upload("into", tar(link("way", "../kept"), member("way", b"new"), hard("again", "way"), hard("way", "again")))
    assert (root / "kept").read_bytes() == b"kept"
    assert ((root / "into/way").read_bytes(), (root / "into/way").stat().st_nlink) == (b"new", 2)


def test_extensions_are_about_the_next_member_alone(files: Files, root: Path) -> None:
    sized = pax(record(b"size", b"3") + record(b"path", b"long") + record(b"comment", b"x")) + header(b"s", data=b"abc")
    named = header(b"L", size=octal(4), kind=b"L", data=b"gnu\0") + header(b"short", size=octal(1), data=b"g")
    files.upload("", pax(record(b"comment", b"x"), b"g") + sized + named + FILE + END + bytes(4096))
    assert {name: (root / name).read_bytes() for name in os.listdir(root)} == {
        "long": b"abc",
        "gnu": b"g",
        "file": b"x",
    }


def test_a_name_deeper_than_any_path_is_refused(files: Files, root: Path) -> None:
    deep = "/".join(["d" * 100] * 60)
    assert refused(lambda: files.upload("", tar(member(deep, b"x")))) == errno.EILSEQ
    assert refused(lambda: files.upload("", tar(member("n" * 256, b"x")))) == errno.ENAMETOOLONG
    many = tar(member("/".join(["d"] * 2000), b"x"))
    files.upload("", many)
    assert len(files.download("")) > 2000 * 512


def sane(archive: bytes) -> list[tuple[str, bytes, int, str]] | None:
    """What Python makes of it; None: it refuses."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), encoding="utf-8", errors="surrogateescape") as opened:
            return [
                (item.name.rstrip("/"), item.type, item.size, item.linkname if not item.isreg() else "")
                for item in opened
            ]
    except (tarfile.TarError, OverflowError, ValueError, EOFError):
        return None


def test_a_damaged_archive_is_unpacked_as_python_reads_it_or_refused(files: Files, root: Path) -> None:
    """Bytes of headers and extensions are changed at random. Whatever is unpacked then is what Python sees."""
    chance = random.Random(16)
    whole = tar(member("a", b"1" * 600), member("d" * 150, b"2"), link("l", "a" * 120), hard("h", "a"))
    used = len(whole.rstrip(b"\0"))
    unpacked = 0
    for round in range(120):
        damaged = bytearray(whole)
        for _ in range(chance.randrange(1, 3)):
            damaged[chance.randrange(used)] = chance.randrange(256)
        for start in range(0, len(damaged) - 512, 512):  # sums that are right again, where there were some
            block = damaged[start : start + 512]
            if bytes(block[257:262]) == b"ustar":
                block[148:156] = b" " * 8
                damaged[start + 148 : start + 156] = b"%06o\0 " % sum(block)
        name = f"u{round}"
        try:
            files.upload(name, bytes(damaged))
        except GuestError:
            continue
        unpacked += 1
        seen = sane(bytes(damaged))
        assert seen is not None, f"round {round}: Python refuses it"
        wanted = {item[0] for item in seen if item[0]}
        found = {
            os.path.relpath(os.path.join(place, entry), root / name)
            for place, directories, names in os.walk(root / name)
            for entry in directories + names
        }
        assert {os.path.normpath(item) for item in wanted} <= found | {"."}
    assert unpacked > 10


def test_an_upload_that_is_given_up_ends(files: Files, root: Path) -> None:
    operation = Operation(files.host, Op.UPLOAD, Upload(path=files.at("u")))
    files.host.reply(operation.channel)
    operation.send(FILE)
    operation.close()
    files.host.ping()
