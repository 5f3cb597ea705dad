"""Documents of an npm registry about one package, without the versions that a rule holds back. Pure."""

from __future__ import annotations

import re
from base64 import b64decode
from typing import Any, cast

import msgspec

from .advisories import Key, semver
from .page import MOST_FILES, File, Filtered, Malformed, PackageFile, Page, read_object, reasons

ACCEPT = b"application/json"
"""The whole document: the abbreviated one has no dates."""

ABBREVIATED = "application/vnd.npm.install-v1+json"

_PART = r"[A-Za-z0-9._~!'()*-]{1,214}"
_PAGE = re.compile(rf"(?:/[^?@]*)?/((?:@{_PART}(?:/|%2[Ff]))?{_PART})")
_FILE = re.compile(rf"(/[^?@]*?)?/((?:@{_PART}(?:/|%2[Ff]))?{_PART})/-/[^/?]+\.tgz")
_SHORT = frozenset(
    {"name", "version", "deprecated", "dependencies", "optionalDependencies", "devDependencies", "bundleDependencies"}
    | {"bundledDependencies", "peerDependencies", "peerDependenciesMeta", "acceptDependencies", "bin", "directories"}
    | {"dist", "engines", "os", "cpu", "libc", "funding", "hasInstallScript", "_hasShrinkwrap"}
)
_INSTALL_SCRIPTS = ("preinstall", "install", "postinstall")
_WHOLE = frozenset(
    {"name", "_id", "_rev", "description", "author", "maintainers", "license", "homepage", "readme", "keywords"}
    | {"repository", "bugs", "contributors", "readmeFilename"}
)

Document = dict[str, Any]


normalised = str


def package_of(path: str) -> str | None:
    """Return the package of a document, or None if the path is of something else."""
    match = _PAGE.fullmatch(path)
    if match is None or "/-/" in path or match[1] in ("-", ".", ".."):
        return None
    return re.sub("%2[Ff]", "/", match[1])


def page_of(path: str) -> tuple[str, str] | None:
    """Return the document that should lead to a file: the package, and its path."""
    match = _FILE.fullmatch(path)
    if match is None:
        return None
    return re.sub("%2[Ff]", "/", match[2]), f"{match[1] or ''}/{match[2]}"


def filter_page(page: Page, kind: str, body: bytes) -> Filtered:
    """Filter a page. Raise Malformed."""
    document = read_object(body)
    versions, times = _object(document.get("versions")), _object(document.get("time"))
    if document.get("name") != page.package or not isinstance(document.get("versions"), dict):
        raise Malformed(f"it is not about {page.package}")
    if len(versions) > MOST_FILES:
        raise Malformed(f"more than {MOST_FILES} versions")
    kept: dict[str, Document] = {}
    held: dict[str, str] = {}
    files: dict[File, PackageFile] = {}
    for version, manifest in versions.items():
        found = _manifest(page, version, _object(manifest))
        if found is None:
            continue
        why = page.held(version, times.get(version))
        files[found[0]] = PackageFile(page.package, version, _digest(found[1]["dist"].get("integrity")), why)
        if why is None:
            kept[version] = found[1]
        else:
            held[version] = why
    if versions and not files:
        raise Malformed(f"none of its {len(versions)} versions is one of {page.package} on the rule's hosts")
    kind = ABBREVIATED if ABBREVIATED in page.accept else "application/json"
    return page.filtered(kind, _written(page, document, kept, held, short=kind is ABBREVIATED), files)


def _written(page: Page, document: Document, kept: dict[str, Document], held: dict[str, str], *, short: bool) -> bytes:
    times = _object(document.get("time"))
    written: Document = {name: value for name, value in document.items() if name in _WHOLE and not short}
    written |= {"name": page.package, "dist-tags": _tags(_object(document.get("dist-tags")), kept)}
    written["versions"] = {version: _short(one) for version, one in kept.items()} if short else kept
    if held:  # npm says this of a version that is there and may not be had
        message = f"{page.package} {reasons(held)}"
        restricted = {version: {"name": page.package, "version": version} for version in held}
        written["policyRestrictions"] = {"versions": restricted, "message": message}
    if isinstance(modified := times.get("modified"), str):
        written["modified"] = modified
    if not short:
        shown = {"created", "modified", *kept}
        written["time"] = {name: when for name, when in times.items() if name in shown}
    return msgspec.json.encode(written)


def _digest(integrity: object) -> str | None:
    """Return the first SHA-512 of a `Subresource Integrity` list."""
    if not isinstance(integrity, str):
        return None
    for one in integrity.split()[:8]:
        name, _, value = one.partition("-")
        try:
            if name == "sha512":
                return f"sha512:{b64decode(value.partition('?')[0], validate=True).hex()}"
        except ValueError:
            continue
    return None


def _manifest(page: Page, version: str, manifest: Document) -> tuple[File, Document] | None:
    """Return the file and the manifest, or None if it is another package's or its file is somewhere else."""
    if manifest.get("name") != page.package or manifest.get("version") != version:
        return None
    dist = _object(manifest.get("dist"))
    found = page.file(dist.get("tarball"))
    if found is None or version[:1] == "v" or semver(version) is None:
        return None
    short_name, place = page.package.rpartition("/")[2], found[0][2].partition("?")[0].replace("%2F", "/")
    if not place.endswith(f"/{page.package}/-/{short_name}-{version.partition('+')[0]}.tgz"):
        return None
    return found[0], {**manifest, "dist": {**dist, "tarball": found[1]}}


def _short(manifest: Document) -> Document:
    written = {name: value for name, value in manifest.items() if name in _SHORT}
    if any(name in _object(manifest.get("scripts")) for name in _INSTALL_SCRIPTS) or manifest.get("gypfile") is True:
        written["hasInstallScript"] = True
    return written


def _tags(tags: Document, kept: dict[str, Document]) -> dict[str, str]:
    """Point `latest` at the highest kept release that is not above the one that it was."""
    found = {name: version for name, version in tags.items() if isinstance(version, str) and version in kept}
    if "latest" not in found and kept:
        releases = [version for version in kept if _order(version)[3]] or list(kept)
        was = tags.get("latest")
        below = [release for release in releases if _order(release) <= _order(was)] if isinstance(was, str) else []
        found["latest"] = max(below or releases, key=_order)
    return found


def _order(version: str) -> Key:
    return semver(version) or (-1, 0, 0, False, ())


def _object(value: object) -> Document:
    return cast("Document", value) if isinstance(value, dict) else {}
