"""Mount certificate files of the host where programs look for trusted ones. The holder of the sandbox's authority fills
them (`daemon/access/_trust.py`)."""

from __future__ import annotations

import errno
import os

from paddock.linux import mounts
from paddock.linux.descriptors import closing
from paddock.supervisor import _dev, _places, layout

PLACE = f"dev/{_dev.CERTIFICATES}"
"""In the read-only /dev of every sandbox; empty without exits."""
# Debian, Arch; Red Hat; SUSE; Alpine. Files only: what is a link leads to one of the others.
_SYSTEMS = (
    b"etc/ssl/certs/ca-certificates.crt",
    b"etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    b"etc/pki/tls/certs/ca-bundle.crt",
    b"etc/ssl/ca-bundle.pem",
    b"var/lib/ca-certificates/ca-bundle.pem",
    b"etc/ssl/cert.pem",
)
_SYSTEMS_JAVA = (
    b"etc/ssl/certs/java/cacerts",
    b"etc/pki/ca-trust/extracted/java/cacerts",
    b"var/lib/ca-certificates/java-cacerts",
)
# Chromium trusts its own list on Linux; an administrator's policy adds to it.
_SYSTEMS_CHROMIUM = (
    b"etc/chromium/policies/managed/paddock.json",
    b"etc/opt/chrome/policies/managed/paddock.json",
)
KINDS = (
    (layout.TRUST, PLACE, _SYSTEMS),
    (layout.TRUST_JAVA, f"dev/{_dev.CERTIFICATES_JAVA}", _SYSTEMS_JAVA),
    (layout.TRUST_CHROMIUM, f"dev/{_dev.CERTIFICATES_CHROMIUM}", _SYSTEMS_CHROMIUM),
)
_ATTRIBUTES = mounts.RDONLY | mounts.NOSUID | mounts.NODEV | mounts.NOEXEC
_NO_PLACE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL)  # none there, a link, or a directory


def make(parent: int, name: str, to_close: list[int]) -> tuple[int, ...]:
    """Make the files in the directory `name` of a sandbox. Return them as detached mounts, noted in `to_close`. Raises
    OSError."""
    made: list[int] = []
    for kind, _, _ in KINDS:
        made.append(_make(parent, f"{name}/{kind}"))
        to_close.append(made[-1])
    return tuple(made)


def _make(parent: int, name: str) -> int:
    flags = os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with closing(os.open(name, flags, 0o644, dir_fd=parent)) as made:
        os.fchmod(made, 0o644)  # another user reads it inside, with any umask
        mount = mounts.open_tree(b"", made)
    mounts.set_attributes(mount, set=_ATTRIBUTES)
    return mount


def attach(made: tuple[int, ...]) -> None:
    """Attach them below the working directory: where a file exists, and no link is on the way."""
    for mount, (_, place, systems) in zip(made, KINDS, strict=True):
        _places.move(mount, place.encode(), os.O_PATH)
        _copy(mount, systems)


def attach_shown(directory: bytes) -> None:
    """Do as `attach` does, with files that lie in `directory`, which is read-only inside."""
    for name, _, systems in KINDS:
        with closing(_places.find(directory.strip(b"/") + b"/" + name.encode())) as found:
            _copy(found, systems)


def _copy(mount: int, places: tuple[bytes, ...]) -> None:
    for path in places:
        try:
            with closing(_places.find(path)) as place, closing(mounts.open_tree(b"", mount)) as copy:
                mounts.move_mount(copy, place)
        except OSError as error:
            if error.errno not in _NO_PLACE:
                raise
