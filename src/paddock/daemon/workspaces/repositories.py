"""Keep repositories: acquire a commit of a remote, list, delete; collect those without a checkout."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from paddock import model
from paddock.daemon.clock import boot_id
from paddock.daemon.context import Component, Context, Operation, handles
from paddock.daemon.sandboxes.utility import UtilitySandboxes
from paddock.daemon.store.candidates import Candidate
from paddock.daemon.store.database import LEAST_PREFIX, exactly_one
from paddock.daemon.store.references import trees_needed
from paddock.daemon.store.repositories import NOBODY, PUBLIC, KnownRef, Observation, RepositoryRow, RepositoryStore
from paddock.daemon.tasks import in_thread
from paddock.errors import InvalidArgumentError, InvalidStateError, NotFoundError, PolicyDeniedError
from paddock.linux.descriptors import closing
from paddock.model import Acquired, IdPrefix, Principal, Repository, RepositoryId, mint, replace
from paddock.storage.pool.trees import measure
from paddock.supervisor.layout import REPOSITORIES

from ._bases import Bases

if TYPE_CHECKING:
    from paddock.storage.git import HostGit, Listing, Proof, Remote


_log = logging.getLogger("paddock")
_HEADS, _TAGS = "refs/heads/", "refs/tags/"
_UNPROVEN = "git credential approve tells git what to prove that with"
_NO_KEY = "ssh-add -l lists your agent's keys; GIT_SSH_COMMAND='ssh -i FILE' names another"
_NOT_TAKEN = "wrong, expired or without the right to it: git credential reject, then approve another"
_JUST_USED_SECONDS = 600.0
"""A repository acquired so recently is about to be used."""


def _storage():  # pyright infers the module, with the types of all that is in it
    """Return the part of storage with all that git needs, which a sandbox without a repository does not."""
    from paddock.storage import git

    return git


class _Access(NamedTuple):
    """A remote, the principal that asks for it, and what it proves its right with, as far as known."""

    remote: Remote
    principal: Principal
    credential: Proof | None


class Repositories(Component):
    """The cache, checkouts of it (`bases`), and workshops to make those in."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.directory, self._rows, self._boot = self._state_dir / REPOSITORIES, RepositoryStore(self._store), boot_id()
        self.utilities = UtilitySandboxes(context)
        self.bases = Bases(context, self.utilities, self._acquire_submodule)

    @cached_property
    def git(self) -> HostGit:
        return _storage().HostGit(self.directory)

    @handles(model.AcquireRepository)
    async def perform(self, action: model.AcquireRepository, op: Operation) -> Acquired:
        acquired = await self.acquire(action.url, action.ref, action.max_age_seconds, op.principal)
        op.done({"repository": acquired.repository, "commit": acquired.commit, "ref": acquired.ref})
        return acquired

    @handles(model.ListRepositories)
    async def list(self, action: model.ListRepositories, op: Operation) -> tuple[Repository, ...]:
        return self._rows.list(op.principal.id)

    @handles(model.DeleteRepository)
    async def delete(self, action: model.DeleteRepository, op: Operation) -> None:
        """InvalidStateError: a workspace or a snapshot needs it."""
        await self.remove(self._find(action.repository, op.principal.id).id)

    async def candidates(self) -> Sequence[Candidate]:
        found: list[Candidate] = []
        for id, url, used_at in self._rows.by_use():
            size, kept = await asyncio.to_thread(self._size, id), self._kept_because(id, used_at)
            why = f"{url} can be fetched again"
            found.append(Candidate(id, "repository", why, size, self.remove, kept, only_when_full=True))
        return found

    def _size(self, id: str) -> int | None:
        try:
            fd = os.open(self.directory / id, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        with closing(fd):
            return measure(fd)

    def _kept_because(self, id: str, used_at: float) -> str | None:
        if self._clock.wall() - used_at < _JUST_USED_SECONDS:
            return "it was used a moment ago"
        users = [reference.by for reference in trees_needed(self._store).get(id, ())] or list(
            _storage().pins.owners(self.directory / id)
        )
        return f"{users[0]} needs its objects" if users else None

    async def _acquire_submodule(self, url: str, ref: str, principal: Principal, home: str) -> Acquired:
        return await self.acquire(url, ref, math.inf, principal, home=home)

    async def acquire(
        self, url: str, ref: str | None, max_age_seconds: float, principal: Principal, *, home: str | None = None
    ) -> Acquired:
        """Return the commit that `ref` led to at most `max_age_seconds` ago; the repository has it when this returns.

        `home`: a repository named the URL, and no caller. Then it must lead to public addresses, or to the origin
        `home`.

        Raises NotFoundError (no such repository for this principal, or no such name in it), InvalidArgumentError,
        PolicyDeniedError, ResourceExhaustedError, and PlatformError if it can't be reached.
        """
        if math.isnan(max_age_seconds) or max_age_seconds < 0:
            raise InvalidArgumentError(
                f"max_age_seconds={max_age_seconds} is not a number from 0 on", field="max_age_seconds"
            )
        if ref is not None:
            _storage().check_ref(ref)
        remote, given = _storage().parse(url, local=principal.id.startswith("local:"))
        if home is not None:
            remote = await _outside(remote, home)
        access = _Access(remote, principal, given)
        try:
            return await self._acquire(access, ref, max_age_seconds)
        except InvalidStateError as error:
            if "moved" not in error.details or remote.url.endswith(".git"):
                raise
            longer = replace(remote, url=f"{remote.url}.git")  # as GitLab's URLs are in full
            return await self._acquire(access._replace(remote=longer), ref, max_age_seconds)

    async def _acquire(self, access: _Access, ref: str | None, max_age_seconds: float) -> Acquired:
        since = self._clock.boottime() - max_age_seconds
        row = self._fresh(access, since, ref)
        if row is None:
            # Of callers who ask for one remote, one looks, and the others take what it has seen.
            async with self._lanes.exclusive(f"{access.principal.id} {access.remote.url}"):
                row = self._fresh(access, since, ref)
                if row is None:
                    row, access = await self._observe(access)
        return await self._answer(row, access, ref)

    def _fresh(self, access: _Access, since: float, ref: str | None) -> RepositoryRow | None:
        """Return what was observed since then; of a new name, nothing was. An access with a credential always looks."""
        for scope in () if access.credential else (PUBLIC, access.principal.id):
            row = self._rows.find(scope, access.remote.url)
            if row is not None and row.observed_boot == self._boot and (row.observed_clock or 0) >= since:
                known = (ref is not None and _storage().is_commit(ref)) or self._named(row, ref) is not None
                if known and (self.directory / row.id / "objects").is_dir():
                    return row
        return None

    async def _observe(self, access: _Access) -> tuple[RepositoryRow, _Access]:
        at, clock = self._clock.wall(), self._clock.boottime()
        access = access._replace(remote=await _storage().located(access.remote))
        listing, access, scope = await self._prove(access)
        row = self._rows.make(RepositoryId(mint(IdPrefix.REPOSITORY)), scope, access.remote.url, at)
        async with self._lanes.exclusive(row.id):
            refs = await self._bring(row, access, listing)
            seen = Observation(head=listing.head, refs=refs, at=at, boot=self._boot, clock=clock)
            self._rows.observed(row.id, seen)
        return self._rows.get(row.id) or row, access

    async def _prove(self, access: _Access) -> tuple[Listing, _Access, str]:
        """Return what it has, the access with the credential that it took to see that, and whose that makes it."""
        remote, principal, given = access
        own = PUBLIC if remote.public else principal.id
        private = self._rows.find(PUBLIC, remote.url) is None and self._rows.find(principal.id, remote.url) is not None
        if given is None and not (private and remote.path is None):
            try:
                return await self.git.look(remote, None), access, own
            except _storage().RemoteRefused:
                pass
        credential = given or await self._proof(access)
        try:
            listing = await self.git.look(remote, credential)
        except _storage().RemoteRefused as refused:
            raise NotFoundError(
                f"{remote.url} is not there, or not for {principal.name}: {refused}",
                hint=_NO_KEY if remote.scheme == _storage().SSH else _UNPROVEN if credential is None else _NOT_TAKEN,
            ) from None
        return listing, access._replace(credential=credential), own if credential is None else principal.id

    async def _bring(self, row: RepositoryRow, access: _Access, listing: Listing) -> dict[str, KnownRef]:
        """Fetch all that was listed. Names that moved meanwhile count as they are now: newer than required."""
        known = self._rows.refs(row.id)
        there = (self.directory / row.id / "objects").is_dir()
        oids = {name: ref.oid for name, ref in listing.refs.items() if name.startswith((_HEADS, _TAGS))}
        if there and row.observed_at is not None and oids == {name: ref.oid for name, ref in known.items()}:
            return dict(known)
        _log.info("fetching %s", access.remote.url)
        async with self._marked(row.id):
            await self.git.init(row.id, sha256=any(len(oid) == 64 for oid in oids.values()))
            if oids:
                await self._fetch(row, access)
        return {name: KnownRef(name, ref.oid, ref.commit) for name, ref in (await self.git.refs(row.id)).items()}

    async def _fetch(self, row: RepositoryRow, access: _Access, only: str | None = None) -> None:
        try:
            await self.git.fetch(row.id, access.remote, access.credential, only=only, progress=_log.info)
        except _storage().RemoteRefused as refused:
            message = f"{access.remote.url} is not there any more, or not for the one who asks: {refused}"
            raise NotFoundError(message) from None

    @asynccontextmanager
    async def _marked(self, id: str) -> AsyncGenerator[None]:
        """Mark a repository whose lane the caller holds alone: a killed git leaves lock files."""
        mark = self.directory / f"{id}.busy"
        if mark.exists():
            await self.git.clear_up(id)
        await asyncio.to_thread(self.directory.mkdir, mode=0o700, parents=True, exist_ok=True)
        await asyncio.to_thread(mark.touch)
        yield
        await asyncio.to_thread(mark.unlink, missing_ok=True)

    async def _answer(self, row: RepositoryRow, access: _Access, ref: str | None) -> Acquired:
        self._rows.used(row.id, self._clock.wall())
        if ref is not None and _storage().is_commit(ref):
            await self._need(row, access, ref)
            return _acquired(row, ref, None)
        known = self._named(row, ref)
        if known is None and ref is not None and ref.startswith("refs/") and not ref.startswith((_HEADS, _TAGS)):
            return await self._other_ref(row, access, ref)
        if known is None:
            branches = sorted(name.removeprefix(_HEADS) for name in self._rows.refs(row.id) if name.startswith(_HEADS))
            if not branches:
                raise InvalidStateError(f"{row.url} has no branches yet", hint="push a commit to it first")
            shown = ", ".join(branches[:8]) + (", …" if len(branches) > 8 else "")
            what = "no default branch" if ref is None else f"no branch and no tag {ref!r}"
            raise NotFoundError(f"{row.url} has {what}; its branches: {shown}", hint="name one of those", ref=ref)
        if known.commit is None:
            raise InvalidArgumentError(f"{known.name} of {row.url} leads to no commit")
        return _acquired(row, known.commit, known.name)

    def _named(self, row: RepositoryRow, ref: str | None) -> KnownRef | None:
        """Return a branch of that name before a tag; without a name the default branch, or the only one."""
        if ref is None:
            if row.head is not None:
                return self._rows.ref(row.id, row.head)
            heads = [ref for name, ref in self._rows.refs(row.id).items() if name.startswith(_HEADS)]
            return heads[0] if len(heads) == 1 else None
        names = (ref,) if ref.startswith((_HEADS, _TAGS)) else (_HEADS + ref, _TAGS + ref)
        return next(filter(None, (self._rows.ref(row.id, name) for name in names)), None)

    async def _need(self, row: RepositoryRow, access: _Access, commit: str) -> None:
        """Get a commit by its id: one that is here, or that the remote gives."""
        if self._rows.has_tip(row.id, commit) or await self.git.commit(row.id, commit) is not None:
            return
        await self._fetch_other(row, access, commit)
        if await self.git.commit(row.id, commit) is None:
            raise NotFoundError(f"{commit} of {row.url} is not a commit")

    async def _other_ref(self, row: RepositoryRow, access: _Access, ref: str) -> Acquired:
        """Ask the remote for what is neither a branch nor a tag, each time."""
        at = self._clock.wall()
        commit = await self.git.commit(row.id, await self._fetch_other(row, access, ref))
        if commit is None:
            raise NotFoundError(f"{ref} of {row.url} leads to no commit")
        return replace(_acquired(row, commit, ref), observed_at=at)

    async def _fetch_other(self, row: RepositoryRow, access: _Access, what: str) -> str:
        """Fetch by name or commit, and return the name under which git has it here."""
        if access.credential is None and row.scope == access.principal.id and access.remote.path is None:
            access = access._replace(credential=await self._proof(access))
        access = access._replace(remote=await _storage().located(access.remote))
        if row.scope == PUBLIC and not access.remote.public:
            raise InvalidStateError(f"{row.url} is not a public address any more", hint=f"paddock repos rm {row.id}")
        async with self._lanes.exclusive(row.id), self._marked(row.id):
            await self._fetch(row, access, only=what)
        return _storage().pins.fetched(what)

    async def _proof(self, access: _Access) -> Proof | None:
        return None if access.principal == NOBODY else await self._credentials(access.principal, access.remote)

    async def remove(self, id: str) -> None:
        async with self._lanes.exclusive(id):
            owners = await asyncio.to_thread(_storage().pins.owners, self.directory / id)
            needed = [owner for owner in owners if not owner.startswith(IdPrefix.BASE)]
            if needed:
                raise InvalidStateError(
                    f"repository {id} is needed by {', '.join(needed[:8])}", hint="delete those first"
                )
            discard = self.bases.forget(id)
            self._rows.remove(id)
            await in_thread(discard)
            await in_thread(self._delete, id)

    def _delete(self, id: str) -> None:
        path, gone = self.directory / id, self.directory / f"{id}.gone"
        if path.exists():
            path.rename(gone)
            shutil.rmtree(gone)  # by descriptors: it follows no link

    def _find(self, reference: str, owner: str) -> Repository:
        every = self._rows.list(owner)
        found = [one for one in every if reference in (one.id, one.url)]
        if not found and reference.startswith(IdPrefix.REPOSITORY) and len(reference) >= LEAST_PREFIX:
            found = [one for one in every if one.id.startswith(reference)]
        return exactly_one(found, "repository", reference, hint="`paddock repos ls` lists them")


async def _outside(remote: Remote, home: str) -> Remote:
    """Look up a URL that a repository named. PolicyDeniedError: a person on this network could reach it, a stranger
    not."""
    remote = await _storage().located(remote)
    if not remote.public and remote.origin != home:
        raise PolicyDeniedError(
            f"{remote.url} leads to no public address, and is named by a repository of another host",
            hint="clone it inside, where the sandbox's policy decides",
            rule="address",
        )
    return remote


def _acquired(row: RepositoryRow, commit: str, ref: str | None) -> Acquired:
    branch = ref.removeprefix(_HEADS) if ref is not None and ref.startswith(_HEADS) else None
    assert row.observed_at is not None
    return Acquired(repository=row.id, url=row.url, commit=commit, ref=ref, branch=branch, observed_at=row.observed_at)
