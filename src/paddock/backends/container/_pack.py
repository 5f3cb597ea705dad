"""Writes all that is below a directory to stdout, as an archive: `python3 -I -S -c TEXT DIRECTORY [LEFT OUT…]`.

It runs where nobody else does: in a container that stands still, or in a jail of its own. Each name begins with one
component that stands for the directory. What is mounted below is none of it: its places are told in a header, so that
nobody takes what is not in the archive for something that was removed. Standard library only, and nothing of ours.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import tarfile

_HIDDEN = "PADDOCK.hidden"
"""The header, with what is passed over; `//` stands between two of them, which is in no path."""
_TIME = "PADDOCK.mtime_ns"
_TOP = "top"
_OCTAL = re.compile(rb"\\([0-7]{3})")


def _mounted(top: str) -> set[str]:
    """What is mounted below it, relative to it (proc_pid_mountinfo(5))."""
    prefix = os.fsencode(top).rstrip(b"/") + b"/"
    with open("/proc/self/mountinfo", "rb") as file:
        places = [_OCTAL.sub(lambda found: bytes((int(found[1], 8),)), line.split()[4]) for line in file]
    return {os.fsdecode(place[len(prefix) :]) for place in places if place.startswith(prefix) and place != prefix}


class Packer:
    def __init__(self, archive: tarfile.TarFile, hidden: set[str]) -> None:
        self._archive, self._hidden = archive, hidden
        self._links: dict[tuple[int, int], str] = {}

    def directory(self, path: str) -> None:
        self._add(path, tarfile.DIRTYPE)
        for name in sorted(os.listdir(path or ".")):
            below = f"{path}/{name}" if path else name
            if below in self._hidden:
                continue
            mode = os.lstat(below).st_mode
            if stat.S_ISDIR(mode):
                self.directory(below)
            elif stat.S_ISREG(mode):
                self._file(below)
            elif stat.S_ISLNK(mode):
                self._add(below, tarfile.SYMTYPE, os.readlink(below))
            elif stat.S_ISFIFO(mode):
                self._add(below, tarfile.FIFOTYPE)

    def _file(self, path: str) -> None:
        found = os.lstat(path)
        known = self._links.setdefault((found.st_dev, found.st_ino), path) if found.st_nlink > 1 else path
        if known != path:
            self._add(path, tarfile.LNKTYPE, f"{_TOP}/{known}")
            return
        with open(path, "rb") as file:
            member = self._member(path, tarfile.REGTYPE)
            member.size = os.fstat(file.fileno()).st_size
            self._archive.addfile(member, file)

    def _add(self, path: str, kind: bytes, link: str = "") -> None:
        member = self._member(path, kind)
        member.linkname = link
        self._archive.addfile(member)

    def _member(self, path: str, kind: bytes) -> tarfile.TarInfo:
        found = os.lstat(path or ".")
        member = tarfile.TarInfo(f"{_TOP}/{path}" if path else _TOP)
        member.type, member.mode = kind, stat.S_IMODE(found.st_mode)
        member.uid, member.gid, member.mtime = found.st_uid, found.st_gid, int(found.st_mtime)
        headers = {_TIME: str(found.st_mtime_ns)}
        member.pax_headers = headers
        if kind in (tarfile.DIRTYPE, tarfile.REGTYPE):
            for name in os.listxattr(path or "."):
                if name.startswith("user."):
                    value = os.getxattr(path or ".", name)
                    headers["SCHILY.xattr." + name] = value.decode("utf-8", "surrogateescape")
        return member


def main() -> None:
    top, *left_out = sys.argv[1:]
    if os.path.islink(top):
        sys.exit(f"{top} was made a symbolic link inside")
    os.chdir(top)
    hidden = _mounted(top) | {os.path.relpath(path, top) for path in left_out}
    with tarfile.open(
        fileobj=sys.stdout.buffer,
        mode="w|",
        format=tarfile.PAX_FORMAT,
        encoding="utf-8",
        errors="surrogateescape",
        pax_headers={_HIDDEN: "//".join(sorted(hidden))},
    ) as archive:
        Packer(archive, hidden).directory("")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # whoever reads it says why
        main()
