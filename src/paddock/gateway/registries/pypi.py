"""Pages of a Python package index (PEP 503 as HTML, PEP 691 as JSON), without the files that a rule holds back.

Pure.

It writes a new page from the parts that it understands, and nothing else.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import unquote

import msgspec

from .page import MOST_FILES, File, Filtered, Malformed, PackageFile, Page, read_object

JSON = "application/vnd.pypi.simple.v1+json"
ACCEPT = f"{JSON}, text/html;q=0.1".encode()
"""The types that the gateway requests from an index: its HTML has no dates."""

_PAGE = re.compile(r"(?:/[^?]*)?/\+?simple/([A-Za-z0-9][A-Za-z0-9._-]{0,213})/?")
_ANCHOR = re.compile(
    r"""<a((?:\s++[\w-]++(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s"'<>]++))?+)*+)\s*+>([^<]{0,1024})</a""", re.IGNORECASE
)
_ATTRIBUTE = re.compile(r"""\s([\w-]++)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"'<>]++)))?+""")
_HASH = re.compile(r"(md5|sha1|sha224|sha256|sha384|sha512)=([0-9a-fA-F]{1,128})")
_HASH_NAME, _HASH_VALUE = re.compile(r"[a-z0-9_]{1,32}"), re.compile(r"[0-9a-fA-F]{1,256}")
_FILENAME = re.compile(r"[A-Za-z0-9._+!-]{1,512}")
_VERSION = re.compile(r"v?[0-9]")
_ARCHIVES = re.compile(r"\.(tar\.(gz|bz2|xz|Z)|tgz|tbz|zip|egg|exe|msi|rpm|whl|deb|dmg)$")
_HTML = ("text/html", "application/vnd.pypi.simple.v1+html")
_PLAIN = {"requires-python": str, "yanked": (str, bool), "size": int, "upload-time": str, "gpg-sig": bool}
_METADATA = ("core-metadata", "dist-info-metadata", "data-dist-info-metadata")


def normalised(name: str) -> str:
    """PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def package_of(path: str) -> str | None:
    """Return the project of a page, or None if the path is of something else."""
    match = _PAGE.fullmatch(path)
    return None if match is None else normalised(match[1])


def page_of(path: str) -> tuple[str, str] | None:
    """Return the page that should lead to a file: the package, and the path on the index."""
    filename = unquote(path.partition("?")[0].rpartition("/")[2])
    for end in (".metadata", ".asc"):
        filename = filename.removesuffix(end)
    match = _ARCHIVES.search(filename)
    if match is None or not _FILENAME.fullmatch(filename):
        return None
    stem = filename[: match.start()]
    name = stem.partition("-")[0] if match[1] == "whl" else re.split(r"-(?=v?[0-9])", stem)[0]
    if name == stem or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,213}", name):
        return None
    return normalised(name), f"/simple/{normalised(name)}/"


def filter_page(page: Page, kind: str, body: bytes) -> Filtered:
    """Filter a page. Raise Malformed."""
    return (filter_html if kind in _HTML else filter_json)(page, body)


def filter_json(page: Page, body: bytes) -> Filtered:
    found = read_object(body)
    name, files = found.get("name"), found.get("files")
    if not isinstance(name, str) or normalised(name) != page.package or not isinstance(files, list):
        raise Malformed(f"it is not about {page.package}")
    entries = [cast("dict[str, object]", one) for one in cast("list[object]", files) if isinstance(one, dict)]
    versions = found.get("versions")
    listed = cast("list[object]", versions) if isinstance(versions, list) else []
    return _filter(page, entries, [one for one in listed if isinstance(one, str)])


def filter_html(page: Page, body: bytes) -> Filtered:
    """Filter a page of an index that has no JSON, and so no dates. Raise Malformed."""
    return _filter(page, list(_anchors(body.decode("utf-8", "replace"))), [])


def _anchors(text: str) -> Iterator[dict[str, object]]:
    for match in _ANCHOR.finditer(text):
        attributes: dict[str, str] = {}
        for one in _ATTRIBUTE.finditer(match[1]):
            value = one[2] or one[3] or one[4] or ""
            attributes.setdefault(one[1].lower(), html.unescape(value))
        url, _, fragment = attributes.pop("href", "").partition("#")
        hashed = _HASH.fullmatch(fragment)
        entry: dict[str, object] = {"filename": html.unescape(match[2]).strip(), "url": url}
        entry["hashes"] = {hashed[1]: hashed[2]} if hashed else {}
        if "data-requires-python" in attributes:
            entry["requires-python"] = attributes["data-requires-python"]
        if "data-yanked" in attributes:
            entry["yanked"] = attributes["data-yanked"] or True
        for key in ("core-metadata", "dist-info-metadata"):
            if (value := attributes.get(f"data-{key}")) is not None:
                hashed = _HASH.fullmatch(value)
                entry[key] = {hashed[1]: hashed[2]} if hashed else True
        yield entry


def _filter(page: Page, entries: list[dict[str, object]], versions: list[str]) -> Filtered:
    if len(entries) > MOST_FILES:
        raise Malformed(f"more than {MOST_FILES} files")
    seen: list[dict[str, Any]] = []
    files: dict[File, PackageFile] = {}
    for entry in entries:
        name, found = entry.get("filename"), page.file(entry.get("url"))
        if not isinstance(name, str) or found is None or (version := version_of(name, page.package)) is None:
            continue
        place, url = found
        if unquote(place[2].partition("?")[0].rpartition("/")[2]) != name:
            continue
        held = page.held(version, entry.get("upload-time"))
        written = _written(entry, name, url)
        files[place] = PackageFile(page.package, version, _digest(written["hashes"]), held)
        if (metadata := _metadata_digest(written)) is not None:
            files[place[0], place[1], f"{place[2]}.metadata"] = PackageFile(page.package, version, metadata, held)
        provenance = page.file(entry.get("provenance"))
        if held is None and provenance is not None and provenance[0][2].endswith("/provenance"):
            files[provenance[0]] = PackageFile(page.package, version)
            written["provenance"] = provenance[1]
        if held is not None:  # PEP 592: no installer chooses it unasked, and one that asks for it shows the reason
            written["yanked"] = f"held back: {held}"
        seen.append(written)
    if entries and not files:
        raise Malformed(f"none of its {len(entries)} files is one of {page.package} on the rule's hosts")
    kept = {_comparable(kept.version) for kept in files.values()}
    if "json" in page.accept:
        index: dict[str, object] = {"meta": {"api-version": "1.1"}, "name": page.package, "files": seen}
        index["versions"] = [one for one in versions if _comparable(one) in kept]
        return page.filtered(JSON, msgspec.json.encode(index), files)
    kind = (
        "application/vnd.pypi.simple.v1+html"
        if "vnd.pypi.simple.v1+html" in page.accept
        else "text/html; charset=utf-8"
    )
    return page.filtered(kind, _html(page.package, seen), files)


def version_of(filename: str, package: str) -> str | None:
    """Return the version of a file, or None if it is another package's or no file of a package."""
    match = _ARCHIVES.search(filename)
    if match is None or not _FILENAME.fullmatch(filename):
        return None
    stem = filename[: match.start()]
    if match[1] == "whl":
        name, _, rest = stem.partition("-")
        return rest.partition("-")[0] if normalised(name) == package else None
    for place in (found.start() for found in re.finditer("-", stem)):
        if normalised(stem[:place]) == package and _VERSION.match(stem, place + 1):
            return stem[place + 1 :]
    return None


def _comparable(version: str) -> str:
    return re.sub(r"[-_.+]+", ".", version).lower()


def _written(entry: dict[str, object], name: str, url: str) -> dict[str, Any]:
    written: dict[str, Any] = {"filename": name, "url": url, "hashes": _hashes(entry.get("hashes"))}
    for key, kinds in _PLAIN.items():
        if isinstance(value := entry.get(key), kinds):
            written[key] = value
    for key in _METADATA:
        value = entry.get(key)
        if isinstance(value, (dict, bool)):
            written[key] = _hashes(cast("object", value)) or True if value else False
    return written


def _digest(hashes: dict[str, str]) -> str | None:
    best = next((name for name in ("sha256", "sha512", "sha384") if name in hashes), None)
    return None if best is None else f"{best}:{hashes[best].lower()}"


def _metadata_digest(written: dict[str, Any]) -> str | None:
    """Return the digest of the metadata file beside a wheel (PEP 658)."""
    metadata: list[dict[str, str]] = [written[key] for key in _METADATA if isinstance(written.get(key), dict)]
    return _digest(metadata[0]) if metadata else None


def _hashes(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    items = cast("dict[str, object]", value).items()
    return {
        name: digest
        for name, digest in items
        if isinstance(digest, str) and _HASH_NAME.fullmatch(name) and _HASH_VALUE.fullmatch(digest)
    }


def _html(package: str, files: list[dict[str, Any]]) -> bytes:
    lines = [f"<a{_attributes(file)}>{html.escape(file['filename'])}</a><br>" for file in files]
    head = '<!DOCTYPE html><html><head><meta name="pypi:repository-version" content="1.1">'
    title = f"<title>Links for {html.escape(package)}</title></head><body>"
    return "\n".join([head + title, *lines, "</body></html>\n"]).encode()


def _attributes(file: dict[str, Any]) -> str:
    hashes: dict[str, str] = file["hashes"]
    best = "sha256" if "sha256" in hashes else next(iter(hashes), None)
    found = {"href": file["url"] + (f"#{best}={hashes[best]}" if best else "")}
    if "requires-python" in file:
        found["data-requires-python"] = str(file["requires-python"])
    if file.get("yanked", False) is not False:
        found["data-yanked"] = "" if file["yanked"] is True else str(file["yanked"])
    metadata = next((file[key] for key in _METADATA if file.get(key)), None)
    if metadata:
        attribute = "true" if metadata is True else next(f"{name}={digest}" for name, digest in metadata.items())
        found |= {"data-core-metadata": attribute, "data-dist-info-metadata": attribute}
    return "".join(f' {name}="{html.escape(value)}"' for name, value in found.items())
