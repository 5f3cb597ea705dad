"""A request for a remote goes by the caller's git, ssh agent and proxies, and never by the daemon's."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from paddock.model.caller import ENVIRONMENT
from paddock.storage.git import Credential, parse
from paddock.storage.git._ambient import (
    _login,  # pyright: ignore[reportPrivateUsage]
    ambient,
)
from paddock.storage.git._process import _environment  # pyright: ignore[reportPrivateUsage]

REMOTE, _ = parse("https://git.example/app", local=True)


@pytest.fixture
def caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The caller's environment, beside the daemon's, which is this process's."""
    for who in ("daemon", "caller"):
        (tmp_path / who).mkdir()
        helper = f"!f() {{ echo username={who}; echo password=x; }}; f"
        (tmp_path / who / ".gitconfig").write_text(f'[credential]\n\thelper = "{helper}"\n')
        (tmp_path / who / "agent").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "daemon"))
    monkeypatch.setenv("https_proxy", "http://daemon:1")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "daemon" / "agent"))
    return {
        "HOME": str(tmp_path / "caller"),
        "PATH": os.environ["PATH"],
        "https_proxy": "http://caller:1",
        "SSH_AUTH_SOCK": str(tmp_path / "caller" / "agent"),
    }


def asked_with(given: dict[str, str] | None) -> tuple[object, str | None, str | None]:
    """The credential, the proxy and the ssh agent of a request that brought these variables."""

    async def ask() -> tuple[object, str | None, str | None]:
        ENVIRONMENT.set(given)
        login = _login({"user": ("git",), "identityagent": ("SSH_AUTH_SOCK",)})
        return await ambient(REMOTE), _environment("https", (), direct=False).get("https_proxy"), login.agent

    return asyncio.run(ask())


def test_it_is_the_callers_that_counts(caller: dict[str, str]) -> None:
    assert asked_with(caller) == (Credential("caller", "x"), "http://caller:1", caller["SSH_AUTH_SOCK"])


def test_a_request_that_brings_none_gets_none_of_the_daemons(caller: dict[str, str]) -> None:
    assert asked_with({}) == (None, None, None)
