"""A malicious install gets nothing out: what runs while a package is installed, in three ecosystems, finds placeholders
and sends them nowhere. The same package without malice installs."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from paddock.model import Mount, MountMode
from tests.conftest import SandboxFactory

from . import malice
from .rig import Internet, Records, Request, Response

if TYPE_CHECKING:
    from paddock import Sandbox

VALUE = "npm_the-value-of-the-token-0123456789"
TOOLS = ("http", "https", "address", "tcp", "udp", "dns", "push")
SETUP = "from setuptools import setup\nsetup(name='{name}', version='1.0', py_modules=['{name}'])\n"
POLICY: dict[str, Any] = {
    "egress": {
        "allow": [
            {"registry": "pypi", "hosts": ["pypi.test"]},
            {"registry": "npm", "hosts": ["npm.test"], "secret": "NPM_TOKEN"},
        ]
    },
}


def archive(files: Mapping[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as made:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data := text.encode())
            made.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def sdist(name: str, first: str = "") -> bytes:
    facts = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    files = {"setup.py": first + SETUP.format(name=name), f"{name}.py": "WORKS = True\n", "PKG-INFO": facts}
    return archive({f"{name}-1.0/{path}": text for path, text in files.items()})


def package(name: str, script: str | None = None) -> bytes:
    scripts = {} if script is None else {"scripts": {"postinstall": "node steal.js"}}
    files = {
        "package.json": json.dumps({"name": name, "version": "1.0.0", **scripts}),
        "index.js": "module.exports = 1",
    }
    if script is not None:
        files["steal.js"] = script
    return archive({f"package/{path}": text for path, text in files.items()})


class Registries:
    """Of Python and of Node.js: one package with malice, and its twin."""

    def __init__(self, internet: Internet) -> None:
        self.sdists = {"evilpad": sdist("evilpad", malice.written(malice.PYTHON)), "leftpad": sdist("leftpad")}
        self.packages = {"evilpad": package("evilpad", malice.written(malice.NODE)), "leftpad": package("leftpad")}
        self.logins: list[str | None] = []
        internet.site("pypi.test", self.python)
        internet.site("npm.test", self.node)

    def python(self, request: Request) -> Response:
        name = request.target.strip("/").split("/")[-1].removesuffix("-1.0.tar.gz")
        if request.target.endswith(".gz"):
            return Response(200, {"content-type": "application/gzip"}, self.sdists[name])
        digest = hashlib.sha256(self.sdists[name]).hexdigest()
        link = f'<a href="https://pypi.test/packages/{name}-1.0.tar.gz#sha256={digest}">{name}-1.0.tar.gz</a>'
        return Response(200, {"content-type": "text/html"}, f"<!DOCTYPE html><html><body>{link}</body></html>".encode())

    def node(self, request: Request) -> Response:
        self.logins.append(request.field("authorization"))
        name = request.target.strip("/").split("/")[0]
        data = self.packages[name]
        if request.target.endswith(".tgz"):
            return Response(200, {"content-type": "application/octet-stream"}, data)
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
        dist = {"tarball": f"https://npm.test/{name}/-/{name}-1.0.0.tgz", "integrity": integrity}
        scripts = {"hasInstallScript": name == "evilpad", "scripts": {"postinstall": "node steal.js"}}
        version = {"name": name, "version": "1.0.0", "dist": dist, **(scripts if name == "evilpad" else {})}
        document = {"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
        return Response(200, {"content-type": "application/json"}, json.dumps(document).encode())


@pytest.fixture
def registries(internet: Internet) -> Registries:
    return Registries(internet)


@pytest.fixture
def policy(tmp_path: Path) -> dict[str, Any]:
    value = tmp_path / "value"
    value.write_text(VALUE)
    rule = {"from": {"file": str(value)}, "bind": {"host": "npm.test", "header": "authorization"}}
    return {**POLICY, "secrets": {"NPM_TOKEN": rule}}


def has(sandbox: Sandbox, command: str) -> None:
    """Skips where the tool is not in the template, which is this machine's."""
    if sandbox.exec(command).exit_code != 0:
        pytest.skip(f"this machine has not what a sandbox needs for this: {command}")


def log_in(sandbox: Sandbox) -> str:
    """As CI does: the token in a file. What the token is in there."""
    command = 'echo "//npm.test/:_authToken=$NPM_TOKEN" > ~/.npmrc; printf %s "$NPM_TOKEN"'
    return sandbox.exec(command, check=True).stdout


