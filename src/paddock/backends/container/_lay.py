"""Makes a directory what an archive says, writing only what differs: `python3 -I -S -c TEXT TARGET UID GID` in a jail.

The archive comes on stdin; its names begin with one component that is passed over. All that it holds is an attacker's:
each name is taken below the target, through directories that the archive itself has named and this program has made or
found to be none but directories. Nobody else writes there meanwhile. Standard library only, and nothing of ours.

Whose files they are is not taken from it: Podman says that all are root's. They are those of UID and GID. `-` in place
of both, and then what is left out: it is one of the guest's, of all that a sandbox has; owners and modes are taken
over, and what it says to be mounted there stays as it is, as does what is mounted here.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import tarfile
from typing import IO

_SCRATCH = ".paddock-carried"
_ATTRIBUTE = "SCHILY.xattr."
_READ = 1 << 20
_SECOND = 1_000_000_000
_MODES = 0o1777  # set-id bits mean nothing in a sandbox
_MOUNTED, _TIME = "PADDOCK.mounted", "PADDOCK.mtime_ns"
_OCTAL = re.compile(rb"\\([0-7]{3})")


class Layer:
    """What is laid into the working directory."""

    """`owner` is None for all that a sandbox has; `hidden` is passed over, with what is below."""

    def __init__(self, owner: tuple[int, int] | None, hidden: set[str]) -> None:
        self._root = os.getuid() == 0
        self._owner, self._hidden = owner, hidden
        self._modes = _MODES if owner else 0o7777
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
            if any("/".join(parts[1:end]) in self._hidden for end in range(2, len(parts) + 1)):
                continue
            *above, name = parts[1:]
            path = "/".join(parts[1:])
            if _MOUNTED in member.pax_headers and self._owner is None:
                self._hidden.add(path)
                continue
            # Named twice: a directory that became a link would lead what comes below it elsewhere.
            if "/".join(above) not in self._directories or name == _SCRATCH or path in self._seen:
                _refuse(member)
            self._take(archive, member, path)
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
        """Compared on the way: what is the same stays what it was, and takes no room. Else written beside."""
        alike = self._alike(path, found, member)
        same = 0
        data = content.read(_READ)
        if alike is not None:
            with alike:
                while data and alike.read(len(data)) == data:
                    same += len(data)
                    data = content.read(_READ)
            if not data:
                return
        scratch = os.path.join(os.path.dirname(path), _SCRATCH)
        self._away(scratch, _look(scratch))
        with open(scratch, "xb") as file:
            if same:
                with open(path, "rb") as begun:
                    while same:
                        part = begun.read(min(same, _READ))
                        file.write(part)
                        same -= len(part)
            while data:
                file.write(data)
                data = content.read(_READ)
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
        owner = self._owner or (member.uid, member.gid)
        if self._root and (found.st_uid, found.st_gid) != owner:
            os.lchown(path, *owner)
            found = os.lstat(path)
        if not member.issym():
            for name, value in member.pax_headers.items():
                if name.startswith(_ATTRIBUTE + "user."):
                    self._mark(path, name[len(_ATTRIBUTE) :], value.encode("utf-8", "surrogateescape"))
            if stat.S_IMODE(found.st_mode) != member.mode & self._modes:
                os.chmod(path, member.mode & self._modes)
        exact = int(member.pax_headers.get(_TIME, 0)) if self._owner is None else 0
        if int(found.st_mtime) != int(member.mtime):
            time = exact or int(member.mtime * _SECOND)
            os.utime(path, ns=(time, time), follow_symlinks=False)
        elif exact % _SECOND and found.st_mtime_ns % _SECOND and found.st_mtime_ns != exact:
            os.utime(path, ns=(exact, exact), follow_symlinks=False)  # an engine's image has whole seconds

    def _mark(self, path: str, name: str, value: bytes) -> None:
        try:
            if os.getxattr(path, name) == value:
                return
        except OSError:  # it has none
            pass
        os.setxattr(path, name, value)

    def _remove_the_rest(self) -> None:
        for top in self._directories:
            for name in os.listdir(top or "."):
                path = os.path.join(top, name)
                if path not in self._seen and path not in self._hidden:
                    self._away(path, _look(path))

    def _away(self, path: str, found: os.stat_result | None) -> None:
        if found is None:
            return
        if any(hidden.startswith(path + "/") for hidden in self._hidden):
            sys.exit(ascii(path)[:200] + " is not what it was, and something is mounted below it")
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


def _mounted(top: str) -> set[str]:
    """What is mounted below it, relative to it (proc_pid_mountinfo(5))."""
    prefix = os.fsencode(top).rstrip(b"/") + b"/"
    with open("/proc/self/mountinfo", "rb") as file:
        places = [_OCTAL.sub(lambda found: bytes((int(found[1], 8),)), line.split()[4]) for line in file]
    return {os.fsdecode(place[len(prefix) :]) for place in places if place.startswith(prefix) and place != prefix}


def _refuse(member: tarfile.TarInfo) -> None:
    sys.exit("a strange archive: " + ascii(member.name)[:200])


def main() -> None:
    os.chdir(sys.argv[1])
    os.umask(0o077)
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|", errorlevel=2) as archive:
        if sys.argv[2] == "-":
            left_out = {os.path.relpath(path, sys.argv[1]) for path in sys.argv[3:]}
            Layer(None, _mounted(os.getcwd()) | left_out).lay(archive)
        else:
            Layer((int(sys.argv[2]), int(sys.argv[3])), set()).lay(archive)


if __name__ == "__main__":
    main()
