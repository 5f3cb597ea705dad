"""Workspaces in the pool: which sandbox may write one, what it begins with, and how it leaves and comes back.

It never leaves before its work is on the disk elsewhere. What reads or writes its files is done in workshops.

An archive is a tar of what the base does not have: `.git` as it is, and every file that differs from the base's, in
mode or owner too, is new, or is tracked, and the directories that are empty or not as a checkout makes them, but for
those that git ignores. Without a repository: all. `tmp/kept/gone` in front names what is to be taken away from the base
first, each name ended by a NUL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from paddock.backends._base import TreeMount
from paddock.errors import ErrandFailed, InternalError, InvalidState, PaddockError
from paddock.keeper.layout import KEPT
from paddock.model import (
    MOST_NAMES,
    Acquired,
    RepositoryId,
    Workspace,
    WorkspaceState,
    WorkspaceStatus,
    replace,
)
from paddock.storage._kept import KeptArchives
from paddock.storage._trees import sync_tree

from ._bases import Base
from ._context import Component, Context
from ._garbage import Candidate, candidate, measured
from ._gate import Entry
from ._live import Live
from ._shelf import Shelf
from ._store import Row, has_ended
from ._tasks import in_thread
from ._workshop import PLAIN_FILES, READING_SECONDS, Workshop, Workshops
from ._workspace_store import Kept, WorkspaceRow, WorkspaceStore
from ._workspace_tree import REPOSITORY, WORKSPACE

_SLACK_BYTES = 256 << 20
_CHUNK = 1 << 20
_TAR = "tar --numeric-owner --xattrs --xattrs-include='user.*'"
_SHELL = f"""\
set -eu
export LC_ALL=C HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1 GIT_NO_REPLACE_OBJECTS=1 GIT_GRAFT_FILE=/dev/null
export GIT_OPTIONAL_LOCKS=0 GIT_TERMINAL_PROMPT=0
git() {{ command git -c safe.directory='*' -c core.fsmonitor=false -c core.hooksPath=/dev/null "$@"; }}
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
GIT_INDEX_FILE=/tmp/kept/index own status --porcelain=v1 -z --untracked-files=all --no-renames \\
    --ignore-submodules=none >changes
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


class Keeping:
    def __init__(self, workshops: Workshops, archives: KeptArchives) -> None:
        self._workshops, self.archives = workshops, archives

    async def status(self, row: WorkspaceRow, entry: Entry | None) -> WorkspaceStatus:
        """What it holds that is nowhere else. What cannot be made out is said, and never counts as nothing."""
        mounts = _mounts(row, writable=False)
        async with self._workshops.open(mounts, entry, command_seconds=READING_SECONDS) as shop:
            return await self._status(row, shop)

    async def keep(self, row: WorkspaceRow) -> Kept:
        """An archive of it, on the disk when this returns. The tree is only read. PaddockError: it is not kept."""
        async with self._workshops.open(_mounts(row, writable=False), None) as shop:
            status = await self._status(row, shop)
            with self.archives.writing(row.id, (row.workspace.disk_mib << 20) + _SLACK_BYTES) as archive:
                argv = _sh(_KEEP_ALL) if row.repository is None else _sh(_KEEP, _commit(row))
                await shop.stream(argv, user=shop.owner, sink=archive.write)
            return Kept(archive.digest, archive.bytes, status)

    async def lay(self, row: WorkspaceRow, entry: Entry | None) -> None:
        """Over what the tree begins with, as it was. PaddockError: it is not, and the tree is of no use."""
        assert row.kept is not None
        self.archives.check(row.id, row.kept.digest)
        async with self._workshops.open(_mounts(row, writable=True), entry) as shop:
            if row.repository is not None:
                await shop.stream(_sh(_CLEAR), user=shop.owner, input=self.archives.reading(row.id, _CHUNK))
            await shop.stream(_sh(_LAY), user=shop.owner, input=self.archives.reading(row.id, _CHUNK))

    async def _status(self, row: WorkspaceRow, shop: Workshop) -> WorkspaceStatus:
        if row.repository is None:
            return read_count(row.workspace, await shop.stream(_sh(_COUNT), user=shop.owner))
        try:
            said = await shop.stream(_sh(_STATUS, _commit(row)), user=shop.owner)
        except ErrandFailed as error:
            return WorkspaceStatus(workspace=row.workspace, unreadable=error.message)
        return read_status(row.workspace, said)


