"""Results of workspaces: real repositories, workshops and pushes."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import re
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from spaces import Opener

from paddock import local
from paddock.client import _publish
from paddock.daemon.workspaces import _scripts as scripts
from paddock.errors import AlreadyExistsError, InvalidArgumentError, InvalidStateError, NotFoundError
from paddock.model import (
    AddArtifact,
    Change,
    DeleteWorkspace,
    DiffWorkspace,
    GetArtifact,
    InspectWorkspace,
    ListArtifacts,
    ListAudit,
    OpenPullRequest,
    Published,
    PushBranch,
    RemoveArtifact,
    codec,
)
from paddock.supervisor.layout import REPOSITORIES
from tests.daemon.conftest import daemon_pid
from tests.in_process import in_process

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    **{f"GIT_{who}_{what}": "u@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(place: Path, *arguments: str, input: bytes | None = None) -> str:
    done = subprocess.run(["git", *arguments], cwd=place, env=ENVIRONMENT, input=input, capture_output=True, check=True)
    return done.stdout.decode().strip()


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """A bare repository with one commit on main."""
    source, bare = tmp_path / "source", tmp_path / "remote.git"
    source.mkdir()
    git(source, "init", "-q", "-b", "main")
    for name, content in {
        "text": "one\ntwo\nthree\n",
        "moved": "the same\n" * 20,
        "gone": "bye\n",
        "script": "#!/bin/sh\n",
        "image": "\0\1old",
        ".gitignore": "*.log\n",
    }.items():
        (source / name).write_text(content)
    git(source, "add", "-A")
    git(source, "commit", "-qm", "base")
    git(source, "clone", "-q", "--bare", ".", str(bare))
    return bare


CHANGES = r"""
set -e
printf 'one\nTWO\nthree\n' > text; git mv moved renamed; rm gone; chmod +x script; printf '\000\002new' > image
mkdir new; echo fresh > 'new/a file'; ln -s text link; echo no > ignored.log
echo yes > forced.log; git add -f forced.log
"""
TOLD = {"M text", "R renamed", "D gone", "M script", "M image", "A new/a file", "A link", "A forced.log"}
COMMIT = "git -c user.name=agent -c user.email=agent@x commit -qam"


def told(name: str) -> set[str]:
    return {f"{c.kind.value[0].upper()} {c.path}" for c in local().perform(DiffWorkspace(workspace=name)).changes}


def test_the_difference_is_to_the_commit_it_began_with_and_holds_what_git_does_not_know(
    opened: Opener, remote: Path
) -> None:
    box = opened(remote)
    box.exec(CHANGES, check=True)
    assert told(box.id) == TOLD
    box.exec(f"{COMMIT} half; echo more >> text", check=True)
    assert told(box.id) == TOLD


def test_the_patch_gives_the_workspace(opened: Opener, remote: Path, tmp_path: Path) -> None:
    box = opened(remote)
    box.exec(CHANGES, check=True)
    patch = local().perform(DiffWorkspace(workspace=box.id, patch=True)).patch
    assert patch is not None
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(remote), str(clone))
    git(clone, "apply", "--index", "-", input=patch)
    expected = box.exec("cat text renamed 'new/a file' forced.log | sha256sum; stat -c %a script", check=True).stdout
    content = b"".join((clone / name).read_bytes() for name in ("text", "renamed", "new/a file", "forced.log"))
    assert expected == f"{hashlib.sha256(content).hexdigest()}  -\n755\n"
    assert os.readlink(clone / "link") == "text"
    assert (clone / "image").read_bytes() == b"\0\2new"
    assert not (clone / "gone").exists()
    assert os.access(clone / "script", os.X_OK)


def test_a_workspace_that_nobody_has_is_told_of_too(opened: Opener, remote: Path) -> None:
    box = opened(remote, task="resting")
    box.exec("echo new > file", check=True)
    box.kill()
    assert told("resting") == {"A file"}


def test_a_fork_has_a_difference_of_its_own(opened: Opener, remote: Path) -> None:
    box = opened(remote, task="parent")
    box.exec("echo mine > mine", check=True)
    with box.fork() as child:
        child.exec("echo child > child", check=True)
        assert told(child.id) == {"A mine", "A child"}
        assert told("parent") == {"A mine"}


def test_changes_are_read_outside_the_loop(
    opened: Opener, remote: Path, shared_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = scripts.read_changes

    def reading(output: bytes) -> tuple[Change, ...]:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return read(output)

    monkeypatch.setattr(scripts, "read_changes", reading)
    box = opened(remote)
    box.exec("echo new > new", check=True)
    with in_process(shared_state):
        assert told(box.id) == {"A new"}


def test_a_name_that_git_refuses_is_named(opened: Opener, remote: Path) -> None:
    box = opened(remote)
    box.exec("echo new > .GIT", check=True)
    with pytest.raises(InvalidStateError, match=r"ended with 128: error: invalid path '\.GIT'"):
        told(box.id)


@pytest.mark.both
def test_what_a_workspace_configures_runs_nowhere_and_hides_nothing(opened: Opener, remote: Path) -> None:
    box = opened(remote)
    box.exec(
        "git update-index --assume-unchanged text; git update-index --skip-worktree gone;"
        "git config core.fsmonitor 'touch /tmp/pwned'; git config filter.x.clean 'touch /tmp/pwned; echo lie';"
        "git config diff.external 'echo lie'; git config core.pager 'touch /tmp/pwned';"
        "git config core.worktree /nowhere; git config core.fileMode false; chmod +x script;"
        "echo '* filter=x diff=x' > .gitattributes; echo changed > text; rm gone;"
        "echo 'echo lie' > .git/hooks/pre-commit;"
        "chmod +x .git/hooks/pre-commit",
        check=False,
    )
    assert told(box.id) == {"M text", "D gone", "M script", "A .gitattributes"}


@pytest.mark.parametrize(
    "spoil",
    [
        "rm -rf .git; echo x > .git",
        "rm -rf .git; ln -s / .git",
        ": > .git/index; printf 'ref: x' > .git/HEAD",
        "rm -r .git",
    ],
)
def test_a_broken_git_directory_breaks_nothing_else(opened: Opener, remote: Path, spoil: str) -> None:
    box = opened(remote)
    box.exec(f"echo new > file; {spoil}", check=True)
    assert "A file" in told(box.id)


ODD = (
    *(".gitignore", "new/.gitignore", ".gitattributes", ".git/HEAD", ".git/config", ".git/packed-refs"),
    *(".git/objects/info/alternates", ".git/objects/pack/pack-1.idx", ".git/info/exclude", "new/.git/HEAD"),
)


def test_what_git_would_wait_for_is_refused_by_its_name(opened: Opener, remote: Path) -> None:
    box = opened(remote, task="waiting")
    box.exec("mkdir -p new/.git; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'", check=True)
    assert told(box.id) == set(), "a socket that git does not read is nobody's trouble"
    for name in ODD:
        box.exec(["sh", "-c", 'mv "$1" aside; mkdir -p "$(dirname "$1")"; mkfifo "$1"', "sh", name], check=False)
        for action in (DiffWorkspace(workspace=box.id), PushBranch(workspace=box.id, branch="x")):
            with pytest.raises(InvalidStateError, match=re.escape(f"/workspace/{name} is a pipe")):
                local().perform(action)
        box.exec(["sh", "-c", 'rm "$1"; mv aside "$1"', "sh", name], check=False)
    for harm in ("ln -s /dev/zero .git/shallow", "truncate -s 300M .gitattributes"):
        box.exec(f"{harm}", check=True)
        with pytest.raises(InvalidStateError, match="and git would read it"):
            told(box.id)
        box.exec("rm -f .git/shallow .gitattributes", check=True)
    box.exec("rm .gitignore; mkdir .gitignore", check=True)
    assert "D .gitignore" in told(box.id)
    box.exec("mkfifo .git/config.worktree", check=True)
    box.kill()
    assert "config.worktree is a pipe" in (local().perform(InspectWorkspace(workspace="waiting")).unreadable or "")


def test_what_git_waits_for_behind_a_link_ends_all_the_same(
    opened: Opener, remote: Path, shared_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paddock.daemon.workspaces.results.READING_SECONDS", 3.0)
    box = opened(remote)
    box.exec(
        "mkdir far; mkfifo far/alternates; rm -rf .git/objects/info; ln -s ../../far .git/objects/info", check=True
    )
    with in_process(shared_state), pytest.raises(InvalidStateError, match="did not come to an end"):
        told(box.id)


def test_a_branch_is_pushed_with_what_is_not_committed(opened: Opener, remote: Path) -> None:
    box = opened(remote, task="pushing")
    box.exec(f"echo first > a; git add a; {COMMIT} first; {CHANGES}", check=True)
    before = box.exec("git rev-parse HEAD; git status --porcelain", check=True).stdout
    pushed = local().perform(PushBranch(workspace="pushing", message="The rest", author="Me <me@example.org>"))
    assert pushed.ref == "refs/heads/paddock/pushing"
    assert git(remote, "rev-parse", pushed.ref) == pushed.commit
    assert git(remote, "log", "--format=%s %an", pushed.ref).split("\n") == [
        "The rest Me",
        "first agent",
        "base u@example.org",
    ]
    assert git(remote, "show", f"{pushed.ref}:new/a file") == "fresh"
    assert box.exec("git rev-parse HEAD; git status --porcelain", check=True).stdout == before
    assert not local().perform(PushBranch(workspace="pushing")).pushed
    assert git(remote, "rev-parse", "main") != pushed.commit


def test_what_was_pushed_is_not_only_here(opened: Opener, remote: Path) -> None:
    box = opened(remote, task="published")

    def only_here() -> tuple[str, tuple[str, ...]]:
        status = local().perform(InspectWorkspace(workspace="published"))
        return status.only_here, status.paths

    box.exec(f"echo first > a; git add a; {COMMIT} first; {CHANGES}", check=True)
    assert only_here()[0].startswith("1 commit that its repository has not, ")
    local().perform(PushBranch(workspace="published"))
    assert only_here() == ("nothing", ())
    box.exec("echo more >> text; echo x > later; rm 'new/a file'", check=True)
    assert only_here() == ("1 modified file, 1 untracked file", (" M text", "?? later"))
    local().perform(PushBranch(workspace="published"))
    assert only_here() == ("nothing", ())
    box.exec("echo three > a; git add a; echo four > a", check=True)
    local().perform(PushBranch(workspace="published"))
    assert "MM a" in only_here()[1], "the index has a version of it that was pushed nowhere"
    box.exec(f"echo own > own; git add a own; {COMMIT} own", check=True)
    assert only_here()[0].startswith("1 commit that its repository has not")
    local().perform(PushBranch(workspace="published"))
    box.kill()
    local().perform(DeleteWorkspace(workspace="published"))


def test_work_that_goes_on_is_pushed_on_top(opened: Opener, remote: Path) -> None:
    box = opened(remote)
    box.exec("echo one > file", check=True)
    one = local().perform(PushBranch(workspace=box.id, branch="topic"))
    box.exec("echo two > file", check=True)
    two = local().perform(PushBranch(workspace=box.id))
    assert git(remote, "rev-parse", "topic^") == one.commit
    box.exec(f"git add file; {COMMIT} own; echo three > file", check=True)
    three = local().perform(PushBranch(workspace=box.id))
    assert (two.previous, three.previous) == (one.commit, two.commit)
    assert git(remote, "show", "topic:file") == "three"
    assert "own" in git(remote, "log", "--format=%s", "topic")


def test_what_others_have_pushed_stays_unless_it_is_forced(opened: Opener, remote: Path, tmp_path: Path) -> None:
    box = opened(remote)
    box.exec("echo mine > file", check=True)
    local().perform(PushBranch(workspace=box.id, branch="topic"))
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "-b", "topic", str(remote), str(clone))
    git(clone, "commit", "-q", "--allow-empty", "-m", "a reviewer's")
    git(clone, "push", "-q")
    theirs = git(clone, "rev-parse", "HEAD")
    box.exec("echo more > file", check=True)
    with pytest.raises(InvalidStateError, match=theirs):
        local().perform(PushBranch(workspace=box.id))
    assert git(remote, "rev-parse", "topic") == theirs
    forced = local().perform(PushBranch(workspace=box.id, force=True))
    assert forced.previous == theirs
    assert git(remote, "rev-parse", "topic") == forced.commit


def test_what_git_would_not_take_is_not_pushed(opened: Opener, remote: Path) -> None:
    box = opened(remote)
    tree = "printf '100644 blob %s\\t.git' $(echo x | git hash-object -w --stdin) | git mktree"
    box.exec(
        f"git -c core.protectHFS=false -c core.protectNTFS=false reset -q --soft"
        f" $(git -c user.name=a -c user.email=a@x commit-tree $({tree}) -p HEAD -m evil)",
        check=True,
    )
    with pytest.raises((InvalidStateError, InvalidArgumentError), match=r"git (refuses|cannot)"):
        local().perform(PushBranch(workspace=box.id))
    assert git(remote, "branch", "--format=%(refname:short)") == "main"


@pytest.mark.parametrize("branch", ["--mirror", "refs/tags/x", "HEAD", "a..b", "x y", "+main", "a:b", "-d"])
def test_a_branch_is_a_name_and_nothing_else(opened: Opener, remote: Path, branch: str) -> None:
    box = opened(remote)
    with pytest.raises(InvalidArgumentError):
        local().perform(PushBranch(workspace=box.id, branch=branch))


def test_a_push_is_recorded_before_and_after(opened: Opener, remote: Path) -> None:
    box = opened(remote, task="told")
    box.exec("echo x > file", check=True)
    pushed = local().perform(PushBranch(workspace="told"))
    records = local().perform(ListAudit())
    done = [r for r in records if r.action == "workspace.branch"][-1]
    begun = [r for r in records if r.action == "workspace.push"][-1]
    assert done.result["commit"] == begun.detail["what"]["commit"] == pushed.commit
    assert len(begun.detail["pack_sha256"]) == 64


@pytest.mark.both
def test_the_caller_s_process_pushes_and_the_daemon_has_no_part_in_it(
    opened: Opener, remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = opened(remote)
    box.exec("echo x > file", check=True)
    at: list[str] = []

    def while_the_daemon_stands_still(plan: codec.Handle, state_dir: str) -> Published:
        daemon = daemon_pid(Path(state_dir))
        os.kill(daemon, signal.SIGSTOP)
        try:
            published = publish(plan, state_dir)
            at.append(git(remote, "rev-parse", "topic"))
        finally:
            os.kill(daemon, signal.SIGCONT)
        return published

    publish = _publish.publish
    monkeypatch.setattr(_publish, "publish", while_the_daemon_stands_still)
    assert [local().perform(PushBranch(workspace=box.id, branch="topic")).commit] == at


def test_what_a_caller_never_told_of_is_recorded_as_unknown_and_can_be_pushed_again(
    opened: Opener, remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = opened(remote)
    box.exec("echo x > file", check=True)
    quarantines: list[Path] = []

    def interrupted(plan: codec.Handle, state_dir: str) -> Published:
        quarantines.extend(Path(state_dir, REPOSITORIES).glob("qu_*"))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_publish, "publish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            local().perform(PushBranch(workspace=box.id, branch="topic"))
    outcome = [r for r in local().perform(ListAudit()) if r.action == "workspace.branch"][-1]
    assert (outcome.ok, outcome.error) == (False, "unknown")
    assert len(quarantines) == 1
    assert not quarantines[0].exists()
    assert local().perform(PushBranch(workspace=box.id, branch="topic")).pushed


def test_without_a_repository_there_is_nothing_to_compare_with(opened: Opener) -> None:
    box = opened(None)
    for action in (DiffWorkspace(workspace=box.id), PushBranch(workspace=box.id)):
        with pytest.raises(InvalidStateError, match="not opened from a repository"):
            local().perform(action)
    with pytest.raises(NotFoundError):
        local().perform(DiffWorkspace(workspace="nobody"))


def test_a_pull_request_needs_a_branch_that_was_pushed(opened: Opener, remote: Path) -> None:
    box = opened(remote)
    with pytest.raises(InvalidStateError, match=r"nothing .* was pushed"):
        local().perform(OpenPullRequest(workspace=box.id, title="t"))


def content(workspace: str, name: str) -> bytes:
    reader = local().perform(GetArtifact(workspace=workspace, name=name))
    try:
        return b"".join(iter(lambda: reader.read(1 << 16), b""))
    finally:
        reader.close() if hasattr(reader, "close") else reader.aclose()


def test_artifacts_are_kept_by_name_whatever_becomes_of_the_sandbox(opened: Opener, remote: Path) -> None:
    box = opened(remote, task="made")
    box.exec("mkdir dist; head -c 3000000 /dev/urandom > dist/wheel; echo report > report.txt", check=True)
    digest = box.exec("sha256sum < dist/wheel", check=True).stdout.split()[0]
    wheel = local().perform(AddArtifact(workspace="made", path="/workspace/dist/wheel"))
    assert (wheel.digest, wheel.name, wheel.size_bytes) == (digest, "wheel", 3_000_000)
    box.kill()
    report = local().perform(AddArtifact(workspace="made", path="/workspace/report.txt", name="report"))
    tree = local().perform(AddArtifact(workspace="made", path="/workspace/dist"))
    assert [a.name for a in local().perform(ListArtifacts(workspace="made"))] == ["wheel", "report", "dist"]
    assert content("made", "report") == b"report\n"
    with tarfile.open(fileobj=io.BytesIO(content("made", "dist"))) as archive:
        assert any(member.name.endswith("wheel") for member in archive)
    assert tree.tree
    assert report.of == wheel.of
    assert local().perform(AddArtifact(workspace="made", path="/workspace/report.txt", name="report")).digest
    with pytest.raises(AlreadyExistsError):
        local().perform(AddArtifact(workspace="made", path="/workspace/.gitignore", name="report"))
    local().perform(RemoveArtifact(workspace="made", name="report"))
    with pytest.raises(NotFoundError):
        content("made", "report")


def test_an_artifact_is_a_file_or_a_directory(opened: Opener, remote: Path) -> None:
    box = opened(remote)
    box.exec("ln -s /etc/passwd link; mkfifo pipe", check=True)
    for path in ("/workspace/link", "/workspace/pipe"):
        with pytest.raises(InvalidArgumentError, match="file or a directory"):
            local().perform(AddArtifact(workspace=box.id, path=path))
    with pytest.raises(InvalidArgumentError, match="is not the name"):
        local().perform(AddArtifact(workspace=box.id, path="/workspace/text", name="../x"))


def test_the_command_line_takes_results_out(opened: Opener, remote: Path, tmp_path: Path) -> None:
    def paddock(*arguments: str) -> bytes:
        done = subprocess.run([sys.executable, "-m", "paddock", *arguments], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    box = opened(remote, task="CLI")
    box.exec("echo new > file", check=True)
    assert b"file" in paddock("diff", "CLI")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(remote), str(clone))
    git(clone, "apply", "-", input=paddock("patch", "CLI"))
    assert (clone / "file").read_text() == "new\n"
    commit = paddock("branch", "CLI", "side", "-m", "by hand").decode().strip()
    assert git(remote, "rev-parse", "side") == commit
    digest = paddock("artifact", "add", "CLI", "/workspace/file", "--name", "kept").decode().strip()
    assert digest == hashlib.sha256(b"new\n").hexdigest()
    assert digest.encode() in paddock("artifact", "list", "CLI")
    assert paddock("artifact", "get", "CLI", "kept") == b"new\n"
    paddock("artifact", "rm", "CLI", "kept")


def test_nothing_is_left_of_a_push(opened: Opener, remote: Path, shared_state: Path) -> None:
    box = opened(remote)
    box.exec("echo x > file", check=True)
    local().perform(PushBranch(workspace=box.id))
    assert [p.name for p in (shared_state / "repositories").iterdir() if p.name.startswith("qu_")] == []