def look(
    sandbox: Sandbox, placeholder: str, internet: Internet, records: Records, *, names: tuple[str, ...], sites: set[str]
) -> None:
    """Whatever it did, it did all of it, and nothing came of it but records."""
    said = json.loads(sandbox.filesystem.read_text("/tmp/said"))
    assert tuple(said) == TOOLS, said
    stolen = sandbox.filesystem.read_text("/tmp/stolen", errors="replace")
    assert placeholder in stolen, "it has read what there is to read"
    assert VALUE not in stolen
    assert internet.strays() == []
    assert {arrival.name for arrival in internet.arrivals} <= sites
    assert {name for name, _ in internet.questions} <= sites
    assert {one.detail["host"] for one in records.denied(sandbox.id, "egress.name")} >= {malice.EVIL}
    assert len(records.denied(sandbox.id, "egress.name")) >= 2, "and the name with what was stolen in it"
    for port in (80, malice.PORT):
        denied = records.denied(sandbox.id, "egress.connect", host=malice.ADDRESS, port=port)
        assert {one.detail["revision"] for one in denied} == {sandbox.policy}
    _named(sandbox, records, names)


def _named(sandbox: Sandbox, records: Records, names: tuple[str, ...]) -> None:
    """Who it was, package and script, where this mode lets the gateway look: else that it could not."""
    denied = {one.detail["flow"] for one in records.denied(sandbox.id, "egress.connect", host=malice.ADDRESS)}
    found = [one.detail for one in records.of(sandbox.id, "egress.origin") if one.detail["flow"] in denied]
    assert len(found) == len(denied)
    if os.getuid() == 0:
        assert all(name in json.dumps(one) for one in found for name in names), found
    else:
        assert all(one.get("why") or all(name in json.dumps(one) for name in names) for one in found), found


PIP = "python3 -m pip install --no-build-isolation --no-cache-dir --disable-pip-version-check --index-url"


def test_setup_py_of_a_source_distribution(
    sandbox: SandboxFactory, registries: Registries, internet: Internet, records: Records, policy: dict[str, Any]
) -> None:
    made = sandbox(policy=policy)
    has(made, "python3 -c 'import setuptools, pip'")
    token = log_in(made)
    made.exec(f"{PIP} https://pypi.test/simple/ --target /tmp/site evilpad", timeout_seconds=100)
    look(made, token, internet, records, names=("evilpad", "setup.py"), sites={"pypi.test"})
    twin = made.exec(f"{PIP} https://pypi.test/simple/ --target /tmp/site leftpad", timeout_seconds=100)
    assert twin.exit_code == 0, twin
    assert made.exec("PYTHONPATH=/tmp/site python3 -c 'import leftpad; assert leftpad.WORKS'").exit_code == 0


NPM = "npm install --registry https://npm.test/ --no-audit --no-fund --no-update-notifier --foreground-scripts"


def test_postinstall_of_a_package_of_node(
    sandbox: SandboxFactory, registries: Registries, internet: Internet, records: Records, policy: dict[str, Any]
) -> None:
    made = sandbox(policy=policy)
    has(made, "npm --version && node --version")
    token = log_in(made)
    made.exec("mkdir -p app && echo '{}' > app/package.json", check=True)
    done = made.exec(f"cd app && {NPM} evilpad", timeout_seconds=110)
    assert done.exit_code == 0, done
    look(made, token, internet, records, names=("evilpad", "steal.js"), sites={"npm.test"})
    assert registries.logins, "the registry was asked"
    assert set(registries.logins) == {f"Bearer {VALUE}"}, "with the value, where the policy binds it"
    twin = made.exec(
        f"cd app && {NPM} leftpad && node -e 'process.exit(require(\"leftpad\") - 1)'", timeout_seconds=110
    )
    assert twin.exit_code == 0, twin


def toolchain() -> Path:
    """Rust, where this user can read it."""
    rustc = shutil.which("rustc")
    found = None if rustc is None else subprocess.run([rustc, "--print", "sysroot"], capture_output=True, text=True)
    if found is None or found.returncode != 0 or not os.access(found.stdout.strip(), os.R_OK | os.X_OK):
        pytest.skip("this machine has no Rust that this user can read")
    return Path(found.stdout.strip())


def test_build_rs_of_a_crate(
    sandbox: SandboxFactory, internet: Internet, records: Records, policy: dict[str, Any]
) -> None:
    rust = toolchain()
    made = sandbox(policy=policy, mounts=[Mount(source=str(rust), target="/opt/rust", mode=MountMode.READ_ONLY)])
    has(made, "cc --version")
    token = log_in(made)
    build = "export PATH=/opt/rust/bin:$PATH; cargo build --offline --quiet"
    for name, script in (("evilpad", malice.written(malice.RUST)), ("leftpad", "fn main() {}")):
        facts = f'[package]\nname = "{name}"\nversion = "1.0.0"\nedition = "2021"\nbuild = "build.rs"\n'
        made.filesystem.make_dir(f"/workspace/{name}/src")
        made.filesystem.write(f"/workspace/{name}/Cargo.toml", facts)
        made.filesystem.write(f"/workspace/{name}/build.rs", script)
        made.filesystem.write(f"/workspace/{name}/src/lib.rs", "")
        done = made.exec(f"cd /workspace/{name} && {build}", timeout_seconds=110)
        assert done.exit_code == 0, done
        if name == "evilpad":
            look(made, token, internet, records, names=("evilpad", "build-script-build"), sites=set())
