"""The files that filtered pages have linked, and the meaning of a registry's paths. See docs/design/registries.md."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import msgspec

from paddock.gateway.protocols.refusal import Refused
from paddock.gateway.rules.authorization import AuthorizedRequest
from paddock.model import Allow

from . import crates, debian
from .advisories import MalwareRecord
from .malware import MalwareIndexes
from .page import File, PackageFile, Page, is_listed, malicious, too_young
from .protocols import PROTOCOLS, key_of, normalised

READING = frozenset({"GET", "HEAD"})
_MOST_FILES = 1 << 16
_PAGES_AT_ONCE = 2
_MOST_NAME = 100
"""Most characters of a package name. The registry sees each requested name."""
_BESIDE = (".metadata", ".asc")
_kept = msgspec.msgpack.Decoder(PackageFile).decode
READ_FIRST = "its page has to be read through this gateway first, as installers do; then what it kept can be fetched"


class UnreadPage(msgspec.Struct, frozen=True):
    """A missing page: no page has linked the file yet.

    The page of `package`, at `path` of the rule's first host, should.
    """

    package: str
    path: str


class KnownFiles:
    """The files that pages have linked, for one sandbox and one revision. It keeps the latest ones."""

    def __init__(self, known: MalwareIndexes) -> None:
        self._known, self._revision = known, ""
        self._files: dict[bytes, bytes] = {}
        self._downloads: dict[tuple[int, str, int, str], str | None] = {}
        self.held = 0
        """Bytes of pages in the reader."""
        self.turn = asyncio.Semaphore(_PAGES_AT_ONCE)

    def judge(self, rule: Allow, authorized: AuthorizedRequest) -> Page | PackageFile | UnreadPage | None:
        """Return the page or file that a request means, or None for an index that passes unchanged. Raises Refused."""
        verdict, target, path = authorized.verdict, authorized.target, authorized.path
        if self._revision != verdict.revision:
            self._files.clear()
            self._downloads.clear()
            self._revision = verdict.revision
        item = verdict.item or 0
        if rule.registry == "debian":
            return self._of_pool(rule, path)
        protocol = PROTOCOLS[rule.registry or ""]
        package = protocol.package_of(path)
        if package is None:
            return self._file(rule, item, (target.host, target.port, path))
        if package:
            self._check_listed(rule, package)
        downloads = None
        if rule.registry == "crates" and package:
            base = (item, target.host, target.port, crates.base_of(path))
            if base not in self._downloads:
                return UnreadPage("", f"{base[3]}{crates.CONFIG}")
            downloads = self._downloads[base]
        return Page(
            scheme=authorized.scheme,
            host=target.host,
            port=target.port,
            path=path,
            package=package,
            rule=rule,
            now=time.time(),
            known=self.known(rule, package),
            downloads=downloads,
            item=item,
            accept=(authorized.request.get(b"accept") or b"").decode("latin-1").lower(),
        )

    def known(self, rule: Allow, package: str) -> tuple[MalwareRecord, ...]:
        if rule.malware is None:
            return ()
        return self._known.about(rule.malware, rule.registry or "", package)

    def digest(self, rule: Allow) -> str | None:
        return None if rule.malware is None else self._known.digest(rule.malware)

    def add(self, files: Mapping[bytes, bytes], revision: str) -> None:
        if self._revision != revision:
            return
        for key, kept in files.items():
            self._files.pop(key, None)
            self._files[key] = kept
        while len(self._files) > _MOST_FILES:
            del self._files[next(iter(self._files))]

    def add_downloads(self, page: Page, template: str | None) -> None:
        """Keep where an index says that files are. None: it doesn't say."""
        self._downloads[page.item, page.host, page.port, crates.base_of(page.path)] = template

    def check_age(self, rule: Allow, kept: PackageFile, published: float | None) -> None:
        """Check the age of a file that has its date with its answer only. Raise Refused."""
        why = too_young(rule, published, time.time())
        if why is not None:
            raise _refused(kept, why)

    def _of_pool(self, rule: Allow, path: str) -> PackageFile | None:
        if debian.is_index(path):
            return None
        kept = debian.file_of(path)
        if kept is None:
            hint = "an archive with a pool is authorized by the names in it; allow another by `host`, without filters"
            raise Refused(
                "this is neither an index of a Debian archive nor a file of its pool", rule="registry", hint=hint
            )
        self._check_listed(rule, kept.package)
        return self._check_known(rule, kept)

    def _check_listed(self, rule: Allow, package: str) -> None:
        registry = rule.registry or ""
        if len(package) > _MOST_NAME:
            raise Refused(f"the name of a package has more than {_MOST_NAME} characters", rule="registry")
        patterns = None if rule.packages is None else tuple(normalised(registry, one) for one in rule.packages)
        if not is_listed(package, patterns):
            raise Refused(f"{package} is not one of the packages that the rule names", rule="registry")

    def _file(self, rule: Allow, item: int, file: File) -> PackageFile | UnreadPage:
        host, port, path = file
        stems = [path, *(path.removesuffix(end) for end in _BESIDE if path.endswith(end))]
        for stem in stems:
            found = self._files.get(key_of(item, (host, port, stem)))
            if found is not None:
                kept = self._check_known(rule, _kept(found))
                return kept if stem == path else msgspec.structs.replace(kept, digest=None)
        page = PROTOCOLS[rule.registry or ""].page_of(path)
        if page is None:
            reason = "this is neither a page of a package nor a file that such a page links"
            raise Refused(reason, rule="registry", hint=READ_FIRST)
        self._check_listed(rule, page[0])
        return UnreadPage(*page)

    def _check_known(self, rule: Allow, kept: PackageFile) -> PackageFile:
        """Check again, because a list may have changed since the page."""
        why = kept.held or malicious(rule, self.known(rule, kept.package), kept.version)
        if why is not None:
            raise _refused(kept, why)
        return kept


def published_at(last_modified: bytes | None) -> float | None:
    from email.utils import parsedate_to_datetime

    try:
        return None if last_modified is None else parsedate_to_datetime(last_modified.decode("ascii")).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _refused(kept: PackageFile, why: str) -> Refused:
    return Refused(f"{kept.package} {kept.version} is held back: it is {why}", rule="registry")
