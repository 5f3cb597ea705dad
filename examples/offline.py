"""What `step3.py` needs from outside, so that it runs without a network: a git server, a package, a model.

`Sandbox` is paddock's, created with two directories more: a bare repository that git takes for `https://example.com/`,
and wheels that pip takes for its index. `generate_n_fixes` stands for a model.

With a network, `step3.py` is the published program with `from paddock import Sandbox`, the address of a real
repository, a model, and a policy that allows the addresses of the repository and of the package index.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import paddock
from paddock import Mount, MountMode

_FILES = {
    "requirements.txt": "roundly==1.0\n",
    "mean.py": "from roundly import rounded\n\ndef mean(xs):\n    return rounded(sum(xs) / (len(xs) + 1))\n",
    "test_mean.py": "from mean import mean\n\ndef test_mean(): assert mean([1, 2, 6]) == 3\n"
    "def test_one(): assert mean([5]) == 5\n",
}
_WHEEL = {
    "roundly.py": "def rounded(x):\n    return round(x, 6)\n",
    "roundly-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: roundly\nVersion: 1.0\n",
    "roundly-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "roundly-1.0.dist-info/RECORD": "roundly.py,,\n",
}
_OLD = "    return rounded(sum(xs) / (len(xs) + 1))"
_IDEAS = ("sum(xs) / len(xs)", "sum(xs) / (len(xs) - 1)", "max(xs)", "sum(xs) // len(xs)", "sum(xs)")


class Sandbox(paddock.Sandbox):
    @classmethod
    def create(cls, template: str = "host", **arguments: Any) -> Sandbox:
        outside = _outside()
        mounts = [Mount(source=f"{outside}/{name}", target=f"/srv/{name}", mode=MountMode.READ_ONLY) for name in _NAMES]
        return super().create(template, mounts=mounts, env=_ENV, **arguments)  # type: ignore[return-value]


def generate_n_fixes(n: int) -> list[str]:
    return [
        f"--- a/mean.py\n+++ b/mean.py\n@@ -3,2 +3,2 @@\n def mean(xs):\n-{_OLD}\n+    return rounded({idea})\n"
        for idea in _IDEAS[:n]
    ]


_NAMES = ("git", "wheels")
_ENV = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "url.file:///srv/git/.insteadOf",
    "GIT_CONFIG_VALUE_0": "https://example.com/",
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": "/srv/wheels",
}


def _outside() -> Path:
    """The two directories, gone with this program."""
    here = Path(tempfile.mkdtemp(prefix="paddock-example-"))
    atexit.register(shutil.rmtree, here, ignore_errors=True)
    work = here / "work"
    for name, text in _FILES.items():
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text(text)
    git = ["git", "-c", "user.name=Somebody", "-c", "user.email=somebody@example.com"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "A mean that is a little off"]):
        subprocess.run([*git, "-C", work, *arguments], check=True)
    subprocess.run([*git, "clone", "-q", "--bare", work, here / "git" / "repo"], check=True)
    (here / "wheels").mkdir()
    with zipfile.ZipFile(here / "wheels" / "roundly-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in _WHEEL.items():
            wheel.writestr(name, text)
    return here
