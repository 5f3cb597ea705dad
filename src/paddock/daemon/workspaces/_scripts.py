"""Read a workspace in a utility sandbox: its tree, difference, commit and pack. The output is an attacker's, and parsed
here as such.

A separate repository borrows the objects of both; it ignores the configuration in the workspace's `.git`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from paddock.daemon.sandboxes.utility import PLAIN_FILES
from paddock.errors import PlatformError
from paddock.model import Change, ChangeKind, FileKind

MOST_CHANGES = 100_000
STRANGE = "git in the workshop said something else than what it was asked"
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_MODE = re.compile(r"[0-7]{6}")

# $1 the commit that it began with. Leaves `index` and `tree` behind, and `head`, empty without a commit.
_PRELUDE = """\
set -eu
mkdir -p /tmp/result && cd /tmp/result
theirs() { git --git-dir="$WORKSPACE/.git" "$@"; }
own() { GIT_DIR=/tmp/result/own/.git GIT_WORK_TREE="$WORKSPACE" git "$@"; }
"""
TREE = f"""{_PRELUDE}
{PLAIN_FILES}
kind=sha1; [ ${{#1}} = 40 ] || kind=sha256
git init --quiet --template= --object-format=$kind own
for objects in "$REPOSITORY/objects" "$WORKSPACE/.git/objects"; do
    [ ! -d "$objects" ] || echo "$objects" >>own/.git/objects/info/alternates
done
[ ! -f "$REPOSITORY/shallow" ] || cp "$REPOSITORY/shallow" own/.git/shallow
mkdir -p own/.git/info
exclude=$WORKSPACE/.git/info/exclude
[ ! -f "$exclude" ] || [ -L "$exclude" ] || cp "$exclude" own/.git/info/exclude
theirs rev-parse --quiet --verify 'HEAD^{{commit}}' >head || : >head
export GIT_INDEX_FILE=/tmp/result/index
own read-tree "$1"
cd "$WORKSPACE"
own add --all .
# What is ignored, and was added all the same.
if [ -f .git/index ] && [ ! -L .git/index ] && cp .git/index /tmp/result/theirs; then
    GIT_INDEX_FILE=/tmp/result/theirs own ls-files -z --cached | sort -zu >/tmp/result/known
    own ls-files -z --others --ignored --exclude-standard | sort -zu >/tmp/result/ignored
    comm -z -12 /tmp/result/known /tmp/result/ignored >/tmp/result/forced
    [ ! -s /tmp/result/forced ] ||
        GIT_LITERAL_PATHSPECS=1 own add --force --pathspec-from-file=/tmp/result/forced --pathspec-file-nul
fi
own write-tree >/tmp/result/tree
"""
# What `TREE` has found: the tree, and the commit that it is on.
STATE = f"""{_PRELUDE}
cat tree head
"""
RAW = f"""{_PRELUDE}
own diff-tree -r -M --no-commit-id --raw --numstat -z --abbrev=40 "$1" "$(cat tree)"
"""
PATCH = f"""{_PRELUDE}
own diff-tree -r -p -M --no-commit-id --binary --full-index --no-color --no-ext-diff --no-textconv \\
    --src-prefix=a/ --dst-prefix=b/ "$1" "$(cat tree)"
"""
# $2 the remote's commit at the branch, or nothing; $3 whether paddock has put it there. stdin: the message of a commit.
COMMIT = f"""{_PRELUDE}
tree=$(cat tree) head=$(cat head)
cat >message
has() {{ [ -n "$1" ] && [ "$(own rev-parse "$1^{{tree}}")" = "$tree" ]; }}
leads() {{ own merge-base --is-ancestor "$1" "$2"; }}
make() {{ own commit-tree "$tree" "$@" -F message; }}
if has "$head"; then commit=$head; else commit=$(make ${{head:+-p "$head"}}); fi
if [ -n "$2" ] && ! leads "$2" "$commit" && [ "$3" = ours ] && [ -n "$head" ]; then
    if leads "$head" "$2"; then
        if has "$2"; then commit=$2; else commit=$(make -p "$2"); fi
    else
        commit=$(make -p "$2" -p "$head")
    fi
fi
echo "$commit" | tee commit
"""
# All that the remote has not, whole: what it is a difference to is in it.
PACK = f"""{_PRELUDE}
{{
    cat commit
    git --git-dir="$REPOSITORY" for-each-ref --format='^%(objectname)'
}} >revisions
own pack-objects --quiet --revs --stdout --delta-base-offset --threads=1 <revisions
"""


def read_commit(output: bytes) -> str:
    """Return the commit id. Raises PlatformError if it is none."""
    text = output.decode("ascii", "replace").strip()
    if not _COMMIT.fullmatch(text):
        raise PlatformError(STRANGE)
    return text


class _Raw(msgspec.Struct):
    old_mode: int
    mode: int
    status: str
    path: str
    renamed_from: str | None


def read_changes(output: bytes) -> tuple[Change, ...]:
    """Return what `RAW` prints, by path. PlatformError: it is not what git prints."""
    fields = iter(output.split(b"\0"))
    rows: dict[str, _Raw] = {}
    counts: dict[str, tuple[int | None, int | None]] = {}
    try:
        for field in fields:
            if field.startswith(b":"):
                row = _raw(field, fields)
                rows[row.path] = row
            elif field:
                path, count = _count(field, fields)
                counts[path] = count
            if len(rows) > MOST_CHANGES:
                raise PlatformError(f"more than {MOST_CHANGES} changes")
        return tuple(_change(row, *counts[path]) for path, row in sorted(rows.items()))
    except (ValueError, KeyError, StopIteration):
        raise PlatformError(STRANGE) from None


def _raw(field: bytes, rest: Iterator[bytes]) -> _Raw:
    old_mode, mode, _, _, status = field[1:].decode("ascii").split(" ")
    if not _MODE.fullmatch(old_mode) or not _MODE.fullmatch(mode) or status[:1] not in tuple("AMDRT"):
        raise ValueError(field)
    first = _name(next(rest))
    moved = status.startswith("R")
    return _Raw(
        int(old_mode, 8), int(mode, 8), status[0], _name(next(rest)) if moved else first, first if moved else None
    )


def _count(field: bytes, rest: Iterator[bytes]) -> tuple[str, tuple[int | None, int | None]]:
    more, less, path = field.split(b"\t", 2)
    if not path:
        _, path = next(rest), next(rest)
    return _name(path), (None, None) if more == b"-" else (read_number(more), read_number(less))


def read_number(text: bytes) -> int:
    """Return a number that git or wc prints. ValueError."""
    text = text.strip()
    if not text.isdigit() or len(text) > 12:
        raise ValueError(text)
    return int(text)


def _name(path: bytes) -> str:
    if not path or path.startswith(b"/"):
        raise ValueError(path)
    return path.decode("utf-8", "surrogateescape")


def _change(row: _Raw, insertions: int | None, deletions: int | None) -> Change:
    kinds = {"A": ChangeKind.ADDED, "D": ChangeKind.DELETED, "R": ChangeKind.RENAMED}
    mode = row.mode or row.old_mode
    kind = {0o100000: FileKind.FILE, 0o120000: FileKind.SYMLINK}.get(mode & 0o170000, FileKind.OTHER)
    return Change(
        path=row.path,
        kind=kinds.get(row.status, ChangeKind.MODIFIED),
        file=kind,
        renamed_from=row.renamed_from,
        old_mode=row.old_mode & 0o777 if row.old_mode else None,
        mode=row.mode & 0o777 if row.mode else None,
        insertions=insertions,
        deletions=deletions,
    )
