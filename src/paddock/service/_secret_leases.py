"""What a sandbox has of secrets: placeholders inside, values with the gateway, and both no longer than it lives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from paddock.audit import AuditLog
from paddock.backends._base import SandboxPlan
from paddock.egress._placeholders import check_shape, mint
from paddock.egress._redact import Redaction
from paddock.egress._secret_book import Bound, to_bytes
from paddock.errors import InvalidArgument, PaddockError, PolicyDenied, SecretUnavailable
from paddock.model import Binding, ExecSpec, SecretRule, SecretValue
from paddock.storage.secret_sources import Fetched, Fetcher, is_kept

from ._clock import Clock, holder_alive
from ._lease_store import Lease, LeaseStore
from ._secrets import check_name
from ._store import Row
from ._tasks import Tasks

AHEAD_SECONDS = 300.0
"""So long before its end a value is renewed; of one that is good for a short time, a fifth of that."""
_RETRY_SECONDS = 20.0
_MOST_PAST = 16

Changed: TypeAlias = Callable[[str, Bound], Awaitable[None]]
"""Tells the gateway that a secret of that sandbox has another value, or none: it holds when this returns."""


class Leases:
    """`changed` is set by whoever has a gateway."""

    def __init__(
        self,
        *,
        store: LeaseStore,
        fetchers: Callable[[str], Fetcher],
        clock: Clock,
        tasks: Tasks,
        audit: AuditLog,
        holder: str,
    ) -> None:
        self._store, self._fetchers, self._clock, self._holder = store, fetchers, clock, holder
        self._tasks, self._audit = tasks, audit
        self._bounds: dict[str, dict[str, Bound]] = {}
        self._redactions: dict[str, Redaction] = {}
        self._renewals: dict[str, dict[str, asyncio.Task[None]]] = {}
        self._late: dict[str, dict[str, str]] = {}
        self._seen: dict[str, str] = {}
        self._rules: dict[str, dict[str, SecretRule]] = {}
        """By which the values were fetched that are held here."""
        self.changed: Changed = _nobody

    async def prepare(self, rows: Sequence[Row], rules: Mapping[str, SecretRule]) -> None:
        """Of sandboxes that are to be, and begin together: all values are there, or SecretUnavailable says which is
        not, and why. Each has placeholders of its own."""
        for row in rows:
            if row.sandbox.policy is not None:
                self._seen[row.id] = row.sandbox.policy
        if not rules:
            return
        for row in rows:
            _check(row, rules)
        every = [
            [Lease(row.id, row.sandbox.owner, name, mint(rule.shape), rule) for name, rule in rules.items()]
            for row in rows
        ]
        fetched = await self._fetch_all(every[0])
        for row, leases in zip(rows, every, strict=True):
            self._store.add(leases, self._clock.wall())
            self._hold(row.id, leases, fetched)

    def furnished(self, plan: SandboxPlan) -> SandboxPlan:
        """With the placeholders in its environment."""
        leases = self._store.of(plan.id)
        if not leases:
            return plan
        env = {**plan.spec.env, **{lease.name: lease.placeholder for lease in leases}}
        return msgspec.structs.replace(plan, spec=msgspec.structs.replace(plan.spec, env=env))

    async def bounds(self, row: Row) -> tuple[Bound, ...]:
        """For the gateway. Of a sandbox that another service has made, the values are fetched again; None is that of
        one that cannot be had here (it was revoked, or is in the other's environment): that hinders no command."""
        return tuple((await self._held(row)).values())

    async def _held(self, row: Row) -> dict[str, Bound]:
        held = self._bounds.get(row.id)
        if held is None:
            leases = self._store.of(row.id)
            held = self._hold(row.id, leases, await self._fetch_there(leases))
            self._late[row.id] = {lease.name: lease.placeholder for lease in leases}  # some may have been
        return held

    async def packed(self, row: Row) -> bytes:
        """`bounds`, as they go to the gateway. What is kept is looked at anew: another service may have rotated it, or
        revoked it, and told a gateway of it that has died since; or have set a policy with others. SecretUnavailable:
        whoever made the sandbox lives, may have what this service has not, and has to open its door. Where nobody else
        will, one that cannot be had leaves everything else its way out."""
        of_another = row.holder != self._holder and holder_alive(row.holder)
        held, revision = await self._held(row), row.sandbox.policy
        if revision is not None and self._seen.get(row.id) != revision:
            await self._catch_up(row, revision)
        for lease in self._store.of(row.id) if held else ():
            before = held.get(lease.name)
            if before is None or not (is_kept(lease.rule.source) or before.value is None):
                continue
            there = is_kept(lease.rule.source) or not of_another
            now = (await self._fetch_there([lease]) if there else [await self._fetch(lease)])[0]
            if before.value != (None if now is None else now.value):
                held[lease.name] = self._bound(lease, now)
                self._keep_fresh(lease, held[lease.name])
                self._redact(row.id, tuple(held.values()))
        return to_bytes(tuple(held.values()))

    def redaction(self, sandbox: str) -> Redaction | None:
        """Of what commands print. None: it has no secrets (or none that this service knows the values of)."""
        return self._redactions.get(sandbox) if self._redactions else None

    def without_values(self, argv: Sequence[str]) -> Sequence[str]:
        """Put placeholders where the values of secrets stand, of whichever sandbox."""
        for redaction in self._redactions.values():
            words = (redaction.whole(word.encode(errors="surrogatepass")) for word in argv)
            argv = [word.decode(errors="surrogatepass") for word in words]
        return argv

    async def in_environment(self, row: Row, spec: ExecSpec) -> ExecSpec:
        """With the placeholders of those that came after the sandbox, whose environment has only what was there."""
        revision = row.sandbox.policy
        if revision is None:
            return spec
        if self._seen.get(row.id) != revision:
            await self._catch_up(row, revision)
        late = self._late.get(row.id)
        return spec if not late else msgspec.structs.replace(spec, env={**late, **spec.env})

    async def _catch_up(self, row: Row, revision: str) -> None:
        """With what another service has given the sandbox, or has made it with."""
        await self._held(row)
        leases, rules = self._store.of(row.id), self._rules.get(row.id, {})
        new = [one for one in leases if rules.get(one.name) != one.rule]  # of another source, too
        await self._add(row, new, await self._fetch_there(new))
        self._seen[row.id] = revision

    async def extend(self, row: Row, rules: Mapping[str, SecretRule]) -> None:
        """Another policy of a living sandbox: it has those that are new, and others of what it had under their names,
        when this returns; nobody lets them out before the policy holds. Values that cannot be had refuse it. Where
        another service has made it, the gateway may have been opened without those that only we have."""
        known = {lease.name: lease for lease in self._store.of(row.id)}
        new = {name: rule for name, rule in rules.items() if name not in known or known[name].rule != rule}
        if row.holder != self._holder:
            ours = [one for name, one in known.items() if name in rules.keys() - new.keys()]
            ours = [one for one in ours if not is_kept(one.rule.source)]
            there = [(lease, one) for lease, one in zip(ours, await self._fetch_there(ours), strict=True) if one]
            await self._held(row)
            for bound in await self._add(row, [lease for lease, _ in there], [one for _, one in there]):
                await self.changed(row.id, bound)
        if not new:
            return
        _check(row, new)
        for name, rule in new.items():
            if name in known and known[name].rule.shape != rule.shape:
                reason = f"the placeholder of secret {name} has its shape since {row.id} was given it"
                raise InvalidArgument(reason, hint="leave the shape as it was", field=f"secrets.{name}.shape")
        leases = [
            Lease(row.id, row.sandbox.owner, name, known[name].placeholder if name in known else mint(rule.shape), rule)
            for name, rule in new.items()
        ]
        await self._held(row)
        fetched = await self._fetch_all(leases)
        self._store.add(leases, self._clock.wall())
        for bound in await self._add(row, leases, fetched):
            await self.changed(row.id, bound)

    async def _add(self, row: Row, leases: Sequence[Lease], fetched: Sequence[Fetched | None]) -> list[Bound]:
        held, late = await self._held(row), self._late.setdefault(row.id, {})
        added: list[Bound] = []
        for lease, one in zip(leases, fetched, strict=True):
            bound = held[lease.name] = self._bound(lease, one)
            self._rules[row.id][lease.name] = lease.rule
            late[lease.name] = lease.placeholder
            self._keep_fresh(lease, bound)
            added.append(bound)
        if added:
            self._redact(row.id, tuple(held.values()))
        return added

    async def rotated(self, owner: str, stored: str, value: SecretValue | None) -> None:
        """What is kept under that name is another value now, or was revoked: returns when that holds everywhere."""
        for lease in self._store.users(owner, stored):
            await self._change(lease, value, None)

    def drop(self, sandbox: str) -> None:
        """It has ended."""
        for task in self._renewals.pop(sandbox, {}).values():
            task.cancel()
        self._bounds.pop(sandbox, None)
        self._late.pop(sandbox, None)
        self._rules.pop(sandbox, None)
        self._seen.pop(sandbox, None)
        self._redactions.pop(sandbox, None)

    async def _fetch_all(self, leases: Sequence[Lease]) -> list[Fetched]:
        """All are tried before the first failure is told: no other goes on behind it."""
        fetched: list[Fetched] = []
        for one in await asyncio.gather(*map(self._fetch, leases), return_exceptions=True):
            if isinstance(one, BaseException):
                raise one
            fetched.append(one)
        return fetched

    async def _fetch_there(self, leases: Sequence[Lease]) -> list[Fetched | None]:
        """None of those that cannot be had."""
        fetched: list[Fetched | None] = []
        for one in await asyncio.gather(*map(self._fetch, leases), return_exceptions=True):
            if isinstance(one, BaseException) and not isinstance(one, SecretUnavailable):
                raise one
            fetched.append(None if isinstance(one, BaseException) else one)
        return fetched

    async def _fetch(self, lease: Lease) -> Fetched:
        return await self._fetchers(lease.owner).fetch(lease.name, lease.rule.source)

    def _bound(self, lease: Lease, fetched: Fetched | None) -> Bound:
        return Bound(
            name=lease.name,
            placeholder=lease.placeholder,
            bindings=_bindings(lease.rule),
            value=None if fetched is None else fetched.value,
            expires_at=None if fetched is None or fetched.seconds is None else self._clock.boottime() + fetched.seconds,
        )

    def _hold(self, sandbox: str, leases: Sequence[Lease], fetched: Sequence[Fetched | None]) -> dict[str, Bound]:
        self.drop(sandbox)
        bounds = [self._bound(lease, one) for lease, one in zip(leases, fetched, strict=True)]
        held = self._bounds[sandbox] = {bound.name: bound for bound in bounds}
        self._rules[sandbox] = {lease.name: lease.rule for lease in leases}
        self._redact(sandbox, bounds)
        for lease in leases:
            self._keep_fresh(lease, held[lease.name])
        return held

    def _keep_fresh(self, lease: Lease, bound: Bound) -> None:
        tasks = self._renewals.setdefault(lease.sandbox, {})
        before = tasks.pop(lease.name, None)
        if before is not None:
            before.cancel()
        if bound.expires_at is not None:
            name = f"renew secret {lease.name} of {lease.sandbox}"
            tasks[lease.name] = self._tasks.start(self._renew(lease), name=name)

    def _redact(self, sandbox: str, bounds: Sequence[Bound]) -> None:
        values = {bound.value.data: bound.placeholder.encode() for bound in bounds if bound.value is not None}
        before = self._redactions.get(sandbox)
        if not values and before is None:
            return
        past = [] if before is None else [*before.values.items()][-_MOST_PAST:]
        self._redactions[sandbox] = Redaction({**dict(past), **values})

    async def _change(self, lease: Lease, value: SecretValue | None, expires_at: float | None) -> None:
        bound = msgspec.structs.replace(self._bound(lease, None), value=value, expires_at=expires_at)
        held = self._bounds.get(lease.sandbox)
        if held is not None:
            held[lease.name] = bound
            self._redact(lease.sandbox, tuple(held.values()))
        await self.changed(lease.sandbox, bound)

    async def _renew(self, lease: Lease) -> None:
        """Ahead of its end, for as long as the sandbox lives. One that cannot be had goes on until it is over."""
        while (held := self._bounds.get(lease.sandbox)) is not None:
            until = held[lease.name].expires_at
            if until is None:
                return
            left = until - self._clock.boottime()
            await _sleep(max(left - min(AHEAD_SECONDS, left / 5), 0.0))
            # Another service may have set a policy with another source or binding: what it was made with is over.
            lease = next((one for one in self._store.of(lease.sandbox) if one.name == lease.name), lease)
            try:
                fetched = await self._fetch(lease)
            except PaddockError as error:
                self._audit.event("secret.late", sandbox=lease.sandbox, secret=lease.name, message=error.message[:1024])
                await _sleep(_RETRY_SECONDS)
                continue
            bound = self._bound(lease, fetched)
            self._rules[lease.sandbox][lease.name] = lease.rule
            await self._change(lease, bound.value, bound.expires_at)


def _check(row: Row, rules: Mapping[str, SecretRule]) -> None:
    owner = row.sandbox.owner
    for name, rule in rules.items():
        check_name(name)
        if rule.shape is not None:
            check_shape(rule.shape)
        if not is_kept(rule.source) and not owner.startswith("local:"):
            raise PolicyDenied(
                f"secret {name} comes from this machine's own, and {owner} is nobody of this machine",
                hint="from: {stored: NAME}, and set it",
                rule="secrets",
            )
        if name in row.sandbox.spec.env:
            raise InvalidArgument(f"{name} is a secret of the policy, and in env as well", field="env")


def _bindings(rule: SecretRule) -> tuple[Binding, ...]:
    return rule.bind if isinstance(rule.bind, tuple) else (rule.bind,)


_sleep = asyncio.sleep


async def _nobody(sandbox: str, bound: Bound) -> None:
    """No sandbox has a gateway here."""
