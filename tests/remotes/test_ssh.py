"""Remotes behind ssh: a real sshd, keys in files and in agents, hosts that are known and hosts that are not."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from paddock.errors import InvalidStateError, NotConfiguredError, NotFoundError, PlatformError, PolicyDeniedError
from paddock.model import Acquired
from paddock.storage.git import Login, parse
from paddock.storage.git._ambient import ambient
from tests.conftest import SandboxFactory
from tests.remotes.leaks import in_files
from tests.remotes.ssh_host import SSHD, SshHost, agent, make_key, serving
from tests.repositories.git_servers import Origin
from tests.repositories.shelf import ALICE, Shelf

pytestmark = pytest.mark.skipif(SSHD is None, reason="needs sshd: apt-get install openssh-server")


@pytest.fixture
def directory() -> Generator[Path]:
    """Short, for sockets; and to be entered by those who log in."""
    with tempfile.TemporaryDirectory(prefix="pd-") as made:
        yield Path(made)


@pytest.fixture
def server(directory: Path) -> Generator[SshHost]:
    with serving(directory) as host:
        yield host


@pytest.fixture
def key(directory: Path) -> Path:
    return make_key(directory / "deploy")


def configure(patch: pytest.MonkeyPatch, server: SshHost, *, key: Path | None = None, known: str | None = None) -> None:
    """The user's ssh knows the host, and has the key."""
    (server.directory / "known_hosts").write_text(server.known if known is None else known)
    words = ["ssh", "-o", f"UserKnownHostsFile={server.directory}/known_hosts", "-o", "IdentitiesOnly=no"]
    words += ["-i", str(key or server.directory / "none"), "-F", "none"]
    patch.setenv("GIT_SSH_COMMAND", " ".join(words))
    patch.delenv("SSH_AUTH_SOCK", raising=False)


async def acquire(shelf: Shelf, url: str, ref: str | None = None) -> Acquired:
    remote, _ = parse(url, local=True)
    login = await ambient(remote)
    assert isinstance(login, Login)
    assert "PRIVATE" not in repr(login)
    shelf.credentials[ALICE.id] = login  # type: ignore[assignment]
    return await shelf.acquire(url, ref)


def test_a_deploy_key_fetches_and_pushes(
    shelf: Shelf, server: SshHost, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, server, key=key)
    with pytest.raises(NotFoundError, match=f"not for {ALICE.name}") as refusal:
        asyncio.run(acquire(shelf, server.url))
    assert "ssh-add" in (refusal.value.hint or "")
    server.admit(key)
    got = asyncio.run(acquire(shelf, server.url))
    assert got.commit == server.repository.head()
    assert [one.scope for one in shelf.store.list(ALICE.id)] == [ALICE.id]
    remote, _ = parse(server.url, local=True)

    def push(ref: str, expect: str | None) -> None:
        login = shelf.credentials[ALICE.id]
        asyncio.run(shelf.git.push(got.repository, remote, login, commit=got.commit, ref=ref, expect=expect))

    push("refs/heads/topic", None)
    assert server.repository.head("topic") == got.commit
    server.repository.commit({"README": "two\n"})
    with pytest.raises(InvalidStateError, match="stale info"):
        push("refs/heads/main", got.commit)
    with pytest.raises(NotFoundError, match="git repository"):
        asyncio.run(acquire(shelf, server.url + "-none"))
    assert in_files(shelf.directory.parent, (key.read_bytes().split(b"\n")[1],)) == []


def test_an_agent_is_asked_for_signatures_and_for_nothing_else(
    shelf: Shelf, server: SshHost, key: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, server)
    server.admit(key)
    with agent(directory, key) as path:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        key.unlink()
        assert asyncio.run(acquire(shelf, server.url)).commit == server.repository.head()
    with pytest.raises(NotFoundError):
        asyncio.run(acquire(shelf, server.url))


def test_what_is_confined_gets_an_agent_to_sign_and_not_to_change(directory: Path) -> None:
    from paddock.storage.git._confined import serve_agent

    with agent(directory, make_key(directory / "key")) as path, socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        serving = serve_agent(connection, str(directory / "offered"))
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(directory / "offered"))
                assert _ask(client, b"\x0b")[:5] == b"\x0c\0\0\0\1"  # one identity
                assert _ask(client, b"\x13") == b"\x05"  # forget all of them: refused
                assert _ask(client, b"\x0b")[:5] == b"\x0c\0\0\0\1"
        finally:
            os.kill(serving, signal.SIGKILL)
            os.waitpid(serving, 0)


