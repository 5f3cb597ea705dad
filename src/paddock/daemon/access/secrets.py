"""Secrets of each owner, sealed in the store's file, and what a sandbox has of them.

Placeholders are inside, values with the gateway, and both no longer than it lives.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeAlias

import msgspec

from paddock import model
from paddock.backends.base import SandboxPlan
from paddock.daemon.context import Component, Context, Operation, handles
from paddock.daemon.store.database import Row
from paddock.errors import InvalidArgumentError, NotFoundError, PaddockError, PolicyDeniedError, SecretUnavailableError
from paddock.gateway.rules.redaction import Redaction
from paddock.gateway.rules.secrets import BoundSecret, check_shape, mint, to_bytes
from paddock.model import Binding, ExecSpec, Secret, SecretRule, SecretValue, check_secret_name, replace
from paddock.model.caller import environment, of_source
from paddock.storage.secrets import LEAST_BYTES, MOST_BYTES, FetchedValue, Fetcher, is_kept
from paddock.storage.secrets.vault import SealedValue, ValuePlace, Vault, open_keys

_KNOWN = f"SELECT {', '.join(Secret.__fields__)} FROM secrets WHERE owner = ?"  # noqa: S608


class Secrets(Component):
    @cached_property
    def vault(self) -> Vault:
        return Vault(open_keys(self._state_dir, self._config))

    async def fetch_keys(self) -> None:
        """Run the command that prints the vault's keys, if there is one: no request waits for it. NotConfigured."""
        if self._config.vault_key_command is not None:
            await asyncio.to_thread(self.vault.keys.ring)

    def value(self, owner: str, name: str) -> SecretValue:
        """Return the value of a secret. Raises SecretUnavailableError if there is none, or it can't be decrypted."""
        sql = "SELECT version, key, wrapped, sealed FROM secrets WHERE owner = ? AND name = ?"
        found = self._store.execute(sql, (owner, name)).fetchone()
        if found is None:
            raise SecretUnavailableError(
                f"secret {name} has no value: nobody has set it", hint=f"paddock secret set {name}", secret=name
            )
        value = SecretValue(self.vault.open(SealedValue(*found[1:]), ValuePlace(owner, name, found[0])))
        sql = "UPDATE secrets SET used_at = ? WHERE owner = ? AND name = ?"
        self._store.execute(sql, (self._clock.wall(), owner, name))
        return value

    def set(self, owner: str, name: str, value: SecretValue) -> Secret:
        """Keep `value` as the next version."""
        now = self._clock.wall()
        with self._store.writing() as db:
            found = db.execute("SELECT version FROM secrets WHERE owner = ? AND name = ?", (owner, name)).fetchone()
            place = ValuePlace(owner, name, 1 if found is None else found[0] + 1)
            sealed = self.vault.seal(value.data, place)
            db.execute(
                "INSERT INTO secrets (owner, name, version, key, wrapped, sealed, created_at, updated_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (owner, name) DO UPDATE SET version = excluded.version,"
                " key = excluded.key, wrapped = excluded.wrapped, sealed = excluded.sealed,"
                " updated_at = excluded.updated_at",
                (owner, name, place.version, sealed.key, sealed.wrapped, sealed.sealed, now, now),
            )
        found = self._store.one(_secret, f"{_KNOWN} AND name = ?", (owner, name))
        assert found is not None
        return found

    def remove(self, owner: str, name: str) -> bool:
        sql = "DELETE FROM secrets WHERE owner = ? AND name = ?"
        return bool(self._store.execute(sql, (owner, name)).rowcount)

    @handles(model.ListSecrets)
    async def list(self, action: model.ListSecrets, op: Operation) -> tuple[Secret, ...]:
        return self._store.every(_secret, f"{_KNOWN} ORDER BY name", (op.principal.id,))

    @handles(model.RotateVaultKey)
    async def rotate_key(self, action: model.RotateVaultKey, op: Operation) -> int:
        """Encrypt the secrets of all owners again, and return their number. After a kill at any point every row's key
        is in the ring."""
        self.vault.keys.begin()
        with self._store.writing() as db:
            rows = db.execute("SELECT owner, name, version, key, wrapped, sealed FROM secrets").fetchall()
            for owner, name, version, *sealed in rows:
                fresh = self.vault.rewrap(SealedValue(*sealed), ValuePlace(owner, name, version))
                db.execute(
                    "UPDATE secrets SET key = ?, wrapped = ?, sealed = ? WHERE owner = ? AND name = ?",
                    (fresh.key, fresh.wrapped, fresh.sealed, owner, name),
                )
            sql = "SELECT sandbox, owner, name, key, wrapped, sealed FROM sandbox_secrets WHERE sealed IS NOT NULL"
            for sandbox, owner, name, *sealed in db.execute(sql).fetchall():
                with contextlib.suppress(SecretUnavailableError):  # no key opens it: nothing is lost with the old one
                    fresh = self.vault.rewrap(SealedValue(*sealed), _place(sandbox, owner, name))
                    sql = "UPDATE sandbox_secrets SET key = ?, wrapped = ? WHERE sandbox = ? AND name = ?"
                    db.execute(sql, (fresh.key, fresh.wrapped, sandbox, name))
        self.vault.keys.finish()
        return len(rows)


