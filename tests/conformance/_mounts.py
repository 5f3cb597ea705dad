"""Directories of the host inside a sandbox."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paddock.model import Mount, MountMode

from ._lab import Bench, Lab, guarantee

_OWNER = 4242
_NO_PERSONS = 0x7000_0000
"""Owners from here on are no account's of the host: nothing that they own can be run as somebody."""

_WORK = """
set -e
cd "$1"
echo new >created
mkdir -p made/below
echo deep >made/below/file
mv created renamed
ln -s renamed link
echo gone >removed
rm removed
mkdir empty && rmdir empty
cat renamed made/below/file
stat -c %u renamed
"""


class MountConformance(Bench):
    """What a sandbox does in a directory that it may write."""

    @guarantee("mounts")
    async def test_what_the_user_creates_in_a_writable_directory_is_its_owners(self, lab: Lab) -> None:
        with _directory() as directory:
            await _works(lab, directory, user=None)
            owner = directory.stat().st_uid
            assert {path.lstat().st_uid for path in directory.rglob("*")} == {owner}

    @guarantee("mounts")
    async def test_a_directory_can_be_mounted_below_tmp(self, lab: Lab) -> None:
        with _directory() as directory:
            (directory / "file").write_text("seen\n")
            mount = Mount(source=str(directory), target="/tmp/below/it", mode=MountMode.READ_WRITE)
            for _ in range(2):  # what is made once for all of a kind is taken by the second
                box = await lab.box(mounts=(mount,))
                done = await box.sh("cat /tmp/below/it/file && echo mine >/tmp/mine && cat /tmp/mine")
                assert (done.err, done.text) == (b"", "seen\nmine")

    @guarantee("mounts", "root_user")
    async def test_what_root_creates_in_a_writable_directory_is_nobodys_else(self, lab: Lab) -> None:
        with _directory() as directory:
            await _works(lab, directory, user="root")
            owner = directory.stat().st_uid
            assert all(uid == owner or uid >= _NO_PERSONS for uid in (p.lstat().st_uid for p in directory.rglob("*")))

    @guarantee("mounts", "root_user")
    async def test_root_takes_no_file_of_another_owner_in_a_writable_directory(self, lab: Lab) -> None:
        if os.getuid() != 0:
            pytest.skip("only root can make files of two owners")
        with _directory() as directory:
            other = directory / "other"
            other.write_text("of another owner")
            other.chmod(0o600)
            before = other.stat()
            box = await lab.box(mounts=(Mount(source=str(directory), target="/srv/it", mode=MountMode.READ_WRITE),))
            user = box.plan.template.user(None)
            assert user is not None
            for attempt in ("chown 0:0", f"chown {user.uid}:{user.gid}", "chmod 666"):
                # What chown says doesn't count: gVisor's says that it was done.
                done = await box.sh(f'{attempt} "$1"; cat "$1"; echo changed >>"$1"', "/srv/it/other", user="root")
                assert done.text == "", attempt
            assert other.read_text() == "of another owner"
            after = other.stat()
            assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)


async def _works(lab: Lab, directory: Path, *, user: str | None) -> None:
    box = await lab.box(mounts=(Mount(source=str(directory), target="/srv/shared", mode=MountMode.READ_WRITE),))
    done = await box.sh(_WORK, "/srv/shared", user=user)
    known = box.plan.template.user(user)
    assert known is not None
    assert (done.err, done.text.split()) == (b"", ["new", "deep", str(known.uid)])
    await box.write("/srv/shared/written", b"by the host", user=user)
    assert sorted(path.name for path in directory.iterdir()) == ["link", "made", "renamed", "written"]
    assert (directory / "made/below/file").read_text() == "deep\n"
    assert (await box.sh("rm -r /srv/shared/*", user=user)).status.code == 0
    assert not list(directory.iterdir())
    await box.sh(_WORK, "/srv/shared", user=user)


@contextmanager
def _directory() -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix="paddock-shared-") as made:
        directory = Path(made)
        if os.getuid() == 0:
            os.chown(directory, _OWNER, _OWNER)
        directory.chmod(0o755)
        yield directory
