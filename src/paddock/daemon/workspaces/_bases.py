"""Keep bases: one commit of one repository, checked out on one branch, from which workspaces begin.

Of each used base there is one copy ahead, with its inodes in the kernel's memory: a workspace begins with a rename. The
copy has no row: its name follows from its base's, and it is deleted with that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from paddock.daemon.context import Component, Context, Operation
from paddock.daemon.sandboxes.utility import UtilitySandboxes
from paddock.daemon.store.candidates import Candidate, measured
from paddock.daemon.store.references import TreeReference, trees_needed
from paddock.daemon.store.repositories import RepositoryRow, RepositoryStore
from paddock.daemon.store.trees import WorkspaceTree, spare_of
from paddock.daemon.tasks import in_thread
from paddock.errors import AlreadyExistsError, InvalidStateError, NotFoundError, RequestError
from paddock.linux.descriptors import closing
from paddock.model import Acquired, BaseId, IdPrefix, RepositoryId, mint
from paddock.storage.pool.trees import look_at, sync_tree
from paddock.supervisor.layout import REPOSITORIES

from . import _checkout

_PAUSE_SECONDS = 0.5
"""The workspace that took the last copy starts its sandbox in that time."""
_MOST_LOOKED_AT = 20_000
"""Some 25 MB of the kernel's memory, which it takes back when it needs it."""


_COLUMNS = "id, repository, commit_id, branch, submodules, is_whole"


class Base(msgspec.Struct, frozen=True):
    """A tree of the pool that is never written again once it is whole. `unfetched` is how many submodules it lacks
    because they weren't asked for."""

    id: BaseId
    repository: RepositoryId
    commit: str
    branch: str
    submodules: bool
    is_whole: bool = False
    unfetched: int = 0