def _secret(*columns: Any) -> Secret:
    return Secret(**dict(zip(Secret.__fields__, columns, strict=True)))


def _place(sandbox: str, owner: str, name: str) -> ValuePlace:
    """Return the place of the variables by which a sandbox's secret is read. No owner's own secret has such a name."""
    return ValuePlace(owner, f"{sandbox}/{name}", 0)


def check_value(name: str, value: SecretValue) -> None:
    size = len(value.data)
    if size < LEAST_BYTES:
        raise InvalidArgumentError(
            f"{name} has {size} bytes: a secret has at least {LEAST_BYTES}, so that paddock can find it in output",
            field="value",
        )
    if size > MOST_BYTES:
        raise InvalidArgumentError(f"{name} has {size} bytes, and a secret at most {MOST_BYTES}", field="value")


AHEAD_SECONDS = 300.0
"""Seconds before its end that a value is renewed; a fifth of its time if it is short."""
_RETRY_SECONDS = 20.0
_MOST_PAST = 16
_KEPT_SECONDS = 3600.0
_SELECT = "SELECT s.sandbox, s.owner, s.name, s.placeholder, s.rule, s.key, s.wrapped, s.sealed FROM sandbox_secrets s"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SecretRule).decode

Changed: TypeAlias = Callable[[str, BoundSecret], Awaitable[None]]
"""Tells the gateway that a secret of that sandbox has another value, or none: it holds when this returns."""


class SandboxSecret(msgspec.Struct, frozen=True):
    """A secret that a sandbox may use. `owner` is whose it is."""

    sandbox: str
    owner: str
    name: str
    placeholder: str
    rule: SecretRule
    sealed: SealedValue | None = None
    """The encrypted variables of its maker by which the value is read."""


def _sandbox_secret(sandbox: str, owner: str, name: str, placeholder: str, rule: bytes, *sealed: Any) -> SandboxSecret:
    return SandboxSecret(
        sandbox, owner, name, placeholder, _decode(rule), None if sealed[2] is None else SealedValue(*sealed)
    )


def _columns(one: SandboxSecret) -> tuple[Any, ...]:
    sealed = (None, None, None) if one.sealed is None else (one.sealed.key, one.sealed.wrapped, one.sealed.sealed)
    return one.sandbox, one.name, one.owner, one.placeholder, _encode(one.rule), one.rule.source.stored, *sealed


class _State(msgspec.Struct):
    """The values, renewals and output filter of one sandbox's secrets, by name."""

    bounds: dict[str, BoundSecret] = {}
    renewals: dict[str, asyncio.Task[None]] = {}
    redaction: Redaction | None = None


