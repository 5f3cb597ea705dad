"""Real clients, through the compiled policy and the audit log that are in service."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from paddock.audit import AuditLog, verify
from paddock.gateway.protocols.dns import GATEWAY
from paddock.gateway.proxy.connection import PROXY_PORT
from paddock.policy.network import load
from tests.gateway.rig import Policy, Rig, answer_ok, ca_file, running

POLICY = """
egress:
  allow:
    - {{host: api.example.com, ports: [{port}], methods: [GET], paths: ["/repos/**"]}}
    - {{host: git.example.com, ports: [{port}], methods: [GET]}}
    - {{cidr: 127.0.0.1/32, ports: [{port}]}}
"""

CLEAN = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@b.c")
Work = Callable[[Rig, int, Path], Awaitable[None]]


def through(work: Work, directory: Path, serve: object = answer_ok, *, name: str = "api.example.com") -> None:
    """`work` gets the port of a TLS server called `name`, and a file with the sandbox's authority."""

    async def scene() -> None:
        world = Rig(Policy({}))
        async with running(world):
            port = await world.server(serve, tls=name)  # pyright: ignore[reportArgumentType]
            policy = load(POLICY.format(port=port)).snapshot
            await world.gateway.networks["sb_1"].revise(policy)
            network = world.gateway.networks["sb_1"]
            log = AuditLog(directory / "audit")
            network.audit_log = log
            world.names = {name: ["127.0.0.1"]}
            world.aim(name, port)
            await work(world, port, ca_file(world.inside, directory))
            log.close()

    asyncio.run(scene())
    report = verify(directory / "audit")
    assert report.ok, report


async def execute(*argv: object, env: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Its code, and what it printed."""
    clean = {**CLEAN, **(env or {})}
    process = await asyncio.create_subprocess_exec(
        *map(str, argv), env=clean, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        output, _ = await process.communicate()
    finally:  # else whoever collects garbage closes it, at a time when nobody expects that
        process._transport.close()  # pyright: ignore
    return process.returncode or 0, output


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


@needs("curl")
def test_curl_transparent_and_by_proxy(tmp_path: Path) -> None:
    async def work(world: Rig, port: int, ca: Path) -> None:
        url = f"https://api.example.com:{port}/repos/acme"
        there = ("--connect-to", f"::127.0.0.1:{world.port}")
        code, output = await execute("curl", "-sS", "--cacert", ca, *there, url, url)
        assert (code, output.count(b"GET /repos/acme HTTP/1.1")) == (0, 2)
        code, output = await execute("curl", "-sS", "--cacert", ca, *there, "-d", "x", url)
        assert b"nothing allows POST" in output
        world.origin = (GATEWAY, PROXY_PORT)
        proxy = ("-x", f"http://127.0.0.1:{world.port}")
        code, output = await execute("curl", "-sS", "--cacert", ca, *proxy, url)
        assert (code, b"GET /repos/acme" in output) == (0, True)
        code, output = await execute("curl", "-sS", *proxy, "https://evil.test/")
        assert code == 56
        assert b"403" in output
        code, output = await execute("curl", "-sS", *proxy, f"http://api.example.com:{port}/other")
        assert b"rule: default" in output

    through(work, tmp_path)


def test_python_s_own_client(tmp_path: Path) -> None:
    program = """
import sys, urllib.request, urllib.error
url = sys.argv[1]
print(urllib.request.urlopen(url + "/repos/acme").read())
try: urllib.request.urlopen(urllib.request.Request(url + "/repos/acme", b"x"))
except urllib.error.HTTPError as error: print(error.code, error.read())
"""

    async def work(world: Rig, port: int, ca: Path) -> None:
        world.origin = (GATEWAY, PROXY_PORT)
        env = {"https_proxy": f"http://127.0.0.1:{world.port}", "SSL_CERT_FILE": str(ca)}
        code, output = await execute("python3", "-c", program, f"https://api.example.com:{port}", env=env)
        assert code == 0, output
        assert b"GET /repos/acme HTTP/1.1" in output
        assert b"403 b'paddock: nothing allows POST" in output

    through(work, tmp_path)


@needs("node")
def test_node(tmp_path: Path) -> None:
    program = """
const https = require("https");
const [host, port, via] = process.argv.slice(1);
const options = {host: "127.0.0.1", port: via, servername: host, headers: {Host: `${host}:${port}`}, path: "/repos/a"};
https.get(options, (answer) => { answer.pipe(process.stdout); }).on("error", (error) => { console.log(error.code); });
"""

    async def work(world: Rig, port: int, ca: Path) -> None:
        env = {"NODE_EXTRA_CA_CERTS": str(ca)}
        code, output = await execute("node", "-e", program, "api.example.com", port, world.port, env=env)
        assert (code, b"GET /repos/a HTTP/1.1" in output) == (0, True), output

    through(work, tmp_path)


@needs("git")
def test_git_clones_and_does_not_push(tmp_path: Path) -> None:
    """Over git's older protocol of plain files; a push of it needs a method that the rule has, and is seen as one."""
    source, served = tmp_path / "source", tmp_path / "served.git"
    for command in (
        ["git", "init", "-q", "-b", "main", source],
        [
            "git",
            "-C",
            source,
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b.c",
            "commit",
            "-q",
            "--allow-empty",
            "-m",
            "one",
        ],
        ["git", "clone", "-q", "--bare", source, served],
        ["git", "-C", served, "update-server-info"],
    ):
        subprocess.run(
            [str(part) for part in command], check=True, env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
        )

    async def files(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = served / head.split(b" ")[1].split(b"?")[0].decode().removeprefix("/app.git/")
                found = path.is_file()
                body = path.read_bytes() if found else b""
                writer.write(b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n" % (200 if found else 404, len(body)) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    async def work(world: Rig, port: int, ca: Path) -> None:
        world.origin = (GATEWAY, PROXY_PORT)
        env = {"https_proxy": f"http://127.0.0.1:{world.port}", "GIT_SSL_CAINFO": str(ca), "GIT_TERMINAL_PROMPT": "0"}
        url = f"https://git.example.com:{port}/app.git"
        code, output = await execute("git", "clone", "-q", url, tmp_path / "clone", env=env)
        assert code == 0, output
        assert (tmp_path / "clone" / ".git").is_dir()

    through(work, tmp_path, files, name="git.example.com")
