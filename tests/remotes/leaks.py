"""Where a secret may be found that is none any more: arguments and environments of programs, files."""

from __future__ import annotations

import base64
import os
from pathlib import Path

_BLOCK = 1 << 20


def forms(username: str, secret: str) -> tuple[bytes, ...]:
    return (secret.encode(), base64.b64encode(f"{username}:{secret}".encode()).rstrip(b"=")[:-2])


def in_processes(secrets: tuple[bytes, ...]) -> list[str]:
    """In the arguments or the environment of any program that may be looked at."""
    found: list[str] = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        for name in ("cmdline", "environ"):
            try:
                content = Path(f"/proc/{pid}/{name}").read_bytes()
            except OSError:
                continue
            found += [f"{name} of {content[:200]!r}" for secret in secrets if secret in content]
    return found


def in_files(directory: Path, secrets: tuple[bytes, ...]) -> list[str]:
    """Sparse files of any size: the holes are not read."""
    paths = [Path(top, name) for top, _, names in os.walk(directory) for name in names]
    return [str(path) for path in paths if path.is_file() and not path.is_symlink() and _holds(path, secrets)]


def _holds(path: Path, secrets: tuple[bytes, ...]) -> bool:
    with path.open("rb", buffering=0) as file:
        at, end = 0, os.fstat(file.fileno()).st_size
        while at < end:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:  # there is no more data
                return False
            content = os.pread(file.fileno(), _BLOCK + 200, at)
            if any(secret in content for secret in secrets):
                return True
            at += _BLOCK
    return False
