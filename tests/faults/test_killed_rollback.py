"""A rollback whose daemon is killed half-way: the next daemon does the rest.

The daemon is on a thread of the program, where its functions can be replaced (`tests/in_process.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HOSTS = (
    "import os\nfrom pathlib import Path\nfrom tests.in_process import in_process\n"
    "host = in_process(Path(os.environ['PADDOCK_STATE_DIR']))\n"
)
DIE = "import os, signal\nasync def die(*_): os.kill(os.getpid(), signal.SIGKILL)\n"
LATE = "def late(*a, **k):\n    real(*a, **k)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
STEPS = {
    "when its copies are there": (
        f"from paddock.daemon.sandboxes import _copies\nreal = _copies.make\n{LATE}_copies.make = late\n"
    ),
    "when they are in place": (
        f"from paddock.daemon.sandboxes import restore as of\nreal = of._put_in_place\n{LATE}of._put_in_place = late\n"
    ),
    "before the kill": "from paddock.backends.jail.backend import JailInstance\nJailInstance.kill = die\n",
    "before the tree is there": "from paddock.backends.jail import JailBackend\nJailBackend.forget = die\n",
    "before it is made": "from paddock.backends.jail import JailBackend\nJailBackend.create = die\n",
    "when it has been made": (
        "from paddock.backends.jail import JailBackend\nmake = JailBackend.create\n"
        "async def late(*a):\n    await make(*a)\n    await die()\n"
        "JailBackend.create = late\n"
    ),
}


@pytest.fixture
def state_dir(module_state: Path) -> Path:
    """No test here kills a supervisor."""
    return module_state


@pytest.mark.parametrize(("step", "workspace"), [*((step, True) for step in STEPS), ("before the kill", False)])
def test_the_next_daemon_finishes_it(step: str, workspace: bool, program: Callable[..., Any]) -> None:
    """With a workspace, there are two trees that have to come to the same end."""
    options, path = ("workspace='task', ", "/workspace/file") if workspace else ("", "file")
    first = program(
        HOSTS + "host.__enter__()\nfrom paddock import Workspace\n"
        "Workspace.open('task')\n"
        f"s = Sandbox.create(level='jail', persistent=True, name='kept', {options}ttl_seconds=120)\n"
        f"write = lambda text: [s.filesystem.write(path, text) for path in ('own', {path!r})]\n"
        "write('good'); s.snapshot('good'); write('bad')\n"
        "say(id=s.id); input()\n" + DIE + STEPS[step] + "s.rollback('good')"
    )
    id = first.hears()["id"]
    first.go_on()
    assert first.ends() == -9
    later = program(
        HOSTS + "host.__enter__()\nfrom paddock import Workspace\n"
        "s = Sandbox.list()[0]\nstate = s.state\n"
        f"texts = [s.filesystem.read_text(path) for path in ('own', {path!r})]\n"
        "s.delete_snapshot('good'); s.kill(); Workspace.open('task').delete(discard=True)\n"
        "say(id=s.id, first=state, texts=texts); host.__exit__(None, None, None)"
    ).hears()
    assert later == {"id": id, "first": "running", "texts": ["good", "good"]}
