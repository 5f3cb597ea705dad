"""A private repository on a host with a forge, from `paddock up` to `paddock pr`, by the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SandboxFactory
from tests.remotes.git_host import Host
from tests.remotes.leaks import forms, in_files, in_processes

USER, SECRET = "alice", "s3cret-4711-hunter2"


class CommandLine:
    """`paddock` as a user has it: a home with a git that knows his login. `printed` is all that it has said."""

    def __init__(self, home: Path, trusted: Path) -> None:
        self.home, self.printed = home, b""
        home.mkdir()
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "SSH_", "XDG_"))}
        kept["XDG_CACHE_HOME"] = os.environ["XDG_CACHE_HOME"]
        self.environment = kept | {"HOME": str(home), "GIT_SSL_CAINFO": str(trusted)}

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[bytes]:
        argv = [sys.executable, "-m", "paddock", *arguments]
        done = subprocess.run(argv, env=self.environment, capture_output=True, check=False)
        self.printed += done.stdout + done.stderr
        assert done.returncode == code, done.stderr
        return done

    def knows(self, host: Host, scheme: str, secret: str) -> None:
        """By a helper that keeps a file, or by a header as build servers configure it."""
        kept = self.home / "kept"
        kept.write_text(f"https://{USER}:{secret}@{host.address.removeprefix('https://')}\n")
        settings = (
            f'[user]\n\tname = Alice\n\temail = alice@example.org\n[credential]\n\thelper = "store --file={kept}"\n'
        )
        if scheme == "Bearer":
            settings = f'[http "{host.address}"]\n\textraHeader = "Authorization: Bearer {secret}"\n'
        (self.home / ".gitconfig").write_text(settings)


@pytest.mark.parametrize(("dialect", "scheme"), [("gitea", "Basic"), ("github", "Bearer")])
def test_a_private_repository_from_up_to_pull_request(
    sandbox: SandboxFactory, shared_state: Path, tmp_path: Path, host: Host, trusted: Path, dialect: str, scheme: str
) -> None:
    secrets, seen = forms(USER, SECRET), list[str]()
    host.contract.dialect = dialect
    host.admit(scheme, USER, SECRET)
    host.watch = lambda: seen.extend(in_processes(secrets))
    sandbox()  # skips with the reason where no sandbox can be had
    user, task = CommandLine(tmp_path / "home", trusted), f"pr-{dialect}"
    assert b"git credential approve" in user.run("up", host.url, "--task", task, code=125).stderr
    user.knows(host, scheme, SECRET)
    user.run("up", host.url, "--task", task)
    try:
        user.run("exec", task, "--", "sh", "-c", "cat README; echo new > file")
        commit = user.run("branch", task, "topic", "-m", "Mend it").stdout.decode().strip()
        assert host.git("log", "-1", "--format=%H %s", "topic") == f"{commit} Mend it"
        first = json.loads(user.run("pr", task, "--title", "Mend it", "--json").stdout)
        again = json.loads(user.run("pr", task, "--title", "Mend it", "--json").stdout)
        assert (first["created"], again["created"], again["number"]) == (True, False, first["number"])
        assert [pull["head"]["ref"] for pull in host.contract.pulls] == ["topic"]
        workspace = user.run("exec", task, "--", "tar", "-c", "-C", "/", "workspace", "proc/self/environ").stdout
        host.admit(scheme, USER, "another")  # taken away
        fresh = ("up", host.url, "--task", f"{task}-2", "--max-age", "0")
        for verb in (("branch", task), ("pr", task, "--title", "x"), fresh):
            assert b"expired" in user.run(*verb, code=125).stderr
        assert host.git("rev-parse", "topic") == commit
    finally:
        user.run("kill", task)

    assert seen == []
    assert not [secret for secret in secrets if secret in user.printed + workspace]
    assert in_files(shared_state, secrets) == []
    assert in_files(tmp_path / "home", secrets)  # what looks for it finds it
