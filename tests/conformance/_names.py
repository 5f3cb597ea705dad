"""Names from an attacker: strange, too long, leading out, blocking."""

from __future__ import annotations

import asyncio
import os
import secrets

import pytest

from paddock.errors import FileError, InvalidArgumentError, PaddockError
from paddock.model import CopyFile, ListFiles, MakeDirectory, MoveFile, ReadFile, RemoveFile, StatFile

from ._box import Box, drain
from ._lab import Bench, Lab, guarantee, rounds

STRANGE = (
    " leading and trailing ",
    "new\nline",
    "tab\tbell\a",
    "\x1b]0;title\x07\x1b[2J",
    "quote'\"`$(id)",
    "-rf",
    "--",
    "*?[a]",
    "back\\slash",
    "ünïcödé 𝄞",
    "\u202egpj.exe",
    "...",
    "n" * 255,
    os.fsdecode(b"\xff\xfe not utf-8 \x80"),
)


class NameConformance(Bench):
    """Whatever a file is called, it is that file and none outside."""

    @guarantee()
    async def test_every_name_that_the_kernel_takes_can_be_written_read_listed_and_removed(self, lab: Lab) -> None:
        box = await lab.box()
        for name in STRANGE:
            await box.write(f"d/{name}", b"content")
            assert await box.read(f"d/{name}") == b"content"
            assert (await box.stat(f"d/{name}")).name == name
        assert sorted(await box.names("d"), key=os.fsencode) == sorted(STRANGE, key=os.fsencode)
        for name in STRANGE:
            await box.file(MoveFile, source=f"d/{name}", destination=f"e{name[:250]}")
            await box.file(RemoveFile, path=f"e{name[:250]}")
        assert await box.names("d") == []

    @guarantee()
    async def test_names_are_the_same_for_commands_and_for_files(self, lab: Lab) -> None:
        box = await lab.box()
        for name in STRANGE:
            await box.write(f"d/{name}", b"")
        finished = await box.python("import os, sys; sys.stdout.buffer.write(b'\\0'.join(os.listdir(b'd')))")
        assert sorted(finished.out.split(b"\0")) == sorted(map(os.fsencode, STRANGE))

    @guarantee()
    async def test_a_name_with_nul_is_an_invalid_argument(self, lab: Lab) -> None:
        box = await lab.box()
        for attempt in (
            lambda: box.read("a\0b"),
            lambda: box.write("a\0b", b""),
            lambda: box.names("a\0b"),
            lambda: box.file(MakeDirectory, path="a\0b"),
            lambda: box.file(RemoveFile, path="a\0b"),
            lambda: box.file(MoveFile, source="a\0b", destination="c"),
            lambda: box.file(CopyFile, source="c", destination="a\0b"),
        ):
            with pytest.raises(InvalidArgumentError):
                await attempt()

    @guarantee()
    async def test_an_empty_name_is_refused(self, lab: Lab) -> None:
        box = await lab.box()
        for attempt in (lambda: box.read(""), lambda: box.write("", b""), lambda: box.file(RemoveFile, path="")):
            with pytest.raises((InvalidArgumentError, FileError)):
                await attempt()

    @guarantee()
    async def test_a_path_longer_than_the_kernel_takes_is_refused_not_cut(self, lab: Lab) -> None:
        box = await lab.box()
        path = "/".join(["d" * 200] * 40)
        for attempt in (lambda: box.write(path, b""), lambda: box.read(path), lambda: box.read("x" * (1 << 20))):
            with pytest.raises((FileError, InvalidArgumentError)):
                await attempt()
        assert (await box.run("true")).status.code == 0

    @guarantee()
    async def test_a_fifo_blocks_nobody(self, lab: Lab) -> None:
        box = await lab.box()
        await box.sh("mkfifo fifo")
        async with asyncio.timeout(60):
            for attempt in (
                lambda: box.read("fifo"),
                lambda: box.write("fifo", b"x", append=True),
                lambda: box.file(CopyFile, source="fifo", destination="copy"),
            ):
                try:
                    await attempt()
                except FileError:
                    continue  # any answer will do, as long as there is one
            assert (await box.stat("fifo")).name == "fifo"
        assert (await box.run("true")).status.code == 0

    @guarantee()
    async def test_devices_and_sockets_are_no_files_to_copy(self, lab: Lab) -> None:
        box = await lab.box()
        await box.python("import socket; s = socket.socket(socket.AF_UNIX); s.bind('socket')")
        async with asyncio.timeout(60):
            for path in ("socket", "/dev/zero"):
                with pytest.raises(FileError):
                    await box.file(CopyFile, source=path, destination=f"copy-{path[-4:]}")

    @guarantee("isolation")
    async def test_no_spelling_leads_to_a_file_of_the_host(self, lab: Lab) -> None:
        box, canary = await lab.box(), _Canary()
        try:
            up = "../" * 40
            for path in (
                canary.path,
                up + canary.path,
                f"/proc/self/root{canary.path}",
                f"/proc/1/root{canary.path}",
                f"/proc/1/cwd/{up}{canary.path}",
                f"//{canary.path}",
                f"./{up}.{canary.path}",
            ):
                assert canary.secret not in await _read_or_nothing(box, path)
        finally:
            canary.close()

    @guarantee("isolation")
    async def test_no_link_leads_to_a_file_of_the_host(self, lab: Lab) -> None:
        box, canary = await lab.box(), _Canary()
        try:
            up = "../" * 40
            await box.sh(
                'ln -s "$1" absolute; ln -s "$2" relative; ln -s / root; ln -s /proc/self/root proc',
                canary.path,
                up + canary.path,
            )
            for path in ("absolute", "relative", f"root{canary.path}", f"proc{canary.path}"):
                assert canary.secret not in await _read_or_nothing(box, path)
            for path in ("absolute", f"root{canary.path}"):
                try:
                    await box.write(path, b"overwritten", append=True)
                    await box.file(RemoveFile, path=path)
                except PaddockError:
                    continue
            assert canary.untouched()
        finally:
            canary.close()

    @guarantee("isolation")
    async def test_a_path_that_is_swapped_while_it_is_used_never_leads_out(self, lab: Lab) -> None:
        box, canary = await lab.box(), _Canary()
        swapper = await box.start_python(_SWAP, os.path.dirname(canary.path), os.path.basename(canary.path))
        try:
            name = os.path.basename(canary.path)
            for n in rounds(300):
                assert canary.secret not in await _read_or_nothing(box, f"swap/{name}")
                try:
                    await box.write(f"swap/{name}", b"inside", append=bool(n % 2))
                    await box.file(StatFile, path=f"swap/{name}", follow=True)
                    await box.file(ListFiles, path="swap", depth=2)
                except PaddockError:
                    continue
            assert canary.untouched()
        finally:
            await swapper.aclose()
            canary.close()

    @guarantee()
    async def test_a_directory_that_is_swapped_for_a_link_while_it_is_removed_saves_what_it_points_to(
        self, lab: Lab
    ) -> None:
        box = await lab.box()
        await box.sh("mkdir keep; for i in 1 2 3 4 5 6 7 8 9; do : >keep/$i; done")
        swapper = await box.start_python(_SWAP_REMOVED)
        try:
            for _ in rounds(200):
                try:
                    await box.file(RemoveFile, path="victim", recursive=True)
                except FileError:
                    continue
        finally:
            await swapper.aclose()
        assert set(await box.names("keep")) >= {str(n) for n in range(1, 10)}

    @guarantee()
    async def test_parents_that_are_links_inside_are_followed(self, lab: Lab) -> None:
        box = await lab.box()
        await box.sh("mkdir real; ln -s real link")
        await box.write("link/file", b"x")
        assert await box.read("real/file") == b"x"


