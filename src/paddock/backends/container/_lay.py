"""Makes a directory what an archive says, writing only what differs: `python3 -I -S -c TEXT TARGET UID GID` in a jail.

The archive comes on stdin; its names begin with one component that is passed over. All that it holds is an attacker's:
each name is taken below the target, through directories that the archive itself has named and this program has made or
found to be none but directories. Nobody else writes there meanwhile. Standard library only, and nothing of ours.

Whose files they are is not taken from it: Podman says that all are root's. They are those of UID and GID.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tarfile
from typing import IO

_SCRATCH = ".paddock-carried"
_ATTRIBUTE = "SCHILY.xattr."
_READ = 1 << 20
_MODES = 0o1777  # set-id bits mean nothing in a sandbox


class Layer:
    """What is laid into the working directory."""

    def __init__(self, uid: int, gid: int) -> None:
        self._root = os.getuid() == 0
        self._owner = uid, gid
        self._directories: dict[str, tarfile.TarInfo] = {}
        self._seen: set[str] = set()

    def lay(self, archive: tarfile.TarFile) -> None:
        for member in archive:
            parts = [part for part in member.name.split("/") if part not in ("", ".")]
            if ".." in parts or not parts:
                _refuse(member)
            if len(parts) == 1:
                if not member.isdir():
                    sys.exit("what is to be carried is no directory any more")
                self._directories[""] = member
                continue
            *above, name = parts[1:]
            if "/".join(above) not in self._directories or name == _SCRATCH:
                _refuse(member)
            self._take(archive, member, "/".join(parts[1:]))
        if not self._directories:
            sys.exit("the archive is empty")
        self._remove_the_rest()
        for path in sorted(self._directories, reverse=True):  # what is in one changes its time
            self._dress(path or ".", self._directories[path])

    def _take(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        found = _look(path)
        if member.isdir():
            if found is None or not stat.S_ISDIR(found.st_mode):
                self._away(path, found)
                os.mkdir(path, 0o700)
            elif not self._root:
                os.chmod(path, 0o700)
            self._directories[path] = member
        elif member.isreg():
            content = archive.extractfile(member)
            assert content is not None
            self._file(path, found, member, content)
        elif member.issym():
            if found is None or not stat.S_ISLNK(found.st_mode) or os.readlink(path) != member.linkname:
                self._away(path, found)
                os.symlink(member.linkname, path)
        elif member.islnk():
            self._link(path, found, member)
        elif member.isfifo():
            if found is None or not stat.S_ISFIFO(found.st_mode):
                self._away(path, found)
                os.mkfifo(path, 0o600)
        else:
            return  # a device, of which a sandbox has none that mean anything
        self._seen.add(path)
        if not member.isdir() and not member.islnk():
            self._dress(path, member)

    def _file(self, path: str, found: os.stat_result | None, member: tarfile.TarInfo, content: IO[bytes]) -> None:
        """Written beside and compared on the way: what is the same stays what it was, and takes no room."""
        alike = self._alike(path, found, member)
        scratch = os.path.join(os.path.dirname(path), _SCRATCH)
        self._away(scratch, _look(scratch))
        with open(scratch, "xb") as file:
            while data := content.read(_READ):
                if alike is not None and alike.read(len(data)) != data:
                    alike.close()
                    alike = None
                file.write(data)
        if alike is not None:
            alike.close()
            os.unlink(scratch)
            return
        if found is not None and stat.S_ISDIR(found.st_mode):
            self._away(path, found)
        os.rename(scratch, path)

    def _alike(self, path: str, found: os.stat_result | None, member: tarfile.TarInfo) -> IO[bytes] | None:
        """What is there, if it may be the same."""
        if found is None or not stat.S_ISREG(found.st_mode) or found.st_size != member.size:
            return None
        try:
            return open(path, "rb")
        except PermissionError:
            return None

    def _link(self, path: str, found: os.stat_result | None, member: tarfile.TarInfo) -> None:
        """To a file that came before it."""
        parts = [part for part in member.linkname.split("/") if part not in ("", ".")][1:]
        source = "/".join(parts)
        if source not in self._seen or source in self._directories:
            _refuse(member)
        if found is not None and os.path.samestat(os.lstat(source), found):
            return
        self._away(path, found)
        os.link(source, path, follow_symlinks=False)

    def _dress(self, path: str, member: tarfile.TarInfo) -> None:
        found = os.lstat(path)
        if self._root and (found.st_uid, found.st_gid) != self._owner:
            os.lchown(path, *self._owner)
            found = os.lstat(path)
        if not member.issym():
            for name, value in member.pax_headers.items():
                if name.startswith(_ATTRIBUTE + "user."):
                    os.setxattr(path, name[len(_ATTRIBUTE) :], value.encode("utf-8", "surrogateescape"))
            if stat.S_IMODE(found.st_mode) != member.mode & _MODES:
                os.chmod(path, member.mode & _MODES)
        if int(found.st_mtime) != int(member.mtime):
            os.utime(path, (member.mtime, member.mtime), follow_symlinks=False)

    def _remove_the_rest(self) -> None:
        for top in self._directories:
            for name in os.listdir(top or "."):
                path = os.path.join(top, name)
                if path not in self._seen:
                    self._away(path, _look(path))

    def _away(self, path: str, found: os.stat_result | None) -> None:
        if found is None:
            return
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(path)
            return
        if not self._root:
            _open_all(path)
        shutil.rmtree(path)


def _open_all(path: str) -> None:
    """Modes keep their owner out of what he may remove all the same."""
    os.chmod(path, 0o700)
    with os.scandir(path) as entries:
        below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    for directory in below:
        _open_all(directory)


def _look(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _refuse(member: tarfile.TarInfo) -> None:
    sys.exit("a strange archive: " + ascii(member.name)[:200])


def main() -> None:
    os.chdir(sys.argv[1])
    os.umask(0o077)
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|", errorlevel=2) as archive:
        Layer(int(sys.argv[2]), int(sys.argv[3])).lay(archive)


if __name__ == "__main__":
    main()
