"""The names of images: `oci:DIR[:TAG]`, `oci-archive:FILE[:TAG]`, `docker-archive:FILE[:NAME]`, `docker://NAME`.

The form is the one of containers-transports(5). A path has no colon. The text after a colon is a tag.
"""

from __future__ import annotations

import os
import re
from typing import Literal, cast

import msgspec

from paddock.errors import InvalidArgumentError
from paddock.model import is_image

Transport = Literal["oci", "oci-archive", "docker-archive", "docker"]

_FORMS = "oci:DIR[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE[:NAME] or docker://HOST/NAME[:TAG][@DIGEST]"
_HUB, _HUB_API = "docker.io", "registry-1.docker.io"
# Distribution specification 1.1, "Pulling manifests". A host may have a port.
_HOST = re.compile(
    r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9-]+)*|\[[0-9a-fA-F:]+\])(?::\d{1,5})?", re.A
)
_NAME = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*", re.A)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.A)
_LOCAL_TAG = re.compile(r"[\x21-\x7e]{1,255}", re.A)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}", re.A)


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """The name of an image.

    `path` is absolute. `host` and `name` are of a registry. `text` is the whole in canonical form.
    """

    text: str
    transport: Transport
    path: str = ""
    host: str = ""
    name: str = ""
    tag: str | None = None
    digest: str | None = None

    @property
    def local(self) -> bool:
        return self.transport != "docker"


def parse(text: str) -> Reference:
    """Parse a reference. InvalidArgument."""
    transport, _, rest = text.partition(":")
    if "\0" in text or not is_image(text) or not rest:
        raise _wrong(text)
    if transport == "docker":
        return _registry(text, rest.removeprefix("//"))
    path, colon, tag = rest.partition(":")
    if not os.path.isabs(path):
        raise InvalidArgumentError(f"{text!r} names no absolute path", hint=f"{transport}:{os.path.abspath(path)}")
    if colon and not _LOCAL_TAG.fullmatch(tag):
        raise _wrong(text)
    path = os.path.normpath(path)
    kind = cast("Transport", transport)
    return Reference(text=f"{kind}:{path}{colon}{tag}", transport=kind, path=path, tag=tag or None)


def _registry(text: str, rest: str) -> Reference:
    rest, at, digest = rest.partition("@")
    first, slash, others = rest.partition("/")
    # The rule is Docker's: without a dot or a port it isn't a host, unless it is localhost.
    if slash and ("." in first or ":" in first or first == "localhost" or first.startswith("[")):
        host, path = first, others
    else:
        host, path = _HUB, rest
    name, colon, tag = path.partition(":")
    if host in (_HUB, "index.docker.io"):
        host = _HUB
        name = name if "/" in name else f"library/{name}"
    if (
        not _HOST.fullmatch(host)
        or not _NAME.fullmatch(name)
        or len(name) > 255
        or (colon and not _TAG.fullmatch(tag))
        or (at and not DIGEST.fullmatch(digest))
    ):
        raise _wrong(text)
    tag = tag or ("" if at else "latest")
    return Reference(
        text=f"docker://{host}/{name}" + (f":{tag}" if tag else "") + (f"@{digest}" if at else ""),
        transport="docker",
        host=_HUB_API if host == _HUB else host,
        name=name,
        tag=tag or None,
        digest=digest or None,
    )


def _wrong(text: str) -> InvalidArgumentError:
    registry = f"docker://{text}" if ":/" not in text and _NAME.fullmatch(text.partition(":")[0]) else None
    return InvalidArgumentError(f"{text[:300]!r} names no image", hint=registry or _FORMS)
