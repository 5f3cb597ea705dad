"""Documents of an npm registry about one package, without the versions that a rule holds back. Pure."""

from __future__ import annotations

import base64
import re
from typing import Any, cast

import msgspec

from ._registry_page import MOST_FILES, File, Filtered, Malformed, Page

ACCEPT = b"application/json"
"""The whole document: the abbreviated one has no dates."""

ABBREVIATED = "application/vnd.npm.install-v1+json"

_PART = r"[A-Za-z0-9._~!'()*-]{1,214}"
_PAGE = re.compile(rf"(?:/[^?@]*)?/((?:@{_PART}(?:/|%2[Ff]))?{_PART})")
_NUMBER = re.compile(r"([0-9]{1,16})\.([0-9]{1,16})\.([0-9]{1,16})(?:-([0-9A-Za-z.-]+))?(?:\+.*)?")
_SHORT = frozenset(
    {"name", "version", "deprecated", "dependencies", "optionalDependencies", "devDependencies", "bundleDependencies"}
    | {"bundledDependencies", "peerDependencies", "peerDependenciesMeta", "acceptDependencies", "bin", "directories"}
    | {"dist", "engines", "os", "cpu", "libc", "funding", "hasInstallScript", "_hasShrinkwrap"}
)
_INSTALL_SCRIPTS = ("preinstall", "install", "postinstall")
_OF_PACKAGE = frozenset(
    {"name", "_id", "_rev", "description", "author", "maintainers", "license", "homepage", "readme"}
)
_WHOLE = _OF_PACKAGE | {"keywords", "repository", "bugs", "contributors", "readmeFilename"}

Document = dict[str, Any]


def package_of(path: str) -> str | None:
    """Of a package's document; None: the path is of something else."""
    match = _PAGE.fullmatch(path)
    if match is None or "/-/" in path or match[1] in ("-", ".", ".."):
        return None
    return re.sub("%2[Ff]", "/", match[1])


def filter_document(page: Page, body: bytes, accept: str) -> Filtered:
    """Malformed, NothingLeft."""
    try:
        document = _object(msgspec.json.decode(body))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Malformed(f"it is not JSON: {error}") from None
    versions, times = _object(document.get("versions")), _object(document.get("time"))
    if document.get("name") != page.package or not isinstance(document.get("versions"), dict):
        raise Malformed(f"it is not about {page.package}")
    if len(versions) > MOST_FILES:
        raise Malformed(f"more than {MOST_FILES} versions")
    kept: dict[str, Document] = {}
    files: set[File] = set()
    digests: dict[File, str] = {}
    for version, manifest in versions.items():
        found = _manifest(page, version, _object(manifest))
        if found is None or not page.ripe(times.get(version)):
            continue
        kept[version] = found[1]
        files.add(found[0])
        if (digest := _digest(_object(manifest.get("dist")).get("integrity"))) is not None:
            digests[found[0]] = digest
    if versions and not kept:
        raise page.nothing_left(len(versions))
    short = ABBREVIATED in accept
    written: Document = {name: value for name, value in document.items() if name in _WHOLE and not short}
    written |= {"name": page.package, "dist-tags": _tags(_object(document.get("dist-tags")), kept)}
    written["versions"] = {version: _short(one) for version, one in kept.items()} if short else kept
    if isinstance(modified := times.get("modified"), str):
        written["modified"] = modified
    if not short:
        shown = {"created", "modified", *kept}
        written["time"] = {name: when for name, when in times.items() if name in shown}
    kind = ABBREVIATED if short else "application/json"
    return Filtered(kind=kind, body=msgspec.json.encode(written), files=frozenset(files), digests=digests)


def _manifest(page: Page, version: str, manifest: Document) -> tuple[File, Document] | None:
    """None: it is another's, or its file is somewhere else."""
    if manifest.get("name") != page.package or manifest.get("version") != version or not _NUMBER.fullmatch(version):
        return None
    dist = _object(manifest.get("dist"))
    found = page.file(dist.get("tarball"))
    if found is None:
        return None
    short_name, place = page.package.rpartition("/")[2], found[0][2].partition("?")[0].replace("%2F", "/")
    if not place.endswith(f"/{page.package}/-/{short_name}-{version.partition('+')[0]}.tgz"):
        return None
    return found[0], {**manifest, "dist": {**dist, "tarball": found[1]}}


def _digest(integrity: object) -> str | None:
    """Of the first SHA-512 of a `Subresource Integrity` list."""
    if not isinstance(integrity, str):
        return None
    for one in integrity.split()[:8]:
        name, _, value = one.partition("-")
        try:
            if name == "sha512":
                return f"sha512:{base64.b64decode(value.partition('?')[0], validate=True).hex()}"
        except ValueError:
            continue
    return None


def _short(manifest: Document) -> Document:
    written = {name: value for name, value in manifest.items() if name in _SHORT}
    if any(name in _object(manifest.get("scripts")) for name in _INSTALL_SCRIPTS) or manifest.get("gypfile") is True:
        written["hasInstallScript"] = True
    return written


def _tags(tags: Document, kept: dict[str, Document]) -> dict[str, str]:
    """`latest` becomes the highest release that is kept and not above the one that it was."""
    found = {name: version for name, version in tags.items() if isinstance(version, str) and version in kept}
    if "latest" not in found and kept:
        releases = [version for version in kept if _order(version)[3]] or list(kept)
        was = tags.get("latest")
        below = [one for one in releases if _order(one) <= _order(was)] if isinstance(was, str) else []
        found["latest"] = max(below or releases, key=_order)
    return found


def _order(version: str) -> tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]:
    """Semantic versioning's precedence."""
    match = _NUMBER.fullmatch(version)
    if match is None:
        return -1, 0, 0, False, ()
    parts = (match[4] or "").split(".")
    before = tuple((not one.isdecimal(), int(one) if one.isdecimal() and len(one) < 17 else 0, one) for one in parts)
    return int(match[1]), int(match[2]), int(match[3]), match[4] is None, before


def _object(value: object) -> Document:
    return cast("Document", value) if isinstance(value, dict) else {}
