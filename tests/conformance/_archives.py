"""Trees as tar archives, in and out; archives made by an attacker."""

from __future__ import annotations

import io
import os
import tarfile

import pytest

from paddock.errors import FileError, PaddockError
from paddock.model import DownloadTree, FileInfo, FileKind, UploadTree

from ._box import Box, drain, pour
from ._host import PeakMemory
from ._lab import Bench, Lab, guarantee

MIB = 1 << 20


class ArchiveConformance(Bench):
    """tree.upload and tree.download."""

    @guarantee()
    async def test_an_archive_is_unpacked_below_its_path(self, lab: Lab) -> None:
        box = await lab.box()
        tar = _Tar().file("a/file", b"content", mode=0o640).file("run", b"#!/bin/sh\n", mode=0o755)
        await tar.directory("empty").link("link", "a/file").upload(box, "into")
        assert await box.read("into/a/file") == b"content"
        assert ((await box.stat("into/a/file")).mode, (await box.stat("into/run")).mode) == (0o640, 0o755)
        assert (await box.stat("into/empty")).kind == FileKind.DIRECTORY
        assert (await box.stat("into/link")).target == "a/file"

    @guarantee()
    async def test_what_is_unpacked_belongs_to_the_user_whatever_the_archive_says(self, lab: Lab) -> None:
        box = await lab.box()
        await _Tar().file("file", b"", uid=4242, gid=4343).upload(box, ".")
        info = await box.stat("file")
        assert (await box.sh("echo $(id -u):$(id -g)")).text == f"{info.uid}:{info.gid}"

    @guarantee()
    async def test_an_upload_over_files_replaces_them(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("file", b"old and longer")
        await _Tar().file("file", b"new").upload(box, ".")
        assert await box.read("file") == b"new"

    @guarantee()
    async def test_of_duplicate_names_the_last_wins(self, lab: Lab) -> None:
        box = await lab.box()
        await _Tar().file("file", b"first").file("file", b"second").upload(box, ".")
        assert await box.read("file") == b"second"

    @guarantee()
    async def test_a_round_trip_keeps_every_byte_mode_and_link(self, lab: Lab) -> None:
        box = await lab.box()
        await box.sh("mkdir -p t/a/b; printf 1 >t/a/file; chmod 751 t/a/file; ln -s file t/a/link; ln -s /etc t/out")
        archive = await _download(box, "t")
        await pour(await box.file(UploadTree, path="u"), archive)
        assert await _inventory(box, "t") == await _inventory(box, "u")

    @guarantee()
    async def test_a_download_holds_links_as_links_and_waits_for_no_fifo(self, lab: Lab) -> None:
        box = await lab.box()
        await box.sh("mkdir t; ln -s /etc/passwd t/passwd; ln -s / t/root; mkfifo t/fifo; echo x >t/file")
        with tarfile.open(fileobj=io.BytesIO(await _download(box, "t"))) as tar:
            members = {member.name.removeprefix("./"): member for member in tar.getmembers()}
        assert members["file"].isreg()
        assert (members["passwd"].linkname, members["root"].linkname) == ("/etc/passwd", "/")
        assert not any(name.startswith(("root/", "/")) for name in members)

    @guarantee()
    async def test_names_in_a_download_are_relative(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("t/a/b", b"x")
        with tarfile.open(fileobj=io.BytesIO(await _download(box, "t"))) as tar:
            names = tar.getnames()
        assert "a/b" in {name.removeprefix("./") for name in names}
        assert not any(name.startswith("/") or ".." in name.split("/") for name in names)

    @guarantee()
    async def test_strange_names_survive_a_round_trip(self, lab: Lab) -> None:
        box = await lab.box()
        names = sorted(["new\nline", "\x1b[2J", "ü" * 100, "n" * 255, os.fsdecode(b"\xff\x80"), " "])
        for name in names:
            await box.write(f"t/{name}", b"x")
        await pour(await box.file(UploadTree, path="u"), await _download(box, "t"))
        assert sorted(await box.names("u")) == names

    @guarantee()
    async def test_a_large_tree_streams_in_constant_memory_both_ways(self, lab: Lab) -> None:
        box = await lab.box()
        await box.sh("mkdir t; head -c 50000000 /dev/zero >t/zeros; head -c 2000000 /dev/urandom >t/random")
        peak = PeakMemory()
        reader, writer = await box.file(DownloadTree, path="t"), await box.file(UploadTree, path="u")
        while part := await reader.read():
            await writer.write(part)
        await reader.aclose()
        await writer.aclose()
        assert peak.growth_bytes() < 24 * MIB
        assert (await box.run("cmp", "t/random", "u/random")).status.code == 0
        assert (await box.stat("u/zeros")).size_bytes == 50_000_000

    @guarantee()
    async def test_a_missing_tree_cannot_be_downloaded(self, lab: Lab) -> None:
        with pytest.raises(FileError) as caught:
            await _download(await lab.box(), "missing")
        assert caught.value.details["errno"] == "ENOENT"

    @guarantee()
    async def test_absolute_names_land_below_the_path_or_are_refused(self, lab: Lab) -> None:
        box = await lab.box()
        target = f"/tmp/{lab.marker}"
        await _Tar().file(target, b"x").try_upload(box, "into")
        await _outside_is_clean(box, target)

    @guarantee()
    async def test_names_with_dots_land_below_the_path_or_are_refused(self, lab: Lab) -> None:
        box = await lab.box()
        await box.sh("mkdir into")
        for name in (
            "../evil",
            "a/../../evil",
            "./../evil",
            "a/b/../../../evil",
            "../../../../../../tmp/" + lab.marker,
        ):
            await _Tar().file(name, b"x").try_upload(box, "into")
        await _outside_is_clean(box, "evil", f"/tmp/{lab.marker}")

    @guarantee()
    async def test_nothing_is_written_through_a_link_of_the_same_archive(self, lab: Lab) -> None:
        box = await lab.box()
        await box.sh("mkdir outside; echo kept >outside/kept")
        for target in ("../outside", f"{await box.pwd()}/outside"):
            await _Tar().link("way", target).file("way/evil", b"x").try_upload(box, "into")
            await _Tar().link("way2", f"{target}/kept").file("way2", b"overwritten").try_upload(box, "into")
        assert await box.names("outside") == ["kept"]
        assert await box.read("outside/kept") == b"kept\n"

    @guarantee()
    async def test_nothing_is_written_through_a_link_that_was_there_before(self, lab: Lab) -> None:
        box = await lab.box()
        await box.sh("mkdir outside into; ln -s ../outside into/way")
        await _Tar().file("way/evil", b"x").try_upload(box, "into")
        await _Tar().directory("way").file("way/evil", b"x").try_upload(box, "into")
        assert await box.names("outside") == []

    @guarantee()
    async def test_a_hard_link_does_not_reach_outside(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("secret", b"outside")
        for target in ("../secret", f"{await box.pwd()}/secret"):
            await _Tar().hard_link("linked", target).file("linked", b"overwritten").try_upload(box, "into")
        assert await box.read("secret") == b"outside"

    @guarantee()
    async def test_devices_are_not_made_and_set_user_id_is_dropped(self, lab: Lab) -> None:
        box = await lab.box()
        tar = _Tar().special("null", tarfile.CHRTYPE, 1, 3).special("disk", tarfile.BLKTYPE, 8, 0)
        await tar.try_upload(box, "into")
        await _Tar().file("suid", b"x", mode=0o6755).try_upload(box, "into")
        finished = await box.sh("find into -type c -o -type b -o -perm -4000 -o -perm -2000 -type f")
        assert finished.out == b""

    @guarantee()
    async def test_a_tree_deeper_than_any_path_is_unpacked_or_refused(self, lab: Lab) -> None:
        box = await lab.box()
        tar = _Tar()
        for depth in range(1, 60):
            tar.directory("/".join(["d" * 100] * depth))
        await tar.file("/".join(["d" * 100] * 60 + ["file"]), b"x").try_upload(box, "into")
        assert (await box.run("true")).status.code == 0

    @guarantee()
    async def test_an_archive_that_stops_in_the_middle_is_an_error(self, lab: Lab) -> None:
        box = await lab.box()
        whole = _Tar().file("file", bytes(1 << 20)).bytes()
        with pytest.raises(PaddockError):
            await pour(await box.file(UploadTree, path="into"), whole[: len(whole) // 2])

    @guarantee()
    async def test_what_is_no_archive_is_an_error(self, lab: Lab) -> None:
        box = await lab.box()
        for garbage in (b"this is not a tar archive" * 1000, bytes(range(256)) * 64, b"\x1f\x8b" + b"x" * 10_000):
            with pytest.raises(PaddockError):
                await pour(await box.file(UploadTree, path="into"), garbage)
        assert (await box.run("true")).status.code == 0

    @guarantee()
    async def test_a_size_that_lies_does_no_harm(self, lab: Lab) -> None:
        box = await lab.box()
        huge = tarfile.TarInfo("file")
        huge.size = 1 << 60
        with pytest.raises(PaddockError):
            await pour(await box.file(UploadTree, path="into"), huge.tobuf() + bytes(1024))
        assert (await box.run("true")).status.code == 0


class _Tar:
    """An archive built member by member, hostile or not."""

    def __init__(self) -> None:
        self._file = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._file, mode="w", format=tarfile.PAX_FORMAT)

    def _add(self, name: str, kind: bytes, data: bytes = b"", **fields: object) -> _Tar:
        info = tarfile.TarInfo(name)
        info.type, info.size = kind, len(data)
        for field, value in fields.items():
            setattr(info, field, value)
        self._tar.addfile(info, io.BytesIO(data))
        return self

    def file(self, name: str, data: bytes, *, mode: int = 0o644, uid: int = 0, gid: int = 0) -> _Tar:
        return self._add(name, tarfile.REGTYPE, data, mode=mode, uid=uid, gid=gid)

    def directory(self, name: str) -> _Tar:
        return self._add(name, tarfile.DIRTYPE, mode=0o755)

    def link(self, name: str, target: str) -> _Tar:
        return self._add(name, tarfile.SYMTYPE, linkname=target)

    def hard_link(self, name: str, target: str) -> _Tar:
        return self._add(name, tarfile.LNKTYPE, linkname=target)

    def special(self, name: str, kind: bytes, major: int, minor: int) -> _Tar:
        return self._add(name, kind, devmajor=major, devminor=minor, mode=0o666)

    def bytes(self) -> bytes:
        self._tar.close()
        return self._file.getvalue()

    async def upload(self, box: Box, path: str) -> FileInfo | None:
        return await pour(await box.file(UploadTree, path=path), self.bytes())

    async def try_upload(self, box: Box, path: str) -> None:
        """A refusal is as good as doing no harm: what counts is what is there afterwards."""
        try:
            await self.upload(box, path)
        except PaddockError:
            return


async def _download(box: Box, path: str) -> bytes:
    return await drain(await box.file(DownloadTree, path=path))


async def _inventory(box: Box, path: str) -> bytes:
    return (await box.sh(f"cd {path} && find . -printf '%P %y %m %l\\n' | sort; find . -type f -exec cat {{}} +")).out


async def _outside_is_clean(box: Box, *paths: str) -> None:
    for path in paths:
        assert not os.path.exists(path), "an archive from a caller wrote to the host"
        assert (await box.sh(f'test -e "{path}"')).status.code != 0, f"{path} was written outside of the directory"
