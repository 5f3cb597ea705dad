"""Find what a workspace holds that is nowhere else, and archive it, in utility sandboxes.

An archive is a tar of all that the base doesn't have. It holds `.git` as it is, and every file that is new, is tracked,
or differs from the base's, in mode or owner too. It holds directories that are empty or differ from a checkout's. It
leaves out files that git ignores. Without a repository it has all. `tmp/kept/gone` in front names the files to remove
from the base first, each ended by a NUL.
"""

from __future__ import annotations

from paddock.backends.base import TreeMount
from paddock.daemon.context import Operation
from paddock.daemon.sandboxes.utility import PLAIN_FILES, READING_SECONDS, UtilitySandbox, UtilitySandboxes
from paddock.daemon.store.database import WorkspaceArchive, WorkspaceRow
from paddock.daemon.store.results import ResultStore
from paddock.daemon.store.trees import REPOSITORY, WORKSPACE, WorkspaceTree
from paddock.errors import ErrandFailedError, InternalError
from paddock.model import MOST_NAMES, Workspace, WorkspaceStatus
from paddock.storage.pool.kept import KeptArchives

from ._scripts import STRANGE, read_number

_SLACK_BYTES = 256 << 20
_SAID_BYTES = 1 << 20
_CHUNK = 1 << 20
_TAR = "tar --numeric-owner --xattrs --xattrs-include='user.*'"
_SHELL = f"""\
set -eu
# A repository of our own: nothing that the workspace's says of itself is believed.
mkdir -p /tmp/kept && cd /tmp/kept
git init --quiet --template= --object-format="$(git --git-dir={REPOSITORY} rev-parse --show-object-format)" own
for objects in {REPOSITORY}/objects {WORKSPACE}/.git/objects; do
    [ ! -d $objects ] || echo $objects >>own/.git/objects/info/alternates
done
own() {{ GIT_DIR=/tmp/kept/own/.git GIT_WORK_TREE={WORKSPACE} git "$@"; }}
# The workspace's index without its flags, which may hide what was changed.
index() {{
    [ -f {WORKSPACE}/.git/index ] && [ ! -L {WORKSPACE}/.git/index ] || return 1
    cp {WORKSPACE}/.git/index theirs && rm -f index &&
    GIT_INDEX_FILE=/tmp/kept/theirs own ls-files --stage -z >staged &&
        GIT_INDEX_FILE=/tmp/kept/index own update-index -z --index-info <staged
}}
"""
_COUNT = (
    f"cd {WORKSPACE} && find . -mindepth 1 ! -type d -printf x | wc -c"
    f" && find . -mindepth 1 ! -type d -printf '?? %P\\0' | head -z -n {MOST_NAMES}"
)
_STATUS = f"""{PLAIN_FILES}
{_SHELL}
theirs() {{ git --git-dir={WORKSPACE}/.git "$@"; }}
head=$(theirs rev-parse --quiet --verify 'HEAD^{{commit}}') || head=
on=$(theirs symbolic-ref --quiet --short HEAD) || on=
git --git-dir={REPOSITORY} for-each-ref --format='^%(objectname)' >known
echo "^$1" >>known
ahead=$({{ [ -z "$head" ] || echo HEAD; cat known; }} | theirs rev-list --count --exclude=refs/stash --all --stdin)
stash=$(theirs rev-list --count --walk-reflogs refs/stash -- 2>/dev/null) || stash=0
index
[ -z "$head" ] || own update-ref --no-deref HEAD "$head"
status='status --porcelain=v1 -z --untracked-files=all --no-renames --ignore-submodules=none'
GIT_INDEX_FILE=/tmp/kept/index own $status >changes
# Files that are as the last push has them don't count, unless the index has a third version.
if [ -n "$2" ] && [ -n "$(git --git-dir={REPOSITORY} for-each-ref --contains "$2" 2>/dev/null)" ]; then
    pushed() {{ GIT_INDEX_FILE=/tmp/kept/pushed own "$@"; }}
    pushed read-tree "$2"
    pushed update-index -q --really-refresh >/dev/null || :  # not 0 where something differs
    {{
        pushed diff-files -z --name-only --ignore-submodules=none
        pushed ls-files -z --others
        sed -zn 's/^[^ ?][^ ?] //p' changes
    }} | sort -zu >unlike
    sed -z 's/^...//' changes | sort -zu | comm -z -12 - unlike >left
    export GIT_DIR=/tmp/kept/own/.git GIT_WORK_TREE={WORKSPACE} GIT_INDEX_FILE=/tmp/kept/index
    xargs -0 -r git -C {WORKSPACE} --literal-pathspecs $status -- <left >changes
fi
new=$(grep -zc '^??' changes) || new=0
echo "head $head"
echo "on $on"
echo "ahead $ahead"
echo "stash $stash"
echo "untracked $new"
echo "modified $(( $(tr -dc '\\0' <changes | wc -c) - new ))"
head -z -n {MOST_NAMES} changes
"""
# Step by step through files: what fails in a pipe is not seen, and what is not seen is not kept.
_KEEP = f"""{_SHELL}
mkdir -p own/.git/info
# As bytes, whatever the attributes say.
echo '* -text -eol -ident -filter -working-tree-encoding' >own/.git/info/attributes
export GIT_INDEX_FILE=/tmp/kept/base
own read-tree "$1"
own update-index -q --really-refresh >/dev/null || :  # not 0 where something differs
own diff-files -z --name-only >differ
own diff-files -z --name-only --diff-filter=D >missing
own ls-files -z >known
own ls-files -z --stage >staged
sed -zn 's/^160000 [^\t]*\t//p' staged >submodules
if index 2>/dev/null; then
    own ls-files -z --others --exclude-standard >new
    GIT_INDEX_FILE=/tmp/kept/index own ls-files -z >tracked
    GIT_INDEX_FILE=/tmp/kept/index own diff-files -z --name-only --diff-filter=D >untracked
else
    own ls-files -z --others >new  # nobody knows what is tracked: all of it
    : >tracked >untracked
fi
# What git does not record: directories, those that a file leads to apart, and modes and owners but for x.
unlike="! ( -user $(stat -c %u {WORKSPACE}) -group $(stat -c %g {WORKSPACE})"
files() {{ find . -mindepth 1 -path ./.git -prune -o "$@" -printf '%P\\0'; }}
cd {WORKSPACE}
files -type d \\( -empty -o $unlike -perm 755 \\) \\) >/tmp/kept/dirs
files -type f $unlike \\( -perm 644 -o -perm 755 \\) \\) >/tmp/kept/odd
cd /tmp/kept
if [ -s tracked ]; then  # without an index nothing can be told to be ignored
    GIT_INDEX_FILE=/tmp/kept/none own check-ignore -z --stdin <dirs >ignored || [ $? = 1 ]
else
    : >ignored
fi
for list in known missing tracked untracked dirs odd ignored; do sort -zu -o $list $list; done
comm -z -23 dirs ignored >bare
comm -z -12 odd known >unlike
comm -z -23 tracked untracked >there
comm -z -23 there known >added
sort -zu differ submodules new added unlike >all
{{ printf '.git\\0'; cat all; }} >gone
comm -z -23 all missing >left
sed -z 's,^,workspace/,' left >members
[ ! -e {WORKSPACE}/.git ] && [ ! -L {WORKSPACE}/.git ] || printf 'workspace/.git\\0' >>members
# Each with all that is in it, and the directories that lead to it.
cd /
xargs -0 -r sh -c 'exec find "$@" -print0' find </tmp/kept/members >/tmp/kept/found
sed -z 's,^,workspace/,' /tmp/kept/bare >>/tmp/kept/found
cat /tmp/kept/members /tmp/kept/found >/tmp/kept/below
sed -zn ':up; s,/[^/]*$,,p; t up' /tmp/kept/below >/tmp/kept/above
sort -zu /tmp/kept/found /tmp/kept/above >/tmp/kept/whole
exec {_TAR} --create --sparse --no-recursion --file=- tmp/kept/gone \\
    --null --verbatim-files-from --files-from=/tmp/kept/whole
"""
_KEEP_ALL = f"exec {_TAR} --create --sparse --file=- --directory=/ workspace"
_CLEAR = f"""\
set -eu
mkdir -p /tmp/kept && cd /tmp/kept
{_TAR} --extract --file=- --directory=/ --occurrence=1 tmp/kept/gone
cd {WORKSPACE}
xargs -0 -r rm -rf -- </tmp/kept/gone
xargs -0 -r dirname -z -- </tmp/kept/gone | sort -zu | xargs -0 -r rmdir -p --ignore-fail-on-non-empty 2>/dev/null || :
"""
_LAY = f"exec {_TAR} --extract --preserve-permissions --file=- --directory=/ --exclude=tmp/kept/gone"


