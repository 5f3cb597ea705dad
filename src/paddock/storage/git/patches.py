"""The difference between two sets of files, as the host's git tells it: renames, lines, and a patch for `git apply`.

git runs confined, in memory, because an attacker may have written the files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import IO, NamedTuple

from paddock.errors import InvalidStateError, PlatformError

from ._process import Bounds, run

LINK = 0o120000
PATCH_BYTES = 64 << 20
_SECONDS = 60.0
_COMPARE = """
git init --quiet --bare /tmp/files && cd /tmp/files && git fast-import --quiet || exit
set -- -r -M100% --no-rename-empty --no-ext-diff --no-textconv old new
printf '\\0' && git diff-tree --numstat -z "$@" && printf '\\0' && {patch}
"""
_PATCH = 'git diff-tree --patch --binary --full-index --no-color "$@"'
# No name may stop a comparison. A patch names only paths that git takes into its index.
_CONFIG = """
[core]
	protectHFS = false
	protectNTFS = false
[pack]
	compression = 1
"""


class Lines(NamedTuple):
    """The numbers of changed lines, None for a binary file, and the old path of a renamed file."""

    insertions: int | None
    deletions: int | None
    renamed_from: bytes | None


class FileVersion(NamedTuple):
    """A file as git knows it: mode 100644, 100755 or 120000, and its content. The content of a link is its target."""

    path: bytes
    mode: int
    content: bytes


def write_side(stream: IO[bytes], name: bytes, files: Iterable[FileVersion]) -> None:
    """Write the files of one side, `old` or `new`, for `compare` (git-fast-import(1))."""
    stream.write(b"commit refs/heads/%s\ncommitter paddock <> 0 +0000\ndata 0\n" % name)
    for path, mode, content in files:
        quoted = b"".join(b"\\%03o" % byte for byte in path)
        stream.write(b'M %o inline "%s"\ndata %d\n%s\n' % (mode, quoted, len(content), content))


async def compare(stream: IO[bytes], *, patch: bool) -> tuple[dict[bytes, Lines], bytes]:
    """Return the changed lines by path, and the patch if the caller needs one.

    The path of a deleted file is its old one.

    Raises NotConfiguredError, InvalidStateError if the patch is too large, and PlatformError.
    """
    stream.seek(0)
    bounds = Bounds(seconds=_SECONDS, output_bytes=PATCH_BYTES)
    script = _COMPARE.format(patch=_PATCH if patch else ":")
    ended = await run(["-c", script], program="/bin/sh", mounts=(), config=_CONFIG, bounds=bounds, stdin=stream)
    if ended.over == "output":
        raise InvalidStateError(f"the patch is larger than {PATCH_BYTES >> 20} MiB", hint="name paths; or paddock cp")
    if ended.over or ended.code:
        raise PlatformError(f"git can't compare the files: {ended.err[-300:] or ended.over}", hint="name paths")
    return await asyncio.to_thread(_read, ended.out)


def _read(output: bytes) -> tuple[dict[bytes, Lines], bytes]:
    """Return the lines by path, and the patch."""
    lines: dict[bytes, Lines] = {}
    numbers, _, text = output.partition(b"\0\0")
    fields = iter(numbers.split(b"\0")[1:])
    for field in fields:
        insertions, deletions, path = field.split(b"\t", 2)
        before = None if path else next(fields)
        is_text = insertions != b"-"
        lines[path or next(fields)] = Lines(
            int(insertions) if is_text else None, int(deletions) if is_text else None, before
        )
    return lines, text
