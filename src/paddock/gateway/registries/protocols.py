"""A common interface to the protocols of registries with pages: paths, requested types, and filters. Pure."""

from __future__ import annotations

import hashlib
from typing import Protocol

import msgspec

from paddock.gateway.protocols.gzip import Gzip, Undecodable

from . import crates, npm, pypi
from .page import Answer, File, Filtered, Malformed, Page

MOST_PAGE_BYTES = 64 << 20
_pack = msgspec.msgpack.Encoder().encode


class Registry(Protocol):
    """A module that knows the pages of a registry."""

    @property
    def ACCEPT(self) -> bytes:
        """Return the Accept field that asks for a page."""
        ...

    def normalised(self, name: str, /) -> str: ...

    def package_of(self, path: str) -> str | None:
        """Return the package of the page at a path, or None if it isn't a page."""
        ...

    def page_of(self, path: str) -> tuple[str, str] | None:
        """Return package and path, on the first of the rule's hosts, of the page that should lead to a file."""
        ...

    def filter_page(self, page: Page, kind: str, body: bytes) -> Filtered:
        """Return the filtered page of type `kind`. Raises Malformed."""
        ...


PROTOCOLS: dict[str, Registry] = {"pypi": pypi, "npm": npm, "crates": crates}


def normalised(registry: str, name: str) -> str:
    """Return the one form of a package's name."""
    return PROTOCOLS[registry].normalised(name) if registry in PROTOCOLS else name


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A page for the reader: its body of type `kind`, with or without gzip."""

    page: Page
    kind: str
    gzip: bool
    body: bytes


def key_of(item: int, file: File) -> bytes:
    return hashlib.sha256(_pack((item, file))).digest()[:16]


def read(job: Job) -> Answer:
    """Never raises but for want of memory or time."""
    try:
        protocol = PROTOCOLS[job.page.rule.registry or ""]
        answer, files = protocol.filter_page(job.page, job.kind, _decoded(job.body) if job.gzip else job.body)
    except (Malformed, Undecodable) as error:
        return Answer(malformed=str(error))
    return msgspec.structs.replace(
        answer, files={key_of(job.page.item, file): _pack(kept) for file, kept in files.items()}
    )


def _decoded(body: bytes) -> bytes:
    gzip, content, step = Gzip(), bytearray(), 1 << 16
    for start in range(0, len(body), step):
        content += gzip.decode(body[start : start + step])
        if len(content) > MOST_PAGE_BYTES:
            raise Malformed(f"more than {MOST_PAGE_BYTES >> 20} MiB")
    return bytes(content)
