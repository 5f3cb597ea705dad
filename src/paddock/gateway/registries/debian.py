"""Recognizes the indexes and files of a Debian archive.

Pure.

Indexes have signatures and pass unchanged. The place of a file in the pool decides about it. The layout:
https://wiki.debian.org/DebianRepository/Format.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from .page import PackageFile

_INDEX = re.compile(
    r"(?:/[^?]*)?/dists/(?:[^?]*/)?(?:"
    r"(?:InRelease|Release|Release\.gpg)"
    r"|by-hash/(?:MD5Sum|SHA1|SHA256|SHA512)/[0-9a-f]{32,128}"
    r"|(?:Packages|Sources|Contents-[a-z0-9-]+|Translation-[A-Za-z_]+|Components-[a-z0-9-]+\.yml|Commands-[a-z0-9-]+)"
    r"(?:\.(?:gz|xz|bz2|lzma|zst))?"
    r"|(?:Packages|Sources|Contents-[a-z0-9-]+|Translation-[A-Za-z_]+)\.diff/(?:Index|[A-Z]?-?[0-9.-]+[0-9A-Z.-]*\.gz)"
    r"|icons-[0-9x@]+\.tar(?:\.(?:gz|xz))?"
    r")"
)
_NAME, _VERSION = r"[a-z0-9][a-z0-9+.-]{1,127}", r"[A-Za-z0-9.+~-]{1,128}"
_FILE = re.compile(
    rf"(?:/[^?]*)?/pool/(?:[^/?]+/){{1,4}}(lib[a-z0-9]|[a-z0-9])/({_NAME})/"
    rf"(?:({_NAME})_({_VERSION})_[a-z0-9-]{{2,32}}\.(?:deb|udeb|ddeb)"
    rf"|({_NAME})_({_VERSION}?)(?:\.orig(?:-[a-z0-9-]+)?\.tar\.[a-z0-9]+(?:\.asc)?|\.debian\.tar\.[a-z0-9]+|"
    r"\.diff\.gz|\.dsc|\.tar\.[a-z0-9]+(?:\.asc)?))"
)


def is_index(path: str) -> bool:
    return _INDEX.fullmatch(path) is not None


def file_of(path: str) -> PackageFile | None:
    """Return the package of a file by its place, or None if it isn't in the pool, or at a wrong place."""
    match = _FILE.fullmatch(unquote(path))
    if match is None or "%" in unquote(path):
        return None
    prefix, source, binary, version, of_source, source_version = match.groups()
    if not source.startswith(prefix):
        return None
    if of_source is not None and of_source != source:
        return None
    return PackageFile(of_source or binary, source_version or version)
