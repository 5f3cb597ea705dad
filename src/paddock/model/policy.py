"""The document of `paddock.yaml`: what a sandbox may reach, what a person is asked for, which secrets go where.

Nouns only: what the words mean is decided in `paddock.policy.network`. Every field is a key of the document.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from .egress import Tier

Port: TypeAlias = int | str
"""A number, or a range such as "8000-8099"."""

Registry: TypeAlias = Literal["pypi", "npm", "crates", "debian"]
Deed: TypeAlias = Literal["git.push", "publish", "delete"]
"""What a person is asked for wherever it happens. `git.push`: a push by a rule with `git`, and a branch of a workspace
that the sandbox has worked in. `publish`: an upload by a rule with `registry`, and a pull request of such a workspace.
`delete`: of such a workspace, and of a snapshot of the sandbox."""


RuleVerdict: TypeAlias = Literal["allow", "approve", "deny"]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True): ...


class Allow(_Part, frozen=True, kw_only=True):
    """What may be reached. Exactly one of `host`, `cidr`, `registry` and `git`.

    `host` is a name, or `*.example.com` for one or more labels before it; its ports are 80 and 443 if none are given.
    `cidr` is an address or a network; its ports have to be given. `methods` and `paths` are about HTTP, and make the
    gateway look into the connection, as `secret` does. In `paths`, `*` is any run of characters but `/`, and `**` of
    all. `tier` is what the gateway does with it: left out, `inspect` where something asks for it, else `splice`.

    `registry`: the index and the files of one, read only, without what is younger than `cooldown_days`, of the
    packages whose name matches one of `packages`. `unknown_age` says what happens where the index gives no date.
    `hosts` are those of a mirror. `index` is the URL of your own index of pypi or npm: programs inside are told to use
    it, and it may be at a private address. Its files are on its host, or on one of `hosts`. `malware` is a list of
    what is known to be malicious, on the host of the service: a directory or a zip of OSV records.

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
    """What may not be reached, whatever allows it. Exactly one of `host` and `cidr`; all ports if none are given.

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
    """One exchange of a cassette. It answers a request of its `method` for its `url` (scheme, host, path and query),
    with a body of its `body_sha256` where that is given: once, or for ever if it is to `repeat`."""

    url: str
    method: str = "GET"
    body_sha256: str | None = None
    status: int = 200
    headers: dict[str, str | tuple[str, ...]] = {}
    body: str = ""
    body_base64: str | None = None
    repeat: bool = False


class MockSource(_Part, frozen=True, kw_only=True):
    """What answers: exactly one of the text of a Python module with a function `handle`, and the exchanges of a
    cassette."""

    python: str | None = None
    cassette: tuple[Recorded, ...] | None = None


class Mock(_Part, frozen=True, kw_only=True, rename={"source": "with"}):
    """What the gateway answers itself, in the place of `host`: the real one is never asked.

    `with` is a handler (`./mocks/payments.py`) or a cassette (`.yaml`, `.json`): the file is read with the policy, and
    becomes part of it. Without it, `status`, `headers` and `body` are the answer.

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
    """A `deny` wins over every `allow` and `mock`, whatever their order. What nothing allows is denied.

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
    """Where the value is, on the host. Exactly one. In a file, `from: env` and `from: stored` are of the same name.

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
    """A token of an installation of a GitHub App: of an hour, for these repositories (names without their owner) with
    these permissions, where fewer than all of the installation's are wanted."""

    app_id: str
    installation_id: int
    private_key: SecretSource
    repositories: tuple[str, ...] | None = None
    permissions: dict[str, str] | None = None
    api: str = "https://api.github.com"


class Binding(_Part, frozen=True, kw_only=True):
    """Where a secret may go: HTTPS to `host` alone, in the places that are named here.

    `header` is the name of one, `basic` the password of Basic authorization, `query` the name of a parameter,
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
    """A command that begins with these words; one of them may be a list of alternatives.

    `match` and `not_match` are shell lines that it is about, or is not: checked when the document is.
    """

    prefix: tuple[str | tuple[str, ...], ...]
    match: tuple[str, ...] = ()
    not_match: tuple[str, ...] = ()


class CommandRules(_Part, frozen=True, kw_only=True):
    """Which commands may be asked for: of all that a line starts, the strictest verdict counts.

    `default` is for commands that no rule is about, `unclear` for lines that do not tell what they start. Enforced on
    what is asked for from outside; what those commands start in turn is not judged.
    """

    default: RuleVerdict = "allow"
    unclear: RuleVerdict = "approve"
    deny: tuple[CommandRule, ...] = ()
    approve: tuple[CommandRule, ...] = ()
    allow: tuple[CommandRule, ...] = ()


class FileRules(_Part, frozen=True, kw_only=True):
    """What of the files inside stays as it is, or is asked for.

    `protect`: paths (absolute, `~/…`, or of the working directory), read-only inside if they are there when the sandbox
    is made, and refused to whoever asks from outside. `*` in one is any run of characters but `/`; such a pattern is
    for those outside alone. `approve: [delete]`: a person is asked when something is to be deleted from outside.
    """

    protect: tuple[str, ...] = ()
    approve: tuple[Literal["delete"], ...] = ()


class AuditRules(_Part, frozen=True, kw_only=True):
    """What is recorded beyond what always is.

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
    approve: tuple[Deed | Approve, ...] = ()
    secrets: dict[str, SecretRule] = {}
    commands: CommandRules | None = None
    files: FileRules | None = None
    audit: AuditRules | None = None
