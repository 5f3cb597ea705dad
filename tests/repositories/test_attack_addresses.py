"""What a repository and its server name does not make the host's git ask this network."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from paddock.daemon.store.repositories import NOBODY
from paddock.daemon.workspaces._checkout import home_of
from paddock.errors import InvalidStateError, PaddockError, PlatformError, PolicyDeniedError
from paddock.model import AcquireRepository
from paddock.storage.git import Bounds, located, parse
from tests.repositories.git_servers import HttpServer, Origin, address, http_backend
from tests.repositories.shelf import ALICE, BOB, Shelf
from tests.repositories.test_bases import ME, link, opened, says


@contextmanager
def silent() -> Generator[socket.socket]:
    """A server that takes connections and says nothing. The kernel takes them: nobody needs to accept."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


async def test_a_submodule_at_another_port_of_this_machine_is_not_asked_for(
    state_dir: Path, origin: Origin, daemon: Any, http: HttpServer
) -> None:
    link(origin, "m", origin.head(), address(http, "app/.git", "http"))
    async with opened(state_dir) as rig:
        acquired = await rig.service.perform(AcquireRepository(url=address(daemon, "app")), ME)
        async with rig.over(await rig.base(acquired, submodules=True)) as shop:
            assert await says(shop, "ls -A m; git status --porcelain") == ""
    assert http.asked == []
    log = "".join(path.read_text() for path in (state_dir / "audit").glob("*.jsonl"))
    assert "leads to no public address" in log


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "0.0.0.0", "169.254.169.254"),
        *("10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "[fd00:ec2::254]", "[fe80::1]", "224.0.0.1"),
    ],
)
@pytest.mark.parametrize("scheme", ["https", "http", "git"])
async def test_what_a_repository_names_at_no_public_address_is_refused(
    shelf: Shelf, origin: Origin, host: str, scheme: str
) -> None:
    for home in ("", f"{scheme}://git.example.org", f"{scheme}://{host}:1"):
        with pytest.raises(PolicyDeniedError, match="no public address"):
            await shelf.repositories.acquire(f"{scheme}://{host}/x", origin.head(), 0.0, NOBODY, home=home)


async def test_what_is_in_the_cache_is_refused_too(shelf: Shelf, origin: Origin, http: HttpServer) -> None:
    """Its owner may have it; a repository that knows the address and the commit may not."""
    url = address(http, "app/.git", "http")
    got = await shelf.acquire(url)
    with pytest.raises(PolicyDeniedError):
        await shelf.repositories.acquire(url, got.commit, 1e9, ALICE, home="http://git.example.org")
    again = await shelf.repositories.acquire(url, got.commit, 1e9, ALICE, home=home_of(got, ALICE.id))
    assert again.repository == got.repository
    assert home_of(got, "public") == ""


async def test_what_is_at_no_public_address_is_nobody_elses(shelf: Shelf, origin: Origin, http: HttpServer) -> None:
    url = address(http, "app/.git", "http")
    got = [await shelf.acquire(url, max_age=1e9, by=who) for who in (ALICE, BOB)]
    assert got[0].repository != got[1].repository
    assert shelf.store.find("public", got[0].url) is None


@pytest.mark.parametrize("scheme", ["http", "git"])
async def test_git_connects_where_the_name_led_when_it_was_judged(
    shelf: Shelf, origin: Origin, daemon: Any, http: HttpServer, scheme: str
) -> None:
    """The name has no address in any resolver: git has only the one that it was given."""
    server, path = (http, "app/.git") if scheme == "http" else (daemon, "app")
    url = f"{scheme}://git.invalid:{server.server_address[1]}/{path}"
    remote = replace(parse(url, local=True)[0], addresses=("127.0.0.1",))
    assert (await shelf.git.look(remote, None)).refs["refs/heads/main"].commit == origin.head()
    with pytest.raises(PaddockError):
        await shelf.git.look(replace(remote, addresses=("192.0.2.1",), url=url.replace("git.inv", "other.inv")), None)


async def test_a_proxy_of_the_environment_sees_nothing_of_what_was_looked_up(
    shelf: Shelf, origin: Origin, http: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = address(http, "app/.git", "http")
    remote = await located(parse(url, local=True)[0])
    with silent() as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        assert (await shelf.git.look(remote, None)).head == "refs/heads/main"
        behind = await located(parse("http://git.example.org/x", local=True)[0])
        assert (behind.addresses, behind.public) == ((), False)
        with pytest.raises(PolicyDeniedError):
            await shelf.repositories.acquire("http://git.example.org/x", "0" * 40, 0.0, ALICE, home="https://x")


async def test_no_redirect_is_followed(shelf: Shelf, origin: Origin, http: HttpServer) -> None:
    with http_backend(http.root) as inner:
        http.redirect = address(inner, "", "http").rstrip("/")
        for path in ("app/.git", "app"):
            with pytest.raises(InvalidStateError, match="sends on"):
                await shelf.acquire(address(http, path, "http"))
        assert inner.asked == []


async def test_a_server_that_redirects_to_the_name_with_git_is_asked_under_that(
    shelf: Shelf, origins: Path, origin: Origin, http: HttpServer
) -> None:
    """As GitLab does."""
    origin.git("clone", "--quiet", "--bare", str(origin.path), str(origins / "full.git"))
    http.moved["full"] = "full.git"
    got = await shelf.acquire(address(http, "full", "http"))
    assert got.commit == origin.head()
    assert got.url == address(http, "full.git", "http")


@pytest.mark.parametrize("name", ["http-alternates", "alternates"])
async def test_a_server_without_gits_protocol_lends_no_objects_of_another(
    shelf: Shelf, origins: Path, origin: Origin, http: HttpServer, name: str
) -> None:
    bare = origins / "dumb"
    origin.git("clone", "--quiet", "--bare", str(origin.path), str(bare))
    origin.git("--git-dir", str(bare), "update-server-info")
    shutil.move(bare / "objects", origins / "hidden")
    (bare / "objects" / "info").mkdir(parents=True)
    with http_backend(origins) as inner:
        (bare / "objects" / "info" / name).write_text(f"{address(inner, 'hidden', 'http')}/\n")
        http.plain = True
        with pytest.raises(PaddockError):
            await shelf.acquire(address(http, "dumb", "http"))
        assert inner.asked == []
    assert any(path.startswith("/dumb/objects") for path, _ in http.asked)


@pytest.mark.parametrize("scheme", ["git", "http"])
async def test_a_server_that_says_nothing_is_given_up(tmp_path: Path, scheme: str) -> None:
    shelf = Shelf(tmp_path / "state", bounds=Bounds(silence_seconds=0.4))
    with silent() as server, pytest.raises(PlatformError, match="said nothing"):
        await shelf.acquire(f"{scheme}://127.0.0.1:{server.getsockname()[1]}/app")
    shelf.close()
    assert Bounds().silence_seconds < 60