def _ask(client: socket.socket, message: bytes) -> bytes:
    client.sendall(len(message).to_bytes(4, "big") + message)
    length = int.from_bytes(client.recv(4, socket.MSG_WAITALL), "big")
    return client.recv(length, socket.MSG_WAITALL)


def test_a_host_that_is_not_known_is_not_believed_and_the_command_that_adds_it_is_said(
    shelf: Shelf, server: SshHost, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.admit(key)
    configure(monkeypatch, server, key=key, known="")
    with pytest.raises(NotConfiguredError, match="not known here") as unknown:
        asyncio.run(acquire(shelf, server.url))
    assert f"ssh-keyscan -p {server.port} 127.0.0.1" in (unknown.value.hint or "")
    other = make_key(server.directory / "other").with_name("other.pub").read_text().split()
    configure(monkeypatch, server, key=key, known=f"[127.0.0.1]:{server.port} {other[0]} {other[1]}\n")
    with pytest.raises(PolicyDeniedError, match="another key") as changed:
        asyncio.run(acquire(shelf, server.url))
    assert "ssh-keygen -R" in (changed.value.hint or "")
    said = subprocess.run(
        ["ssh-keyscan", "-p", str(server.port), "127.0.0.1"], capture_output=True, text=True, check=True
    )
    configure(monkeypatch, server, key=key, known=said.stdout)
    assert asyncio.run(acquire(shelf, server.url)).commit == server.repository.head()


def test_a_server_that_is_away_is_said(shelf: Shelf, server: SshHost, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, server)
    with pytest.raises(PlatformError, match="cannot be reached"):
        asyncio.run(acquire(shelf, "ssh://git@127.0.0.1:1/app"))


@pytest.mark.parametrize("command", ["sh -c 'touch pwned'", "proxy", "ssh -o ProxyCommand=touch", "'"])
def test_another_way_than_ssh_is_refused_and_not_gone(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("GIT_SSH_COMMAND", command)
    remote, _ = parse("ssh://git@127.0.0.1/app", local=True)
    with pytest.raises(NotConfiguredError, match="is not"):
        asyncio.run(ambient(remote))


def test_what_a_workspace_configures_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: SshHost, key: Path
) -> None:
    """The user stands in a checkout, whose git would have it otherwise."""
    checkout = Origin(tmp_path / "checkout")
    canary = tmp_path / "canary"
    checkout.git("config", "core.sshCommand", f"ssh -i {canary} -o ProxyCommand='touch {canary}'")
    checkout.git("config", "credential.helper", f"!touch {canary}; echo password=stolen")
    checkout.git("config", "http.extraHeader", "Authorization: Bearer stolen")
    monkeypatch.chdir(checkout.path)
    configure(monkeypatch, server, key=key)
    for name in ("GIT_SSH_COMMAND", "GIT_CONFIG_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_DIR", str(checkout.path / ".git"))
    login = asyncio.run(ambient(parse("ssh://git@127.0.0.1/app", local=True)[0]))
    assert isinstance(login, Login)
    assert asyncio.run(ambient(parse("https://127.0.0.1:1/app", local=True)[0])) is None
    assert not canary.exists()


def test_a_task_over_ssh_by_the_command_line(
    sandbox: SandboxFactory, server: SshHost, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox()
    server.admit(key)
    configure(monkeypatch, server, key=key)

    def paddock(*arguments: str) -> str:
        argv = [sys.executable, "-m", "paddock", *arguments]
        done = subprocess.run(argv, env=os.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    paddock("up", server.url, "--task", "ssh")
    try:
        paddock("exec", "ssh", "--", "sh", "-c", "echo new > file")
        commit = paddock("branch", "ssh", "topic", "-m", "Over ssh")
    finally:
        paddock("kill", "ssh")
    assert server.repository.git("log", "-1", "--format=%H %s", "topic") == f"{commit} Over ssh"
