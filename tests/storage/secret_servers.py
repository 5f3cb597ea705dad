"""What HashiCorp Vault and GitHub publish about two calls of theirs, over HTTP: they check what a real one checks."""

from __future__ import annotations

import base64
import http.server
import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

Answer = tuple[int, object]
VAULT_TOKEN = "hvs.of-a-test"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PEM = KEY.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())


@contextmanager
def served(answer: Callable[[str, str, Any, bytes], Answer]) -> Generator[str]:
    """`answer(method, path, headers, body)`; the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content = answer(self.command, self.path, self.headers, body)
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", "/v1/secret/data/ci")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _do

        def log_message(self, *arguments: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def vault(values: dict[str, object]) -> Callable[[str, str, Any, bytes], Answer]:
    """Paths below /v1/secret/data/; None is one that was deleted."""

    def answer(method: str, path: str, headers: Any, body: bytes) -> Answer:
        if headers["X-Vault-Token"] != VAULT_TOKEN:
            return 403, {"errors": ["permission denied"]}
        found = values.get(path.removeprefix("/v1/secret/data/"))
        metadata = {"created_time": "2026-01-01T00:00:00Z", "deletion_time": "", "destroyed": False, "version": 3}
        if found is None:
            return 404, {"data": {"data": None, "metadata": metadata}} if path.endswith("gone") else {"errors": []}
        assert (method, headers["X-Vault-Request"]) == ("GET", "true")
        return 200, {
            "request_id": "1",
            "lease_duration": 0,
            "data": {"data": found, "metadata": metadata},
            "auth": None,
        }

    return answer


def github(now: Callable[[], float], made: list[Any]) -> Callable[[str, str, Any, bytes], Answer]:
    """App 12, installation 34, which may read contents of the repositories `one` and `two`."""

    def answer(method: str, path: str, headers: Any, body: bytes) -> Answer:
        claims = _claims(headers["Authorization"])
        if claims is None or claims["iss"] != "12" or not claims["iat"] <= now() < claims["exp"] <= now() + 600:
            return 401, {"message": "A JSON web token could not be decoded"}
        if (method, path) != ("POST", "/app/installations/34/access_tokens"):
            return 404, {"message": "Not Found"}
        asked = json.loads(body)
        if not set(asked.get("repositories", ())) <= {"one", "two"}:
            return 422, {"message": "There is at least one repository that does not exist"}
        made.append(asked)
        until = datetime.fromtimestamp(now() + 3600, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return 201, {"token": f"ghs_{len(made):036}", "expires_at": until, "permissions": asked.get("permissions")}

    return answer


def _claims(authorization: str) -> dict[str, Any] | None:
    head, claims, signature = [*authorization.removeprefix("Bearer ").split("."), "", ""][:3]
    try:
        KEY.public_key().verify(_bytes(signature), f"{head}.{claims}".encode(), padding.PKCS1v15(), SHA256())
    except (InvalidSignature, ValueError):
        return None
    return json.loads(_bytes(claims)) if json.loads(_bytes(head))["alg"] == "RS256" else None


def _bytes(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
