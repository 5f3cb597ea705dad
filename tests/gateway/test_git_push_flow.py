"""Real pushes, by git to git's own server: what the rule allows arrives; of anything else nothing does."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from paddock.gateway.protocols.dns import GATEWAY
from paddock.gateway.proxy.connection import PROXY_PORT
from paddock.gateway.rules.secrets import BoundSecret
from paddock.model import ApprovalAnswer, ApprovalState, Binding, SecretValue
from paddock.policy.network import load
from tests.gateway.rig import Policy, Rig, ca_file, eventually, running
from tests.gateway.test_clients import execute
from tests.gateway.test_git_push import KIND, NEW, NONE, OLD, command
from tests.repositories.git_servers import HttpServer, Origin, http_backend

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

HOST, PLACEHOLDER, VALUE = "git.example.com", "pdk_0123456789abcdef", "the-real-token-0123"
POLICY = """
egress:
  allow:
    - {{git: "https://git.example.com:{port}/app", push: [{push}], secret: TOKEN}}
    - {{cidr: 127.0.0.1/32, ports: [{port}]}}
secrets:
  TOKEN: {{from: env, bind: {{host: git.example.com, port: {port}, basic: true}}}}
approve: [{approve}]
"""
AGENT = "refs/heads/agent/*"


class EvaluationNetwork:
    def __init__(self, rig: Rig, server: HttpServer, directory: Path) -> None:
        self.rig, self.server, self.directory = rig, server, directory
        self.port = server.server_address[1]
        self.bare = directory / "served" / "app.git"
        self.work = Origin(directory / "work")
        self.work.commit({"a": "1"})
        self.work.git("clone", "--quiet", "--bare", ".", str(self.bare))
        self.work.git("checkout", "--quiet", "-b", "agent/one")
        self.new = self.work.commit({"a": "2"})
        self.url = f"https://me:{PLACEHOLDER}@{HOST}:{self.port}/app.git"
        self.env = {
            "https_proxy": f"http://127.0.0.1:{rig.port}",
            "GIT_SSL_CAINFO": str(ca_file(rig.inside, directory)),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
        }

    async def push(self, *arguments: str) -> tuple[int, str]:
        code, output = await execute("git", "-C", self.work.path, "push", *arguments, env=self.env)
        return code, output.decode()

    def refs(self) -> dict[str, str]:
        command = ["git", "-C", str(self.bare), "for-each-ref", "--format=%(refname) %(objectname)"]
        clean = {"PATH": os.environ["PATH"], "GIT_CONFIG_COUNT": "1"}
        clean |= {"GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
        lines = subprocess.run(command, check=True, capture_output=True, text=True, env=clean).stdout.splitlines()
        return dict(tuple(line.split(" ")) for line in lines)  # type: ignore[misc]

    def pushes(self) -> list[tuple[str, str | None]]:
        """What the server was asked to take, and with which credential."""
        return [asked for asked in self.server.asked if "git-receive-pack" in asked[0] and "?" not in asked[0]]

    def policy(self, push: str, approve: str = "") -> None:
        self.rig.policy = load(POLICY.format(port=self.port, push=push, approve=approve)).snapshot  # type: ignore


def through(
    work: Callable[[EvaluationNetwork], Awaitable[None]], directory: Path, push: str = AGENT, approve: str = ""
) -> None:
    async def scene() -> None:
        rig = Rig(Policy({}))
        (directory / "served").mkdir()
        async with running(rig):
            with http_backend(directory / "served") as server:
                # In the thread of a request: one that does not shake hands would keep the others waiting.
                server.socket = rig.public.context(HOST).wrap_socket(
                    server.socket, server_side=True, do_handshake_on_connect=False
                )
                server.protect("app.git", "me", VALUE)
                world = EvaluationNetwork(rig, server, directory)
                world.policy(push, approve)
                await rig.gateway.networks["sb_1"].revise(rig.policy)
                binding = Binding(host=HOST, port=world.port, basic=True)
                bound = BoundSecret(
                    name="TOKEN", placeholder=PLACEHOLDER, bindings=(binding,), value=SecretValue(VALUE.encode())
                )
                rig.secrets.put(bound)
                rig.names = {HOST: ["127.0.0.1"]}
                rig.origin = (GATEWAY, PROXY_PORT)
                try:
                    await work(world)
                finally:
                    await rig.gateway.close_all()  # the server waits for its connections

    asyncio.run(scene())


def test_a_push_to_an_allowed_ref_arrives_and_is_recorded(tmp_path: Path) -> None:
    async def work(world: EvaluationNetwork) -> None:
        code, output = await world.push(world.url, "agent/one")
        assert code == 0, output
        assert world.refs()["refs/heads/agent/one"] == world.new
        assert [credential for _, credential in world.pushes()] == [world.server.passwords["app.git"]]
        ((flow, verdict),) = world.rig.audit_log.of("push")
        assert verdict.allowed
        assert flow.refs == (f"refs/heads/agent/one {NONE}..{world.new}",)
        again = world.work.commit({"a": "3"})
        assert (await world.push(world.url, "agent/one"))[0] == 0
        assert world.rig.audit_log.of("push")[-1][0].refs == (f"refs/heads/agent/one {world.new}..{again}",)

    through(work, tmp_path)


def test_a_large_push_streams_and_arrives(tmp_path: Path) -> None:
    async def work(world: EvaluationNetwork) -> None:
        new = world.work.commit({"large": os.urandom(3 << 20)})  # git asks with no commands first, then in chunks
        code, output = await world.push(world.url, "agent/one")
        assert code == 0, output
        assert world.refs()["refs/heads/agent/one"] == new
        assert len(world.pushes()) == 2
        assert [len(flow.refs or ()) for flow, _ in world.rig.audit_log.of("push")] == [0, 1]

    through(work, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["agent/one:main"], "refs/heads/main"),
        (["--force", "agent/one:main"], "refs/heads/main"),
        (["agent/one", "agent/one:main"], "refs/heads/main"),
        (["--atomic", "agent/one:main", "agent/one"], "refs/heads/main"),
        ([":main"], "deletes refs/heads/main"),
        ([":refs/heads/agent/old"], "deletes refs/heads/agent/old"),
        (["agent/one", ":refs/heads/agent/old"], "deletes refs/heads/agent/old"),
        (["agent/one:refs/tags/v1"], "refs/tags/v1"),
        (["agent/one:refs/heads/--mirror"], "refs/heads/--mirror"),
        (["--mirror"], "refs/heads/"),
        (["agent/one:refs/heads/agent/deeper/one"], "refs/heads/agent/deeper/one"),
    ],
)
def test_of_a_push_with_a_ref_that_is_not_allowed_nothing_arrives(
    arguments: list[str], named: str, tmp_path: Path
) -> None:
    async def work(world: EvaluationNetwork) -> None:
        world.work.git("push", "--quiet", str(world.bare), "main:refs/heads/agent/old")
        before = world.refs()
        options = [argument for argument in arguments if argument.startswith("--")]
        rest = [argument for argument in arguments if not argument.startswith("--")]
        code, output = await world.push(*options, world.url, *rest)
        assert code != 0
        assert "403" in output
        assert world.refs() == before
        assert world.pushes() == []  # nor a credential
        ((_, verdict),) = world.rig.audit_log.of("push")
        assert not verdict.allowed
        assert named in verdict.reason

    through(work, tmp_path)


def test_without_push_it_is_fetched_alone(tmp_path: Path) -> None:
    async def work(world: EvaluationNetwork) -> None:
        code, output = await execute("git", "clone", "-q", world.url, tmp_path / "clone", env=world.env)
        assert code == 0, output
        code, output = await world.push(world.url, "agent/one")
        assert code != 0
        assert not [asked for asked in world.server.asked if "receive-pack" in asked[0]]

    through(work, tmp_path, push="")


@pytest.mark.parametrize(
    ("body", "extra", "chunked"),
    [
        (command("refs/heads/agent/a"), "", False),  # no end
        (command("refs/heads/agent/a"), "", True),
        (b"0000", "Expect: 100-continue\r\n", True),
        (b"0000PACK", "", False),
        (command("refs/heads/agent/a") + b"0000", "Content-Encoding: gzip\r\n", False),
        (command("refs/heads/agent/a", capabilities=b"push-options") + b"0000", "", True),
    ],
)
def test_what_is_malformed_goes_nowhere(body: bytes, extra: str, chunked: bool, tmp_path: Path) -> None:
    async def work(world: EvaluationNetwork) -> None:
        world.rig.aim(HOST, world.port)
        framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
        head = f"POST /app.git/git-receive-pack HTTP/1.1\r\nHost: {HOST}:{world.port}\r\n{framing}\r\n{extra}"
        head += f"{KIND[0].decode()}: {KIND[1].decode()}\r\n\r\n"
        sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
        reply = await world.rig.ask(head.encode() + sent, tls=HOST)
        assert b"HTTP/1.1 400 " in reply, reply
        assert world.server.asked == []
        assert world.rig.resolved == []

    through(work, tmp_path)


def test_a_person_is_asked_for_the_refs_and_not_for_what_is_refused_anyway(tmp_path: Path) -> None:
    async def work(world: EvaluationNetwork) -> None:
        assert (await world.push(world.url, "agent/one:main"))[0] != 0
        assert world.rig.approvals.asked == []
        assert (await world.push(world.url, "agent/one"))[0] != 0
        (asked,) = world.rig.approvals.asked
        assert asked.kind == "git.push"
        assert f"refs/heads/agent/one {NONE}..{world.new}" in asked.summary
        assert world.pushes() == []
        world.rig.approvals.answer = ApprovalAnswer(granted=True, id="ap_1", state=ApprovalState.USED)
        code, output = await world.push(world.url, "agent/one")
        assert code == 0, output
        assert world.refs()["refs/heads/agent/one"] == world.new

    through(work, tmp_path, approve="git.push")


def test_a_large_push_streams_after_a_yes_to_its_refs(tmp_path: Path) -> None:
    async def work(world: EvaluationNetwork) -> None:
        new = world.work.commit({"large": os.urandom(3 << 20)})
        answers = world.rig.approvals
        assert (await world.push(world.url, "agent/one"))[0] != 0
        (asked,) = answers.asked
        assert f"refs/heads/agent/one {NONE}..{new}" in asked.summary, "and not for git's question whether it may"
        world.work.git("config", "pack.compression", "0")  # the same objects, packed in another way
        answers.answer = ApprovalAnswer(granted=True, id="ap_1", state=ApprovalState.USED)
        code, output = await world.push(world.url, "agent/one")
        assert code == 0, output
        assert world.refs()["refs/heads/agent/one"] == new
        assert [again.digest for again in answers.asked] == [asked.digest] * 2
        world.work.commit({"a": "3"})
        assert (await world.push(world.url, "agent/one"))[0] == 0
        assert answers.asked[-1].digest != asked.digest

    through(work, tmp_path, approve="git.push")


def test_a_revision_that_takes_the_ref_back_cuts_a_push_under_way(tmp_path: Path) -> None:
    async def work(world: EvaluationNetwork) -> None:
        rig = world.rig
        rig.aim(HOST, world.port)
        reader, writer = await rig.connect(HOST)
        head = f"POST /app.git/git-receive-pack HTTP/1.1\r\nHost: {HOST}:{world.port}\r\nContent-Length: 100000\r\n"
        head += f"{KIND[0].decode()}: {KIND[1].decode()}\r\n\r\n"
        writer.write(head.encode() + command("refs/heads/agent/a", new=NEW, old=OLD) + b"0000PACK")
        await eventually(lambda: world.server.asked)
        world.policy("refs/heads/other/*")
        await rig.gateway.networks["sb_1"].revise(rig.policy)
        try:
            answer = await asyncio.wait_for(reader.read(), 30)
        except ConnectionError:
            answer = b""
        assert answer == b""
        writer.close()

    through(work, tmp_path)


def lfs(world: EvaluationNetwork, operation: str) -> bytes:
    body = json.dumps({"operation": operation, "objects": [{"oid": "1" * 64, "size": 3}]}).encode()
    return lfs_request(world, "POST", "objects/batch", body)


def lfs_request(world: EvaluationNetwork, method: str, path: str, body: bytes) -> bytes:
    credential = base64.b64encode(f"me:{PLACEHOLDER}".encode()).decode()
    head = f"{method} /app.git/info/lfs/{path} HTTP/1.1\r\nHost: {HOST}:{world.port}\r\nConnection: close\r\n"
    head += f"Content-Type: application/vnd.git-lfs+json\r\nAuthorization: Basic {credential}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def test_git_lfs_uploads_are_refused_without_push_and_downloads_are_not(tmp_path: Path) -> None:
    async def work(world: EvaluationNetwork) -> None:
        world.rig.aim(HOST, world.port)
        others = [("PUT", "objects/" + "1" * 64), ("POST", "locks"), ("POST", "locks/1/unlock"), ("POST", "verify")]
        for asked in [lfs(world, "upload"), *(lfs_request(world, *other, b"{}") for other in others)]:
            assert b" 403 " in (await world.rig.ask(asked, tls=HOST)).partition(b"\r\n")[0]
        assert world.server.asked == []
        assert [verdict.allowed for _, verdict in world.rig.audit_log.of("push")] == [False]
        assert b" 403 " not in (await world.rig.ask(lfs(world, "download"), tls=HOST)).partition(b"\r\n")[0]
        assert world.server.asked == [("/app.git/info/lfs/objects/batch", world.server.passwords["app.git"])]

    through(work, tmp_path, push="")


def test_a_person_is_asked_for_a_git_lfs_upload(tmp_path: Path) -> None:
    async def work(world: EvaluationNetwork) -> None:
        world.rig.aim(HOST, world.port)
        await world.rig.ask(lfs(world, "download"), tls=HOST)
        assert world.rig.approvals.asked == []
        await world.rig.ask(lfs(world, "upload"), tls=HOST)
        await world.rig.ask(lfs_request(world, "POST", "locks", b"{}"), tls=HOST)
        assert [asked.kind for asked in world.rig.approvals.asked] == ["git.push"] * 2
        assert len(world.server.asked) == 1
        world.rig.approvals.answer = ApprovalAnswer(granted=True, id="ap_1", state=ApprovalState.USED)
        await world.rig.ask(lfs(world, "upload"), tls=HOST)
        assert len(world.server.asked) == 2

    through(work, tmp_path, approve="git.push")