def read_count(workspace: Workspace, said: bytes) -> WorkspaceStatus:
    """Of the files that are there. ErrandFailed: it is not what the script prints."""
    count, _, names = said.partition(b"\n")
    return WorkspaceStatus(workspace=workspace, untracked=_number(count), paths=_names(names))


def read_status(workspace: Workspace, said: bytes) -> WorkspaceStatus:
    """ErrandFailed: it is not what the script prints."""
    *lines, names = said.split(b"\n", 6)
    facts: dict[bytes, bytes] = {}
    for line in lines:
        key, _, facts[key] = line.partition(b" ")
    try:
        head, on = facts[b"head"].decode(), facts[b"on"].decode(errors="replace")
        return WorkspaceStatus(
            workspace=workspace,
            head=head or None,
            on=on or None,
            ahead=_number(facts[b"ahead"]),
            stashed=_number(facts[b"stash"]),
            untracked=_number(facts[b"untracked"]),
            modified=_number(facts[b"modified"]),
            paths=_names(names),
        )
    except (KeyError, UnicodeDecodeError):
        raise ErrandFailed("git in the workshop said something else than what it was asked") from None


def _number(text: bytes) -> int:
    text = text.strip()
    if not text.isdigit() or len(text) > 12:
        raise ErrandFailed("git in the workshop said something else than what it was asked")
    return int(text)


def _names(text: bytes) -> tuple[str, ...]:
    names = text.split(b"\0")[:MOST_NAMES]
    return tuple(name.decode(errors="replace") for name in names if name)


def _mounts(row: WorkspaceRow, *, writable: bool) -> tuple[TreeMount, ...]:
    own = TreeMount(tree=row.id, target=WORKSPACE, writable=writable, layers=row.layers)
    if row.repository is None:
        return (own,)
    return own, TreeMount(tree=row.repository, target=REPOSITORY, writable=False)


def _commit(row: WorkspaceRow) -> str:
    if row.workspace.commit is None:
        raise InternalError(f"workspace {row.id} has a base and no commit")
    return row.workspace.commit


def _sh(script: str, *arguments: str) -> tuple[str, ...]:
    return ("sh", "-c", script, "sh", *arguments)


class Tenancy(Component):
    def __init__(self, context: Context, live: Live) -> None:
        super().__init__(context)
        self._live, self._rows = live, WorkspaceStore(self._store)

    def take(self, row: Row) -> None:
        """In the transaction that records the sandbox: it has its workspace from now on, until the row has ended.
        InvalidState: another one lives over it. The caller holds the lane of the workspace alone."""
        assert row.workspace is not None
        found = self._rows.get(row.workspace.tree)
        assert found is not None
        if self.living(found):
            raise self.held(found)
        self._rows.give(found.id, row.id, self._clock.wall())

    async def free(self, row: WorkspaceRow) -> None:
        """InvalidState while a sandbox lives over it."""
        if await self.occupant(row):
            raise self.held(row)

    async def occupant(self, row: WorkspaceRow) -> Row | None:
        """The sandbox that has it. What is recorded as dead, its backend has to confirm: two that write one tree would
        be its end."""
        sandbox = self._last(row)
        if sandbox is not None and not has_ended(sandbox):
            sandbox = await self._live.check(sandbox)  # it may have died unnoticed
        if sandbox is None or not has_ended(sandbox):
            return sandbox
        await self._live.confirm_dead(sandbox)
        return None

    def living(self, row: WorkspaceRow) -> Row | None:
        """The sandbox that has it, as far as is recorded."""
        sandbox = self._last(row)
        return None if sandbox is None or has_ended(sandbox) else sandbox

    def last_used(self, row: WorkspaceRow) -> float:
        """When its last sandbox ended, or it was opened; seconds since the epoch."""
        sandbox = self._last(row)
        ended = None if sandbox is None else sandbox.sandbox.ended_at
        return max(row.workspace.used_at, ended or 0.0)

    def shown(self, row: WorkspaceRow) -> Workspace:
        """As callers see it: a sandbox that is dead has nothing any more."""
        return row.workspace if self.living(row) else replace(row.workspace, sandbox=None)

    def held(self, row: WorkspaceRow) -> InvalidState:
        sandbox, name = self.living(row), row.workspace.name
        if sandbox is None:
            return InvalidState(f"workspace {name!r} is free by now", hint="try again")
        return InvalidState(
            f"sandbox {sandbox.id} has workspace {name!r}, and only one may write it",
            hint=f"use that one, or end it: paddock kill {sandbox.sandbox.spec.name or sandbox.id}",
            sandbox=sandbox.id,
        )

    def _last(self, row: WorkspaceRow) -> Row | None:
        id = row.workspace.sandbox
        return None if id is None else self._store.get(id)


