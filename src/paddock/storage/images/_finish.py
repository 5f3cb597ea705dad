"""What a sandbox needs and an image may not have: places to mount on, homes, files about its host and network."""

from __future__ import annotations

import os
import stat

from paddock.linux import openat2
from paddock.linux.descriptors import closing
from paddock.model import User
from paddock.storage._removal import remove
from paddock.storage._trees import DIRECTORY

_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
_PLACES = (("dev", 0o755), ("proc", 0o555), ("sys", 0o555), ("tmp", 0o1777), ("run", 0o755))
# As engines have it: these are the sandbox's, not the image's.
_FILES = {
    "etc/hosts": "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    "etc/hostname": "sandbox\n",
    "etc/resolv.conf": "",
}


class Finish:
    """Writes into the directory `root`, where nobody else writes. `base` is added to owners; None: all is ours."""

    def __init__(self, root: int, base: int | None) -> None:
        self._root, self._base = root, base

    def places(self) -> None:
        os.fchmod(self._root, 0o755)
        if self._base is not None:
            os.fchown(self._root, self._base, self._base)
        for name, mode in _PLACES:
            self._directory(name, 0, 0, mode)
        if not self._is_directory("etc"):
            self._directory("etc", 0, 0, 0o755)
        for path, text in _FILES.items():
            self._file(path, text)

    def home(self, user: User) -> None:
        """The user's, made if there is nothing; the way to it, if need be, too."""
        self._own_directory(user.home, user, 0o700 if user.uid == 0 else 0o755)

    def workdir(self, path: str, user: User) -> None:
        self._own_directory(path, user, 0o755)

    def account(self, user: User) -> None:
        """A line for somebody whom the image does not know."""
        line = f"{user.name}:x:{user.uid}:{user.gid}:{user.name}:{user.home}:/bin/sh\n".encode()
        try:
            fd = openat2.open_beneath(self._root, b"etc/passwd", _APPEND, symlinks=False)
        except FileNotFoundError:
            self._file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n" + line.decode())
            return
        except OSError:
            return  # it is no file: then nobody has a name in there
        with closing(fd):
            if stat.S_ISREG(os.fstat(fd).st_mode):
                os.write(fd, line)

    def _own_directory(self, path: str, user: User, mode: int) -> None:
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            at = "/".join(parts[:depth])
            if not self._is_directory(at):
                if self._exists(at):
                    return  # a file, or a link of the image's, is left as it is
                last = depth == len(parts)
                self._directory(at, user.uid if last else 0, user.gid if last else 0, mode if last else 0o755)

    def _is_directory(self, path: str) -> bool:
        try:
            os.close(openat2.open_beneath(self._root, path.encode(), _PLACE, symlinks=False))
        except OSError:
            return False
        return True

    def _exists(self, path: str) -> bool:
        try:
            os.close(openat2.open_beneath(self._root, path.encode(), os.O_PATH | os.O_NOFOLLOW, symlinks=False))
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    def _directory(self, path: str, uid: int, gid: int, mode: int) -> None:
        """A directory it is afterwards, whatever was there: what is mounted on is found through no link."""
        parent, name = self._above(path)
        with closing(parent):
            try:
                os.mkdir(name, 0o700, dir_fd=parent)
            except FileExistsError:
                if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                    return
                os.unlink(name, dir_fd=parent)
                os.mkdir(name, 0o700, dir_fd=parent)
            with closing(os.open(name, DIRECTORY, dir_fd=parent)) as fd:
                if self._base is not None:
                    os.fchown(fd, self._base + uid, self._base + gid)
                os.fchmod(fd, mode | (0 if self._base is not None else stat.S_IRWXU))

    def _file(self, path: str, text: str) -> None:
        parent, name = self._above(path)
        with closing(parent):
            try:
                os.unlink(name, dir_fd=parent)
            except FileNotFoundError:
                pass
            except IsADirectoryError:
                remove(parent, name)
            with os.fdopen(os.open(name, _NEW, 0o644, dir_fd=parent), "wb") as file:
                file.write(text.encode())
                if self._base is not None:
                    os.fchown(file.fileno(), self._base, self._base)
                os.fchmod(file.fileno(), 0o644)

    def _above(self, path: str) -> tuple[int, str]:
        above, _, name = path.rpartition("/")
        return openat2.open_beneath(self._root, (above or ".").encode(), _PLACE, symlinks=False), name