class Bases(Component):
    def __init__(self, context: Context, utilities: UtilitySandboxes, acquire: _checkout.Acquire) -> None:
        super().__init__(context)
        self._utilities, self._acquire, self._repositories = utilities, acquire, self._state_dir / REPOSITORIES
        self._making: dict[tuple[str, str, str, bool], asyncio.Task[Base]] = {}
        self._making_spares: set[str] = set()

    async def get(self, acquired: Acquired, branch: str, op: Operation | None, *, submodules: bool = False) -> Base:
        """Return the base of that commit on that branch. The first caller makes it, the others wait for that."""
        key = (acquired.repository, acquired.commit, branch, submodules)
        base = self._find(*key)
        if base is not None and base.is_whole:
            self._store.execute("UPDATE bases SET used_at = ? WHERE id = ?", (self._clock.wall(), base.id))
            return base
        if key not in self._making:
            work = self._make(acquired, branch, op, submodules)
            creation = self._making[key] = self._tasks.start(work, name=f"base {branch}", awaited=True)
            creation.add_done_callback(lambda _: self._making.pop(key, None))
        return await asyncio.shield(self._making[key])

    def ready(self, acquired: Acquired, branch: str, *, submodules: bool) -> BaseId | None:
        """Return the one that is there, if it is whole."""
        base = self._find(acquired.repository, acquired.commit, branch, submodules)
        return base.id if base is not None and base.is_whole else None

    async def derive(self, base: Base, name: str, *, limit_bytes: int) -> tuple[str, ...]:
        """Return a tree that begins as the base is: the layers that it needs from now on."""
        try:
            if self._makes_spares:
                with suppress(NotFoundError):
                    await in_thread(self._pool().rename, spare_of(base.id), name, limit_bytes=limit_bytes)
                    return ()
            return await in_thread(self._pool().derive, base.id, name, limit_bytes=limit_bytes)
        finally:
            if self._makes_spares and base.id not in self._making_spares:
                self._making_spares.add(base.id)
                creation = self._tasks.start(self._make_spare(base.id), name=f"spare of {base.id}")
                creation.add_done_callback(lambda _: self._making_spares.discard(base.id))

    @property
    def _makes_spares(self) -> bool:
        """Tell whether copies ahead pay. Elsewhere an empty layer is made as quickly, or a copy takes room that may
        never be needed."""
        return self._pool().driver == "btrfs"

    async def _make_spare(self, base: str) -> None:
        """In a while, if there is none by then."""

        def make() -> None:
            pool, name = self._pool(), spare_of(base)
            with suppress(AlreadyExistsError, NotFoundError):  # one is there; the base is gone
                pool.derive(base, name)
                with closing(pool.open(name)) as tree:
                    look_at(tree, _MOST_LOOKED_AT)

        await asyncio.sleep(_PAUSE_SECONDS)
        await in_thread(make)  # it works in the pool, which is closed after us

    async def _make(self, acquired: Acquired, branch: str, op: Operation | None, submodules: bool) -> Base:
        base = Base(BaseId(mint(IdPrefix.BASE)), acquired.repository, acquired.commit, branch, submodules)
        self._begin(base)
        try:
            await in_thread(self._lay, base)
            unfetched = await self._fill(base, acquired, op)
            await asyncio.to_thread(sync_tree, self._pool(), base.id)
            sql = "UPDATE bases SET is_whole = 1, unfetched = ? WHERE id = ?"
            self._store.execute(sql, (unfetched, base.id))
        except BaseException:
            await self.delete(base)
            raise
        return msgspec.structs.replace(base, is_whole=True, unfetched=unfetched)

    async def _fill(self, base: Base, acquired: Acquired, op: Operation | None) -> int:
        """Check the commit out in one workshop, and each depth of submodules, which see other repositories, in another.
        Return how many submodules it lacks because they weren't asked for."""
        own = WorkspaceTree(base.id, repository=base.repository).mounts()
        scope, done = self._repository(base).scope, list[str]()
        home = _checkout.home_of(acquired, scope)
        async with self._utilities.open(own, op) as utility:
            await _checkout.check_out(utility, acquired, base.branch)
            listed = await _checkout.submodules(utility, acquired, "")
            found = await self._fetch(listed, acquired, scope, home) if base.submodules else []
            if not found:
                await _checkout.settle(utility, done, self._clock.wall())
        for depth in range(_checkout.DEEPEST, 0, -1):
            if not found:
                break
            async with self._utilities.open((*own, *_checkout.mounts(found)), op) as utility:
                await _checkout.lay_out(utility, found, len(done))
                done += [submodule.path for submodule, _ in found]
                below = list[tuple[_checkout.Submodule, Acquired]]()
                for submodule, inner in found if depth > 1 else ():
                    within = await _checkout.submodules(utility, inner, submodule.path)
                    below += await self._fetch(within, inner, scope, home)
                found = below
                if not found:
                    await _checkout.settle(utility, done[::-1], self._clock.wall())
        return 0 if base.submodules else len(listed)

    async def _fetch(
        self, listed: Sequence[_checkout.Submodule], parent: Acquired, scope: str, home: str
    ) -> list[tuple[_checkout.Submodule, Acquired]]:
        """Fetch those submodules of `parent` that may be fetched. Raises PlatformError if one can't be reached now."""
        found: list[tuple[_checkout.Submodule, Acquired]] = []
        for submodule in listed:
            try:
                found.append((submodule, await _checkout.acquire_submodule(self._acquire, submodule, scope, home)))
            except RequestError as error:
                message = error.message[:1024]
                self._audit.event("submodule.empty", repository=parent.repository, path=submodule.path, message=message)
        return found

    def _repository(self, base: Base) -> RepositoryRow:
        """Return what it is of. Raises InvalidStateError if that was deleted."""
        row = RepositoryStore(self._store).get(base.repository)
        if row is None:
            raise InvalidStateError(f"repository {base.repository} was deleted", hint="acquire it again")
        return row

    def _begin(self, base: Base) -> None:
        """Start a base. Raises InvalidStateError if the repository was deleted."""
        self._repository(base)
        now = self._clock.wall()
        self._store.execute(
            f"INSERT INTO bases ({_COLUMNS}, created_at, used_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            (base.id, base.repository, base.commit, base.branch, base.submodules, base.is_whole, now, now),
        )

    def _lay(self, base: Base) -> None:
        from paddock.storage.git import pins

        pins.pin(self._repositories / base.repository, base.id, base.commit)
        self._pool().create(base.id)

    async def delete(self, base: Base) -> None:
        """Remove the row, then the tree: a sweep deletes trees without a row. Not for bases below workspaces."""
        self._unrecord(base)
        await in_thread(self._discard, base)

    def _unrecord(self, base: Base) -> None:
        self._store.execute("DELETE FROM bases WHERE id = ?", (base.id,))

    def _discard(self, base: Base) -> None:
        from paddock.storage.git import pins

        self._pool().delete(base.id)
        if self._makes_spares:
            self._pool().delete(spare_of(base.id))
        pins.unpin(self._repositories / base.repository, base.id)

    def of(self, repository: str) -> tuple[Base, ...]:
        return self._all("WHERE repository = ?", repository)

    def forget(self, repository: str) -> Callable[[], None]:
        """Forget all bases of a repository. Return what deletes their trees, for a thread. Raises InvalidStateError if
        one of them, or the repository, is needed."""
        needed, bases = trees_needed(self._store), self.of(repository)
        users = [reference.by for reference in needed.get(repository, ())]
        if users:
            raise InvalidStateError(
                f"repository {repository} is needed by {', '.join(users[:8])}", hint="end those first"
            )
        for base in bases:
            if (kept := _kept_because(base, needed)) is not None:
                raise InvalidStateError(
                    f"repository {repository} cannot go: {kept}", hint="try again when that has gone"
                )
        for base in bases:
            self._unrecord(base)

        def discard() -> None:
            for base in bases:
                self._discard(base)

        return discard

    async def candidates(self) -> Sequence[Candidate]:
        """When the pool is full: those that nothing lies over, the one first that was not used for longest."""
        pool, needed, why = self._pool(), trees_needed(self._store), "it can be checked out again"
        found: list[Candidate] = []
        for base in self._all("ORDER BY used_at, id"):
            size, kept = await measured(pool, base.id), _kept_because(base, needed)
            found.append(Candidate(base.id, "base", why, size, self._take, kept, only_when_full=True))
        return found

    async def _take(self, id: str) -> str | None:
        found = self._all("WHERE id = ?", id)
        kept = _kept_because(found[0], trees_needed(self._store)) if found else None
        if found and kept is None:
            await self.delete(found[0])
        return kept

    async def recover(self) -> None:
        """Delete what the daemon before this one was making."""
        for base in self._all("WHERE is_whole = 0"):
            self._audit.event("base.unfinished", base=base.id, message="the daemon that made it died; deleted")
            await self.delete(base)

    def _find(self, *key: object) -> Base | None:
        found = self._all("WHERE repository = ? AND commit_id = ? AND branch = ? AND submodules = ?", *key)
        return found[0] if found else None

    def _all(self, where: str, *values: object) -> tuple[Base, ...]:
        return self._store.every(Base, f"SELECT {_COLUMNS}, unfetched FROM bases {where}", values)  # noqa: S608


def _kept_because(base: Base, needed: Mapping[str, tuple[TreeReference, ...]]) -> str | None:
    users = [reference for reference in needed.get(base.id, ()) if reference.by != base.id]
    if users:
        return users[0].message
    if not base.is_whole:
        return "it is being checked out"
    return None
