"""What a policy protects (`files:`) nobody inside changes, its root neither, behind the stronger walls either: of what
lies in a mount or a workspace. The attacks are those on a jail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "security"))

from paddock import Mount, Workspace
from paddock.errors import LevelUnavailableError, UnsupportedError
from tests.conftest import SandboxFactory
from tests.levels.conftest import SMALL, strongest
from tests.security.attacking import Attacker
from tests.security.test_protected_files import ATTACKS, LOOK, POLICY, TREE

pytestmark = pytest.mark.timeout(900)  # a machine that is emulated
FILES = {"files": {"protect": [*POLICY["files"]["protect"], "~/.netrc"]}}  # which is not there
SAID_ONLY = {"gvisor": {"chmod 777 .git/hooks/pre-commit"}}  # it says yes, and does nothing
MODES = "644 /workspace/.git/hooks/pre-commit\n644 /workspace/Makefile\n"
CHANGE = """set -e
cd /workspace; echo x > src/a.txt; mv src src2; mkdir -p not/there; echo y > not/there/z; echo ref > .git/refs/a
mv .git/refs/a .git/refs/b; rm -r src2; echo z > new; mv new other; cat .git/refs/b other not/there/z
"""


@pytest.fixture(params=("container", "gvisor", pytest.param("microvm", marks=pytest.mark.slow)))
def level(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory of the host as the attacks want it."""
    for path, text in ((".git/hooks/pre-commit", "good\n"), ("Makefile", "good\n"), ("src/a.txt", "other\n")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(0o644)
    (tmp_path / ".git/refs").mkdir()
    return tmp_path


def succeeded(attacker: Attacker) -> list[str]:
    """Those of the attacks that did, all in one command: each costs much in a machine that is emulated."""
    names = {f"attack{number}": attack for number, attack in enumerate(ATTACKS)}
    lines = [f"( cd /workspace; {attack} ) >/dev/null 2>&1 </dev/null && echo {name}" for name, attack in names.items()]
    return [names[name] for name in attacker.sh("\n".join((*lines, "true"))).stdout.split()]


def test_nobody_inside_changes_it_and_all_else_as_before(create: SandboxFactory, project: Path, level: str) -> None:
    made = create(mounts=[Mount(source=str(project))], policy=FILES)
    for attacker in {one.user: one for one in (Attacker(made, None), strongest(made))}.values():
        assert set(succeeded(attacker)) <= SAID_ONLY.get(level, set())
        look = attacker.sh(f"{LOOK}; cd /workspace; stat -c '%a %n' $PWD/.git/hooks/pre-commit $PWD/Makefile")
        assert look.stdout == f"good\ngood\n{MODES}"
    # Of what was not protected the attacks have taken away what they could.
    done = made.exec(f"mkdir -p /workspace/.git/refs; {CHANGE}")
    assert (done.exit_code, done.stdout) == (0, "ref\nz\ny\n"), done.stderr
    changed = [change.path for change in made.diff_mount(target="/workspace").changes]
    assert not [path for path in changed if path.startswith((".git/hooks", "Makefile"))]


def test_what_would_lie_on_a_machines_own_disk_is_refused_with_its_name(sandbox: SandboxFactory) -> None:
    with pytest.raises(UnsupportedError) as caught:
        sandbox(level="microvm", policy={"files": {"protect": ["~/.netrc", "/etc/passwd"]}}, ttl_seconds=900)
    if isinstance(caught.value, LevelUnavailableError):
        pytest.skip(str(caught.value))
    assert "change /etc/passwd, which lies on the disk of the virtual machine" in caught.value.message


@pytest.mark.slow
def test_a_fork_with_memory_keeps_it_and_so_does_what_it_leaves(sandbox: SandboxFactory) -> None:
    sandbox()  # the state directory is this test's from here on
    workspace = Workspace.open("kept-files")
    with sandbox(level="jail", workspace=workspace.name) as first:
        first.exec(TREE, check=True)
    try:
        options = {"workspace": workspace.name, "policy": FILES, "limits": SMALL, "ttl_seconds": 900}
        parent = sandbox(level="microvm", **options)
    except LevelUnavailableError as error:
        workspace.delete(discard=True)
        pytest.skip(str(error))
    # What was open before is open in the copy.
    reader = "exec 8<Makefile; until test -e go; do sleep 0.1; done; cat <&8 >seen; echo >end"
    parent.exec(f"({reader}) >/dev/null 2>&1 &", check=True)
    with parent.fork() as child:
        assert succeeded(Attacker(child, "root")) == []
        child.exec("touch go; until test -e end; do sleep 0.1; done", check=True, timeout_seconds=300)
        assert child.exec(f"cat seen; {LOOK}").stdout == "good\n" * 3
    parent.kill()
    with sandbox(level="jail", workspace=workspace.name) as last:
        assert last.exec(LOOK).stdout == "good\ngood\n"
    workspace.delete(discard=True)
