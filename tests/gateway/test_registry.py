"""Registries whose rule has a cooldown or names packages: what is held back is neither chosen by real clients nor
fetched by its URL; and an index that lies leads nowhere."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from paddock.gateway.rules.secrets import BoundSecret
from paddock.model import Binding, SecretValue
from paddock.policy.network import load
from tests.gateway.registry_clients import COOLDOWN, JSON, client, fetch, slow, through
from tests.gateway.registry_files import Outside, world_of
from tests.gateway.rig import Rig, ca_file

PAGE, FILE = "/simple/demo/", "/p/demo-{}-py3-none-any.whl"


async def versions(world: Rig) -> list[str]:
    status, _, body = await fetch(world, "index.test", PAGE, f"Accept: {JSON}")
    files = json.loads(body)["files"] if status == 200 else []
    return [file["filename"].split("-")[1] for file in files if not file.get("yanked")]


# -- with real clients -------------------------------------------------------------------------------------------------


async def pip(world: Rig, directory: Path, *arguments: str) -> tuple[int, str]:
    pythons = [one for one in (sys.executable, "/usr/bin/python3", "python3") if await _has_pip(one)]
    if not pythons:
        pytest.skip("no Python here has pip")
    ca_file(world.inside, directory).rename(directory / "ca.pem")
    proxy = f"http://127.0.0.1:{world.port}"
    common = ("--isolated", "--disable-pip-version-check", "--no-input", "--retries", "0")
    options = ("--proxy", proxy, "--cert", str(directory / "ca.pem"))
    return await client(world, directory, pythons[0], "-m", "pip", *common, *options, *arguments)


async def _has_pip(python: str) -> bool:
    try:
        process = await asyncio.create_subprocess_exec(
            python, "-m", "pip", "--version", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
    except OSError:
        return False
    return await process.wait() == 0


@pytest.mark.parametrize(
    ("terms", "json_pages", "chosen"),
    [
        (COOLDOWN, True, "1.0"),
        slow(", unknown_age: allow, cooldown_days: 7", True, "1.5"),
        slow(", unknown_age: allow", True, "2.0"),
        slow("", True, "2.0"),
        slow(COOLDOWN, False, None),
        slow(", unknown_age: allow, cooldown_days: 7", False, "2.0"),
        (", packages: [de*o]", False, "2.0"),
        slow(", packages: [other]", True, None),
    ],
)
def test_pip_chooses_what_is_old_enough_and_can_fetch_it(
    terms: str, json_pages: bool, chosen: str | None, tmp_path: Path
) -> None:
    async def work(world: Rig, outside: Outside) -> None:
        outside.json = json_pages
        where = ("--no-deps", "--no-cache-dir", "--index-url", "https://index.test/simple/", "-d", str(tmp_path))
        status, said = await pip(world, tmp_path, "download", *where, "demo")
        found = [name.split("-")[1] for name in os.listdir(tmp_path) if name.endswith(".whl")]
        assert found == ([chosen] if chosen else []), said
        assert (status == 0) == (chosen is not None)

    through(work, terms)


@pytest.mark.parametrize(("terms", "chosen"), [(COOLDOWN, "1.0.0"), slow("", "2.0.0")])
def test_npm_chooses_what_is_old_enough_and_can_fetch_it(terms: str, chosen: str, tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")

    async def work(world: Rig, outside: Outside) -> None:
        ca_file(world.inside, tmp_path).rename(tmp_path / "ca.pem")
        proxy = f"http://127.0.0.1:{world.port}"
        options = ["--registry=https://npm.test/", f"--https-proxy={proxy}", f"--proxy={proxy}", "--fetch-retries=0"]
        options += [f"--cafile={tmp_path / 'ca.pem'}", f"--cache={tmp_path / 'cache'}", "--no-update-notifier"]
        status, said = await client(world, tmp_path, npm, "view", "demo", "version", *options)
        assert (status, said.strip()) == (0, chosen)
        quiet = ("--no-audit", "--no-fund", "--ignore-scripts")
        status, said = await client(world, tmp_path, npm, "install", "demo", *quiet, *options)
        assert status == 0, said
        installed = json.loads((tmp_path / "node_modules/demo/package.json").read_text())
        assert installed["version"] == chosen
        status, said = await client(world, tmp_path, npm, "install", "demo@2.0.0", *quiet, *options)
        assert (status == 0) == (chosen == "2.0.0"), said

    through(work, terms)


# -- files by their URLs -----------------------------------------------------------------------------------------------


def test_a_file_is_fetched_only_if_a_page_that_was_looked_through_led_to_it() -> None:
    """A lock file names files: their page is read then, by the gateway itself."""

    async def work(world: Rig, outside: Outside) -> None:
        expected = outside.answers["files.test" + FILE.format("1.0")][1]
        assert (await fetch(world, "files.test", FILE.format("1.0")))[2] == expected
        assert outside.asked == ["index.test" + PAGE, "files.test" + FILE.format("1.0")]
        assert (await fetch(world, "files.test", FILE.format("1.0") + ".metadata"))[0] == 404  # asked, and not there
        for version, why in (("2.0", b"younger than 7 days"), ("1.5", b"of an unknown age")):
            for path in (FILE.format(version), FILE.format(version) + ".metadata"):
                status, head, body = await fetch(world, "files.test", path)
                assert status == 403
                assert b"paddock: demo %b is held back: it is %b" % (version.encode(), why) in head.splitlines()[0]
                assert why in body
        for path in (FILE.format("3.0"), FILE.format("1.0") + "?", "/p/other", "/p/other-1.0.tar.gz"):
            assert (await fetch(world, "files.test", path))[0] == 403, path
        assert (await fetch(world, "npm.test", "/demo/-/demo-1.0.0.tgz"))[0] == 200
        for path in ("/demo/-/demo-2.0.0.tgz", "/demo/-/demo-3.0.0.tgz", "/other/-/other-1.0.0.tgz", "/demo/-/x"):
            assert (await fetch(world, "npm.test", path))[0] == 403, path
        assert not [path for path in outside.asked if "2.0" in path]

    through(work)


def test_what_was_judged_of_a_registry_is_recorded_with_package_and_digest() -> None:
    async def work(world: Rig, outside: Outside) -> None:
        await versions(world)
        await fetch(world, "files.test", FILE.format("1.0"))
        await fetch(world, "files.test", FILE.format("2.0"))
        page, kept, held = world.audit_log.of("registry")
        assert (page[0].package, page[1].allowed) == ("demo", True)
        assert "held back: 2.0 (younger than 7 days); 1.5 (of an unknown age)" in page[1].reason
        assert (kept[0].package, kept[1].allowed) == ("demo 1.0", True)
        assert kept[0].digest == "sha256:" + outside.files[0]["hashes"]["sha256"]
        assert (held[1].allowed, held[1].rule) == (False, "egress.allow[0]")
        assert held[1].revision == world.policy.revision

    through(work)


OWN = ("User-Agent: chosen", "Cookie: chosen", "Referer: chosen", "X-Any: chosen", "Accept: */*, x/chosen" + "n" * 256)


def test_what_is_asked_of_a_judged_registry_is_in_the_gateway_s_own_words() -> None:
    async def work(world: Rig, outside: Outside) -> None:
        files = [("files.test", FILE.format("1.0")), ("deb.test", "/dists/stable/Release")]
        for host, path in [("index.test", PAGE), ("npm.test", "/demo"), *files]:
            fields = (*OWN, "Authorization: chosen", "Range: bytes=0-9", 'If-Match: "chosen-but-kept"')
            assert (await fetch(world, host, path, *fields))[0] == 200
            head = outside.heads[-1]
            assert b"User-Agent: paddock\r\n" in head
            assert b"chosen" not in head.replace(b"chosen-but-kept", b"")
            assert (b"Range: bytes=0-9" in head) == ((host, path) in files)
        asked = len(outside.asked)
        assert (await fetch(world, "index.test", PAGE, "Content-Length: 0"))[0] == 200
        assert (await fetch(world, "files.test", FILE.format("1.0"), "Transfer-Encoding: chunked"))[0] == 400
        assert len(outside.asked) == asked + 1

    through(work)


def test_a_judged_registry_is_sent_credentials_where_a_secret_is_bound_to_them() -> None:
    async def work(world: Rig, outside: Outside) -> None:
        rule = "{registry: pypi, hosts: [index.test, files.test], cooldown_days: 7, secret: TOKEN}"
        bind = "{host: index.test, header: Authorization}"
        policy = f"egress:\n  allow: [{rule}, {{cidr: 127.0.0.1, ports: [1-65535]}}]\n"
        policy += f"secrets: {{TOKEN: {{from: env, bind: {bind}}}}}\n"
        await world.gateway.networks["sb_1"].revise(load(policy).snapshot)
        binding = Binding(host="index.test", port=443, header="Authorization")
        value = SecretValue(b"the-real-token")
        world.secrets.put(BoundSecret(name="TOKEN", placeholder="pdk_0123456789", bindings=(binding,), value=value))
        assert (await fetch(world, "index.test", PAGE, *OWN, "Authorization: Bearer pdk_0123456789"))[0] == 200
        assert b"Authorization: Bearer the-real-token\r\n" in outside.heads[-1]
        assert b"chosen" not in outside.heads[-1]
        assert (await fetch(world, "index.test", PAGE, "X-Any: pdk_0123456789"))[0] == 403
        assert (await fetch(world, "files.test", FILE.format("1.0"), "Authorization: chosen"))[0] == 200
        assert b"chosen" not in outside.heads[-1]

    through(work)


@pytest.mark.parametrize(("host", "path"), [("index.test", "/simple/{}/"), ("npm.test", "/{}")])
def test_a_name_that_is_too_long_for_a_package_is_not_asked_for(host: str, path: str) -> None:
    async def work(world: Rig, outside: Outside) -> None:
        assert (await fetch(world, host, path.format("a" * 101)))[0] == 403
        assert outside.asked == []
        assert (await fetch(world, host, path.format("a" * 100)))[0] == 404

    through(work)


def test_who_keeps_silent_about_a_page_that_is_refused_is_told_by_its_type() -> None:
    async def work(world: Rig, outside: Outside) -> None:
        status, head, _ = await fetch(world, "index.test", "/simple/other/", "User-Agent: pip/26")
        assert status == 200
        assert b'Content-Type: text/plain; refused="other is not one of the packages that the rule names"' in head
        status, _, body = await fetch(world, "index.test", "/simple/other/", "Accept: application/json")
        assert status == 403
        assert "other is not one" in json.loads(body)["error"]
        assert outside.asked == []

    through(work, ", packages: [demo]")


def test_what_another_revision_kept_is_not_fetched_under_this_one() -> None:
    async def work(world: Rig, outside: Outside) -> None:
        assert await versions(world) == ["1.0", "1.5", "2.0"]
        assert (await fetch(world, "files.test", FILE.format("2.0")))[0] == 200
        stricter: Any = world_of(COOLDOWN).policy
        await world.gateway.networks["sb_1"].revise(stricter)
        outside.asked.clear()
        assert (await fetch(world, "files.test", FILE.format("2.0")))[0] == 403
        assert outside.asked == ["index.test" + PAGE]
        assert await versions(world) == ["1.0"]
        assert (await fetch(world, "files.test", FILE.format("2.0")))[0] == 403

    through(work, ", unknown_age: allow")


# -- pages -------------------------------------------------------------------------------------------------------------


def test_a_page_is_written_in_the_form_that_the_client_asked_for_and_never_answered_by_304() -> None:
    async def work(world: Rig, outside: Outside) -> None:
        _, head, body = await fetch(world, "index.test", PAGE, 'If-None-Match: "1"', "Range: bytes=0-3")
        assert b"text/html" in head
        assert b"ETag" not in head
        assert b"Content-Length: %d\r\n" % len(body) in head
        assert b"Content-Encoding" not in head
        yanked = [b"yanked" in line for line in body.splitlines() if b".whl" in line]
        assert yanked == [False, True, True]
        assert b'data-yanked="held back: younger than 7 days"' in body
        assert all(b"v1+json" in accept for accept in outside.accepts)
        short = "application/vnd.npm.install-v1+json"
        _, head, body = await fetch(world, "npm.test", "/demo", f"Accept: {short}; q=1.0, */*", 'If-None-Match: "1"')
        found = json.loads(body)
        assert short.encode() in head
        assert (found["dist-tags"], list(found["versions"])) == ({"latest": "1.0.0", "old": "1.0.0"}, ["1.0.0"])
        assert "time" not in found
        assert found["versions"]["1.0.0"]["hasInstallScript"] is True

    through(work)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"name": "demo", "files": 1}', b'{"name": "other", "files": []}'])
def test_a_page_that_is_malformed_or_about_another_project_is_refused(body: bytes) -> None:
    async def work(world: Rig, outside: Outside) -> None:
        outside.answers["index.test" + PAGE] = (JSON, body)
        outside.answers["npm.test/demo"] = ("application/json", body)
        for host, path in (("index.test", PAGE), ("npm.test", "/demo")):
            status, _, said = await fetch(world, host, path)
            assert status == 502
            assert b"malformed" in said

    through(work)


def test_a_poisoned_page_leads_nowhere() -> None:
    async def work(world: Rig, outside: Outside) -> None:
        good = outside.files[0]
        name = good["filename"]
        urls = [f"https://evil.test/p/{name}", f"//evil.test/p/{name}", f"https://files.test@evil.test/p/{name}"]
        urls += [f"https://files.test\\@evil.test/{name}", "file:///etc/passwd", "javascript:alert(1)", "/p/%2e%2e%2f"]
        urls += [f"http://files.test/p/{name}", "https://files.test/p/demo-2.0-py3-none-any.whl", f"/\n/{name}"]
        wrong = [good | {"url": url} for url in urls]
        wrong += [
            good | {"filename": other, "url": f"/p/{other}"} for other in ("other-1.0.zip", "demo-x-1.0.zip", "x")
        ]
        outside.files = [*wrong, good]
        assert await versions(world) == ["1.0"]
        assert len(world.gateway.networks["sb_1"].files._files) == 1
        outside.files = wrong
        status, _, said = await fetch(world, "index.test", PAGE)
        assert status == 502
        assert b"none of its 13 files" in said
        manifest = outside.packument["versions"]["1.0.0"]
        for link in ("https://evil.test/demo/-/demo-1.0.0.tgz", "https://npm.test/other/-/demo-1.0.0.tgz", "x", None):
            outside.packument["versions"] = {"1.0.0": manifest | {"dist": {"tarball": link}}}
            assert (await fetch(world, "npm.test", "/demo"))[0] == 502

    through(work)


def test_what_is_no_page_is_not_read() -> None:
    async def work(world: Rig, outside: Outside) -> None:
        for path in ("/simple/", "/pypi/demo/json", "/simple/demo/?format=x", "/"):
            assert (await fetch(world, "index.test", path))[0] == 403
        for path in ("/-/v1/search?text=demo", "/-/all", "/", "/demo?write=true"):
            assert (await fetch(world, "npm.test", path))[0] == 403
        assert outside.asked == []
        status, _, body = await fetch(world, "index.test", "/simple/nothing/")
        assert (status, body) == (404, b"")

    through(work)


def test_a_page_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paddock.gateway.proxy.registry_filter.MOST_PAGE_BYTES", 100_000)

    async def work(world: Rig, outside: Outside) -> None:
        outside.answers["index.test" + PAGE] = (JSON, os.urandom(200_000))
        assert (await fetch(world, "index.test", PAGE))[0] == 502
        assert world.gateway.networks["sb_1"].files.held == 0

    through(work)
