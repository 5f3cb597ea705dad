"""The line of /etc/hosts by which a sandbox's own host name resolves, without a name service and without a network."""

from __future__ import annotations

import os
import stat

PATH = "etc/hosts"
FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OTHERS = b"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
_MARK = b"\t# this sandbox\n"
_MOST = 1 << 16


def name_sandbox(hosts: int, name: str) -> None:
    """Make `name` resolve by the file `hosts`, in place of the name of the sandbox that the file was copied from.

    A file that is missing gets its usual lines as well. What isn't a file, or has more than 64 KiB, stays as it is.
    """
    status = os.fstat(hosts)
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST:
        return
    if not status.st_size:
        os.fchmod(hosts, 0o644)  # whatever the umask is
    before = os.pread(hosts, _MOST, 0)
    kept = [line for line in (before or _OTHERS).splitlines(keepends=True) if not line.endswith(_MARK)]
    after = b"".join(kept).removesuffix(b"\n") + b"\n127.0.0.1\t" + name.encode() + _MARK
    if after != before:
        os.pwrite(hosts, after, 0)
        os.ftruncate(hosts, len(after))
