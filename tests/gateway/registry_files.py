"""A package index and an npm registry with one old, one young and one undated release, and what is wrong with some."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

from paddock.policy.network import load
from tests.gateway.rig import Rig

NOW = datetime.now(UTC)
OLD, YOUNG = (NOW - timedelta(days=30)).isoformat(), (NOW - timedelta(hours=1)).isoformat()


def world_of(terms: str) -> Rig:
    """`terms` of both rules."""
    text = f"""
egress:
  allow:
    - {{registry: pypi, hosts: [index.test, files.test]{terms}}}
    - {{registry: npm, hosts: [npm.test]{terms}}}
    - {{registry: crates, hosts: [crates.test]{terms}}}
    - {{registry: debian, hosts: [deb.test]{terms}}}
    - {{host: evil.test, methods: [GET]}}
    - {{cidr: 127.0.0.1, ports: [1-65535]}}
"""
    rig = Rig(load(text).snapshot)  # pyright: ignore[reportArgumentType]
    rig.reads = True
    return rig


def wheel(name: str, version: str) -> bytes:
    out = io.BytesIO()
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return out.getvalue()


def tarball(name: str, version: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        data = json.dumps({"name": name, "version": version}).encode()
        entry = tarfile.TarInfo("package/package.json")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def crate(name: str, version: str) -> bytes:
    out = io.BytesIO()
    manifest = f'[package]\nname = "{name}"\nversion = "{version}"\nedition = "2021"\n'
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for path, text in (("Cargo.toml", manifest), ("src/lib.rs", "")):
            entry = tarfile.TarInfo(f"{name}-{version}/{path}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return out.getvalue()


class Outside:
    """`asked` is what the servers were asked for: host and path."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.accepts: list[bytes] = []
        self.json = True
        self.etag, self.more = '"1"', ""  # more: of the head of pages
        self.heads: list[bytes] = []
        self.answers: dict[str, tuple[str, bytes]] = {}
        files: list[dict[str, Any]] = []
        for version, when in (("1.0", OLD), ("1.5", None), ("2.0", YOUNG)):
            data, filename = wheel("demo", version), f"demo-{version}-py3-none-any.whl"
            self.answers[f"files.test/p/{filename}"] = ("application/zip", data)
            digest = hashlib.sha256(data).hexdigest()
            entry = {"filename": filename, "url": f"https://files.test/p/{filename}", "hashes": {"sha256": digest}}
            files.append(entry | ({"upload-time": when} if when else {}))
        self.files = files
        npm = "https://npm.test"
        versions: dict[str, Any] = {}
        for version in ("1.0.0", "1.5.0", "2.0.0"):
            data = tarball("demo", version)
            self.answers[f"npm.test/demo/-/demo-{version}.tgz"] = ("application/octet-stream", data)
            integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
            dist = {"tarball": f"{npm}/demo/-/demo-{version}.tgz", "integrity": integrity}
            versions[version] = {"name": "demo", "version": version, "dist": dist, "scripts": {"install": "true"}}
        self.modified: dict[str, datetime] = {}
        self._add_crates()
        self._add_debian()
        self.packument: dict[str, Any] = {
            "name": "demo",
            "dist-tags": {"latest": "2.0.0", "next": "2.0.0", "old": "1.0.0"},
            "versions": versions,
            "time": {"created": OLD, "modified": YOUNG, "1.0.0": OLD, "2.0.0": YOUNG},
        }

    def _add_crates(self) -> None:
        lines: list[bytes] = []
        for version, when in (("1.0.0", OLD), ("1.5.0", None), ("2.0.0", YOUNG)):
            data = crate("demo", version)
            self.answers[f"crates.test/dl/demo/{version}/download"] = ("application/gzip", data)
            entry: dict[str, Any] = {"name": "demo", "vers": version, "deps": [], "features": {}, "yanked": False}
            entry["cksum"] = hashlib.sha256(data).hexdigest()
            lines.append(json.dumps(entry | ({"pubtime": f"{when[:19]}Z"} if when else {})).encode())
        config = {"dl": "https://crates.test/dl", "api": "https://crates.test"}
        self.answers["crates.test/index/config.json"] = ("application/json", json.dumps(config).encode())
        self.answers["crates.test/index/de/mo/demo"] = ("text/plain", b"\n".join(lines) + b"\n")

    def _add_debian(self) -> None:
        stanzas: list[str] = []
        for name, version, when in (("demo", "1.0-1", OLD), ("young", "1.0-1", YOUNG), ("undated", "1.0-1", None)):
            data, filename = f"{name} {version}".encode(), f"pool/main/{name[0]}/{name}/{name}_{version}_all.deb"
            self.answers[f"deb.test/{filename}"] = ("application/vnd.debian.binary-package", data)
            if when is not None:
                self.modified[f"deb.test/{filename}"] = datetime.fromisoformat(when)
            stanza = {"Package": name, "Version": version, "Architecture": "all", "Filename": filename}
            stanza |= {"Size": str(len(data)), "SHA256": hashlib.sha256(data).hexdigest(), "Maintainer": "nobody"}
            stanzas.append("".join(f"{key}: {value}\n" for key, value in stanza.items()))
        packages = "\n".join(stanzas).encode()
        place = "main/binary-all/Packages"
        digest = f" {hashlib.sha256(packages).hexdigest()} {len(packages)} {place}"
        release = f"Suite: stable\nCodename: stable\nComponents: main\nArchitectures: all\nSHA256:\n{digest}\n"
        self.answers[f"deb.test/dists/stable/{place}"] = ("text/plain", packages)
        self.answers["deb.test/dists/stable/Release"] = ("text/plain", release.encode())

    def page(self, path: str, accept: bytes) -> tuple[str, bytes] | None:
        self.accepts.append(accept)
        if path == "index.test/simple/demo/" and self.json and b"v1+json" in accept:
            page = {"meta": {"api-version": "1.1"}, "name": "demo", "versions": ["1.0", "1.5", "2.0"]}
            return "application/vnd.pypi.simple.v1+json", json.dumps(page | {"files": self.files}).encode()
        if path == "index.test/simple/demo/":
            links = [f'<a href="{f["url"]}#sha256={f["hashes"]["sha256"]}">{f["filename"]}</a>' for f in self.files]
            return "text/html", "<!DOCTYPE html><html><body>{}</body></html>".format("\n".join(links)).encode()
        if path == "npm.test/demo":
            return "application/json", json.dumps(self.packument).encode()
        return None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.split(b"\r\n")
                fields = {n.lower(): v.strip() for n, _, v in (line.partition(b":") for line in lines[1:])}
                path = fields[b"host"].decode() + lines[0].split()[1].decode()
                self.asked.append(path)
                self.heads.append(head)
                found = self.answers.get(path) or self.page(path, fields.get(b"accept", b""))
                kind, body = found or ("text/plain", b"no such page: https://files.test/p/other-1.0.tar.gz")
                extra = f"ETag: {self.etag}\r\n{'' if path in self.answers else self.more}"
                if path in self.modified:
                    extra += f"Last-Modified: {format_datetime(self.modified[path], usegmt=True)}\r\n"
                if fields.get(b"accept-encoding") == b"gzip":
                    body, extra = gzip.compress(body), extra + "Content-Encoding: gzip\r\n"
                if fields.get(b"if-none-match") == self.etag.encode():
                    writer.write(b"HTTP/1.1 304 Not Modified\r\n\r\n")
                    continue
                status = "200 OK" if found else "404 Not Found"
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{extra}Content-Length: {len(body)}\r\n\r\n".encode()
                    + body
                )
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def join(self, world: Rig) -> None:
        """All names lead here, whatever port they are asked for on; connections from inside are to the proxy."""
        ports: dict[str, int] = {}
        for name in ("index.test", "files.test", "npm.test", "crates.test", "deb.test", "evil.test"):
            world.names[name] = ["127.0.0.1"]
            ports[name] = await world.server(self.serve, tls=name)
        dialer = world.gateway.dialer
        connect = dialer._connect
        dialer._connect = lambda addresses, target: connect(  # pyright: ignore[reportAttributeAccessIssue]
            addresses, type(target)(target.host, ports[target.host])
        )
