"""Directories and what is done to whole trees: list, stat, make, move, copy, remove, attributes."""

from __future__ import annotations

import pytest

from paddock.errors import FileError, InvalidArgumentError
from paddock.model import (
    CopyFile,
    FileKind,
    ListFiles,
    MakeDirectory,
    MoveFile,
    RemoveFile,
    SetFileAttributes,
)

from ._lab import Bench, Lab, guarantee

MIB = 1 << 20


class DirectoryConformance(Bench):
    """Directories, attributes, moves, copies, removals."""

    @guarantee()
    async def test_a_list_is_sorted_and_tells_every_kind(self, lab: Lab) -> None:
        box = await lab.box()
        await box.sh("echo 12345 >file; mkdir dir; ln -s file link; ln -s nowhere dangling; mkfifo fifo; : >.hidden")
        infos = await box.file(ListFiles, path=".")
        assert [info.name for info in infos] == [".hidden", "dangling", "dir", "fifo", "file", "link"]
        kinds = {info.name: info.kind for info in infos}
        assert (kinds["file"], kinds["dir"], kinds["link"], kinds["fifo"]) == (
            FileKind.FILE,
            FileKind.DIRECTORY,
            FileKind.SYMLINK,
            FileKind.OTHER,
        )
        by_name = {info.name: info for info in infos}
        assert (by_name["file"].size_bytes, by_name["link"].target, by_name["dangling"].target) == (
            6,
            "file",
            "nowhere",
        )

    @guarantee()
    async def test_a_list_goes_as_deep_as_was_asked_and_follows_no_link(self, lab: Lab) -> None:
        box = await lab.box()
        await box.sh("mkdir -p a/b/c; : >a/1; : >a/b/2; : >a/b/c/3; ln -s .. a/up; ln -s / a/root")
        one = {info.name for info in await box.file(ListFiles, path="a")}
        two = {info.name for info in await box.file(ListFiles, path="a", depth=2)}
        all_of_it = {info.name for info in await box.file(ListFiles, path="a", depth=50)}
        assert one == {"1", "b", "up", "root"}
        assert two == one | {"2", "c"}
        assert all_of_it == two | {"3"}

    @guarantee()
    async def test_a_directory_of_ten_thousand_files_is_listed_whole(self, lab: Lab) -> None:
        box = await lab.box()
        await box.python(
            "import os\nos.mkdir('many')\nfor n in range(10_000): os.close(os.open(f'many/{n:05}', os.O_CREAT))"
        )
        assert await box.names("many") == [f"{n:05}" for n in range(10_000)]

    @guarantee()
    async def test_stat_is_of_the_link_unless_it_is_followed(self, lab: Lab) -> None:
        box = await lab.box()
        await box.sh("printf 12345 >file; ln -s file link")
        info = await box.stat("link")
        assert (info.kind, info.target) == (FileKind.SYMLINK, "file")
        followed = await box.stat("link", follow=True)
        assert (followed.kind, followed.size_bytes) == (FileKind.FILE, 5)

    @guarantee()
    async def test_stat_tells_mode_owner_and_time(self, lab: Lab) -> None:
        box = await lab.box()
        await box.sh(": >file; chmod 4751 file; touch -d @1234567890 file")
        info = await box.stat("file")
        assert (info.mode & 0o777, info.modified_at) == (0o751, 1234567890.0)
        assert (await box.sh("echo $(id -u):$(id -g)")).text == f"{info.uid}:{info.gid}"

    @guarantee()
    async def test_a_directory_is_made_with_its_parents(self, lab: Lab) -> None:
        box = await lab.box()
        info = await box.file(MakeDirectory, path="a/b/c", mode=0o700)
        assert (info.kind, info.mode) == (FileKind.DIRECTORY, 0o700)
        again = await box.file(MakeDirectory, path="a/b/c")
        assert again.kind == FileKind.DIRECTORY

    @guarantee()
    async def test_a_move_replaces_and_says_what_is_there_now(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("old", b"new content")
        await box.write("there", b"old content")
        info = await box.file(MoveFile, source="old", destination="there")
        assert (info.name, info.size_bytes) == ("there", 11)
        assert await box.names() == ["there"]

    @guarantee()
    async def test_a_directory_can_be_moved(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("a/b/file", b"x")
        await box.file(MoveFile, source="a", destination="z")
        assert await box.read("z/b/file") == b"x"

    @guarantee()
    async def test_a_link_is_moved_and_not_what_it_points_to(self, lab: Lab) -> None:
        box = await lab.box()
        await box.sh("echo x >file; ln -s file link")
        await box.file(MoveFile, source="link", destination="moved")
        assert (await box.stat("moved")).target == "file"
        assert await box.names() == ["file", "moved"]

    @guarantee()
    async def test_a_copy_is_independent_and_keeps_the_mode(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("file", b"old", mode=0o750)
        info = await box.file(CopyFile, source="file", destination="copy")
        assert (info.name, info.mode, info.size_bytes) == ("copy", 0o750, 3)
        await box.sh("echo changed >>file")
        assert await box.read("copy") == b"old"

    @guarantee()
    async def test_a_directory_is_copied_with_everything_in_it(self, lab: Lab) -> None:
        box = await lab.box()
        await box.sh("mkdir -p a/b; echo 1 >a/b/file; ln -s file a/b/link; ln -s /etc a/out; chmod 700 a/b")
        await box.file(CopyFile, source="a", destination="c")
        assert await box.read("c/b/file") == b"1\n"
        assert ((await box.stat("c/b/link")).target, (await box.stat("c/out")).target) == ("file", "/etc")
        assert (await box.stat("c/b")).mode == 0o700

    @guarantee()
    async def test_a_directory_cannot_be_copied_or_moved_into_itself(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("a/file", b"x")
        for kind in (CopyFile, MoveFile):
            with pytest.raises((FileError, InvalidArgumentError)):
                await box.file(kind, source="a", destination="a/b")
        assert await box.names("a") == ["file"]

    @guarantee()
    async def test_removing_what_is_missing_can_be_allowed(self, lab: Lab) -> None:
        box = await lab.box()
        await box.file(RemoveFile, path="missing", missing_ok=True)
        await box.file(RemoveFile, path="missing", missing_ok=True, recursive=True)

    @guarantee()
    async def test_an_empty_directory_is_removed_like_a_file(self, lab: Lab) -> None:
        box = await lab.box()
        await box.sh("mkdir empty; : >file")
        for name in ("empty", "file"):
            await box.file(RemoveFile, path=name)
        assert await box.names() == []

    @guarantee()
    async def test_a_recursive_removal_follows_no_link(self, lab: Lab) -> None:
        box = await lab.box()
        await box.sh(
            "mkdir -p keep a/b/c; : >keep/file; ln -s ../keep a/link; ln -s ../../keep/file a/b/link; : >a/b/c/file"
        )
        await box.file(RemoveFile, path="a", recursive=True)
        assert await box.names() == ["keep"]
        assert await box.names("keep") == ["file"]

    @guarantee()
    async def test_a_link_is_removed_and_not_what_it_points_to(self, lab: Lab) -> None:
        box = await lab.box()
        await box.sh("mkdir keep; : >keep/file; ln -s keep link")
        await box.file(RemoveFile, path="link", recursive=True)
        assert await box.names() == ["keep"]
        assert await box.names("keep") == ["file"]

    @guarantee()
    async def test_a_tree_deeper_than_any_path_is_removed(self, lab: Lab) -> None:
        box = await lab.box()
        await box.python("import os\nfor _ in range(1500): os.mkdir('d' * 20); os.chdir('d' * 20)")
        await box.file(RemoveFile, path="d" * 20, recursive=True)
        assert await box.names() == []

    @guarantee()
    async def test_attributes_are_set_and_the_rest_is_left(self, lab: Lab) -> None:
        box = await lab.box()
        before = await box.write("file", b"x", mode=0o600)
        after = await box.file(SetFileAttributes, path="file", mode=0o755)
        assert (after.mode, after.uid, after.gid) == (0o755, before.uid, before.gid)
        assert await box.file(SetFileAttributes, path="file") == after

    @guarantee("root_user")
    async def test_root_can_give_a_file_away(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("file", b"x")
        info = await box.file(SetFileAttributes, path="file", uid=0, gid=0, user="root")
        assert (info.uid, info.gid) == (0, 0)

    @guarantee("isolation")
    async def test_the_user_cannot_give_a_file_away(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("file", b"x")
        with pytest.raises(FileError):
            await box.file(SetFileAttributes, path="file", uid=0)
