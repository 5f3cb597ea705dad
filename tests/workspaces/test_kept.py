"""What leaves the pool comes back as it was; what is in a workspace is found out, whatever it says of itself."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from paddock import Sandbox, Workspace
from paddock.client import default_transport
from paddock.errors import InvalidStateError, PaddockError
from paddock.model import DeleteRepository, WorkspaceState
from tests.workspaces.conftest import Opener, Origin, look

Over = Callable[[Workspace], Sandbox]
Evict = Callable[..., None]

WORK = r"""
set -e
git config user.name a; git config user.email a@example.org
echo two >>README; git commit -qam local; git branch other
echo first >>README; git stash -q; echo second >>README; git stash -q
echo staged >staged; git add staged; echo more >>staged
rm src/gone.py; git rm -rq --cached dir; rm -r dir; echo 'a file now' >dir
mkdir -p new/deep build empty; echo hi >new/deep/f; chmod 751 new/deep/f; chmod 2775 new
echo junk >build/j; echo o >x.o; echo forced >forced.o; git add -f forced.o
ln -s /etc/passwd link; ln -s src linked
git update-index --assume-unchanged text.txt; printf 'changed\r\n' >text.txt
git update-index --skip-worktree src/main.py; echo hidden >src/main.py
git init -q nested; echo n >nested/n; mkdir nested/build; echo kept >nested/build/too
printf 'n' >"$(printf 'we\nird \"name\" \377 -x')"; printf o >-rf; printf o >'--help'
echo secret >.hidden; chmod 600 .hidden; truncate -s 40M sparse
printf 'blob\0' >blob.bin
mkdir -p src/hollow/deeper && chmod 700 src/hollow; chmod 711 src; chmod 640 .gitattributes; chmod 2775 .
sync
"""
# What git does not record: directories, and modes.
SHAPE = """find . -path ./.git -prune -o -path ./build -prune -o '(' -type d -o -name .gitattributes ')' \\
    -printf '%p %m %u:%g\\n' | sort"""


@pytest.mark.both
def test_g6_a_checkout_comes_back_byte_for_byte_but_for_what_git_ignores(
    opened: Opener, over: Over, evict: Evict, origin: Origin, shared_state: Path
) -> None:
    workspace = opened(url=origin.url)
    first = over(workspace)
    first.exec(["bash", "-c", WORK], check=True)
    wanted, shape = look(first), first.exec(SHAPE, check=True).stdout
    assert "./src/hollow/deeper 755" in shape
    first.kill()
    before = workspace.status()
    evict(workspace)
    archive = shared_state / "kept" / workspace.id
    assert workspace.refresh().state is WorkspaceState.EVICTED
    assert archive.stat().st_size < 4 << 20, "a hole is kept as a hole, and what the repository has is not kept"
    assert archive.stat().st_mode & 0o777 == 0o600
    with tarfile.open(archive) as tar:
        names = tar.getnames()
    assert not any("build" in name.split("/")[1:2] or name.endswith("x.o") for name in names)
    assert "workspace/.gitignore" not in names, "what is as it was, the repository has"
    assert workspace.status().only_here == before.only_here
    origin.git("checkout", "--quiet", "--orphan", "other")  # upstream forgets where it began
    origin.commit({"new": ""})
    origin.git("branch", "--quiet", "--delete", "--force", "main")
    second = over(workspace)
    assert look(second) == wanted
    assert second.exec(SHAPE, check=True).stdout == shape
    assert second.exec("test -e build || test -e x.o").exit_code == 1
    assert not archive.exists()


@pytest.mark.both
def test_g6_without_a_repository_everything_comes_back(opened: Opener, over: Over, evict: Evict) -> None:
    workspace = opened()
    first = over(workspace)
    lines = "mkdir -p a/b; echo 1 >a/b/c; ln a/b/c hard; mkfifo fifo; chmod 700 a; ln -s nowhere link; chmod 2750 ."
    first.exec(f"{lines}; touch -d @1000000000 a/b/c; sync", check=True)
    wanted, times = look(first), first.exec("stat -c %i:%Y a/b/c hard | sort -u | cut -d: -f2; stat -c %a:%U .").stdout
    first.kill()
    evict(workspace)
    second = over(workspace)
    assert look(second) == wanted
    assert second.exec("stat -c %i:%Y a/b/c hard | sort -u | cut -d: -f2; stat -c %a:%U .").stdout == times


@pytest.mark.root
def test_files_of_all_owners_come_back(opened: Opener, over: Over, evict: Evict) -> None:
    workspace = opened()
    first = over(workspace)
    first.exec(
        "echo r >roots; chmod 600 roots; chown 7:8 roots; mkdir d; echo 1 >d/f; chmod 000 d", user="root", check=True
    )
    first.kill()
    evict(workspace)
    told = over(workspace).exec("stat -c '%n %u:%g %a' roots d; cat d/f", user="root", check=True).stdout
    assert told == "roots 7:8 600\nd 0:0 0\n1\n"


HARMS = (
    "rm .git/index",
    "echo x >.git/index",
    "rm -rf .git",
    "rm -rf .git; ln -s /tmp .git",
    "rm -rf .git; echo 'gitdir: /nowhere' >.git",
    "echo '[' >.git/config",
    "git config core.fsmonitor 'touch /workspace/ran'; git config core.worktree /",
    "git config filter.nothing.clean 'touch /workspace/ran; cat'; git config filter.nothing.required true",
    "rm -rf .git/objects; mkfifo .git/objects",
    "git update-index --split-index",
    "git config status.showUntrackedFiles no; echo '*' >.git/info/exclude",
)
LISTING = "find . -path ./.git -prune -o -type f -print | sort | xargs -d '\\n' sha256sum; ls -ld .git | cut -c1; ls"


def test_g4_g6_whatever_became_of_its_git_nothing_of_the_rest_is_lost(
    opened: Opener, over: Over, evict: Evict, origin: Origin
) -> None:
    harmed: dict[str, tuple[Workspace, str]] = {}
    for harm in HARMS:
        workspace = opened(url=origin.url)
        first = over(workspace)
        first.exec("echo mine >mine; echo more >>README; sync", check=True)
        first.exec(["sh", "-c", harm], check=True)
        harmed[harm] = workspace, first.exec(LISTING).stdout
        first.kill()
        assert not workspace.status().clean, harm
        with pytest.raises(InvalidStateError, match="nowhere else"):
            workspace.delete()
    evict(*(workspace for workspace, _ in harmed.values()))
    for harm, (workspace, wanted) in harmed.items():
        second = over(workspace)
        assert second.exec(LISTING).stdout == wanted, harm
        assert second.exec("test -e ran").exit_code == 1, harm
        second.kill()


@pytest.mark.both
def test_g5_what_is_only_here_is_computed_whatever_the_index_says(opened: Opener, over: Over, origin: Origin) -> None:
    workspace = opened(url=origin.url)
    assert workspace.status().clean
    first = over(workspace)
    first.exec(["bash", "-c", WORK], check=True)
    status = workspace.status()
    assert (status.ahead, status.stashed, status.on) == (1, 2, "main")
    assert {" M text.txt", " M src/main.py", "AM staged", " D src/gone.py"} <= set(status.paths)
    assert status.head == first.exec("git rev-parse HEAD").stdout.strip()
    first.exec(
        "git fetch -q 2>/dev/null; git stash clear; git checkout -qf .; git clean -qfdx; git reset -q --hard",
        check=True,
    )
    assert workspace.status().ahead == 1, "a commit that its repository was never seen to have is one until it has it"


def test_g5_a_clean_one_is_deleted_and_needs_nothing_any_more(
    opened: Opener, origin: Origin, shared_state: Path
) -> None:
    workspace = opened(url=origin.url)
    pins = shared_state / "repositories"
    assert len(list(pins.glob(f"*/refs/pins/{workspace.id}"))) == 1
    workspace.delete()
    assert list(pins.glob(f"*/refs/pins/{workspace.id}")) == []


@pytest.mark.both
def test_g1_it_says_which_commit_it_got_and_when_that_was_seen(opened: Opener, origin: Origin) -> None:
    first = opened(url=origin.url)
    assert first.info.commit == origin.git("rev-parse", "HEAD")
    moved = origin.commit({"README": "two\n"})
    second = opened(url=origin.url, max_age_seconds=0)
    assert (second.info.commit, second.info.branch) == (moved, "main")
    assert second.info.observed_at is not None
    assert first.info.observed_at is not None
    assert second.info.observed_at > first.info.observed_at
    for arguments in ({"url": origin.url + "x"}, {"branch": "other", "url": origin.url}):
        with pytest.raises(PaddockError):
            opened(second.name, **arguments)
    with pytest.raises(PaddockError, match="no branch and no tag 'nope'"):
        opened(url=origin.url, branch="nope")
    begun = opened(url=origin.url, branch="mine", ref=first.info.commit)
    assert (begun.info.commit, begun.info.branch) == (first.info.commit, "mine")


def test_one_that_cannot_be_kept_stays(opened: Opener, over: Over, evict: Evict, shared_state: Path) -> None:
    workspace = opened(disk_mib=64)
    first = over(workspace)
    first.exec("echo mine >mine; sync", check=True)
    first.kill()
    kept = shared_state / "kept"
    kept.mkdir(exist_ok=True)
    blocking = kept / f"{workspace.id}.part"
    blocking.mkdir()
    try:
        with pytest.raises((PaddockError, OSError)):
            evict(workspace)
    finally:
        blocking.rmdir()
    assert workspace.refresh().state is WorkspaceState.READY
    assert over(workspace).exec("cat mine").stdout == "mine\n"


def test_g11_a_repository_is_needed_by_what_is_evicted_though_its_pin_was_lost(
    opened: Opener, over: Over, evict: Evict, origin: Origin, shared_state: Path
) -> None:
    """A pin is a name in a directory, which a loss of power may take back; the row says the same."""
    workspace = opened(url=origin.url)
    other = opened(url=origin.url)
    (pin,) = (shared_state / "repositories").glob(f"*/refs/pins/{workspace.id}")
    (like,) = (shared_state / "repositories").glob(f"*/refs/pins/{other.id}")
    assert pin.read_text() == like.read_text() == f"{workspace.info.commit}\n"
    evict(workspace)
    other.delete()
    pin.unlink()
    transport = default_transport()
    with pytest.raises(InvalidStateError, match=workspace.id):
        transport.perform(DeleteRepository(repository=pin.parents[2].name))
    assert over(workspace).exec("git fsck && git status --porcelain", check=True).stdout == ""


def test_a_snapshot_keeps_the_history_of_a_workspace_that_is_gone(
    opened: Opener, over: Over, sandbox: Callable[..., Sandbox], origin: Origin, shared_state: Path
) -> None:
    workspace = opened(url=origin.url)
    commit = workspace.info.commit
    first = over(workspace)
    snapshot = first.snapshot()
    first.kill()
    workspace.delete(discard=True)
    origin.git("checkout", "--quiet", "--orphan", "other")  # upstream forgets where it began
    origin.commit({"new": ""})
    origin.git("branch", "--quiet", "--delete", "--force", "main")
    moved = opened(url=origin.url, max_age_seconds=0)  # and so does what was fetched of it
    assert moved.info.commit != commit
    transport = default_transport()
    (repository,) = (path.parents[2].name for path in shared_state.glob(f"repositories/*/refs/pins/{moved.id}"))
    moved.delete()
    with pytest.raises(InvalidStateError, match=snapshot.id):
        transport.perform(DeleteRepository(repository=repository))
    again = sandbox(snapshot=snapshot, ttl_seconds=120)
    look = "git fsck --no-dangling 2>&1; git status --porcelain; git log --format=%H -1"
    assert again.exec(look, check=True).stdout == f"{commit}\n"
    again.kill()
    again.delete_snapshot(snapshot)
    transport.perform(DeleteRepository(repository=repository))
