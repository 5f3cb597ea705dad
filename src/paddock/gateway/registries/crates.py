"""A registry of crates: `config.json` and the lines of its sparse index, those that a rule holds back as yanked. Pure.

The index: https://doc.rust-lang.org/cargo/reference/registry-index.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from .page import MOST_FILES, Answer, File, Filtered, Malformed, PackageFile, Page, read_object

ACCEPT = b"*/*"
CONFIG = "config.json"

_NAME = r"[a-z0-9][a-z0-9_-]{0,63}"
_PAGE = re.compile(rf"(/(?:[^?]*/)?)(?:1/([a-z0-9])|2/([a-z0-9][a-z0-9_-])|3/([a-z0-9])/(\4[a-z0-9_-]{{2}})|"
                   rf"([a-z0-9][a-z0-9_-])/([a-z0-9_-]{{2}})/({_NAME}))")  # fmt: skip
_FILE = re.compile(rf"(?:/[^?]*)?/({_NAME})/(?:[0-9][^/?]*/download|\1-[0-9][^/?]*\.crate)", re.IGNORECASE)
_VERSION = re.compile(r"[0-9]{1,16}\.[0-9]{1,16}\.[0-9]{1,16}(?:-[0-9A-Za-z.-]{1,128})?(?:\+[0-9A-Za-z.-]{1,128})?")
_CHECKSUM = re.compile(r"[0-9a-f]{64}")
_KNOWN = ("name", "vers", "deps", "cksum", "features", "yanked", "links", "v", "features2", "rust_version", "pubtime")
_USUAL = ("/crates/{crate}/{version}/download", "/crates/{crate}/{crate}-{version}.crate")
_API = "/api/v1/crates/{crate}/{version}/download"
"""The place of files on crates.io, for an index without a known `config.json`."""


def package_of(path: str) -> str | None:
    """Return the crate of a page. "" is the index's configuration."""
    if path.endswith(f"/{CONFIG}") and "?" not in path:
        return ""
    match = _PAGE.fullmatch(path)
    if match is None:
        return None
    if match[8] is not None:
        return normalised(match[8]) if match[8].startswith(match[6] + match[7]) else None
    return normalised(match[2] or match[3] or match[5])


def normalised(name: str) -> str:
    """Return the one form of names that no registry has both of."""
    return name.lower().replace("_", "-")


def base_of(path: str) -> str:
    """Return the path of the index that a page belongs to."""
    match = _PAGE.fullmatch(path)
    return path.removesuffix(CONFIG) if match is None else match[1]


def page_of(path: str) -> tuple[str, str] | None:
    """Return the page that should lead to a file: the crate, and the path on the index."""
    match = _FILE.fullmatch(path)
    if match is None:
        return None
    name = match[1].lower()
    return normalised(name), f"/{_prefix(name)}/{name}"


def filter_page(page: Page, kind: str, body: bytes) -> Filtered:
    """Filter a page. Raise Malformed."""
    return _lines(page, body) if page.package else _config(page, body)


def _config(page: Page, body: bytes) -> Filtered:
    config = read_object(body)
    downloads = config.get("dl")
    if not isinstance(downloads, str) or len(downloads) > 1024:
        raise Malformed("it does not say where files are")
    template = downloads if "{" in downloads else f"{downloads}/{{crate}}/{{version}}/download"
    if page.file(_filled(template, "demo", "1.0.0", "0" * 64)) is None:
        raise Malformed(f"its files are not on the rule's hosts: {downloads[:200]}")
    written: dict[str, str | bool] = {"dl": downloads}
    if isinstance(api := config.get("api"), str):
        written["api"] = api
    if config.get("auth-required") is True:
        written["auth-required"] = True
    return Answer(kind="application/json", body=msgspec.json.encode(written), downloads=template), {}


def _lines(page: Page, body: bytes) -> Filtered:
    lines = body.splitlines()
    if len(lines) > MOST_FILES:
        raise Malformed(f"more than {MOST_FILES} versions")
    seen: list[bytes] = []
    files: dict[File, PackageFile] = {}
    for line in lines:
        if not line.strip():
            continue
        entry = read_object(line)
        name, version, checksum = entry.get("name"), entry.get("vers"), entry.get("cksum")
        if not isinstance(name, str) or normalised(name) != page.package:
            raise Malformed(f"a line is not about {page.package}")
        if not isinstance(version, str) or not _VERSION.fullmatch(version):
            continue
        if not isinstance(checksum, str) or not _CHECKSUM.fullmatch(checksum):
            continue
        held = page.held(version, entry.get("pubtime"))
        places = [found[0] for url in _urls(page, name, version, checksum) if (found := page.file(url))]
        files |= dict.fromkeys(places, PackageFile(page.package, version, f"sha256:{checksum}", held))
        written = {key: entry[key] for key in _KNOWN if key in entry}
        seen.append(msgspec.json.encode(written | ({} if held is None else {"yanked": True})))
    if lines and not files:
        raise Malformed(f"none of its {len(lines)} lines leads to a file of {page.package} on the rule's hosts")
    return page.filtered("text/plain; charset=utf-8", b"".join(line + b"\n" for line in seen), files)


def _urls(page: Page, name: str, version: str, checksum: str) -> Iterator[str]:
    if page.downloads is not None:
        yield _filled(page.downloads, name, version, checksum)
        return
    for host in page.rule.hosts or ():
        for template in (*_USUAL, _API):
            yield f"https://{host}{_filled(template, name, version, checksum)}"


def _filled(template: str, name: str, version: str, checksum: str) -> str:
    """Fill a template as cargo does."""
    prefix = _prefix(name)
    marks = {"crate": name, "version": version, "prefix": prefix, "lowerprefix": prefix.lower()}
    marks["sha256-checksum"] = checksum
    return re.sub(r"\{([a-z0-9-]+)\}", lambda match: marks.get(match[1], match[0]), template)


def _prefix(name: str) -> str:
    if len(name) < 3:
        return str(len(name))
    return f"3/{name[0]}" if len(name) == 3 else f"{name[:2]}/{name[2:4]}"
