"""Real workspaces: of repositories and of none, in a state directory that the session shares."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from paddock.errors import NotFoundError
from tests.in_process import in_process

if TYPE_CHECKING:
    from paddock import Sandbox, Workspace

Opener = Callable[..., "Workspace"]
_numbers = itertools.count()

# All that git does not ignore, with modes; links; what git knows.
LOOK = r"""
cd /workspace
if [ -e .git ]; then
    git ls-files -z -c -o --exclude-standard | sort -zu | while IFS= read -r -d '' f; do
        if [ -d "$f" ] && [ ! -L "$f" ]; then find "$f" -type f -print0
        elif [ -e "$f" ] || [ -L "$f" ]; then printf '%s\0' "$f"; fi
    done | sort -zu >/tmp/names
    git status --porcelain=v2 --branch | grep -v '^# branch.ab'
    git stash list; git for-each-ref; git diff --cached; git fsck 2>&1
else
    find . -mindepth 1 -print0 | sort -zu >/tmp/names
fi
while IFS= read -r -d '' f; do
    stat -c '%n %a %U:%G %F' "$f"
    if [ -L "$f" ]; then readlink "$f"; elif [ -f "$f" ]; then sha256sum <"$f"; fi
done </tmp/names
"""


def look(sandbox: Sandbox) -> str:
    """Everything that has to be there again."""
    result = sandbox.exec(["bash", "-c", LOOK], timeout_seconds=120)
    assert result.ok, result.stderr
    return result.stdout


class Origin:
    """A repository to be cloned from."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main", ".")

    @property
    def url(self) -> str:
        return f"file://{self.path}"

    def git(self, *words: str) -> str:
        command = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words)
        return subprocess.run(command, cwd=self.path, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, files: dict[str, str | bytes]) -> str:
        for name, content in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--allow-empty", "--message", "change")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    tmp_path.chmod(0o755)
    made = Origin(tmp_path / "app")
    made.commit(
        {
            "README": "one\n",
            "src/main.py": "print(1)\n",
            "src/gone.py": "",
            "dir/x": "x",
            "text.txt": b"a\r\nb\r\n",
            ".gitattributes": "*.txt text=auto\n*.bin filter=nothing\n",
            ".gitignore": "*.o\nbuild/\n",
            "blob.bin": bytes(range(256)),
        }
    )
    return made


@pytest.fixture
def opened(shared_state: Path) -> Generator[Opener]:
    """`opened(**arguments of Workspace.open)` with a name of its own; all are gone at the end of the test."""
    from paddock import Workspace

    made: list[Workspace] = []

    def make(name: str | None = None, **arguments: Any) -> Workspace:
        made.append(Workspace.open(name or f"task-{next(_numbers)}", **arguments))
        return made[-1]

    yield make
    for workspace in made:
        try:
            workspace.delete(discard=True)
        except NotFoundError:
            continue


@pytest.fixture
def evict(shared_state: Path) -> Callable[..., None]:
    """Takes some out of the pool."""

    def run(*workspaces: Workspace) -> None:
        with in_process(shared_state) as daemon:
            for workspace in workspaces:
                daemon.run(daemon.service.workspaces.evict, workspace.id)

    return run


@pytest.fixture
def over(sandbox: Callable[..., Sandbox]) -> Callable[[Workspace], Sandbox]:
    """A sandbox over a workspace."""
    return lambda workspace: sandbox(workspace=workspace.name, ttl_seconds=300)
