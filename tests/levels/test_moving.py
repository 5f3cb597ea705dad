"""A workspace is its own: what is over it is replaced, by another wall if need be, and the work goes on (C3)."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from paddock import Sandbox, Workspace
from paddock.errors import LevelUnavailableError, UnsupportedError
from tests.conftest import SandboxFactory
from tests.levels.conftest import LEVELS

pytestmark = pytest.mark.timeout(900)  # a machine that is emulated, and the first is baked

GIT = "git -c user.name=a -c user.email=a@b.c -c safe.directory='*' -c init.defaultBranch=main"
WORK = f"""
set -eu
test -d .git || {GIT} init -q .
echo "at $1" >> history.txt; printf '%s' "$1" > "only $1.txt"; {GIT} add -A; {GIT} commit -qm "at $1"
echo "not committed at $1" >> draft.txt
mkdir -p "bin/$1"; echo 'echo ran' > "bin/$1/tool"; chmod 0750 "bin/$1/tool"; ln -sfn "$1/tool" bin/latest
ln -f draft.txt "hard $1"; chmod 0400 "only $1.txt"; touch -d '2020-02-02 02:02:02 UTC' "bin/$1/tool"; mkdir -p empty
python3 -c "import os, sys; os.setxattr('draft.txt', 'user.' + sys.argv[1], sys.argv[1].encode())" "$1" 2>/dev/null ||
    echo "no attributes at $1"
"""
# gVisor's file systems have no extended attributes: there they are not seen, and must still be there afterwards.
LOOK = """
import hashlib, json, os
seen, attributes = {}, {}
for directory, directories, files in os.walk("."):
    for name in sorted(directories + files):
        path = os.path.join(directory, name)
        status = os.lstat(path)
        link = os.path.islink(path)
        content = os.readlink(path) if link else None
        if not link and os.path.isfile(path):
            content = hashlib.sha256(open(path, "rb").read()).hexdigest()
            for attribute in os.listxattr(path):
                attributes[path + " " + attribute] = os.getxattr(path, attribute).decode()
        time = int(status.st_mtime) if os.path.isfile(path) and not link else 0
        seen[path] = [oct(status.st_mode), status.st_uid, status.st_gid, content, time]
print(json.dumps([seen, attributes]))
"""


def look(sandbox: Sandbox) -> tuple[dict[str, Any], dict[str, str]]:
    """All that can be seen of its files, and their attributes."""
    seen, attributes = json.loads(sandbox.exec(["python3", "-c", LOOK], cwd="/workspace", check=True).stdout)
    return seen, attributes


def carried(seen: dict[str, Any]) -> dict[str, Any]:
    """What an archive takes into a container and out of it: of a mode, whether it may be run, and no times."""
    return {path: [int(mode, 8) & 0o170100, *rest[:-1]] for path, (mode, *rest) in seen.items()}


def test_one_workspace_goes_through_every_level_with_its_work_intact(
    sandbox: SandboxFactory, request: pytest.FixtureRequest
) -> None:
    with contextlib.suppress(pytest.skip.Exception):  # without an engine one level is missing
        request.getfixturevalue("engine")
    sandbox()  # the state directory is this test's from here on
    workspace = Workspace.open("moved")
    been, missing = list[str](), list[str]()
    left: dict[str, Any] = {}
    kept: dict[str, str] = {}
    for level in ("jail", "gvisor", "container", "microvm", "jail"):
        try:
            over = Sandbox.create(level=level, workspace=workspace.name, ttl_seconds=600)
        except (LevelUnavailableError, UnsupportedError) as error:
            missing.append(str(error))
            continue
        with over:
            found, attributes = look(over)
            if "container" in (level, *been[-1:]):
                assert carried(found) == carried(left), f"from {been[-1:]} to {level}"
                kept = attributes
            else:
                assert found == left, f"from {been[-1:]} to {level}"
                assert attributes == ({} if level == "gvisor" else kept), f"from {been[-1:]} to {level}"
            been.append(level)
            place = f"{level}-{len(been)}"
            over.exec(["sh", "-c", WORK, "sh", place], cwd="/workspace", check=True, timeout_seconds=120)
            left, attributes = look(over)
            kept |= attributes
            kept |= {f"./hard {place} {name.split()[-1]}": value for name, value in kept.items() if "draft" in name}
    if len(set(been)) == 1:
        pytest.skip(f"this machine has one level: {'; '.join(missing)}")
    with sandbox(level="jail", workspace=workspace.name) as last:
        assert look(last) == (left, kept)
        places = [f"{level}-{number}" for number, level in enumerate(been, 1)]
        said = last.exec(f"{GIT} log --reverse --format=%s; {GIT} fsck 2>&1", cwd="/workspace", check=True).stdout
        assert said.splitlines() == [f"at {place}" for place in places]
        assert last.exec("cat draft.txt").stdout.splitlines() == [f"not committed at {place}" for place in places]
        assert last.exec("sh bin/latest").stdout == "ran\n"
    assert workspace.status().only_here
    workspace.delete(discard=True)


@pytest.mark.parametrize("level", [level for level in LEVELS if level != "jail"])
def test_a_sandbox_that_was_killed_leaves_its_work_to_another_level(
    sandbox: SandboxFactory, request: pytest.FixtureRequest, level: str
) -> None:
    if level == "container":
        request.getfixturevalue("engine")
    sandbox()
    workspace = Workspace.open(f"broken-{level}")
    try:
        first = sandbox(level=level, workspace=workspace.name, ttl_seconds=900)
    except (LevelUnavailableError, UnsupportedError) as error:
        pytest.skip(str(error))
    first.exec("for n in 1 2 3; do echo $n >> counted; done; sync", check=True)
    first.kill()
    with sandbox(level="jail", workspace=workspace.name) as second:
        assert second.exec("cat counted").stdout == "1\n2\n3\n"
    workspace.delete(discard=True)
