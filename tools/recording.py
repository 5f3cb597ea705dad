"""Draw docs/recording.svg: commands that paddock stops, run in a terminal. `python -m tools.recording`."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "recording.svg"
COMMANDS = (
    "paddock run -- cat /etc/shadow",
    "paddock run --memory 128m -- python3 -c 'bytearray(2**30)'",
    "paddock run --network pypi -- curl -sS https://example.com/",
    "paddock run --mount . --diff -- sh -c 'rm -rf .git; echo pwned >> app.py'",
    "ls -A",
)
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ID = re.compile(r"\bsb_[0-9a-z]{16}\b")
_LINE_PIXELS, _CHARACTER_PIXELS, _MARGIN = 19, 8.1, 16


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="pd-") as state, tempfile.TemporaryDirectory() as here:
        (Path(here) / ".git").mkdir()
        (Path(here) / "app.py").write_text("print('hello')\n")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = os.environ | {"PADDOCK_STATE_DIR": state, "PATH": path, "TERM": "dumb"}
        try:
            # Make the state directory first: its progress lines are not what the picture is about.
            subprocess.run(["paddock", "run", "--", "true"], env=environment, check=True, capture_output=True)
            lines: list[str] = []
            for command in COMMANDS:
                lines += [f"$ {command}", *_run(command, Path(here), environment), ""]
        finally:
            subprocess.run(["paddock", "daemon", "stop"], env=environment, check=False, capture_output=True)
    TARGET.write_text(_drawn(lines[:-1]))
    return 0


def _run(command: str, directory: Path, environment: dict[str, str]) -> list[str]:
    """Return what the command prints on a terminal, without colours and with one id for all sandboxes."""
    near, far = pty.openpty()
    with subprocess.Popen(
        ["bash", "-c", command], cwd=directory, env=environment, stdin=far, stdout=far, stderr=far
    ) as running:
        os.close(far)
        printed = b""
        while True:
            try:
                printed += (piece := os.read(near, 65536))
            except OSError:  # Linux reports the end of a terminal as EIO
                break
            if not piece:
                break
        running.wait(timeout=60)
    os.close(near)
    return _ID.sub("sb_0vbcsa9jwx562yxd", _ESCAPE.sub("", printed.decode())).replace("\r", "").splitlines()


def _drawn(lines: list[str]) -> str:
    width = int(max(map(len, lines)) * _CHARACTER_PIXELS) + 2 * _MARGIN
    height = len(lines) * _LINE_PIXELS + 2 * _MARGIN
    rows = [
        f'  <text x="{_MARGIN}" y="{_MARGIN + (number + 1) * _LINE_PIXELS - 5}" xml:space="preserve"'
        f' fill="{"#fff" if line.startswith("$") else "#9fd3a0"}">{escape(line, quote=False)}</text>\n'
        for number, line in enumerate(lines)
        if line
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        ' font-family="monospace" font-size="13">\n'
        "  <title>A terminal: paddock stops what no sandbox may do</title>\n"
        f'  <rect width="{width}" height="{height}" rx="8" fill="#1d232b"/>\n{"".join(rows)}</svg>\n'
    )


if __name__ == "__main__":
    sys.exit(main())
