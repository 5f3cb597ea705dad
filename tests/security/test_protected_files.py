"""Files that a policy protects stay as they are, whoever inside tries, its root too; all else can be changed."""

from __future__ import annotations

import os

import pytest
from attacking import Attacker

from paddock import Sandbox
from paddock.errors import PaddockError
from tests.conftest import SandboxFactory

TREE = """set -e
mkdir -p /workspace/.git/hooks /workspace/.git/refs /workspace/src
echo good > /workspace/.git/hooks/pre-commit
echo good > /workspace/Makefile
echo other > /workspace/src/a.txt
"""
POLICY = {"files": {"protect": [".git/hooks", "Makefile", "not/there"]}}
LOOK = "cat /workspace/.git/hooks/pre-commit /workspace/Makefile"


@pytest.fixture(params=["user", "root"])
def kept(request: pytest.FixtureRequest, sandbox: SandboxFactory) -> Attacker:
    """Somebody in a sandbox over a tree that was there before, which the policy is about."""
    if request.param == "root" and os.getuid() != 0:
        pytest.skip("there is no root inside for an ordinary user")
    return Attacker(
        sandbox(snapshot=snapshot(sandbox, TREE), policy=POLICY), None if request.param == "user" else "root"
    )


def snapshot(sandbox: SandboxFactory, script: str) -> str:
    first = sandbox()
    done = first.exec(script)
    assert done.exit_code == 0, done.stderr
    return first.snapshot().id


ATTACKS = (
    "echo bad > .git/hooks/pre-commit",
    "echo bad > .git/hooks/new",
    "chmod 777 .git/hooks/pre-commit",
    "rm .git/hooks/pre-commit",
    "rm -rf .git",
    "mv .git/hooks .git/old",
    "mv .git old",
    "rmdir .git/hooks",
    "ln .git/hooks/pre-commit mine",
    "echo bad > Makefile",
    "echo bad > new && mv new Makefile",
    "rm Makefile",
    "mv Makefile old",
    "ln -sf /etc/passwd Makefile",
    "mv /workspace /workspace2",
    "mount -o remount,rw /workspace/.git/hooks",
    "umount /workspace/.git/hooks",
    "unshare -Urm umount /workspace/Makefile",
    "python3 -c \"import os; os.rename('.git', 'x')\"",
    "python3 -c \"import os; os.write(os.open('Makefile', os.O_WRONLY), b'bad')\"",
)


def test_nobody_inside_changes_it(kept: Attacker) -> None:
    succeeded = [attack for attack in ATTACKS if kept.sh(f"cd /workspace; {attack}").exit_code == 0]
    assert succeeded == []
    assert kept.sh(LOOK).stdout == "good\ngood\n"


def test_all_else_can_be_changed_as_before(kept: Attacker) -> None:
    script = """set -e
    cd /workspace; echo x > src/a.txt; mv src src2; mkdir -p not/there; echo y > not/there/z; echo ref > .git/refs/a
    mv .git/refs/a .git/refs/b; rm -r src2; echo z > new; mv new other; cat .git/refs/b other not/there/z
    """
    done = kept.sh(script)
    assert (done.exit_code, done.stdout) == (0, "ref\nz\ny\n"), done.stderr


def test_the_door_says_which_rule_and_holds_for_what_is_not_there_yet(kept: Attacker) -> None:
    files = kept.sandbox.filesystem
    for path in (".git/hooks/x", "not/there", "/workspace/not/there/deep"):
        with pytest.raises(PaddockError, match=r"files\.protect\["):
            files.write(path, "bad")
    files.write("/workspace/good", "good")


def test_forks_and_later_instance_ids_keep_it(kept: Attacker) -> None:
    snapshot = kept.sandbox.snapshot()
    for one in (kept.sandbox.fork(), _rolled_back(kept.sandbox, snapshot.id)):
        assert one.exec("echo bad > /workspace/Makefile").exit_code != 0
        assert one.exec(LOOK).stdout == "good\ngood\n"
        if one is not kept.sandbox:
            one.kill()


def _rolled_back(sandbox: Sandbox, snapshot: str) -> Sandbox:
    sandbox.rollback(snapshot)
    return sandbox


def test_what_was_not_mounted_when_it_was_made_is_not_promised_later(kept: Attacker) -> None:
    with pytest.raises(PaddockError, match="when a sandbox is made"):
        kept.sandbox.set_policy({"files": {"protect": ["src"]}})
    kept.sandbox.set_policy({"files": {"protect": ["Makefile", "*.pem"]}})


def test_a_link_on_the_way_is_refused_and_not_followed(sandbox: SandboxFactory) -> None:
    made = snapshot(sandbox, "mkdir -p /workspace/real/hooks; ln -s real /workspace/.git")
    with pytest.raises(PaddockError, match="symbolic link on the way"):
        sandbox(snapshot=made, policy=POLICY)
