"""A compiled policy: an index of its rules, and the four questions that the gateway asks it."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import msgspec

from paddock.errors import PolicyInvalidError
from paddock.model import Allow, ConnectVerdict, Mock, PolicyDocument, RequestVerdict, Target, Tier, Verdict
from paddock.model.egress import host_matches

from ._addresses import WITHIN, Address, parse_address, special, unwrapped
from ._buckets import Bucket, allowed, buckets_of
from ._canonical import REGISTRIES, canonical, check_secret_names
from ._paths import decoded
from ._problem import Problem
from ._rules import READING, Networks, Rule, Rules, is_git_push, rules_of

_MOST_KEPT = 8  # 20,000 rules take 90 MiB
_NEVER = frozenset({"CONNECT", "TRACE"})
_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(PolicyDocument).decode


class Snapshot:
    """A compiled policy, which never changes: pure, total, closed by default. Every method takes microseconds
    and never raises.

    `revision` is the SHA-256 of `to_bytes()`, which is the canonical document as JSON.
    """

    __slots__ = (
        *("_bytes", "_document", "_revision", "_rules", "_plain", "_by_network"),
        *("_allowed_networks", "_buckets", "_denied_networks", "_indexes"),
    )

    def __init__(self, document: PolicyDocument) -> None:
        """Compile `document`, which is canonical. Raise Problem if rules disagree."""
        self._document, self._bytes = document, _encode(document)
        self._revision = hashlib.sha256(self._bytes).hexdigest()
        self._rules = rules_of(document)
        self._by_network = {
            rule.order: allowed(rule, Tier.SPLICE, self._revision) for rule in self._rules.allow if rule.network
        }
        self._plain = tuple(map(self._yes, self._rules.allow))
        self._indexes = frozenset(name for rule in document.egress.allow if rule.index for name in rule.hosts or ())
        self._buckets = buckets_of(self._rules, self._revision)
        self._allowed_networks, self._denied_networks = Networks(self._rules.allow), Networks(self._rules.deny)

    @property
    def revision(self) -> str:
        return self._revision

    @property
    def document(self) -> PolicyDocument:
        return self._document

    @property
    def rules(self) -> Rules:
        return self._rules

    def mock(self, item: int) -> Mock:
        """Return the mock rule of a verdict with `mock`, by its `item`."""
        return self._document.egress.mock[item]

    def push(self, item: int, ref: str) -> bool:
        """Tell whether a push may change a ref, by its full name. `item` is the one of a verdict with `git`."""
        return any(one.matches(ref) for one in self._rules.allow[item].refs)

    def registry(self, item: int) -> Allow:
        """Return the rule of a verdict with `registry`, by its `item`, with its `hosts` filled in."""
        rule = self._document.egress.allow[item]
        assert rule.registry is not None
        return msgspec.structs.replace(rule, hosts=rule.hosts or REGISTRIES[rule.registry])

    def to_bytes(self) -> bytes:
        return self._bytes

    @staticmethod
    @lru_cache(_MOST_KEPT)
    def from_bytes(data: bytes) -> Snapshot:
        """Return a snapshot of the result of `to_bytes`, made here or in another process. Raises PolicyInvalidError.

        Many rules take long to compile, and most sandboxes of a program have the same policy.
        """
        try:
            return Snapshot(_decode(data))
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise PolicyInvalidError(f"these bytes are not a compiled policy: {error}") from None
        except Problem as problem:
            raise problem.error(None) from None

    # --- questions of the gateway ---

    def name(self, name: str) -> Verdict:
        """Decide whether a sandbox may resolve a canonical name: only if some connection to it could be allowed."""
        bucket = self.bucket(name)
        if bucket is None or bucket.named is None:
            return self._refused(f"nothing allows {name!r}")
        return bucket.named

    def connect(self, target: Target) -> ConnectVerdict:
        bucket = self.bucket(target.host)
        if bucket is not None:
            verdict = bucket.connect(target.port)
            if verdict is not None:
                return verdict
        else:
            address = parse_address(target.host)
            if address is not None:
                return self._to_address(address, target.port)
        return self._refused(f"nothing allows {target.host}:{target.port}")

    def address(self, target: Target, address: str, *, own: bool = False) -> Verdict:
        """Decide whether `target`, which a rule allows, may resolve to this address.

        Loopback, link-local, private, metadata and translated addresses, and the host's own, need a rule that names
        them by CIDR. The host of an `index` may have a private one. The address is as `ipaddress` writes it. `own`: it
        is one of the host's.
        """
        found = parse_address(address)
        if found is None:
            return self._refused(f"{address!r} is not an address")
        literal = parse_address(target.host)
        if literal is not None:
            if literal != found:
                return self._refused(f"{address} is not {target.host}")
            return self._to_address(found, target.port, own=own)
        verdict = self.connect(target)
        if not verdict.allowed:
            return verdict
        return self._judged(found, target.port, own=own, within=target.host in self._indexes) or verdict

    def request(self, target: Target, scheme: str, method: str, path: str, push: bool | None = None) -> RequestVerdict:
        """Decide on a request.

        `path` is in its normal form, with its query.

        `push`: whether the body of a git LFS batch asks for more than downloads. None: the gateway hasn't read it yet.
        """
        bucket = self.bucket(target.host)
        if bucket is None:
            verdict = self.connect(target)
            return RequestVerdict(
                allowed=verdict.allowed, rule=verdict.rule, reason=verdict.reason, revision=self._revision
            )
        if method in _NEVER:
            return self._no("default", f"{method} is never passed on")
        path, _, query = path.partition("?")
        other = decoded(path)
        port = target.port
        for rule in bucket.deny:
            if rule.has_port(port) and rule.denies(method, path, other):
                return self._no(rule.name, f"{rule.name} denies it")
        for rule in bucket.mock:
            if rule.has_port(port) and rule.allows(method, path, other, query):
                secrets = self._secrets(rule, target, scheme, method, path, other) if rule.secrets else ()
                return self._yes(rule, secrets=secrets, mock=rule.name)
        for rule in bucket.allow:
            if rule.has_port(port) and rule.allows(method, path, other, query, push):
                secrets = self._secrets(rule, target, scheme, method, path, other) if rule.secrets else ()
                approve = self._approve(bucket, rule, port, method, path, other, query, push)
                if not secrets and approve is None:
                    return self._plain[rule.order]
                return self._yes(rule, secrets=secrets, approve=approve)
        return self._no("default", f"nothing allows {method} {path[:200]} at {target.host}:{port}")

    # --- questions of comparisons ---

    @property
    def patterns(self) -> frozenset[str]:
        """Return the names and `*.suffix`es that rules are about."""
        return frozenset(self._buckets)

    def may_lead_to(self, address: Address, port: int) -> bool:
        """Tell whether an allowed name on that port may resolve to this address."""
        verdict = self._judged(address, port, within=bool(self._indexes))
        return verdict is None or verdict.allowed

    # --- how ---

    def bucket(self, host: str) -> Bucket | None:
        """Return the rules about a canonical name.

        The bucket of its narrowest pattern includes the rules of wider ones.
        """
        buckets = self._buckets
        found = buckets.get(host)
        while found is None:
            _, dot, host = host.partition(".")
            if not dot:
                return None
            found = buckets.get(f"*.{host}")
        return found

    def _to_address(self, address: Address, port: int, *, own: bool = False) -> ConnectVerdict:
        judged = self._judged(address, port, own=own)
        if judged is not None:
            return judged
        rule = self._allowed_networks.find(unwrapped(address), port)
        if rule is None:
            return self._refused(f"no rule names {_rule(unwrapped(address), port)}")
        return self._by_network[rule.order]

    def _judged(self, address: Address, port: int, *, own: bool = False, within: bool = False) -> ConnectVerdict | None:
        """Judge an address by the rules about networks and by its kind.

        Return None if neither decides.

        `within`: a private address is like any other.
        """
        inner = unwrapped(address)
        denied = self._denied_networks.find(inner, port)
        if denied is None and inner is not address:
            denied = self._denied_networks.find(address, port)
        if denied is not None:
            return self._refused(f"{denied.name} denies it", denied.name)
        block = special(inner)
        if own:
            kind, least = "an address of this machine", inner.max_prefixlen
        elif block is None or (within and block.name in WITHIN):
            return None
        else:
            kind, least = block.name, block.network.prefixlen
        rule = self._allowed_networks.find(inner, port, least)
        if rule is None:
            reason = f"the address {inner} is {kind}: only a rule that names it could allow it"
            return self._refused(f"{reason}, such as {_rule(inner, port)}")
        return self._by_network[rule.order]

    def _secrets(self, rule: Rule, target: Target, scheme: str, method: str, path: str, other: str) -> tuple[str, ...]:
        """Return the secrets that the rule names and whose binding covers this request."""
        if scheme not in ("https", "wss"):
            return ()
        found = {
            name
            for name, _, bound in self._rules.bindings
            if name in rule.secrets
            and host_matches(bound.hosts[0], target.host)
            and bound.has_port(target.port)
            and bound.allows(method, path, other, "")
        }
        return tuple(sorted(found))

    def _approve(
        self, bucket: Bucket, rule: Rule, port: int, method: str, path: str, other: str, query: str, push: bool | None
    ) -> str | None:
        if rule.git is not None and "git.push" in self._rules.deeds and is_git_push(method, path, query, push):
            return "git.push"
        if rule.registry is not None and method not in READING:
            return "publish"
        for asked in bucket.approve:
            if asked.has_port(port) and asked.denies(method, path, other):
                return "host"
        return None

    def _yes(
        self, rule: Rule, *, secrets: tuple[str, ...] = (), approve: str | None = None, mock: str | None = None
    ) -> RequestVerdict:
        return RequestVerdict(
            allowed=True,
            rule=rule.name,
            reason=f"{rule.name} allows it",
            revision=self._revision,
            secrets=secrets,
            approve=approve,
            registry=rule.registry,
            filtered=rule.filtered,
            git=rule.git,
            mock=mock,
            item=rule.order,
        )

    def _no(self, rule: str, reason: str) -> RequestVerdict:
        return RequestVerdict(allowed=False, rule=rule, reason=reason, revision=self._revision)

    def _refused(self, reason: str, rule: str = "default") -> ConnectVerdict:
        return ConnectVerdict(allowed=False, rule=rule, reason=reason, revision=self._revision)


def _rule(address: Address, port: int) -> str:
    """Write a rule that would allow it."""
    text = str(address)
    quoted = f'"{text}"' if ":" in text else text
    return f"`{{cidr: {quoted}, ports: [{port}]}}`"


def compile(document: PolicyDocument) -> Snapshot:
    """Compile a policy document. Raises PolicyInvalidError with the position in the document, and the correction."""
    try:
        return compile_at(document)
    except Problem as problem:
        raise problem.error(None) from None


def compile_at(document: PolicyDocument) -> Snapshot:
    """Problem."""
    written = canonical(document)
    check_secret_names(written)
    return Snapshot(written)
