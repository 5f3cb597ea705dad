"""Where a policy has deletions asked for, those of what the sandbox itself has made are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddock.errors import ApprovalNeededError
from paddock.storage.pool.config import load
from tests.conftest import SandboxFactory
from tests.workspaces.conftest import Opener, Origin

POLICY = {"files": {"approve": ["delete"]}}
WORK = """set -e
echo new > new; touch -d 2001-01-01 aged; ln -s README new-link; mkdir -p made/below; echo x > made/below/x
mv text.txt moved; mkdir mixed; mv src/gone.py mixed; touch dir/new; ln -s dir way
rm blob.bin; ln README hard
mkdir /home/user/mine; touch /home/user/mine/x
"""


def test_what_the_sandbox_has_made_is_deleted_unasked(
    opened: Opener, sandbox: SandboxFactory, origin: Origin, shared_state: Path
) -> None:
    workspace = opened(url=origin.url)
    made = sandbox(workspace=workspace.name, policy=POLICY)
    config = load(shared_state)
    if config is None or config.driver == "copy":
        pytest.skip("this pool copies whole trees: what was made in one is not known")
    made.exec(["bash", "-c", WORK], check=True)
    for path in ("new", "aged", "new-link", "dir/new", "made", "/home/user/mine", "way"):
        made.filesystem.remove(path, recursive=True)
        assert not made.filesystem.exists(path)


def test_what_was_there_before_is_asked_about_whatever_it_is_called_now(
    opened: Opener, sandbox: SandboxFactory, origin: Origin
) -> None:
    workspace = opened(url=origin.url)
    with sandbox(workspace=workspace.name) as first:
        first.exec("echo yesterday > yesterday", check=True)
    made = sandbox(workspace=workspace.name, policy=POLICY)
    made.exec(["bash", "-c", WORK], check=True)
    before = ("README", "moved", "mixed", "dir", "way/x", "hard", "src", "yesterday", "/etc/hostname", "/usr/bin/env")
    for path in before:
        with pytest.raises(ApprovalNeededError):
            made.filesystem.remove(path, recursive=True)
        assert made.filesystem.exists(path)