def check_epoch(workspace: Workspace, epoch: int | None) -> None:
    """InvalidState if one was given that has passed: what was known of the workspace then may not be so now."""
    if epoch is not None and epoch != workspace.epoch:
        raise InvalidState(
            f"workspace {workspace.name!r} is in epoch {workspace.epoch}, not {epoch}: another sandbox has had it"
            " since",
            hint=f"paddock status {workspace.name}",
            epoch=workspace.epoch,
        )


class Evictions(Component):
    def __init__(self, context: Context, tenancy: Tenancy, shelf: Shelf) -> None:
        super().__init__(context)
        self._tenancy, self._shelf, self._rows = tenancy, shelf, WorkspaceStore(self._store)
        self._keeping = Keeping(shelf.workshops, KeptArchives(self._state_dir / KEPT))

    async def status(self, row: WorkspaceRow, entry: Entry | None) -> WorkspaceStatus:
        """Of one that was evicted: as it was then, for nothing can have changed."""
        return row.kept.status if row.kept is not None else await self._keeping.status(row, entry)

    async def begin(self, row: WorkspaceRow, entry: Entry | None) -> WorkspaceRow:
        """Makes the tree as it was before anybody wrote to it."""
        limit = row.workspace.disk_mib << 20
        if row.repository is None:
            await in_thread(self._pool().create, row.id, limit_bytes=limit)
            return row
        from paddock.storage.repositories import pins

        acquired = _acquired(row)
        # Before anything lies over it: from here on neither the commit nor the repository goes.
        like = self._shelf.bases.ready(acquired, acquired.branch or "", submodules=row.workspace.submodules)
        await in_thread(pins.pin, self._shelf.directory / row.repository, row.id, acquired.commit, like=like)
        base = await self._base(row, acquired, entry)
        layers = await self._shelf.bases.derive(base, row.id, limit_bytes=limit)
        workspace = replace(row.workspace, unfetched=base.unfetched)
        return replace(row, workspace=workspace, base=base.id, layers=layers)

    async def _base(self, row: WorkspaceRow, acquired: Acquired, entry: Entry | None) -> Base:
        """One that is there when it is recorded that this workspace needs it: no await comes between."""
        branch, submodules = acquired.branch or "", row.workspace.submodules
        base = await self._shelf.bases.get(acquired, branch, entry, submodules=submodules)
        while self._shelf.bases.ready(acquired, branch, submodules=submodules) != base.id:  # collected meanwhile
            base = await self._shelf.bases.get(acquired, branch, entry, submodules=submodules)
        self._rows.lie_over(row.id, (base.id,))
        return base

    async def laid_out(self, id: str, entry: Entry | None) -> WorkspaceRow | None:
        """Return it with its files in the pool; None if it is gone. The caller holds its lane alone."""
        row = self._rows.get(id)
        if row is None or row.state is WorkspaceState.READY:
            return row
        if row.kept is None:  # its deletion failed half-way
            return await self.remove(row)
        restoring = self._rows.settle(row, WorkspaceState.RESTORING)
        try:
            await in_thread(self._pool().delete, row.id)  # a daemon that died while it evicted it may have left it
            laid = await self.begin(restoring, entry)
            await self._keeping.lay(laid, entry)
            await asyncio.to_thread(sync_tree, self._pool(), row.id)
            ready = self._rows.settle(replace(laid, kept=None), WorkspaceState.READY)
        except BaseException:
            await in_thread(self._pool().delete, row.id)
            self._rows.settle(row, WorkspaceState.EVICTED)
            raise
        await in_thread(self._keeping.archives.remove, row.id)
        return ready

    async def evict(self, id: str) -> None:
        """Its work is on the disk, outside of the pool, before its tree goes. InvalidState: it may not go. Any other
        error: it could not be kept, and so it stays."""
        async with self._lanes.exclusive(id):
            row = self._rows.get(id)
            if row is None or row.state is WorkspaceState.EVICTED:
                return
            await self._tenancy.free(row)
            refusal = self._refusal(row)
            if refusal is not None:
                raise InvalidState(f"workspace {row.workspace.name!r} stays: {refusal}", workspace=row.id)
            evicting = self._rows.settle(row, WorkspaceState.EVICTING)
            try:
                kept = await self._keeping.keep(evicting)
            except BaseException:
                self._rows.settle(row, WorkspaceState.READY)
                await in_thread(self._keeping.archives.remove, id)
                raise
            self._rows.settle(replace(evicting, kept=kept, base=None, layers=()), WorkspaceState.EVICTED)
            await in_thread(self._pool().delete, id)

    async def remove(self, row: WorkspaceRow) -> None:
        """Delete all of it. The row goes last: as long as there is one, the next daemon sees to the rest."""
        await in_thread(self._remove, row)
        self._rows.remove(row.id)

    def _remove(self, row: WorkspaceRow) -> None:
        self._pool().delete(row.id)
        self._keeping.archives.remove(row.id)
        if row.repository is not None:
            from paddock.storage.repositories import pins

            pins.unpin(self._shelf.directory / row.repository, row.id)

    async def recover(self) -> None:
        """Finish or undo what the daemon before this one was doing, and delete archives that no row knows."""
        await self.put_right()
        for name in self._keeping.archives.names():
            row = self._rows.get(name)
            if row is None or row.kept is None:
                self._keeping.archives.remove(name)

    async def put_right(self) -> None:
        """Finish or undo what nobody carries on with: its daemon died, or its disk was full."""
        for id in [row.id for row in self._rows.list()]:
            if self._lanes.is_free(id):
                async with self._lanes.exclusive(id):
                    if (row := self._rows.get(id)) is not None:
                        await self._put_right(row)

    async def _put_right(self, row: WorkspaceRow) -> None:
        match row.state:
            case WorkspaceState.READY | WorkspaceState.EVICTED:
                return
            case WorkspaceState.MAKING | WorkspaceState.DELETING:
                await self.remove(row)
            case WorkspaceState.RESTORING:
                await in_thread(self._pool().delete, row.id)
                self._rows.settle(replace(row, base=None, layers=()), WorkspaceState.EVICTED)
            case WorkspaceState.EVICTING:
                self._rows.settle(row, WorkspaceState.READY)
        self._audit.event("workspace.unfinished", workspace=row.id, message=f"it was {row.state.value}; put right")

    async def candidates(self) -> Sequence[Candidate]:
        """All that are laid out, in the order in which they may go: clean ones, then those with work in them, which is
        kept; of each, those used least recently first. Last, those that may not go, and why."""
        pool = self._pool()
        # None goes from a pool that has room; then no workshop is opened to find out what is in them.
        full = pool.marks.reached(await asyncio.to_thread(pool.space))
        found: list[tuple[bool, bool, float, Candidate]] = []
        for row in self._rows.list():
            if row.state is WorkspaceState.EVICTED or (size := await measured(pool, row.id)) is None:
                continue
            used = self._tenancy.last_used(row)
            why, refusal, clean = f"not used for {_span(self._clock.wall() - used)}", self._refusal(row), False
            if full and refusal is None:
                try:
                    status = await self._keeping.status(row, None)
                except PaddockError as error:
                    refusal = f"what is in it cannot be made out: {error.message}"
                else:
                    clean = status.clean
                    why += ", nothing is only here" if clean else f", keeps {status.only_here}"
            why = f"workspace {row.workspace.name}: {why}"
            take = partial(self._take, row.id, why)
            one = candidate(row.id, "workspace", why, size, take, kept=refusal, only_when_full=True)
            found.append((refusal is not None, not clean, used, one))
        return [one for *_, one in sorted(found, key=lambda each: each[:3])]

    async def _take(self, id: str, why: str) -> None:
        await self.evict(id)
        self._audit.event("workspace.evicted", workspace=id, message=why)

    def _refusal(self, row: WorkspaceRow) -> str | None:
        """Why it may not be evicted, if it may not."""
        sandbox = self._tenancy.living(row)
        if sandbox is not None:
            return f"sandbox {sandbox.id} has it"
        if row.state is not WorkspaceState.READY:
            return f"it is {row.state.value}"
        left = (row.workspace.pinned_until or 0.0) - self._clock.wall()
        return f"it is pinned for {_span(left)}" if left > 0 else None


def _span(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:.0f} h" if hours >= 2 else f"{max(0.0, seconds) / 60:.0f} min"


def _acquired(row: WorkspaceRow) -> Acquired:
    w = row.workspace
    if row.repository is None or w.repository is None or w.commit is None or w.branch is None:
        raise InternalError(f"the row of workspace {row.id} does not say what it began with")
    return Acquired(
        repository=RepositoryId(row.repository),
        url=w.repository,
        commit=w.commit,
        ref=None,
        branch=w.branch,
        observed_at=w.observed_at or 0.0,
    )
