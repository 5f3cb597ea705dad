"""The document of `paddock.yaml`: a sandbox's network access, its approvals and its secrets.

This module only has the types. `paddock.policy.network` defines their meaning. Every field is a key of the document.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from .egress import Tier

Port: TypeAlias = int | str
"""A number, or a range such as "8000-8099"."""

Registry: TypeAlias = Literal["pypi", "npm", "crates", "debian"]
ActionKind: TypeAlias = Literal["git.push", "publish", "delete"]
"""Actions that need an approval in every case.

`git.push`: a push by a rule with `git`, and a branch of a workspace in which the sandbox has worked. `publish`: an
upload by a rule with `registry`, and a pull request of such a workspace. `delete`: of such a workspace, and of a
snapshot of the sandbox.
"""


RuleVerdict: TypeAlias = Literal["allow", "approve", "deny"]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True): ...


class Allow(_Part, frozen=True, kw_only=True):
    """An allowed target.

    It has exactly one of `host`, `cidr`, `registry` and `git`.

    `host` is a name, or `*.example.com` for one or more labels before it. Its ports are 80 and 443 by default. `cidr`
    is an address or a network, and needs `ports`. `methods` and `paths` concern HTTP, and make the gateway inspect the
    connection, as `secret` does. In `paths`, `*` matches any characters except `/`, and `**` all characters. `tier` is
    the gateway's treatment of the connection. By default it is `inspect` if the rule needs it, else `splice`.

    `git`: one repository by its URL (`*` in its path is any one part). `push` are the full names of refs that may be
    pushed (`refs/heads/agent/*`); without them none.

    Example:
        ```python
        web = Allow(host="api.github.com", methods=("GET",), paths=("/repos/**",))
        packages = Allow(registry="pypi", cooldown_days=7)
        policy = PolicyDocument(egress=EgressRules(allow=(web, packages)))
        ```
    """

    host: str | None = None
    cidr: str | None = None
    registry: Registry | None = None
    git: str | None = None
    ports: tuple[Port, ...] | None = None
    methods: tuple[str, ...] | None = None
    paths: tuple[str, ...] | None = None
    tier: Tier | None = None
    secret: str | tuple[str, ...] | None = None
    cooldown_days: float | None = None
    packages: tuple[str, ...] | None = None
    unknown_age: Literal["allow", "deny"] | None = None
    hosts: tuple[str, ...] | None = None
    index: str | None = None
    malware: str | None = None
    fetch: bool | None = None
    push: tuple[str, ...] | None = None


class Deny(_Part, frozen=True, kw_only=True):
    """A host or a network that a sandbox may not reach. It wins over every `allow`. Give exactly one of `host` and
    `cidr`. Without `ports` it holds for all.

    Example:
        ```python
        rules = EgressRules(allow=(Allow(host="*.example.com"),), deny=(Deny(host="admin.example.com"),))
        ```
    """

    host: str | None = None
    cidr: str | None = None
    ports: tuple[Port, ...] | None = None
    methods: tuple[str, ...] | None = None
    paths: tuple[str, ...] | None = None


class Recorded(_Part, frozen=True, kw_only=True):
    """One exchange of a cassette.

    It answers a request of its `method` for its `url` (scheme, host, path and query).

    With `body_sha256`, the request's body must match too. It answers once, or always with `repeat`.
    """

    url: str
    method: str = "GET"
    body_sha256: str | None = None
    status: int = 200
    headers: dict[str, str | tuple[str, ...]] = {}
    body: str = ""
    body_base64: str | None = None
    repeat: bool = False


class MockSource(_Part, frozen=True, kw_only=True):
    """The source of a mock's answers: either the text of a Python module with a function `handle`, or the exchanges of
    a cassette.
    """

    python: str | None = None
    cassette: tuple[Recorded, ...] | None = None


class Mock(_Part, frozen=True, kw_only=True, rename={"source": "with"}):
    """An answer by the gateway, in place of `host`.

    The gateway never contacts the real host.

    `secret` names secrets that are bound to the host: a placeholder that the real host would get the value for reaches
    the mock as `paddock-secret-NAME`, and one in any other place is refused. The value goes nowhere.

    Example:
        ```python
        mock = Mock(host="api.example.com", paths=("/health",), status=200, body="ok")
        policy = PolicyDocument(egress=EgressRules(mock=(mock,)))
        ```
    """

    host: str
    source: str | MockSource | None = None
    ports: tuple[Port, ...] | None = None
    methods: tuple[str, ...] | None = None
    paths: tuple[str, ...] | None = None
    secret: str | tuple[str, ...] | None = None
    status: int = 200
    headers: dict[str, str] = {}
    body: str = ""


class EgressRules(_Part, frozen=True, kw_only=True):
    """Rules for requests. A `deny` wins over every `allow` and `mock`, in any order. Without a rule paddock denies.

    Example:
        ```python
        rules = EgressRules(allow=(Allow(registry="pypi"), Allow(host="api.github.com")))
        ```
    """

    default: Literal["deny"] = "deny"
    allow: tuple[Allow, ...] = ()
    deny: tuple[Deny, ...] = ()
    mock: tuple[Mock, ...] = ()


class Approve(_Part, frozen=True, kw_only=True):
    """Requests that are allowed, and that a person has to say yes to all the same.

    Example:
        ```python
        publish = Approve(host="api.example.com", methods=("POST",))
        allow = Allow(host="api.example.com")
        policy = PolicyDocument(egress=EgressRules(allow=(allow,)), approve=(publish, "git.push"))
        ```
    """

    host: str
    ports: tuple[Port, ...] | None = None
    methods: tuple[str, ...] | None = None
    paths: tuple[str, ...] | None = None


class SecretSource(_Part, frozen=True, kw_only=True):
    """The source of a secret's value on the host.

    `env` is a variable of the program that sets the policy, `file` an absolute path, `command` what prints it, `stored`
    a name in paddock's own store, `vault` a path and a field (`secret/data/ci#token`) of the HashiCorp Vault that
    VAULT_ADDR and VAULT_TOKEN of that program lead to, `github_app` a token that is made for this sandbox.

    Example:
        ```python
        source = SecretSource(file="/run/secrets/api-token")
        ```
    """

    env: str | None = None
    file: str | None = None
    command: tuple[str, ...] | None = None
    stored: str | None = None
    vault: str | None = None
    github_app: GitHubApp | None = None


class GitHubApp(_Part, frozen=True, kw_only=True):
    """A token of an installation of a GitHub App.

    It is valid for an hour.

    `repositories` (names without their owner) and `permissions` restrict it. By default it has all of the
    installation's.
    """

    app_id: str
    installation_id: int
    private_key: SecretSource
    repositories: tuple[str, ...] | None = None
    permissions: dict[str, str] | None = None
    api: str = "https://api.github.com"


class Binding(_Part, frozen=True, kw_only=True):
    """The places to which a secret may go: only HTTPS to `host`, in the parts of a request named here.

    `header` is the name of a header, `basic` the password of Basic authorization, `query` the name of a parameter, and
    `body` a form or JSON.

    Example:
        ```python
        binding = Binding(host="api.example.com", header="Authorization")
        ```
    """

    host: str
    port: int = 443
    methods: tuple[str, ...] | None = None
    paths: tuple[str, ...] | None = None
    header: str | None = None
    basic: bool = False
    query: str | None = None
    body: bool = False


class SecretRule(_Part, frozen=True, kw_only=True, rename={"source": "from"}):
    """A secret, which the sandbox can use and never see.

    It is given out where both agree: a binding here, and an `allow` rule that names it as its `secret`. Inside, the
    variable of its name holds a placeholder: of this `shape`, where each `*` is a random letter or digit, if programs
    look at how it is written (`ghp_` and 36 stars).

    Example:
        ```python
        binding = Binding(host="api.example.com", header="X-Key")
        token = SecretRule(source=SecretSource(stored="API_TOKEN"), bind=binding)
        allow = Allow(host="api.example.com", secret="API_TOKEN")
        policy = PolicyDocument(egress=EgressRules(allow=(allow,)), secrets={"API_TOKEN": token})
        ```
    """

    source: SecretSource
    bind: Binding | tuple[Binding, ...]
    shape: str | None = None


class CommandRule(_Part, frozen=True, kw_only=True):
    """A rule about commands that begin with these words.

    Each word may be a list of alternatives.

    `match` and `not_match` are shell lines that the rule must match or must not match. paddock checks them with the
    document.
    """

    prefix: tuple[str | tuple[str, ...], ...]
    match: tuple[str, ...] = ()
    not_match: tuple[str, ...] = ()


class CommandRules(_Part, frozen=True, kw_only=True):
    """Rules about commands.

    The strictest verdict on all commands of a line counts.

    `default` is for commands without a rule, and `unclear` for lines whose commands aren't certain. paddock enforces
    them on requests from outside. It doesn't judge the child processes of those commands.
    """

    default: RuleVerdict = "allow"
    unclear: RuleVerdict = "approve"
    deny: tuple[CommandRule, ...] = ()
    approve: tuple[CommandRule, ...] = ()
    allow: tuple[CommandRule, ...] = ()


class FileRules(_Part, frozen=True, kw_only=True):
    """Rules about files inside that stay unchanged or need an approval.

    `protect` lists paths (absolute, `~/…`, or of the working directory). Files that exist at the creation of the
    sandbox become read-only inside. paddock refuses requests from outside to change them. `*` matches any characters
    except `/`. Such a pattern only works for requests from outside. `approve: [delete]`: a deletion from outside needs
    an approval.
    """

    protect: tuple[str, ...] = ()
    approve: tuple[Literal["delete"], ...] = ()


class AuditRules(_Part, frozen=True, kw_only=True):
    """Additional content of the audit log.

    `processes`: each program that is started inside, and how it ended. `files`: what the sandbox has changed, when it
    is snapshotted and when it has ended: how many files, the first of them with their digests, and the digest of the
    whole list.

    Example:
        ```python
        with Sandbox.create(policy={"audit": {"files": True}}) as other:
            other.exec("touch made")
        ```
    """

    processes: bool = False
    files: bool = False


class PolicyDocument(_Part, frozen=True, kw_only=True):
    """All of `paddock.yaml`.

    Example:
        ```python
        policy = PolicyDocument(approve=("git.push",))
        with Sandbox.create(policy=policy) as other:
            print(other.policy)
        ```
    """

    version: Literal[1] = 1
    egress: EgressRules = EgressRules()
    approve: tuple[ActionKind | Approve, ...] = ()
    secrets: dict[str, SecretRule] = {}
    commands: CommandRules | None = None
    files: FileRules | None = None
    audit: AuditRules | None = None