class Archiver:
    def __init__(self, utilities: UtilitySandboxes, archives: KeptArchives, results: ResultStore) -> None:
        self._utilities, self.archives, self._results = utilities, archives, results

    async def status(self, row: WorkspaceRow, op: Operation | None) -> WorkspaceStatus:
        """Return what it holds that is nowhere else. It reports what it can't determine, and never skips it."""
        mounts = _mounts(row, writable=False)
        async with self._utilities.open(mounts, op, command_seconds=READING_SECONDS) as utility:
            return await self._status(row, utility)

    async def archive(self, row: WorkspaceRow) -> WorkspaceArchive:
        """Return an archive of it, on the disk when this returns. The tree is only read. PaddockError: it is
        not kept."""
        async with self._utilities.open(_mounts(row, writable=False), None) as utility:
            status = await self._status(row, utility)
            with self.archives.writing(row.id, (row.workspace.disk_mib << 20) + _SLACK_BYTES) as archive:
                script = (_KEEP_ALL,) if row.cache is None else (_KEEP, _commit(row))
                await utility.run(*script, user=utility.owner, sink=archive.write)
            return WorkspaceArchive(archive.digest, archive.size, status)

    async def extract(self, row: WorkspaceRow, op: Operation | None) -> None:
        """Over what the tree begins with, as it was. PaddockError: it is not, and the tree is of no use."""
        assert row.kept is not None
        self.archives.check(row.id, row.kept.digest)
        async with self._utilities.open(_mounts(row, writable=True), op) as utility:
            if row.cache is not None:
                await utility.run(_CLEAR, user=utility.owner, input=self.archives.reading(row.id, _CHUNK))
            await utility.run(_LAY, user=utility.owner, input=self.archives.reading(row.id, _CHUNK))

    async def _status(self, row: WorkspaceRow, utility: UtilitySandbox) -> WorkspaceStatus:
        if row.cache is None:
            output = await utility.run(_COUNT, user=utility.owner, output_bytes=_SAID_BYTES)
            return read_count(row.workspace, output)
        pushed = self._results.last_pushed(row.workspace.owner, row.id)
        commit = "" if pushed is None else pushed[1]
        try:
            output = await utility.run(_STATUS, _commit(row), commit, user=utility.owner, output_bytes=_SAID_BYTES)
        except ErrandFailedError as error:
            return WorkspaceStatus(workspace=row.workspace, unreadable=error.message)
        return read_status(row.workspace, output)


