"""Handles HTTP of one connection from inside. It reads, authorizes and records each request before it forwards it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from paddock.errors import UnrecordedError
from paddock.gateway.mocks.answers import response_of as mocked
from paddock.gateway.mocks.answers import stand_in
from paddock.gateway.mocks.recorder import MOST_BODY_BYTES
from paddock.gateway.protocols.http1 import Request
from paddock.gateway.protocols.names import PORTS, authority, normal, split_target
from paddock.gateway.protocols.refusal import BadMessage, Refused, response_of, wanted_form
from paddock.gateway.registries.files import READING
from paddock.gateway.rules import git
from paddock.gateway.rules.authorization import AuthorizedRequest, of_request
from paddock.gateway.rules.overrides import METHODS, FormWatch, readings
from paddock.gateway.rules.substitution import Substitution
from paddock.model import ApprovalState
from paddock.model.egress import ConnectVerdict, RequestVerdict, Target, Verdict

from .registry_filter import RegistryFilter
from .relay import Relay
from .stream import ConnectionLost
from .websocket import MisplacedSecret

if TYPE_CHECKING:
    from .connection import Connection


class Exchange:
    """`target` None: an explicit proxy, where each request names its own."""

    def __init__(self, connection: Connection, target: Target | None, scheme: str) -> None:
        self._connection, self._network, self._client = connection, connection.network, connection.client
        self._fixed, self._scheme = target, scheme

    async def run(self) -> tuple[Target, ConnectVerdict] | None:
        """Serve requests until either side ends, or until CONNECT asks for a tunnel, which is then allowed and
        confirmed."""
        connection, limits = self._connection, self._network.limits
        goes_on = True
        while goes_on:
            request = None
            try:
                request = await connection.client.request(lambda: connection.limit(limits.head))
                if request is None:
                    return None
                connection.limit(None)
                if self._fixed is None and request.method == "CONNECT":
                    return self._tunnel(request)
                goes_on = await self._pass(request)
            except Refused as refused:
                goes_on = await self.refuse(refused, request)
            except UnrecordedError as error:
                refused = Refused(error.message, status=503, rule="audit", hint=error.hint or "")
                goes_on = await self.refuse(refused)
            connection.limit(limits.keep_alive)
            if connection.client.buffer:  # a request that is here already
                await self._network.turn()
        return None

    # -- the target of a request ---------------------------------------------------------------------------------------

    def _name(self, request: Request) -> tuple[Target, str]:
        """Return a request's target and path. Raise Refused if the two or three places that name them don't agree."""
        scheme, host, port, target = split_target(request.target, self._scheme)
        if scheme is not None and scheme != self._scheme:
            raise BadMessage(f"{scheme} in the request, {self._scheme} on the connection")
        if scheme is None and self._fixed is None:
            raise BadMessage("this is a proxy: it takes absolute URLs and CONNECT")
        named = None if request.host is None else Target(*authority(request.host, PORTS[self._scheme]))
        if scheme is not None:
            absolute = Target(host, port)
            if named is not None and named != absolute:
                raise Refused(f"Host names {_shown(named)}, the URL {_shown(absolute)}", status=421, rule="identity")
            named = absolute
        target_of = self._fixed or named
        if named is None or target_of is None or named != target_of:
            other = "nothing" if named is None else _shown(named)
            connected = "" if target_of is None else f", the connection is to {_shown(target_of)}"
            raise Refused(f"the request names {other}{connected}", status=421, rule="identity")
        if target == "*" and request.method != "OPTIONS":
            raise BadMessage("only OPTIONS asks for *")
        return target_of, normal(target)

    # -- one request ---------------------------------------------------------------------------------------------------

    async def _pass(self, request: Request) -> bool:
        """Pass one request. Return whether the connection goes on. Raise Refused if it hasn't sent an answer."""
        connection, client = self._connection, self._client
        target, path = self._name(request)
        if self._fixed is None:
            self._allow(target)
        verdict = self._authorize(request, target, path)
        number = self._network.decide("request", connection.flow, target, verdict, method=request.method, path=path)
        if not verdict.allowed:
            raise Refused(verdict.reason, rule=verdict.rule, number=number)
        authorized = connection.authorized = AuthorizedRequest(request, target, self._scheme, path, verdict)
        gate = RegistryFilter(connection, authorized) if verdict.filtered and request.method in READING else None
        relay, error = Relay(connection, authorized, gate), "cut"
        sent, received = client.received, client.sent
        try:
            relay.watch = self._watch(authorized)
            if gate is not None:
                await gate.judge()
            probes = False
            if verdict.git is not None and request.method == "POST" and git.is_lfs_batch(path):
                await self._authorize_lfs(authorized, relay)
            if verdict.git is not None and git.is_push(path):
                await self._authorize_push(authorized, relay)
                probes = not authorized.pushed
            if authorized.verdict.approve is not None and not probes:
                await self._require_approval(authorized, relay)
            goes_on = await (self._forward if verdict.mock is None else self._mock)(authorized, relay)
            error = None
            return goes_on
        except Refused as refused:
            error = refused.reason
            if refused.rule == "secret":
                refused.number = self._record_misplaced_secret(target, error, verdict)
            refused.as_type = gate is not None and gate.is_silent()
            refused.number = number if refused.number is None else refused.number
            raise
        except ConnectionLost as lost:
            error = str(lost)
            if isinstance(lost, MisplacedSecret):
                self._record_misplaced_secret(target, error, verdict)
            raise
        finally:
            connection.authorized = None
            relay.close()
            detail = {} if gate is None else gate.outcome()
            try:
                self._network.outcome(
                    number, sent=client.received - sent, received=client.sent - received, error=error, **detail
                )
            except UnrecordedError:
                client.reset("unrecorded")  # an answer was begun: nothing else can be said any more

    def _authorize(self, request: Request, target: Target, path: str) -> RequestVerdict:
        """Authorize a request in each way in which a server may read it: all have to get one verdict. Refused."""
        policy = self._network.policy
        verdict = policy.request(target, self._scheme, request.method, path)
        if verdict.allowed:
            for method, other, why in readings(request.method, path, request.fields):
                if not _is_alike(verdict, policy.request(target, self._scheme, method, other)):
                    reason = f"{why} makes it {method} {other[:200]}, which is authorized otherwise"
                    return msgspec.structs.replace(verdict, allowed=False, reason=reason)
        return verdict

    def _watch(self, authorized: AuthorizedRequest) -> FormWatch | None:
        """Return a watch for a form, or None without a form or if the method doesn't matter. Raise Refused."""
        request, verdict = authorized.request, authorized.verdict
        if not (request.chunked or request.length) or verdict.mock is not None or verdict.git is not None:
            return None
        ask = self._network.policy.request
        if all(
            _is_alike(verdict, ask(authorized.target, authorized.scheme, method, authorized.path)) for method in METHODS
        ):
            return None
        return FormWatch.of(request.fields)

    def _record_misplaced_secret(self, target: Target, reason: str, authorized: Verdict) -> int:
        found = msgspec.structs.replace(authorized, allowed=False, rule="secret", reason=reason)
        return self._network.decide("secret", self._connection.flow, target, found)

    def _allow(self, target: Target) -> None:
        """Decide on a request to an explicit proxy as on a connection to `target`."""
        connection = self._connection
        if connection.target != target:
            connection.settle(target, connection.require(target))

    async def _authorize_push(self, of: AuthorizedRequest, relay: Relay) -> None:
        """Authorize a push by its commands, before reading its pack.

        Raise Refused for the whole push if the policy refuses one of its refs.
        """
        request, verdict = of.request, of.verdict
        reader, policy, item = git.PushReader(), self._network.policy, verdict.item or 0
        try:
            git.check_fields(request.fields)
            whole = await relay.begin(reader.feed)
            if not whole or not (reader.updates or request.length == git.PROBE_BYTES):
                raise git.BadPush("a push that ends within its commands, or has none")
            updates, status = tuple(reader.updates), 403
            reason = git.refusal(updates, lambda ref: policy.push(item, ref), verdict.rule)
        except git.BadPush as error:
            updates, status, reason = (), 400, str(error)
        if reason is None and policy.revision != self._network.policy.revision:
            reason = "the policy has changed while the push was authorized"
        authorized = msgspec.structs.replace(verdict, allowed=reason is None, reason=reason or verdict.reason)
        refs = tuple(map(str, updates))
        number = self._network.decide("push", self._connection.flow, of.target, authorized, refs=refs)
        if reason is not None:
            raise Refused(reason, status=status, rule=verdict.rule, number=number)
        of.pushed = updates

    async def _authorize_lfs(self, of: AuthorizedRequest, relay: Relay) -> None:
        """Authorize a git LFS batch by its body: all but downloads is a push. Refused: the rule allows no push."""
        request, verdict = of.request, of.verdict
        push = not git.is_download(request.fields, await relay.collect(git.MOST_BATCH_BYTES))
        authorized = self._network.policy.request(of.target, of.scheme, request.method, of.path, push)
        number = self._network.decide("push", self._connection.flow, of.target, authorized) if push else None
        self._network.check_revision(verdict, "while the request was authorized")
        if not authorized.allowed:
            reason = f"{verdict.rule} allows no push: an upload to git LFS is one" if push else authorized.reason
            raise Refused(reason, rule=verdict.rule, number=number)
        of.is_push, of.verdict = push, authorized

    async def _forward(self, authorized: AuthorizedRequest, relay: Relay) -> bool:
        recorder = self._network.recorder
        if recorder is None:
            return await relay.forward()
        with recorder.recording(authorized) as exchanged:
            relay.exchanged = exchanged
            exchanged.body = await relay.peek(MOST_BODY_BYTES)
            return await relay.forward()

    async def _mock(self, authorized: AuthorizedRequest, relay: Relay) -> bool:
        """Send the policy's own answer, without contacting a server. Raise Refused without an answer."""
        network, client, request = self._network, self._client, authorized.request
        body = await relay.collect()
        mock = network.policy.mock(authorized.verdict.item or 0)
        if mock.secret is not None:
            # The names of secrets stand where the real host would get their values. Refused: one is elsewhere.
            swap = Substitution(network.secrets, authorized, stand_in)
            authorized = msgspec.structs.replace(authorized, path=swap.target(authorized.path))
            request.fields = swap.fields(request.fields)
            if (filter := swap.body(request.fields)) is not None:
                body = filter.feed(body)
                while filter.lags:
                    await network.turn()
                    body += filter.feed(b"")
                body += filter.end()
        mock_answer = await network.mocks.answer(mock, authorized, body, network.limits.handler)
        response = mocked(mock_answer, head_only=request.method == "HEAD")
        client.answer(response, mock_answer.body, keep_alive=request.keep_alive)
        await client.drain()
        return request.keep_alive

    async def _require_approval(self, authorized: AuthorizedRequest, relay: Relay) -> None:
        """Use up a person's approval of exactly this request.

        Raise Refused if there is none yet.

        For a push, the names of its objects identify its content. git never packs them twice in the same way, and the
        pack may be large.
        """
        network, verdict = self._network, authorized.verdict
        body = b"" if authorized.pushed else await relay.collect()
        question = of_request(authorized, body, sandbox=network.sandbox, instance_id=network.instance_id)
        answer = await network.claim(question)
        network.check_revision(verdict, "while a person was asked")
        if not answer.granted:
            pending = answer.state is ApprovalState.PENDING
            raise Refused(
                "a person has to say yes to this first" if pending else f"not approved: {answer.reason or 'refused'}",
                rule=verdict.rule,
                approval=answer.id,
                hint="the same request goes through once after that" if pending else "",
            )

    def _tunnel(self, request: Request) -> tuple[Target, ConnectVerdict]:
        target = Target(*authority(request.target, 0))
        if request.host is not None and Target(*authority(request.host, target.port)) != target:
            raise Refused("Host and CONNECT name two targets", status=421, rule="identity")
        verdict = self._connection.require(target)
        self._client.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        return target, verdict

    # -- refusals ------------------------------------------------------------------------------------------------------

    async def refuse(self, refused: Refused, request: Request | None = None) -> bool:
        """Say why, with the record's number. Return whether the connection can go on. `request` None: none came."""
        connection = self._connection
        refused.reason = self._network.secrets.redacted(refused.reason)
        if refused.number is None and refused.rule != "audit":
            target, revision = connection.target or Target("", 0), self._network.policy.revision
            verdict = Verdict(allowed=False, rule=refused.rule, reason=refused.reason, revision=revision)
            refused.number = self._network.decide(
                "request", connection.flow, target, verdict, approval=refused.approval
            )
        goes_on = request is not None and request.keep_alive and not request.chunked and not request.length
        accept = None if request is None else wanted_form(request.get(b"accept"), request.get(b"user-agent"))
        head_only = request is not None and request.method == "HEAD"
        response, body = response_of(refused, accept=accept, head_only=head_only)
        self._client.answer(response, body, keep_alive=goes_on)
        await self._client.drain()
        if not goes_on:
            await connection.last_word()
        return goes_on


def _is_alike(verdict: RequestVerdict, other: RequestVerdict) -> bool:
    """Tell whether two readings of one request are both allowed, with the same secrets, and nothing looks further."""
    looks = any(one.approve or one.filtered or one.git for one in (verdict, other))
    return other.allowed and not looks and (verdict.secrets, verdict.mock) == (other.secrets, other.mock)


def _shown(target: Target) -> str:
    return f"{target.host}:{target.port}"
