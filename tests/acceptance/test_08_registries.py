"""Registries: what a policy holds back is had in no way that installers know, and they are told why; the rest is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from paddock import Sandbox
from tests.conftest import SandboxFactory
from tests.gateway.registry_files import Outside

from .rig import Internet, Records, Request, Response

UV = Path(__file__).parents[2] / ".tools/bin/uv"
PYPI, NPM = "https://index.test/simple/", "https://npm.test/"
WHEEL, TARBALL = "https://files.test/p/demo-{}-py3-none-any.whl", "https://npm.test/demo/-/demo-{}.tgz"
YOUNG, MALICIOUS, UNLISTED = "younger than 7 days", "known malware (MAL-2026-1)", "other is not one of the packages"
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def outside(internet: Internet) -> Outside:
    """Of demo there is an old release, one that a list of malware names, and a young one."""
    found = Outside()

    def site(name: str) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            place = f"{name}{request.target}"
            page = found.answers.get(place) or found.page(place, (request.field("accept") or "").encode())
            if page is None:
                return Response(status=404, body=b"")
            return Response(fields={"content-type": page[0]}, body=page[1])

        return answer

    for name in ("index.test", "files.test", "npm.test"):
        internet.site(name, site(name))
    return found


@pytest.fixture
def made(sandbox: SandboxFactory, outside: Outside, tmp_path: Path) -> Sandbox:
    known = tmp_path / "osv"
    known.mkdir()
    for number, ecosystem, version in ((1, "PyPI", "1.5"), (1, "npm", "1.5.0")):
        affected = [{"package": {"ecosystem": ecosystem, "name": "demo"}, "versions": [version]}]
        (known / f"{ecosystem}.json").write_text(json.dumps({"id": f"MAL-2026-{number}", "affected": affected}))
    terms = {"cooldown_days": 7, "unknown_age": "allow", "packages": ["demo"], "malware": str(known)}
    allow = [{"registry": "pypi", "hosts": ["index.test", "files.test"]}, {"registry": "npm", "hosts": ["npm.test"]}]
    return sandbox(policy={"egress": {"allow": [{**one, **terms} for one in allow]}})


def held_back(made: Sandbox, internet: Internet, records: Records) -> None:
    """Nothing of what is held back was asked for, nothing went astray, and each refusal is a record."""
    assert internet.strays() == []
    asked = [one.target for site in ("files.test", "npm.test") for one in internet.requests(site)]
    assert [target for target in asked if any(version in target for version in ("-1.5", "-2.0", "other"))] == []
    assert records.denied(made.id, "egress.registry")


def run(made: Sandbox, *command: str) -> tuple[int, str]:
    done = made.exec(command, timeout_seconds=100)
    return done.exit_code, done.stdout + done.stderr


def test_pip_gets_nothing_that_is_held_back(
    made: Sandbox, outside: Outside, internet: Internet, records: Records
) -> None:
    common = ("python3", "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir", "--retries", "0", "-d", "got")
    if run(made, *common[:3], "--version")[0] != 0:
        pytest.skip("the host's python3, which the sandbox has, has no pip")
    digest = outside.files[2]["hashes"]["sha256"]
    made.files.write("lock.txt", f"demo==2.0 --hash=sha256:{digest}\n")
    for arguments, why in (
        (("--index-url", PYPI, "demo==2.0"), YOUNG),
        (("--index-url", PYPI, "demo==1.5"), MALICIOUS),
        (("--index-url", PYPI, "other"), UNLISTED),
        ((WHEEL.format("2.0"),), YOUNG),
        (("--index-url", PYPI, "--require-hashes", "-r", "lock.txt"), YOUNG),
        (("git+https://files.test/o/demo.git",), "a page of a package"),
        (("--index-url", "https://evil.test/simple/", "demo"), ""),
        (("git+https://evil.test/o/demo.git",), "evil.test"),
    ):
        status, said = run(made, *common, *arguments)
        assert status != 0, said
        assert why in said, arguments
    held_back(made, internet, records)
    assert {one.detail["host"] for one in records.denied(made.id, "egress.name")} == {"evil.test"}

    status, said = run(made, *common, "--index-url", PYPI, "demo")
    assert status == 0, said
    assert [one.name for one in made.files.list("got")] == ["demo-1.0-py3-none-any.whl"]


def test_npm_gets_nothing_that_is_held_back(
    made: Sandbox, outside: Outside, internet: Internet, records: Records
) -> None:
    common = ("npm", "install", "--no-audit", "--no-fund", "--fetch-retries=0", "--no-update-notifier")
    if run(made, "npm", "--version")[0] != 0:
        pytest.skip("the host, whose programs the sandbox has, has no npm")
    for arguments, why in (
        ((f"--registry={NPM}", "demo@2.0.0"), YOUNG),
        ((f"--registry={NPM}", "demo@1.5.0"), MALICIOUS),
        ((f"--registry={NPM}", "other"), UNLISTED),
        ((TARBALL.format("2.0.0"),), YOUNG),
        (("--registry=https://evil.test/", "demo"), "evil.test"),
        (("git+https://evil.test/o/demo.git",), "evil.test"),
    ):
        status, said = run(made, *common, *arguments)
        assert status != 0, said
        assert why in said, arguments
    integrity = outside.packument["versions"]["2.0.0"]["dist"]["integrity"]
    locked = {"version": "2.0.0", "resolved": TARBALL.format("2.0.0"), "integrity": integrity}
    root = {"name": "mine", "version": "1.0.0", "dependencies": {"demo": "2.0.0"}}
    lock = {"lockfileVersion": 3, "packages": {"": root, "node_modules/demo": locked}, **root}
    made.files.write("package.json", json.dumps(root))
    made.files.write("package-lock.json", json.dumps(lock))
    status, said = run(made, "npm", "ci", *common[2:], f"--registry={NPM}")
    assert status != 0
    assert YOUNG in said
    held_back(made, internet, records)

    run(made, "rm", "package.json", "package-lock.json")
    status, said = run(made, *common, f"--registry={NPM}", "demo")
    assert status == 0, said
    assert json.loads(made.files.read_text("node_modules/demo/package.json"))["version"] == "1.0.0"


def test_uv_gets_nothing_that_is_held_back(
    made: Sandbox, outside: Outside, internet: Internet, records: Records
) -> None:
    if not UV.exists():
        pytest.skip("uv was not set up in this checkout")
    made.files.write("uv", UV.read_bytes(), mode=0o755)
    common = ("./uv", "pip", "install", "--no-cache", "--system-certs", "--python=/usr/bin/python3", "--target=got")
    for arguments, why in (
        (("--default-index", PYPI, "demo==2.0"), YOUNG),
        (("--default-index", PYPI, "demo==1.5"), MALICIOUS),
        (("--default-index", PYPI, "other"), "returned a 403 Forbidden"),  # all that it says of a page
        ((f"demo @ {WHEEL.format('2.0')}",), YOUNG),
        (("--default-index", "https://evil.test/simple/", "demo"), "evil.test"),
    ):
        status, said = run(made, *common, *arguments)
        assert status != 0, said
        assert why in said, said
    held_back(made, internet, records)

    status, said = run(made, *common, "--default-index", PYPI, "demo")
    assert status == 0, said
    assert made.files.exists("got/demo-1.0.dist-info")
