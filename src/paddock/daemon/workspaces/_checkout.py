"""Check a commit out, in a utility sandbox: its git directory, its files and an index that knows them. Do the same with
its submodules, each with objects copied from its own cache.

An attacker may write a repository's list of submodules. paddock fetches them only if the caller asked for them, only
from the network, and by URLs checked like a caller's. They come from public addresses, without credentials, or from the
origin of the repository, and then only with a proof of access to it. A refused one stays empty, as after
`git clone`, and is recorded.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from paddock.backends.base import TreeMount
from paddock.daemon.sandboxes.utility import UtilitySandbox, git_environment
from paddock.daemon.store.repositories import NOBODY, PUBLIC
from paddock.errors import ErrandFailedError, InvalidArgumentError
from paddock.model import Acquired, Principal

Acquire = Callable[[str, str, Principal, str], Awaitable[Acquired]]
"""By URL, commit, principal and the origin that may be at any address."""

_MOST = 64
DEEPEST = 4
_PLACE = "/run/paddock/submodules"
_LISTED_BYTES = 1 << 20
_LINK = re.compile(r"160000 ([0-9a-f]{40}|[0-9a-f]{64}) 0\t(.+)", re.DOTALL)
_KEY = re.compile(r"submodule\.(.+)\.(path|url)\n(.*)", re.DOTALL)

# $1: the directory in the workspace whose submodules these are.
_LIST = r"""
cd "$WORKSPACE/$1"
git ls-files --stage -z | grep --null-data '^160000 ' || :
printf '\0\0'
git config --blob HEAD:.gitmodules -z --get-regexp '^submodule\..*\.(path|url)$' || :
"""
# $1 its target, $2 its commit, $3 its URL, $4 the path of its repository, $5 a name for its git directory.
# $6 the submodule's parent, $7 its name there.
_LAY_OUT = r"""
set -eu
git -C "$WORKSPACE/$6" config "submodule.$7.url" "$3"
cd "$WORKSPACE"
modules="$WORKSPACE/.git/modules/$5"
mkdir -p "$WORKSPACE/.git/modules"
git init --quiet --template= --separate-git-dir="$modules" -- "$1"
cp -R --no-preserve=all "$4/objects/pack" "$modules/objects/"
if [ -f "$4/shallow" ]; then cp "$4/shallow" "$modules/shallow"; fi
cd "$1"
for setting in core.checkStat=minimal core.trustctime=false remote.origin.url="$3" \
    remote.origin.fetch='+refs/heads/*:refs/remotes/origin/*'; do
    git config "${setting%%=*}" "${setting#*=}"
done
git update-ref --no-deref HEAD "$2"
git reset --quiet --hard
"""
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

# $1 the time of all files. The index is younger, so git need not read a file to know that it hasn't changed.
# The others: the paths of submodules.
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
    "GIT_OPTIONAL_LOCKS": "1",  # this script makes the index, and no other writes it
}


async def check_out(utility: UtilitySandbox, acquired: Acquired, branch: str) -> None:
    """Fill the workshop's workspace. InvalidArgumentError: git will not have this commit, or this name for a branch."""
    kind = "sha256" if len(acquired.commit) == 64 else "sha1"
    try:
        await utility.run(_CHECK_OUT, branch, acquired.commit, acquired.url, kind, env=ENVIRONMENT)
    except ErrandFailedError as error:
        raise InvalidArgumentError(
            f"{acquired.commit} of {acquired.url} cannot be checked out on {branch!r}: {error.message}"
        ) from None


async def settle(utility: UtilitySandbox, submodules: Sequence[str], now: float) -> None:
    """Settle the tree: from here on git trusts the index in every copy."""
    await utility.run(_SETTLE, str(int(now) - _PAST_SECONDS), *submodules, env=ENVIRONMENT)


class Submodule(msgspec.Struct, frozen=True):
    """`path` and that of its `parent` are relative to the workspace."""

    path: str
    commit: str
    url: str
    parent: str
    name: str


async def submodules(utility: UtilitySandbox, parent: Acquired, path: str) -> list[Submodule]:
    """Return those of the repository `parent`, which is checked out at `path` of the workspace."""
    output = await utility.run(_LIST, path, env=ENVIRONMENT, output_bytes=_LISTED_BYTES)
    return _listed(output, path, parent.url)


async def acquire_submodule(acquire: Acquire, submodule: Submodule, scope: str, home: str) -> Acquired:
    """Acquire a submodule. `home` is `home_of` the repository at the root of the workspace. Raises RequestError if it
    may not be fetched, PlatformError if it can't be reached now."""
    if not submodule.url.startswith(("https://", "http://", "git://")) or "@" in submodule.url:
        raise InvalidArgumentError(
            "a submodule is fetched from the network, by a URL without a credential, or not at all"
        )
    principal = NOBODY if scope == PUBLIC else Principal(scope)
    return await acquire(submodule.url, submodule.commit, principal, home)


async def lay_out(utility: UtilitySandbox, found: Sequence[tuple[Submodule, Acquired]], first: int) -> None:
    for number, (submodule, acquired) in enumerate(found, first):
        where = (submodule.path, submodule.commit, acquired.url, place(acquired))
        await utility.run(_LAY_OUT, *where, str(number), submodule.parent, submodule.name, env=ENVIRONMENT)


def home_of(root: Acquired, scope: str) -> str:
    """Return the origin that the caller's URL has named, and that may be at any address therefore. A public repository
    has none: it is at public addresses, and its name could lead elsewhere by now."""
    return "" if scope == PUBLIC else "/".join(root.url.split("/")[:3])


def place(acquired: Acquired) -> str:
    return f"{_PLACE}/{acquired.repository}"


def mounts(found: Sequence[tuple[Submodule, Acquired]]) -> list[TreeMount]:
    """Their repositories, once each."""
    needed = {acquired.repository: acquired for _, acquired in found}
    return [TreeMount(tree=id, target=place(acquired), writable=False) for id, acquired in needed.items()]


def _listed(output: bytes, path: str, base: str) -> list[Submodule]:
    """Return a bounded list. Skip entries that are not UTF-8, have no URL or lead out of the tree."""
    links, _, keys = output.decode(errors="replace").partition("\0\0")
    paths: dict[str, str] = {}
    urls: dict[str, str] = {}
    for match in filter(None, map(_KEY.fullmatch, keys.split("\0"))):
        (paths if match[2] == "path" else urls)[match[1]] = match[3]
    named = {paths[name]: (name, url) for name, url in urls.items() if name in paths}
    found: list[Submodule] = []
    for match in filter(None, map(_LINK.fullmatch, links.split("\0"))):
        commit, where = match[1], match[2]
        name, url = named.get(where, ("", ""))
        if not url or "\ufffd" in where or {"", ".", ".."} & set(where.split("/")) or where.startswith("-"):
            continue
        found.append(Submodule(f"{path}/{where}".lstrip("/"), commit, resolve(base, url), path, name))
    return found[:_MOST]


def resolve(base: str, url: str) -> str:
    """Resolve a URL that begins with ./ or ../ against that of its repository (gitmodules(5))."""
    if not url.startswith(("./", "../")):
        return url
    scheme, separator, rest = base.partition("://")
    host, *parts = rest.split("/")
    for part in url.split("/"):
        if part == "..":
            if not parts:
                return ""
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return f"{scheme}{separator}{host}/{'/'.join(parts)}"
