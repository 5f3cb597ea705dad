"""The memory of virtual machines: images that all machines of one instant map.

Each has a separate tree.

A complete image never changes, so all machines that map it share it. A tree with the saved state of a machine, or with
a running one, names its images in a note. The note lies beside its layers, where no sandbox sees it, and copies of the
tree have it too. paddock deletes an image without such a tree, unless its creation is under way.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress

from paddock.errors import InvalidStateError, NotFoundError, PlatformError
from paddock.linux import openat2
from paddock.linux.descriptors import closing
from paddock.linux.whole import write_whole
from paddock.storage.pool._copying import Copier
from paddock.storage.pool.base import Pool
from paddock.storage.pool.trees import NAME, NEW, NOTE, READ, is_there, tree_error, within

PREFIX = "mm_"
PLACE = "root/vm/ram"
_MORE_BYTES = 4 << 20  # what the file system keeps about a file
_MOST_BYTES = 1024


class Memories:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def leans_on(self, tree: str) -> tuple[str, ...]:
        """Return the trees with the image that its machine runs from, and with that of its saved state."""
        with closing(self._pool.open(tree)) as place, suppress(FileNotFoundError):
            with closing(os.open(NOTE, READ, dir_fd=place)) as note:
                names = os.read(note, _MOST_BYTES).decode("ascii").split()
            return tuple(filter(NAME.fullmatch, names))
        return ()

    def is_there(self, image: str) -> bool:
        return is_there(self._pool, image)

    def lean(self, tree: str, *images: str) -> None:
        """Make the tree lean on these images, and no others."""
        with within(self._pool, tree, "write a note in") as place:
            self._pool.worker.do(_write_note, (place,), " ".join(images))

    def image(self, name: str) -> Image:
        """Return a new image, which doesn't exist yet."""
        return Image(self._pool, name)

    def lost(self) -> tuple[str, ...]:
        """Return the images on which no tree leans and that are complete."""
        names = self._pool.names()
        needed = set(self._pool.in_use)  # before the notes are read: a tree leans on an image before its maker lets go
        images = [name for name in names if name.startswith(PREFIX) and name not in needed]
        for name in self._pool.names() if images else ():
            with suppress(NotFoundError):
                needed.update(self.leans_on(name))
        return tuple(name for name in images if name not in needed)

    def drop(self, name: str) -> bool:
        """Delete an image. False: a tree needs it."""
        if name not in self.lost():
            return False
        self._pool.delete(name)
        return True


class Image:
    """An unfinished memory image. Until its release, garbage collection keeps it."""

    def __init__(self, pool: Pool, name: str) -> None:
        self._pool, self.name, self._place = pool, name, -1

    def begin(self, base: str) -> None:
        """Begin with a copy of the image in tree `base`. NotFoundError, ResourceExhausted."""
        origin = self._pool.open(base)
        self._pool.in_use.add(self.name)
        with closing(origin):
            try:
                self._pool.create(self.name)
                self._place = self._pool.open(self.name)
                size = self._pool.worker.do(_copy, (origin, self._place), self._pool.worker.base is not None)
                self._pool.allow(self.name, size + _MORE_BYTES)
            except OSError as error:
                raise tree_error(error, self.name, "make") from error

    def open(self) -> int:
        """Open the image for its writer, which closes the descriptor."""
        return _open(self._place, os.O_WRONLY)

    def seal(self) -> None:
        """Make the whole image read-only. InvalidStateError: a process still has it open for writing."""
        try:
            self._pool.worker.do(_seal, (self._place,))
        except OSError as error:
            if error.errno == errno.EAGAIN:
                raise InvalidStateError(
                    f"memory {self.name} is written after it was saved", hint="this is a bug"
                ) from None
            raise PlatformError(f"memory {self.name} cannot be closed: {error}", hint="paddock doctor") from error

    def let_go(self) -> None:
        """Release the image. From here on it exists as long as a tree leans on it."""
        self._pool.in_use.discard(self.name)
        place, self._place = self._place, -1
        if place != -1:
            os.close(place)


def _write_note(tree: int, words: str) -> None:
    write_whole(tree, NOTE, words.encode(), mode=0o644)


def _copy(origin: int, place: int, keep_owner: bool) -> int:
    """Copy the memory of `origin`, and return its size."""
    with closing(_open(origin, os.O_RDONLY)) as reader:
        info = os.fstat(reader)
        os.mkdir(os.path.dirname(PLACE), 0o755, dir_fd=place)
        with closing(os.open(PLACE, NEW, 0o600, dir_fd=place)) as writer:
            Copier(keep_owners=False).content(reader, writer, info.st_size)
            if keep_owner:
                os.fchown(writer, info.st_uid, info.st_gid)
            os.fchmod(writer, 0o666)  # for this program, which may not be the owner; no other gets here
        return info.st_size


def _seal(place: int) -> None:
    """Make the image read-only. The kernel grants a read lease only while nothing can write (fcntl(2), F_SETLEASE)."""
    with closing(_open(place, os.O_RDONLY)) as fd:
        os.fchmod(fd, 0o444)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)


def _open(place: int, flags: int) -> int:
    return openat2.open_beneath(place, PLACE.encode(), flags | os.O_NOFOLLOW | os.O_NONBLOCK)
