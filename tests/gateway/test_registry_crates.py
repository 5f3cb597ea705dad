"""A registry of crates behind a rule that holds something back."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from paddock.gateway.registries import crates
from paddock.gateway.registries.page import Malformed, Page
from paddock.model import Allow
from tests.gateway.registry_clients import COOLDOWN, client, fetch, slow, through
from tests.gateway.registry_files import Outside
from tests.gateway.rig import Rig, ca_file

INDEX, FILE = "/index/de/mo/demo", "/dl/demo/{}/download"


def cargo_project(directory: Path, version: str) -> None:
    (directory / "src").mkdir()
    (directory / "src/lib.rs").write_text("")
    manifest = '[package]\nname = "mine"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\n'
    (directory / "Cargo.toml").write_text(f'{manifest}demo = "{version}"\n')
    (directory / ".cargo").mkdir()
    (directory / ".cargo/config.toml").write_text(
        '[source.crates-io]\nreplace-with = "here"\n[source.here]\nregistry = "sparse+https://crates.test/index/"\n'
    )


async def cargo(world: Rig, directory: Path, *arguments: str) -> tuple[int, str]:
    program = shutil.which("cargo")
    if program is None:
        pytest.skip("cargo is not installed")
    ca_file(world.inside, directory).rename(directory / "ca.pem")
    more = {"CARGO_HOME": str(directory / "home"), "CARGO_HTTP_PROXY": f"http://127.0.0.1:{world.port}"}
    more |= {"CARGO_HTTP_CAINFO": str(directory / "ca.pem"), "CARGO_NET_RETRY": "0"}
    more["RUSTUP_HOME"] = os.environ.get("RUSTUP_HOME") or str(Path.home() / ".rustup")
    return await client(world, directory, program, *arguments, **more)


@pytest.mark.parametrize(("terms", "chosen"), [(COOLDOWN, "1.0.0"), slow(", unknown_age: allow", "2.0.0")])
def test_cargo_chooses_what_is_old_enough_and_can_fetch_it(terms: str, chosen: str, tmp_path: Path) -> None:
    async def work(world: Rig, outside: Outside) -> None:
        cargo_project(tmp_path, ">=1")
        status, said = await cargo(world, tmp_path, "fetch")
        assert status == 0, said
        lock = (tmp_path / "Cargo.lock").read_text()
        assert f'name = "demo"\nversion = "{chosen}"' in lock

    through(work, terms)


def test_cargo_is_told_why_what_a_lock_file_pins_is_not_there(tmp_path: Path) -> None:
    async def work(world: Rig, outside: Outside) -> None:
        cargo_project(tmp_path, "2")
        lines = outside.answers["crates.test" + INDEX][1].splitlines()
        checksum = json.loads(lines[2])["cksum"]
        lock = 'version = 3\n[[package]]\nname = "demo"\nversion = "2.0.0"\n'
        lock += f'source = "registry+https://github.com/rust-lang/crates.io-index"\nchecksum = "{checksum}"\n'
        mine = '[[package]]\nname = "mine"\nversion = "0.1.0"\ndependencies = ["demo"]\n'
        (tmp_path / "Cargo.lock").write_text(lock + mine)
        status, said = await cargo(world, tmp_path, "fetch", "--locked")
        assert status != 0
        assert "demo 2.0.0 is held back: it is younger than 7 days" in said
        assert "crates.test" + FILE.format("2.0.0") not in outside.asked

    through(work)


def test_a_crate_s_file_is_judged_by_its_line_of_the_index() -> None:
    async def work(world: Rig, outside: Outside) -> None:
        _, head, body = await fetch(world, "crates.test", INDEX, 'If-None-Match: "1"')
        assert b"ETag" not in head
        assert [json.loads(line)["yanked"] for line in body.splitlines()] == [False, True, True]
        assert (await fetch(world, "crates.test", FILE.format("1.0.0")))[0] == 200
        for version in ("1.5.0", "2.0.0", "3.0.0"):
            assert (await fetch(world, "crates.test", FILE.format(version)))[0] == 403
        for path in ("/api/v1/crates?q=demo", "/index/de/mo/other", "/index/", "/dl/demo/1.0.0/download?x"):
            assert (await fetch(world, "crates.test", path))[0] == 403
        assert not [path for path in outside.asked if "2.0.0" in path or "api" in path]

    through(work)


def test_an_index_without_dates_has_crates_of_an_unknown_age() -> None:
    async def work(world: Rig, outside: Outside) -> None:
        kind, lines = outside.answers["crates.test" + INDEX]
        outside.answers["crates.test" + INDEX] = (kind, lines.splitlines()[1])
        status, _, body = await fetch(world, "crates.test", INDEX)
        assert status == 403
        assert b"1.5.0 (of an unknown age)" in body

    through(work)


def page(package: str = "demo", downloads: str | None = None) -> Page:
    rule = Allow(registry="crates", hosts=("index.test", "files.test"))
    path = "/de/mo/demo" if package else "/config.json"
    where = {"scheme": "https", "host": "index.test", "port": 443, "path": path}
    return Page(package=package, rule=rule, now=0.0, downloads=downloads, **where)  # pyright: ignore[reportArgumentType]


def test_an_index_leads_to_its_own_hosts_only() -> None:
    line = json.dumps({"name": "demo", "vers": "1.0.0", "cksum": "a" * 64}).encode()
    for template, place in (
        ("https://files.test/{crate}-{version}.crate", "/demo-1.0.0.crate"),
        ("https://files.test/{prefix}/{lowerprefix}/{sha256-checksum}", f"/de/mo/de/mo/{'a' * 64}"),
    ):
        ((file, kept),) = crates.filter_page(page(downloads=template), "", line)[1].items()
        assert file == ("files.test", 443, place)
        assert kept.digest == f"sha256:{'a' * 64}"
    for url in ("https://evil.test/{crate}", "file:///etc/{crate}", "https://files.test@evil.test/"):
        with pytest.raises(Malformed):
            crates.filter_page(page(""), "", json.dumps({"dl": url}).encode())
        with pytest.raises(Malformed):
            crates.filter_page(page(downloads=url), "", line)
    for other in (b'{"name": "other", "vers": "1.0.0"}', b"{", b"[]", b"\xff"):
        with pytest.raises(Malformed):
            crates.filter_page(page(), "", line + b"\n" + other)


def test_paths_of_the_index_and_of_files() -> None:
    of_pages = ("/1/a", "/2/ab", "/3/a/abc", "/se/rd/serde_json", "/x/3/a/abc", "/config.json", "/i/config.json")
    assert [crates.package_of(path) for path in of_pages] == ["a", "ab", "abc", "serde-json", "abc", "", ""]
    assert [crates.package_of(path) for path in ("/se/rd/other", "/3/b/abc", "/serde", "/se/rd/serde?x")] == [None] * 4
    assert crates.page_of("/crates/serde/1.0.0/download") == ("serde", "/se/rd/serde")
    assert crates.page_of("/crates/Foo_Bar/Foo_Bar-1.0.0.crate") == ("foo-bar", "/fo/o_/foo_bar")
    assert crates.page_of("/crates/serde/other-1.0.0.crate") is None
