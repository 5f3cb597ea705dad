"""Installs the peers into `.tools/peers` (and, as root, Debian's from their packages), and says which versions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from bench.contest import ROOT
from bench.peers.table import ABSENT, DEBIAN, HOME, MITMPROXY, NPM, PYPI, PYTHON


def main() -> int:
    if os.geteuid() == 0 and shutil.which("apt-get"):
        attempt("apt-get", "-qq", "install", "-y", "--no-install-recommends", *DEBIAN)
    else:
        print(f"as root: apt-get install {' '.join(DEBIAN)}")
    uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
    if not PYTHON.exists():
        attempt(uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(HOME))
    attempt(uv, "pip", "install", "--quiet", "--python", str(PYTHON), *PYPI)
    if not MITMPROXY.exists():
        alone = MITMPROXY.parents[1]
        attempt(uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(alone))
        attempt(uv, "pip", "install", "--quiet", "--python", str(alone / "bin" / "python"), "mitmproxy")
    if shutil.which("npm"):
        attempt("npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(HOME), *NPM)
    versions(uv)
    for name, reason in ABSENT.items():
        print(f"not measured: {name}: {reason}")
    return 0


def attempt(*argv: str) -> None:
    """What cannot be installed is out; the others are not held up."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    if subprocess.run(argv, stdin=subprocess.DEVNULL, env=environment, check=False).returncode != 0:
        print(f"could not: {' '.join(argv)}", file=sys.stderr)


def versions(uv: str) -> None:
    listed = output(uv, "pip", "list", "--python", str(PYTHON), "--format", "freeze").splitlines()
    print(*(line for line in listed if line.partition("==")[0] in PYPI), sep="\n")
    print(output("dpkg-query", "--show", "--showformat=${Package} ${Version}\n", *DEBIAN), end="")


def output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


if __name__ == "__main__":
    raise SystemExit(main())
