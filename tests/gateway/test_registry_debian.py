"""A Debian archive behind a rule that holds something back: signed indexes pass, files are authorized."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from paddock.gateway.registries import debian
from paddock.gateway.registries.page import PackageFile
from tests.gateway.registry_clients import COOLDOWN, client, fetch, through
from tests.gateway.registry_files import Outside
from tests.gateway.rig import Rig, ca_file

FILE = "/pool/main/{}/{}/{}_1.0-1_all.deb"


def file(name: str) -> str:
    return FILE.format(name[0], name, name)


async def apt(world: Rig, directory: Path, *arguments: str) -> tuple[int, str]:
    program = shutil.which("apt-get")
    if program is None:
        pytest.skip("apt is not installed")
    if not (directory / "ca.pem").exists():
        ca_file(world.inside, directory).rename(directory / "ca.pem")
        for part in ("state/lists/partial", "cache/archives/partial", "etc/apt.conf.d", "etc/preferences.d", "log"):
            (directory / part).mkdir(parents=True)
        (directory / "status").touch()
        (directory / "sources.list").write_text("deb [trusted=yes arch=all] https://deb.test/ stable main\n")
    places = {
        "Dir::Etc": f"{directory}/etc",
        "Dir::Etc::SourceList": f"{directory}/sources.list",
        "Dir::Etc::SourceParts": os.devnull,
        "Dir::State": f"{directory}/state",
        "Dir::State::status": f"{directory}/status",
        "Dir::Cache": f"{directory}/cache",
        "Dir::Log": f"{directory}/log",
        "Acquire::https::Proxy": f"http://127.0.0.1:{world.port}",
        "Acquire::https::CaInfo": f"{directory}/ca.pem",
        "Acquire::Languages": "none",
        "Acquire::Retries": "0",
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "",
    }
    options = [f"-o{name}={value}" for name, value in places.items()]
    return await client(world, directory, program, *options, *arguments)


@pytest.mark.parametrize(
    ("terms", "refused"),
    [
        (", packages: [demo]", {"young": "young is not one of the packages", "undated": "undated is not one of the"}),
        (COOLDOWN, {"young": "young 1.0-1 is held back: it is younger than 7 days", "undated": "of an unknown age"}),
        (", cooldown_days: 7, unknown_age: allow", {"young": "younger than 7 days"}),
    ],
)
def test_apt_fetches_what_is_allowed_and_says_why_not_the_rest(
    terms: str, refused: dict[str, str], tmp_path: Path
) -> None:
    async def work(world: Rig, outside: Outside) -> None:
        status, said = await apt(world, tmp_path, "update")
        assert status == 0, said
        for name in ("demo", "young", "undated"):
            status, said = await apt(world, tmp_path, "download", name)
            assert (status == 0) == (name not in refused), said
            assert refused.get(name, "") in said
            assert (tmp_path / f"{name}_1.0-1_all.deb").exists() == (name not in refused)

    through(work, terms)


def test_of_a_file_that_is_too_young_no_byte_comes() -> None:
    async def work(world: Rig, outside: Outside) -> None:
        status, _, body = await fetch(world, "deb.test", file("young"))
        assert status == 403
        assert b"young 1.0-1\n" not in body
        assert b"younger than 7 days" in body
        assert (await fetch(world, "deb.test", file("demo")))[0] == 200
        records = [(flow.package, verdict.allowed) for flow, verdict in world.audit_log.of("registry")]
        assert records == [("young 1.0-1", False), ("demo 1.0-1", True)]

    through(work)


def test_what_is_no_index_and_not_in_the_pool_is_not_asked_for() -> None:
    async def work(world: Rig, outside: Outside) -> None:
        for path in ("/demo_1.0-1_all.deb", "/dists/stable/main/installer-amd64/linux", "/", "/pool/main/d/demo/x"):
            status, _, body = await fetch(world, "deb.test", path)
            assert status == 403
            assert b"neither an index of a Debian archive" in body
        assert outside.asked == []

    through(work)


def test_places_in_an_archive() -> None:
    lists = ("InRelease", "main/binary-amd64/Packages.xz", "main/i18n/Translation-en.bz2", "main/Contents-amd64.gz")
    lists += ("main/binary-amd64/by-hash/SHA256/" + "a" * 64, "main/binary-amd64/Packages.diff/Index", "Release.gpg")
    assert all(debian.is_index(f"/debian/dists/bookworm-updates/{path}") for path in lists)
    assert not any(debian.is_index(path) for path in ("/debian/InRelease", "/dists/x/a.deb", "/dists/x/Packages.exe"))
    for path, kept in {
        "/debian/pool/main/g/gcc-12/g%2b%2b-12_12.2.0-14_amd64.deb": PackageFile("g++-12", "12.2.0-14"),
        "/debian/pool/main/libc/libcap2/libcap2-bin_2.66-4_arm64.deb": PackageFile("libcap2-bin", "2.66-4"),
        "/ubuntu/pool/universe/d/demo/demo_1.0.orig.tar.xz": PackageFile("demo", "1.0"),
        "/debian-security/pool/updates/main/d/demo/demo_1.0-1.dsc": PackageFile("demo", "1.0-1"),
    }.items():
        assert debian.file_of(path) == kept
    for path in (
        "/pool/main/x/demo/demo_1.0_all.deb",
        "/pool/main/d/demo/evil_1.0.dsc",
        "/pool/main/d/demo/demo_1.0_all.exe",
        "/pool/main/d/demo/%2564emo_1.0_all.deb",
        "/pool/main/d/demo/demo_1.0_all.deb?x",
    ):
        assert debian.file_of(path) is None
