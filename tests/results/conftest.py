"""`opened(remote)`: a sandbox over a workspace that begins with the default branch of a repository."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from pathlib import Path

import pytest
from spaces import Opener

from paddock import Sandbox, local
from paddock.model import CreateSandbox, OpenWorkspace, SandboxSpec
from tests.conftest import SandboxFactory

_numbers = itertools.count()


@pytest.fixture
def opened(sandbox: SandboxFactory, tmp_path: Path) -> Generator[Opener]:
    made: list[Sandbox] = []
    sandbox()  # skips with the reason where no sandbox can be had

    def open(remote: Path | None, task: str | None = None) -> Sandbox:
        name = task or f"task{next(_numbers)}"
        local().perform(OpenWorkspace(name=name, url=None if remote is None else str(remote)))
        box = Sandbox(local().perform(CreateSandbox(spec=SandboxSpec(workspace=name, name=task))), local())
        made.append(box)
        return box

    yield open
    for box in made:
        box.kill()
