"""Images of registries (OCI distribution specification 1.1).

It writes a layer to a file, and deletes it after use.

All requests use HTTPS and have limits. A credential goes only to the registry, and to the server that it names for
tokens.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import http.client
import json
import os
import re
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from email.message import Message
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from paddock.errors import ImageInvalidError, NotFoundError, PlatformError, RequestError
from paddock.storage.certificates import authorities
from paddock.storage.git import is_loopback
from paddock.storage.https import opener, unreachable

from ._documents import INDEXES, MANIFESTS, Descriptor
from ._reference import Reference
from ._source import FoundImage, Layer, Piece, resolve
from .limits import MANIFEST_BYTES

_CHUNK = 1 << 18
_ANY = "application/octet-stream, */*"
_SECONDS = 30.0
_TOKEN_BYTES = 64 << 10
_REDIRECTS = 5
_CHALLENGE = re.compile(r'([a-z]+)="([^"\\]*)"')
_OFFLINE = "check this machine's network, or name a file in its place: docker-archive:FILE (docker save, podman save)"
_LOGIN = "docker login, podman login or skopeo login writes it to ~/.docker/config.json or its own file"

Answer = IO[bytes]


class _Token(msgspec.Struct):
    token: str = ""
    access_token: str = ""


class Registry:
    """A repository of a registry as a source. `directory` has the files of layers while a build reads them.

    The environment names credentials and certificates.
    """

    def __init__(self, reference: Reference, directory: Path) -> None:
        self._reference, self._directory = reference, directory
        self._host, self._repository, self._path = reference.host, reference.name, f"/v2/{reference.name}"
        self._base = f"{'http' if _is_own(self._host) else 'https'}://{self._host}"
        self._authorization: str | None = None
        # A registry on this machine needs no proxy. This class checks redirects before it follows them.
        direct = (urllib.request.ProxyHandler({}),) if _is_own(self._host) else ()
        self._opener = opener(*direct, authorities=authorities())

    def find(self) -> FoundImage:
        wanted = self._reference.digest or self._reference.tag
        data, kind = self._read(f"{self._path}/manifests/{wanted}", ", ".join(sorted(INDEXES | MANIFESTS)))
        digest = self._reference.digest or f"sha256:{hashlib.sha256(data).hexdigest()}"
        top = Descriptor(digest=digest, size=len(data), media_type=kind)

        def fetch(descriptor: Descriptor) -> bytes:
            if descriptor is top:
                return data
            if descriptor.media_type in INDEXES | MANIFESTS:
                return self._read(f"{self._path}/manifests/{descriptor.digest}", descriptor.media_type)[0]
            return self._read(f"{self._path}/blobs/{descriptor.digest}", _ANY)[0]

        return resolve(top, fetch)

    @contextmanager
    def open(self, layer: Layer) -> Generator[Piece]:
        assert layer.digest is not None
        self._directory.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._directory) as file:  # without a name: it goes with us
            size = 0
            with self._get(f"{self._path}/blobs/{layer.digest}", _ANY) as answer:
                while data := answer.read(_CHUNK):
                    size += len(data)
                    if size > layer.size:
                        raise ImageInvalidError(f"layer {layer.digest} has more than its {layer.size} bytes")
                    file.write(data)
            file.flush()
            if size != layer.size:
                raise ImageInvalidError(
                    f"layer {layer.digest} ends after {size} of {layer.size} bytes", hint="try again"
                )
            yield Piece(file.fileno(), 0, os.fstat(file.fileno()).st_size)

    def _read(self, path: str, accept: str) -> tuple[bytes, str]:
        with self._get(path, accept) as answer:
            data = answer.read(MANIFEST_BYTES + 1)
            kind = str(getattr(answer, "headers", {}).get("Content-Type", ""))
        if len(data) > MANIFEST_BYTES:
            raise ImageInvalidError(f"registry {self._host} gives a document of more than {MANIFEST_BYTES} bytes")
        return data, kind.partition(";")[0].strip()

    @contextmanager
    def _get(self, path: str, accept: str) -> Generator[Answer]:
        """Return the successful answer to GET.

        Raises NotFoundError, RequestError for a missing credential, and PlatformError.
        """
        url = f"{self._base}{path}"
        answer = self._ask(url, accept, self._authorization)
        if isinstance(answer, urllib.error.HTTPError) and answer.code == 401 and self._authorization is None:
            with answer:
                self._authorization = self._prove(answer.headers)
            answer = self._ask(url, accept, self._authorization)
        hops = 0
        while isinstance(answer, urllib.error.HTTPError) and answer.code in (301, 302, 303, 307, 308):
            with answer:
                location = urllib.parse.urljoin(url, answer.headers.get("Location", ""))
            hops += 1
            if hops > _REDIRECTS or not self._may_go(url, location):
                raise PlatformError(f"{self._host} leads on to {location[:200]!r}, where nothing is fetched from")
            # The target is usually a store of blobs, which must not get the registry's credential.
            same = urllib.parse.urlsplit(location).netloc == self._host
            url = location
            answer = self._ask(url, accept, self._authorization if same else None)
        if isinstance(answer, urllib.error.HTTPError):
            with answer:
                raise self._refusal(answer)
        try:
            with answer:
                yield answer
        except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
            raise self._unreachable(error) from None

    def _ask(self, url: str, accept: str, authorization: str | None) -> Answer | urllib.error.HTTPError:
        headers = {"Accept": accept, "User-Agent": "paddock", "Accept-Encoding": "identity"}
        if authorization is not None:
            headers["Authorization"] = authorization
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 (https, or http to this machine)
        try:
            return cast("Answer", self._opener.open(request, timeout=_SECONDS))
        except urllib.error.HTTPError as error:
            return error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: BaseException) -> PlatformError:
        return unreachable(f"registry {self._host}", error, hint=_OFFLINE)

    def _may_go(self, origin: str, location: str) -> bool:
        scheme = urllib.parse.urlsplit(location).scheme
        return scheme == "https" or (scheme == "http" and origin.startswith("http:") and self._base.startswith("http:"))

    def _refusal(self, answer: urllib.error.HTTPError) -> Exception:
        what = f"registry {self._host} has no {self._repository} like that, or none without a login"
        if answer.code == 404:
            return NotFoundError(what, hint=_LOGIN)
        if answer.code in (401, 403):
            return RequestError(f"registry {self._host} does not give {self._repository} to you", hint=_LOGIN)
        if answer.code == 429:
            return PlatformError(f"registry {self._host} answers no more for now", hint=f"wait; {_LOGIN}")
        return PlatformError(f"registry {self._host} answers {answer.code}", hint="try again")

    # -- authentication (distribution specification; docs.docker.com/registry/spec/auth/token)

    def _prove(self, headers: Message) -> str:
        challenges = headers.get_all("WWW-Authenticate") or []
        own = _credential(self._host, os.environ)
        for challenge in challenges:
            scheme, _, rest = challenge.partition(" ")
            if scheme.lower() == "bearer":
                return f"Bearer {self._token(dict(_CHALLENGE.findall(rest)), own)}"
        if any(challenge.lower().startswith("basic") for challenge in challenges) and own is not None:
            return f"Basic {own}"
        raise RequestError(f"registry {self._host} wants to know who asks for {self._repository}", hint=_LOGIN)

    def _token(self, fields: dict[str, str], own: str | None) -> str:
        realm = fields.get("realm", "")
        if not self._may_go(self._base, realm):
            raise PlatformError(f"registry {self._host} has its tokens from {realm[:200]!r}, which is not asked")
        query = {"scope": f"repository:{self._repository}:pull"}
        if "service" in fields:
            query["service"] = fields["service"]
        joined = f"{realm}{'&' if '?' in realm else '?'}{urllib.parse.urlencode(query)}"
        answer = self._ask(joined, "application/json", None if own is None else f"Basic {own}")
        with cast("AbstractContextManager[Answer]", answer):
            if isinstance(answer, urllib.error.HTTPError):
                raise self._refusal(answer)
            try:
                found = msgspec.json.decode(answer.read(_TOKEN_BYTES), type=_Token)
            except (msgspec.MsgspecError, ValueError) as error:
                raise ImageInvalidError(f"registry {self._host} gives tokens that are none: {error}") from None
        token = found.token or found.access_token
        if not token or not token.isascii() or not token.isprintable():
            raise ImageInvalidError(f"registry {self._host} gives a token that is none")
        return token


def _is_own(host: str) -> bool:
    """Tell whether the registry is on this machine, where it may do without TLS."""
    return is_loopback((host.rpartition(":")[0] if re.search(r":\d+$", host) else host).strip("[]"))


def _credential(host: str, environment: Mapping[str, str]) -> str | None:
    """Return the base64 credential that `docker login` or `podman login` has stored for that registry
    (containers-auth.json(5)).
    """
    home = environment.get("HOME", "/nonexistent")
    files = [
        environment.get("REGISTRY_AUTH_FILE"),
        f"{environment['DOCKER_CONFIG']}/config.json" if "DOCKER_CONFIG" in environment else None,
        f"{environment['XDG_RUNTIME_DIR']}/containers/auth.json" if "XDG_RUNTIME_DIR" in environment else None,
        f"/run/containers/{os.geteuid()}/auth.json",
        f"{home}/.config/containers/auth.json",
        f"{home}/.docker/config.json",
    ]
    names = [host, f"https://{host}", *(["docker.io", "https://index.docker.io/v1/"] if "docker.io" in host else [])]
    for file in filter(None, files):
        try:
            known: Any = json.loads(Path(file).read_bytes())["auths"]
            found = next(str(known[name]["auth"]) for name in names if known.get(name, {}).get("auth"))
            base64.b64decode(found, validate=True)
            return found
        except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration, binascii.Error):
            continue
    return None
