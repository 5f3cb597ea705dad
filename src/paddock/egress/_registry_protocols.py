"""The protocols of registries that have pages, as one: which path is a page, what to ask for, what may be seen of it.
Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

from . import _registry_crates as crates
from . import _registry_npm as npm
from . import _registry_pypi as pypi
from ._coding import Gzip, Undecodable
from ._registry_page import File, Filtered, Kept, Malformed, Page, reasons

MOST_PAGE_BYTES = 64 << 20
_HTML = ("text/html", "application/vnd.pypi.simple.v1+html")
_pack = msgspec.msgpack.Encoder().encode


class Protocol(msgspec.Struct, frozen=True, kw_only=True):
    """`accept` is what a page is asked for. `package_of` is that of a page's path, `page_of` package and path of the
    page that should lead to a file, on the first of the rule's hosts."""

    accept: bytes
    normalised: Callable[[str], str]
    package_of: Callable[[str], str | None]
    page_of: Callable[[str], tuple[str, str] | None]


PROTOCOLS = {
    "pypi": Protocol(accept=pypi.ACCEPT, normalised=pypi.normalised, package_of=pypi.project_of, page_of=pypi.page_of),
    "npm": Protocol(accept=npm.ACCEPT, normalised=str, package_of=npm.package_of, page_of=npm.page_of),
    "crates": Protocol(
        accept=crates.ACCEPT, normalised=crates.normalised, package_of=crates.package_of, page_of=crates.page_of
    ),
}


def normalised(registry: str, name: str) -> str:
    """The one form of a package's name."""
    return PROTOCOLS[registry].normalised(name) if registry in PROTOCOLS else name


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A page that is to be read: what came of type `kind`, encoded or not."""

    page: Page
    kind: str
    gzip: bool


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was read; the page as it may be seen comes with it. `files` by `key_of`, each a `Kept` as MessagePack: what
    is put on the shelf need not be looked at there. `held`: what is held back of it, and why, in words."""

    kind: str = ""
    files: dict[bytes, bytes] = {}
    held: str = ""
    nothing: str | None = None
    downloads: str | None = None
    malformed: str | None = None


def key_of(item: int, file: File) -> bytes:
    return hashlib.sha256(_pack((item, file))).digest()[:16]


def read(job: Job, body: bytes) -> tuple[Answer, bytes]:
    """Never raises but for want of memory or time."""
    try:
        found = _filtered(job, _decoded(body) if job.gzip else body)
    except (Malformed, Undecodable) as error:
        return Answer(malformed=str(error)), b""
    files = {key_of(job.page.item, file): _pack(kept) for file, kept in found.files}
    answer = Answer(
        kind=found.kind, files=files, held=_held(found.files), nothing=found.nothing, downloads=found.downloads
    )
    return answer, found.body


def _filtered(job: Job, body: bytes) -> Filtered:
    page = job.page
    if page.rule.registry == "npm":
        return npm.filter_document(page, body, page.accept)
    if page.rule.registry == "crates":
        return crates.filter_page(page, body)
    if job.kind in _HTML:
        return pypi.filter_html(page, body, page.accept)
    return pypi.filter_json(page, body, page.accept)


def _decoded(body: bytes) -> bytes:
    gzip, content, step = Gzip(), bytearray(), 1 << 16
    for start in range(0, len(body), step):
        content += gzip.decode(body[start : start + step])
        if len(content) > MOST_PAGE_BYTES:
            raise Malformed(f"more than {MOST_PAGE_BYTES >> 20} MiB")
    return bytes(content)


def _held(files: tuple[tuple[File, Kept], ...]) -> str:
    return reasons({kept.version: kept.held for _, kept in files if kept.held})
