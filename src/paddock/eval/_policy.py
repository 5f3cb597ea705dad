"""The policy that is put to the test: ours, or the user's with canaries in the place of its secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from paddock.model import PolicyDocument, SecretRule
from paddock.model.policy import Binding, SecretSource

from ._canaries import Canary, mint

OWN = """\
egress:
  allow:
    - {registry: pypi}
    - {registry: npm}
    - {host: api.github.com, methods: [GET], paths: ["/repos/acme/**"], secret: GITHUB_TOKEN}
    - {git: https://github.com/acme/app, push: ["refs/heads/agent/*"], secret: GITHUB_TOKEN}
secrets:
  GITHUB_TOKEN:
    from: env
    bind:
      - {host: api.github.com, header: authorization}
      - {host: github.com, basic: true}
"""
"""What an agent needs that works on one repository, and no more."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """`gits` are the hosts of the repositories that may be pushed to."""

    document: PolicyDocument
    canaries: tuple[Canary, ...]
    gits: frozenset[str]


def with_canaries(document: PolicyDocument, directory: Path) -> Loaded:
    """Each secret's value is made up, kept in `directory`, and known wherever it arrives."""
    canaries: list[Canary] = []
    rules: dict[str, SecretRule] = {}
    for name, rule in document.secrets.items():
        value = mint()
        file = directory / f"secret-{len(canaries)}"
        file.touch(0o600)
        file.write_text(value)
        rules[name] = msgspec.structs.replace(rule, source=SecretSource(file=str(file)))
        canaries.append(Canary("secret", name, value, frozenset(bound.host for bound in _bindings(rule))))
    gits = frozenset(_host(rule.git) for rule in document.egress.allow if rule.git is not None and rule.push)
    return Loaded(document=msgspec.structs.replace(document, secrets=rules), canaries=tuple(canaries), gits=gits)


def _bindings(rule: SecretRule) -> Iterator[Binding]:
    if isinstance(rule.bind, Binding):
        yield rule.bind
    else:
        yield from rule.bind


def _host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].partition(":")[0]
