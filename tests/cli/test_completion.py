"""Completion, in the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SandboxFactory

BIN = Path(sys.executable).parent


def script(shell: str) -> str:
    return subprocess.run([BIN / "paddock", "completion", shell], capture_output=True, text=True, check=True).stdout


def bash(*words: str) -> list[str]:
    """What Tab offers at the end of these words."""
    lines = [
        f"PATH={BIN}:$PATH",
        script("bash"),
        f"COMP_WORDS=({' '.join(repr(word) for word in words)}) COMP_CWORD={len(words) - 1}",
        '_paddock; printf "%s\\n" "${COMPREPLY[@]}"',
    ]
    done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_verbs_options_and_what_lives(sandbox: SandboxFactory) -> None:
    box = sandbox(persistent=True, name="completed", ttl_seconds=60)
    assert bash("paddock", "ins") == ["inspect"]
    assert bash("paddock", "run", "--mem") == ["--memory"]
    assert bash("paddock", "audit", "v") == ["verify"]
    assert set(bash("paddock", "kill", "")) >= {"completed", box.id}
    assert bash("paddock", "exec", "comp") == ["completed"]
    assert bash("paddock", "ls", "comp") == []
    assert bash("paddock", "exec", "completed", "--", "--ti") == []
    box.kill()
    assert bash("paddock", "kill", "comp") == []


def test_a_task_that_rests_is_completed_too(sandbox: SandboxFactory) -> None:
    from paddock import Workspace

    sandbox()
    workspace = Workspace.open("zz-at-rest")
    assert bash("paddock", "status", "zz-a") == ["zz-at-rest"]
    assert bash("paddock", "up", "--task", "zz-a") == ["zz-at-rest"]
    workspace.delete()
    assert bash("paddock", "status", "zz-a") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_a_shell_is_given_is_sound(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "completion"
    path.write_text(script(shell))
    done = subprocess.run([shell, "-n", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_names_are_told_without_a_service_and_where_there_is_nothing(tmp_path: Path) -> None:
    run = (
        "import sys\nfrom paddock.cli import main\nmain(['completion', 'names'])\nprint(*sys.modules, file=sys.stderr)"
    )
    environ = {"PADDOCK_STATE_DIR": str(tmp_path / "none")}
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=True, env=environ)
    assert done.stdout == ""
    assert not {"asyncio", "msgspec", "paddock.model", "paddock.client"} & set(done.stderr.split())
    assert not (tmp_path / "none").exists()
