"""Writes all that is below a directory to stdout, as an archive: `python3 -I -S -c TEXT DIRECTORY`.

It runs in a jail of its own, where nothing is mounted below the directory. Each name begins with one component that
stands for it. Standard library only, and nothing of ours. `native/pack.c` writes the same.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tarfile

_TIME = "PADDOCK.mtime_ns"
_TOP = "top"


class Packer:
    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._links: dict[tuple[int, int], str] = {}

    def directory(self, path: str) -> None:
        self._add(path, tarfile.DIRTYPE)
        for name in sorted(os.listdir(path or ".")):
            below = f"{path}/{name}" if path else name
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
    os.chdir(sys.argv[1])
    with tarfile.open(
        fileobj=sys.stdout.buffer,
        mode="w|",
        format=tarfile.PAX_FORMAT,
        encoding="utf-8",
        errors="surrogateescape",
    ) as archive:
        Packer(archive).directory("")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # whoever reads it says why
        main()
