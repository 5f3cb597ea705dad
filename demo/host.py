"""What must not change on the host, and must not be seen inside: looked at before and after."""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType


class Host:
    """Plants canaries: a file, an environment variable, a process. `harm` says what happened to them."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self.secrets = {"a file of the host": secrets.token_hex(16), "the host's environment": secrets.token_hex(16)}
        self._shadow = _read(Path("/etc/shadow"))
        for line in self._shadow.splitlines():
            name, _, rest = line.partition(":")
            if rest.startswith("$"):
                self.secrets[f"the host's password hash of {name}"] = rest.partition(":")[0]

    def __enter__(self) -> Host:
        self._directory = tempfile.TemporaryDirectory(prefix="paddock-demo-")
        self.canary = Path(self._directory.name) / "canary"
        self.canary.write_text(self.secrets["a file of the host"])
        os.environ["PADDOCK_DEMO_CANARY"] = self.secrets["the host's environment"]
        self._process = subprocess.Popen(["sleep", "600"])
        self._digest = _digest(self._repository)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        os.environ.pop("PADDOCK_DEMO_CANARY", None)
        self._directory.cleanup()

    def harm(self) -> str | None:
        """None if all is as it was, else what is not."""
        if not self.canary.exists() or self.canary.read_text() != self.secrets["a file of the host"]:
            return "the canary file was touched"
        if self._process.poll() is not None:
            return "the canary process was ended"
        if _digest(self._repository) != self._digest:
            return f"{self._repository} was changed"
        if _read(Path("/etc/shadow")) != self._shadow:
            return "/etc/shadow was changed"
        return None

    def leaked(self, text: str) -> str | None:
        """Which of the host's secrets is in `text`."""
        return next((what for what, secret in self.secrets.items() if secret in text), None)


def free_mib() -> dict[str, int]:
    """Of every place where a sandbox's writes could land."""
    places = {"/", "/var", tempfile.gettempdir(), os.path.expanduser("~")}
    found: dict[str, int] = {}
    for place in filter(os.path.exists, places):
        info = os.statvfs(place)
        found[place] = info.f_bavail * info.f_frsize >> 20
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _digest(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        digest.update(f"{path}\0".encode() + path.read_bytes())
    return digest.hexdigest()
