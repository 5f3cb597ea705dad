"""Checking a commit out, in a workshop: its git, its files and an index that knows them."""

from __future__ import annotations

from collections.abc import Sequence

from paddock.errors import InvalidArgument
from paddock.model import Acquired

from ._workshop import Workshop, git_environment

_PAST_SECONDS = 60

# $1 branch, $2 commit, $3 URL, $4 sha1 or sha256.
_CHECK_OUT = r"""
set -eu
cd "$WORKSPACE"
git init --quiet --template= --object-format="$4" --initial-branch="$1" .
mkdir -p .git/objects/info .git/info
printf '%s\n' "$REPOSITORY/objects" > .git/objects/info/alternates
if [ -f "$REPOSITORY/shallow" ]; then cp "$REPOSITORY/shallow" .git/shallow; fi
git config core.checkStat minimal
git config core.trustctime false
git config core.untrackedCache true
git config index.threads true
git config remote.origin.url "$3"
git config remote.origin.fetch '+refs/heads/*:refs/remotes/origin/*'
git --git-dir="$REPOSITORY" for-each-ref --format='%(objectname) %(refname)' refs/heads refs/tags |
    sed 's| refs/heads/| refs/remotes/origin/|' > .git/packed-refs
git update-ref "refs/heads/$1" "$2"
if git rev-parse --verify --quiet "refs/remotes/origin/$1" > /dev/null; then
    git config "branch.$1.remote" origin
    git config "branch.$1.merge" "refs/heads/$1"
fi
git reset --quiet --hard
"""

# $1 the time of all files, which the index is younger than, so that git need not read a file to know that it is as it
# was; the others: where submodules are.
_SETTLE = r"""
set -eu
cd "$WORKSPACE"
time=$1
shift
find . -path ./.git -prune -o -exec touch --no-dereference --no-create --date="@$time" {} +
for path do
    git -C "$path" update-index -q --really-refresh || :
    git -C "$path" update-index --force-write-index
done
git update-index -q --really-refresh || :
git update-index --force-write-index
git status --porcelain > /dev/null
git status --porcelain > /dev/null
"""

ENVIRONMENT = {
    **git_environment({"core.protectNTFS": "true", "core.protectHFS": "true"}),
    "GIT_OPTIONAL_LOCKS": "1",  # the index is made here, and nobody else writes it
}


async def check_out(workshop: Workshop, acquired: Acquired, branch: str) -> None:
    """Fills the workshop's workspace. InvalidArgument: git will not have this commit, or this name for a branch."""
    kind = "sha256" if len(acquired.commit) == 64 else "sha1"
    words = (branch, acquired.commit, acquired.url, kind)
    result = await workshop.run(["/bin/sh", "-c", _CHECK_OUT, "check-out", *words], env=ENVIRONMENT)
    if not result.ok:
        why = f", limit reached: {result.limit}" if result.limit else ""
        raise InvalidArgument(
            f"{acquired.commit} of {acquired.url} cannot be checked out on {branch!r}{why}: {result.stderr[-600:]}"
        )


async def settle(workshop: Workshop, submodules: Sequence[str], now: float) -> None:
    """The last step: from here on git trusts the index in every copy."""
    words = (str(int(now) - _PAST_SECONDS), *submodules)
    await workshop.check(["/bin/sh", "-c", _SETTLE, "settle", *words], env=ENVIRONMENT)
