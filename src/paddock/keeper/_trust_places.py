"""Where programs look for the certificates that they trust: there a sandbox with exits has a file of the host's, which
whoever holds its authority fills (`service/_trust.py`)."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from paddock.keeper import _dev, layout
from paddock.linux import mounts, openat2

if TYPE_CHECKING:
    from paddock.keeper._house import House  # what callers of the keeper need of this file does not need it

PLACE = f"dev/{_dev.CERTIFICATES}"
"""In the /dev that nobody inside can write, and so there in every sandbox; empty without exits."""
# Debian, Arch; Red Hat; SUSE; Alpine. Files only: what is a link leads to one of the others.
_SYSTEMS = (
    b"etc/ssl/certs/ca-certificates.crt",
    b"etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    b"etc/pki/tls/certs/ca-bundle.crt",
    b"etc/ssl/ca-bundle.pem",
    b"var/lib/ca-certificates/ca-bundle.pem",
    b"etc/ssl/cert.pem",
)
_ATTRIBUTES = mounts.RDONLY | mounts.NOSUID | mounts.NODEV | mounts.NOEXEC
_NO_PLACE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL)  # none there, a link, or a directory


def make(house: House, id: str) -> int:
    """The file, as a detached mount. OSError."""
    name = f"{id}/{layout.TRUST}"
    flags = os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    made = os.open(name, flags, 0o644, dir_fd=house.records.directory)
    try:
        os.fchmod(made, 0o644)  # whoever reads it inside is another one, whatever the umask
        mount = mounts.open_tree(b"", made)
    finally:
        os.close(made)
    mounts.set_attributes(mount, set=_ATTRIBUTES)
    return mount


def attach(mount: int) -> None:
    """Puts it in place, in the tree that is the working directory: where there is a file, and no link on the way."""
    _move(mount, PLACE.encode())
    for path in _SYSTEMS:
        copy = mounts.open_tree(b"", mount)
        try:
            _move(copy, path)
        except OSError as error:
            if error.errno not in _NO_PLACE:
                raise
        finally:
            os.close(copy)


def _move(mount: int, path: bytes) -> None:
    place = openat2.open_beneath(mounts.AT_FDCWD, path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, symlinks=False)
    try:
        mounts.move_mount(mount, place)
    finally:
        os.close(place)