class SecretBindings(Component):
    changed: Changed
    """Set by `Gateways`."""

    def __init__(self, context: Context, secrets: Secrets) -> None:
        super().__init__(context)
        self._secrets = secrets
        self._sandboxes: dict[str, _State] = {}

    def _add(self, secrets: Sequence[SandboxSecret]) -> None:
        """Add secrets, or replace the rules of known ones. Forget those of forgotten sandboxes.

        The row of a new sandbox may come a little later."""
        now = self._clock.wall()
        with self._store.writing() as db:
            db.execute(
                "DELETE FROM sandbox_secrets WHERE created_at < ? AND sandbox NOT IN (SELECT id FROM sandboxes)",
                (now - _KEPT_SECONDS,),
            )
            db.executemany(
                "INSERT INTO sandbox_secrets (sandbox, name, owner, placeholder, rule, stored, key, wrapped, sealed,"
                " created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (sandbox, name) DO UPDATE SET"
                " rule = excluded.rule, stored = excluded.stored, key = excluded.key, wrapped = excluded.wrapped,"
                " sealed = excluded.sealed",
                [(*_columns(one), now) for one in secrets],
            )

    def _of(self, sandbox: str) -> tuple[SandboxSecret, ...]:
        return self._store.every(_sandbox_secret, f"{_SELECT} WHERE s.sandbox = ? ORDER BY s.name", (sandbox,))

    def _source_of(self, origin: str | None) -> Mapping[str, SandboxSecret]:
        """By name, those of the sandbox `origin`, or of the one that the snapshot `origin` is of."""
        if origin is None:
            return {}
        found = self._store.execute("SELECT source FROM snapshots WHERE id = ?", (origin,)).fetchone()
        return {secret.name: secret for secret in self._of(found[0] if found else origin)}

    def _users(self, owner: str, stored: str) -> tuple[SandboxSecret, ...]:
        """Return those of living sandboxes whose value is stored under that name."""
        sql = (
            f"{_SELECT} JOIN sandboxes b ON b.id = s.sandbox WHERE s.owner = ? AND s.stored = ? AND b.ended_at IS NULL"
        )
        return self._store.every(_sandbox_secret, sql, (owner, stored))

    async def prepare(self, rows: Sequence[Row], rules: Mapping[str, SecretRule], origin: str | None = None) -> None:
        """Fetch the secrets of sandboxes that start together: all values are there, or SecretUnavailableError says
        which is not, and why. Each sandbox has its own placeholders. `origin`: the sandbox or snapshot that the policy
        came with."""
        if not rules:
            return
        for row in rows:
            _check(row, rules)
        known = self._source_of(origin)
        every = [
            [self._sandbox_secret(row, name, mint(rule.shape), rule, known) for name, rule in rules.items()]
            for row in rows
        ]
        fetched = await self._fetch_all(every[0])
        for row, secrets in zip(rows, every, strict=True):
            self._add(secrets)
            self._hold(row.id, secrets, fetched)

    def with_placeholders(self, plan: SandboxPlan) -> SandboxPlan:
        """Return the plan with the placeholders in its environment."""
        secrets = self._of(plan.id)
        if not secrets:
            return plan
        env = {**plan.spec.env, **{secret.name: secret.placeholder for secret in secrets}}
        return replace(plan, spec=replace(plan.spec, env=env))

    async def _state(self, row: Row) -> _State:
        """Fetch the values of a sandbox that an earlier daemon made. A value is None if that fails (it was revoked, or
        its variable is gone): commands run all the same."""
        state = self._sandboxes.get(row.id)
        if state is None:
            secrets = self._of(row.id)
            state = self._hold(row.id, secrets, await self._fetch_all(secrets, optional=True))
        return state

    async def packed(self, row: Row) -> bytes:
        """Return the secrets of a sandbox for the gateway. A stored value may have been rotated while others were
        fetched."""
        state = await self._state(row)
        for secret in self._of(row.id) if state.bounds else ():
            before = state.bounds[secret.name].value
            if before is None or is_kept(secret.rule.source):
                (now,) = await self._fetch_all([secret], optional=True)
                if before != (None if now is None else now.value):
                    self._keep(state, [secret], [now])
        return to_bytes(tuple(state.bounds.values()))

    def redaction(self, sandbox: str) -> Redaction | None:
        """Return the filter of a sandbox's output, or None if the daemon knows the value of no secret in it."""
        state = self._sandboxes.get(sandbox)
        return None if state is None else state.redaction

    def without_values(self, argv: Sequence[str]) -> Sequence[str]:
        """Replace the values of all sandboxes' secrets by placeholders."""
        for redaction in filter(None, (state.redaction for state in self._sandboxes.values())):
            words = (redaction.whole(word.encode(errors="surrogatepass")) for word in argv)
            argv = [word.decode(errors="surrogatepass") for word in words]
        return argv

    async def in_environment(self, row: Row, spec: ExecSpec) -> ExecSpec:
        """With the placeholders, since the sandbox's environment lacks those of secrets that came after it."""
        bounds = (await self._state(row)).bounds.values()
        return replace(spec, env={**{bound.name: bound.placeholder for bound in bounds}, **spec.env})

    async def extend(self, row: Row, rules: Mapping[str, SecretRule]) -> None:
        """Another policy of a living sandbox: it has those that are new, and others of what it had under their names,
        when this returns; the gateway lets none out before the policy holds. Values that cannot be had refuse it."""
        known = {secret.name: secret for secret in self._of(row.id)}
        new = {name: rule for name, rule in rules.items() if name not in known or known[name].rule != rule}
        if not new:
            return
        _check(row, new)
        for name, rule in new.items():
            if name in known and known[name].rule.shape != rule.shape:
                reason = f"the placeholder of secret {name} has its shape since {row.id} was given it"
                raise InvalidArgumentError(reason, hint="leave the shape as it was", field=f"secrets.{name}.shape")
        secrets = [
            self._sandbox_secret(row, name, known[name].placeholder if name in known else mint(rule.shape), rule, {})
            for name, rule in new.items()
        ]
        state = await self._state(row)
        fetched = await self._fetch_all(secrets)
        self._add(secrets)
        self._keep(state, secrets, fetched)
        for secret in secrets:
            await self.changed(row.id, state.bounds[secret.name])

    @handles(model.SetSecret)
    async def set_secret(self, action: model.SetSecret, op: Operation) -> Secret:
        check_secret_name(action.name)
        check_value(action.name, action.value)
        secret = self._secrets.set(op.principal.id, action.name, action.value)
        await self._rotated(op.principal.id, action.name, action.value)
        return secret

    @handles(model.RemoveSecret)
    async def remove_secret(self, action: model.RemoveSecret, op: Operation) -> None:
        if not self._secrets.remove(op.principal.id, action.name):
            raise NotFoundError(f"no secret {action.name!r}", hint="paddock secret ls", secret=action.name)
        await self._rotated(op.principal.id, action.name, None)

    async def _rotated(self, owner: str, stored: str, value: SecretValue | None) -> None:
        """Send the new value of a stored secret, or its removal, to all sandboxes that use it."""
        for secret in self._users(owner, stored):
            await self._change(secret, replace(self._bound(secret, None), value=value))

    def drop(self, sandbox: str) -> None:
        """Forget the values of a sandbox that has ended."""
        if (state := self._sandboxes.pop(sandbox, None)) is not None:
            for task in state.renewals.values():
                task.cancel()

    async def _fetch_all(
        self, secrets: Sequence[SandboxSecret], *, optional: bool = False
    ) -> list[FetchedValue | None]:
        """Try all before the first failure is raised: no attempt continues behind it. `optional`: None stands for one
        that can't be had."""
        fetched: list[FetchedValue | None] = []
        for one in await asyncio.gather(*map(self._fetch, secrets), return_exceptions=True):
            if optional and isinstance(one, SecretUnavailableError):
                one = None
            if isinstance(one, BaseException):
                raise one
            fetched.append(one)
        return fetched

    def _sandbox_secret(
        self, row: Row, name: str, placeholder: str, rule: SecretRule, known: Mapping[str, SandboxSecret]
    ) -> SandboxSecret:
        """Return a secret of a sandbox. `known`: that of the sandbox it is made from, whose maker's variables it takes
        if the source is one."""
        variables, owner = of_source(rule.source, environment()), row.sandbox.owner
        if (before := known.get(name)) is not None and before.owner == owner and before.rule.source == rule.source:
            variables = self._variables(before)
        place = _place(row.id, owner, name)
        sealed = self._secrets.vault.seal(msgspec.json.encode(variables), place) if variables else None
        return SandboxSecret(row.id, owner, name, placeholder, rule, sealed)

    def _variables(self, secret: SandboxSecret) -> dict[str, str]:
        if secret.sealed is None:
            return {}
        opened = self._secrets.vault.open(secret.sealed, _place(secret.sandbox, secret.owner, secret.name))
        return msgspec.json.decode(opened, type=dict[str, str])

    async def _fetch(self, secret: SandboxSecret) -> FetchedValue:
        fetcher = Fetcher(self._variables(secret), partial(self._secrets.value, secret.owner), self._clock.wall)
        return await fetcher.fetch(secret.name, secret.rule.source)

    def _bound(self, secret: SandboxSecret, fetched: FetchedValue | None) -> BoundSecret:
        return BoundSecret(
            name=secret.name,
            placeholder=secret.placeholder,
            bindings=_bindings(secret.rule),
            value=None if fetched is None else fetched.value,
            expires_at=None if fetched is None or fetched.seconds is None else self._clock.boottime() + fetched.seconds,
        )

    def _hold(self, sandbox: str, secrets: Sequence[SandboxSecret], fetched: Sequence[FetchedValue | None]) -> _State:
        self.drop(sandbox)
        state = self._sandboxes[sandbox] = _State()
        self._keep(state, secrets, fetched)
        return state

    def _keep(self, state: _State, secrets: Sequence[SandboxSecret], fetched: Sequence[FetchedValue | None]) -> None:
        """Keep the values, and renew each ahead of its end."""
        for secret, one in zip(secrets, fetched, strict=True):
            bound = state.bounds[secret.name] = self._bound(secret, one)
            if (before := state.renewals.pop(secret.name, None)) is not None:
                before.cancel()
            if bound.expires_at is not None:
                name = f"renew secret {secret.name} of {secret.sandbox}"
                state.renewals[secret.name] = self._tasks.start(self._renew(secret), name=name)
        self._redact(state)

    def _redact(self, state: _State) -> None:
        bounds = state.bounds.values()
        values = {bound.value.data: bound.placeholder.encode() for bound in bounds if bound.value is not None}
        before = state.redaction
        if not values and before is None:
            return
        past = [] if before is None else [*before.values.items()][-_MOST_PAST:]
        state.redaction = Redaction({**dict(past), **values})

    async def _change(self, secret: SandboxSecret, bound: BoundSecret) -> None:
        state = self._sandboxes.get(secret.sandbox)
        if state is not None:
            state.bounds[secret.name] = bound
            self._redact(state)
        await self.changed(secret.sandbox, bound)

    async def _renew(self, secret: SandboxSecret) -> None:
        """Ahead of its end, for as long as the sandbox lives. One that cannot be had goes on until it is over."""
        while (state := self._sandboxes.get(secret.sandbox)) is not None:
            until = state.bounds[secret.name].expires_at
            if until is None:
                return
            left = until - self._clock.boottime()
            await _sleep(max(left - min(AHEAD_SECONDS, left / 5), 0.0))
            # A later policy may name another source or binding.
            secret = next((one for one in self._of(secret.sandbox) if one.name == secret.name), secret)
            try:
                fetched = await self._fetch(secret)
            except PaddockError as error:
                self._audit.event(
                    "secret.late", sandbox=secret.sandbox, secret=secret.name, message=error.message[:1024]
                )
                await _sleep(_RETRY_SECONDS)
                continue
            await self._change(secret, self._bound(secret, fetched))


def _check(row: Row, rules: Mapping[str, SecretRule]) -> None:
    owner = row.sandbox.owner
    for name, rule in rules.items():
        check_secret_name(name)
        if rule.shape is not None:
            check_shape(rule.shape)
        if not is_kept(rule.source) and not owner.startswith("local:"):
            raise PolicyDeniedError(
                f"secret {name} comes from this machine's own, and {owner} is nobody of this machine",
                hint="from: {stored: NAME}, and set it",
                rule="secrets",
            )
        if name in row.sandbox.spec.env:
            raise InvalidArgumentError(f"{name} is a secret of the policy, and in env as well", field="env")


def _bindings(rule: SecretRule) -> tuple[Binding, ...]:
    return rule.bind if isinstance(rule.bind, tuple) else (rule.bind,)


_sleep = asyncio.sleep