def read_count(workspace: Workspace, output: bytes) -> WorkspaceStatus:
    """Of the files that are there. ErrandFailedError: it is not what the script prints."""
    count, _, names = output.partition(b"\n")
    try:
        return WorkspaceStatus(workspace=workspace, untracked=read_number(count), paths=_names(names))
    except ValueError:
        raise ErrandFailedError(STRANGE) from None


def read_status(workspace: Workspace, output: bytes) -> WorkspaceStatus:
    """ErrandFailedError: it is not what the script prints."""
    *lines, names = output.split(b"\n", 6)
    facts: dict[bytes, bytes] = {}
    for line in lines:
        key, _, facts[key] = line.partition(b" ")
    try:
        head, on = facts[b"head"].decode(), facts[b"on"].decode(errors="replace")
        return WorkspaceStatus(
            workspace=workspace,
            head=head or None,
            on=on or None,
            ahead=read_number(facts[b"ahead"]),
            stashed=read_number(facts[b"stash"]),
            untracked=read_number(facts[b"untracked"]),
            modified=read_number(facts[b"modified"]),
            paths=_names(names),
        )
    except (KeyError, ValueError):
        raise ErrandFailedError(STRANGE) from None


def _names(text: bytes) -> tuple[str, ...]:
    names = text.split(b"\0")[:MOST_NAMES]
    return tuple(name.decode(errors="replace") for name in names if name)


def _mounts(row: WorkspaceRow, *, writable: bool) -> tuple[TreeMount, ...]:
    return WorkspaceTree(row.id, row.layers, row.cache).mounts(writable=writable)


def _commit(row: WorkspaceRow) -> str:
    if row.workspace.commit is None:
        raise InternalError(f"workspace {row.id} has a base and no commit")
    return row.workspace.commit
