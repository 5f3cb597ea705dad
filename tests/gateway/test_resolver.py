"""Names are resolved as the machine does it, without what it would add to them."""

from __future__ import annotations

import asyncio
import socket

import pytest

from paddock.gateway.outside import Outside
from paddock.linux.routes import is_own


def resolve(name: str) -> list[str]:
    return asyncio.run(Outside().resolve(name))


def test_the_hosts_file_counts() -> None:
    assert "127.0.0.1" in resolve("localhost")


def test_search_domains_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, *_, **__: asked.append(name) or [])
    assert resolve("nobody.has.this.test") == []
    assert asked == ["nobody.has.this.test."]


def test_the_machine_s_own_addresses_are_known() -> None:
    assert is_own("127.0.0.1")
    assert not is_own("192.0.2.1")