class _Canary:
    """A file of the host that nothing inside may read or change."""

    def __init__(self) -> None:
        self.secret = secrets.token_hex(16).encode()
        self.path = f"/tmp/paddock-canary-{secrets.token_hex(6)}/file"
        os.mkdir(os.path.dirname(self.path), 0o755)
        self._write()

    def _write(self) -> None:
        with open(self.path, "wb") as file:
            file.write(self.secret)
        os.chmod(self.path, 0o666)

    def untouched(self) -> bool:
        with open(self.path, "rb") as file:
            return file.read() == self.secret and os.listdir(os.path.dirname(self.path)) == ["file"]

    def close(self) -> None:
        os.unlink(self.path)
        os.rmdir(os.path.dirname(self.path))


_SWAP = """
import os, sys
target, name = sys.argv[1:]
os.makedirs('real', exist_ok=True)
while True:
    try:
        os.symlink(target, 'swap'); os.unlink('swap')
        os.rename('real', 'swap'); os.rename('swap', 'real')
    except OSError:
        for path in ('swap',):
            try: os.unlink(path)
            except OSError: pass
        os.makedirs('real', exist_ok=True)
"""

_SWAP_REMOVED = """
import os
while True:
    try:
        os.makedirs('victim/a/b')
        for n in range(10): os.close(os.open(f'victim/a/b/{n}', os.O_CREAT))
        os.rename('victim/a', 'aside'); os.symlink('../keep', 'victim/a')
        os.rename('aside', f'victim/c')
    except OSError:
        pass
"""


async def _read_or_nothing(box: Box, path: str) -> bytes:
    try:
        return await drain(await box.file(ReadFile, path=path))
    except PaddockError:
        return b""
