"""What a sandbox has changed in a mounted directory: told truly, a patch that applies, and taken over with care."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from paddock import Limits, Mount, MountMode, Sandbox, local
from paddock.client._promote import promote
from paddock.errors import InvalidArgumentError, InvalidStateError
from paddock.model import ChangeKind, ListAudit, PromotionPlan
from paddock.storage.git.patches import FileVersion, Lines, compare, write_side
from tests.conformance.trees import describe
from tests.conftest import SandboxFactory

WORK = r"""
printf 'one\nTWO\nthree\n' > text; printf '\000\001binary' > image; rm gone; rm -r old
mv moved renamed; chmod +x script; rm link; ln -s text link; ln -s ../text sub/up
mkdir -p new/deep empty; echo fresh > new/deep/file; printf 'no end' > 'a name with "quotes" and 	tab'
rm -r became && echo file > became; rm file && mkdir file && echo z > file/inside
rm -r replaced && mkdir replaced && echo y > replaced/other
printf x > "$(printf 'latin-\344')"
"""
EXPECTED = {
    "M text",
    "M image",
    "D gone",
    "D old",
    "D old/one",
    "D old/two",
    "R renamed",
    "M script",
    "M link",
    "A sub/up",
    "A new",
    "A new/deep",
    "A new/deep/file",
    "A empty",
    'A a name with "quotes" and \ttab',
    "M became",
    "D became/inside",
    "M file",
    "A file/inside",
    "D replaced/one",
    "A replaced/other",
    "A latin-\udce4",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    for folder in ("old", "sub", "became", "replaced"):
        (place / folder).mkdir(parents=True)
    contents = {
        "text": "one\ntwo\nthree\n",
        "image": "\0\0\0old",
        "gone": "bye\n",
        "old/one": "1\n",
        "old/two": "2\n",
        "moved": "the same content\n" * 3,
        "script": "#!/bin/sh\n",
        "became/inside": "x\n",
        "file": "was a file\n",
        "replaced/one": "1\n",
        "untouched": "u\n",
    }
    for name, content in contents.items():
        (place / name).write_text(content)
    (place / "link").symlink_to("untouched")
    return place


def changed(sandbox: SandboxFactory, project: Path, commands: str) -> Sandbox:
    box = sandbox(mounts=[Mount(source=str(project))])
    box.exec(commands, check=True)
    return box


def inside(box: Sandbox, tmp_path: Path) -> dict[str, object]:
    """What the sandbox sees, as `describe` tells it."""
    box.files.download("/workspace", tmp_path / "seen")
    return contents(tmp_path / "seen")


def contents(place: Path) -> dict[str, object]:
    """Kinds, permissions, contents and targets by path."""
    found: dict[str, object] = {}
    for path in sorted(place.rglob("*")):
        info = path.lstat()
        if stat.S_ISLNK(info.st_mode):
            what: object = os.readlink(path)
        else:
            what = (stat.S_IMODE(info.st_mode), path.read_bytes() if path.is_file() else None)
        found[str(path.relative_to(place))] = what
    return found


def test_every_kind_of_change_is_told(sandbox: SandboxFactory, project: Path) -> None:
    before = describe(project)
    diff = changed(sandbox, project, WORK + "touch untouched").diff_mount()
    assert {f"{change.kind.value[0].upper()} {change.path}" for change in diff.changes} == EXPECTED
    by_path = {change.path: change for change in diff.changes}
    assert (by_path["text"].insertions, by_path["text"].deletions) == (1, 1)
    assert by_path["image"].insertions is None
    assert by_path["renamed"].renamed_from == "moved"
    assert (by_path["script"].old_mode, by_path["script"].mode) == (0o644, 0o755)
    assert [change.path for change in diff.changes if change.obstacle] == []
    assert describe(project) == before


def test_the_patch_applies_and_gives_what_the_sandbox_has(
    sandbox: SandboxFactory, project: Path, tmp_path: Path
) -> None:
    box = changed(sandbox, project, WORK)
    copy = tmp_path / "copy"
    shutil.copytree(project, copy, symlinks=True)
    patch = box.diff_mount(patch=True).patch
    subprocess.run(["git", "apply", "--whitespace=nowarn", "-"], cwd=copy, input=patch, check=True)
    assert {k: v for k, v in inside(box, tmp_path).items() if k != "empty"} == contents(copy)  # git knows no directory
    subprocess.run(["git", "apply", "--whitespace=nowarn", "-R", "-"], cwd=copy, input=patch, check=True)
    files = [{k: v for k, v in contents(place).items() if k != "sub"} for place in (copy, project)]
    assert files[0] == files[1]


@pytest.mark.both
def test_a_promotion_gives_the_host_what_the_sandbox_has(
    sandbox: SandboxFactory, project: Path, tmp_path: Path
) -> None:
    box = changed(sandbox, project, WORK)
    before = describe(project)
    would = box.promote_mount(dry_run=True)
    assert describe(project) == before
    done = box.promote_mount()
    assert contents(project) == inside(box, tmp_path)
    assert done.applied == would.applied
    assert len(done.applied) >= len(EXPECTED)
    owners = {path.lstat().st_uid for path in project.rglob("*")}
    assert owners == {project.stat().st_uid}
    assert box.diff_mount().changes == ()


def test_work_goes_on_after_a_promotion(sandbox: SandboxFactory, project: Path) -> None:
    box = changed(sandbox, project, "echo first > text; echo made > made")
    box.promote_mount()
    box.exec("echo second > text; echo again > made; rm gone", check=True)
    child = box.fork()
    box.promote_mount()
    assert (project / "text").read_text() == "second\n"
    assert (project / "made").read_text() == "again\n"
    assert not (project / "gone").exists()
    child.kill()


@pytest.mark.both
def test_what_the_host_has_changed_since_is_not_lost(sandbox: SandboxFactory, project: Path) -> None:
    box = changed(sandbox, project, "echo mine > text; rm gone; rm -r old; echo fine > other")
    (project / "text").write_text("yours\n")
    (project / "gone").write_text("needed after all\n")
    (project / "old" / "three").write_text("new\n")
    with pytest.raises(InvalidStateError, match="the host's has changed") as refusal:
        box.promote_mount()
    assert set(refusal.value.details["obstacles"]) == {"text", "gone", "old/three"}
    assert not (project / "other").exists()
    assert box.promote_mount("other").applied[0].path == "other"
    assert {c.path for c in box.diff_mount().changes if c.obstacle} == {"text", "gone", "old/three"}
    box.promote_mount("text", force=True)
    assert (project / "text").read_text() == "mine\n"
    assert (project / "gone").read_text() == "needed after all\n"


def test_a_fork_remembers_since_when_its_files_are(sandbox: SandboxFactory, project: Path) -> None:
    box = changed(sandbox, project, "echo mine > text")
    (project / "text").write_text("yours\n")
    with box.fork() as child, pytest.raises(InvalidStateError, match="has changed"):
        child.promote_mount()


@pytest.mark.parametrize(
    ("commands", "why"),
    [
        ("mkfifo pipe", "not a file, directory or symbolic link"),
        ("touch setuid; chmod 6755 setuid", "set-id"),
        ("ln -s /etc/passwd out", "leads out"),
        ("ln -s sub/../../out out", "leads out"),
        ("ln -s .. sub/two; ln -s sub/two/../x out", "leads out"),
        ("ln -s loop loop", "leads out"),
        ("ln -s sub/../text out", "`..` after a name"),
        (f"ln -s {'x' * 4095} out", "too long names"),
        ("mkdir -p fake/objects fake/refs; echo ref > fake/HEAD; echo evil > fake/config", "git would run"),
        ("mkdir fake; echo ref > fake/HEAD; echo .. > fake/commondir", "git would run"),
        ("ln -s .git/hooks out", "leads into a git repository"),
    ],
)
def test_what_could_harm_the_host_is_refused_and_nothing_is_done(
    sandbox: SandboxFactory, project: Path, commands: str, why: str
) -> None:
    before = describe(project)
    box = changed(sandbox, project, f"echo fine > fine; {commands}")
    with pytest.raises(InvalidStateError, match=why):
        box.promote_mount(force=True)
    assert describe(project) == before
    assert any(why in (change.obstacle or "") for change in box.diff_mount().changes)
    box.promote_mount("fine")
    assert (project / "fine").read_text() == "fine\n"


def test_no_promotion_takes_more_of_the_host_than_the_sandbox_may_of_its_disk(
    sandbox: SandboxFactory, project: Path
) -> None:
    box = sandbox(mounts=[Mount(source=str(project))], limits=Limits(disk_mib=64))
    box.exec("truncate -s 1G hole; head -c 1M /dev/zero > fine", check=True)
    with pytest.raises(InvalidStateError, match="have 1074790400 bytes, and the disk of the sandbox 67108864"):
        box.promote_mount(force=True)
    assert not (project / "hole").exists()
    box.promote_mount("fine")
    assert (project / "fine").stat().st_size == 1 << 20


def test_two_promotions_make_no_link_that_leads_out(sandbox: SandboxFactory, project: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("safe\n")
    box = changed(sandbox, project, "mkdir -p sub/deep; ln -s sub/deep name; ln -s name/../../victim out")
    with suppress(InvalidStateError):
        box.promote_mount()
    box.exec("ln -sfn sub name", check=True)
    with suppress(InvalidStateError):
        box.promote_mount("name")
    assert not (project / "out").exists()


def test_links_through_many_names_take_seconds_and_little_memory(sandbox: SandboxFactory, project: Path) -> None:
    program = "import os\nfor i in range(5000): os.symlink(f'here/{i}/' + 'a/' * 2000, f'way{i}')"
    box = changed(sandbox, project, f'ln -s . here; python3 -c "{program}"')
    changes = box.diff_mount().changes
    assert sum("too many" in (change.obstacle or "") for change in changes) > 4000


def test_a_link_of_the_hosts_is_no_way_out(sandbox: SandboxFactory, project: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("safe\n")
    (project / "way").symlink_to(victim)
    box = changed(sandbox, project, "rm way; mkdir way; echo pwned > way/file; ln -s way/file through")
    box.promote_mount("way")
    assert (victim / "file").read_text() == "safe\n"
    assert (project / "way" / "file").read_text() == "pwned\n"
    (project / "back").symlink_to(victim)
    box.exec("ln -s back/file other", check=True)
    with pytest.raises(InvalidStateError, match="leads out"):
        box.promote_mount("other")


@pytest.mark.both
def test_a_link_that_comes_between_is_not_followed(sandbox: SandboxFactory, project: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    box = changed(sandbox, project, "mkdir fresh; echo pwned > fresh/file")
    (project / "fresh").symlink_to(victim)
    with pytest.raises(InvalidStateError):
        box.promote_mount()
    assert list(victim.iterdir()) == []


def test_a_link_that_comes_when_all_was_looked_at_is_not_followed_even_within_the_directory(
    sandbox: SandboxFactory, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("way", "other"):
        (project / name).mkdir()
    box = changed(sandbox, project, "echo new > way/new")

    def late(plan: PromotionPlan, layer: int, journal: int) -> None:
        (project / "way").rmdir()
        (project / "way").symlink_to("other")
        promote(plan, layer, journal)

    monkeypatch.setattr("paddock.client._promote.promote", late)
    with pytest.raises(InvalidStateError, match="not a directory of the host"):
        box.promote_mount()
    assert list((project / "other").iterdir()) == []


def git(place: Path, *arguments: str) -> str:
    identity = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@x",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@x",
    }
    environment = os.environ | identity | {"GIT_CONFIG_GLOBAL": "/dev/null"}
    command = ["git", "-c", f"safe.directory={place}", *arguments]
    return subprocess.run(command, cwd=place, env=environment, check=True, capture_output=True, text=True).stdout


COMMIT = "git -c user.name=x -c user.email=x@x commit -qam work"


@pytest.mark.both
def test_what_git_runs_stays_in_the_sandbox(sandbox: SandboxFactory, project: Path) -> None:
    git(project, "init", "-q", "-b", "main")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "base")
    before = describe(project / ".git")
    box = changed(sandbox, project, f"echo more >> text; {COMMIT}; echo 'touch /pwned' > .git/hooks/post-checkout")
    done = box.promote_mount()
    assert [change.path for change in done.applied] == ["text"]
    assert all(change.path.startswith(".git/") for change in done.left_out)
    assert describe(project / ".git") == before
    with pytest.raises(InvalidStateError, match="stays in the sandbox"):
        box.promote_mount(".git/hooks/post-checkout")
    with pytest.raises(InvalidStateError, match="would run"):
        box.promote_mount(".git/hooks/post-checkout", git=True)
    box.exec("git config core.fsmonitor 'touch /pwned'", check=True)
    left = {change.path for change in box.promote_mount(git=True).left_out}
    assert left >= {".git/config", ".git/hooks/post-checkout"}
    assert git(project, "log", "--format=%s").split() == ["work", "base"]
    assert git(project, "status", "--porcelain") == ""


def test_which_mount_has_to_be_clear(sandbox: SandboxFactory, project: Path) -> None:
    mounts = [
        Mount(source=str(project), target="/a"),
        Mount(source=str(project), target="/b"),
        Mount(source=str(project), target="/c", mode=MountMode.READ_ONLY),
    ]
    box = sandbox(mounts=mounts)
    box.exec("rm /b/text", check=True)
    with pytest.raises(InvalidArgumentError, match="there are: /a, /b"):
        box.diff_mount()
    with pytest.raises(InvalidArgumentError, match="/c"):
        box.diff_mount(target="/c")
    assert [c.kind for c in box.diff_mount(target="/b").changes] == [ChangeKind.DELETED]
    assert box.diff_mount(target="/a").changes == ()
    with pytest.raises(InvalidArgumentError, match="below the mount"):
        box.diff_mount("../x", target="/a")
    with pytest.raises(InvalidArgumentError, match="copy-on-write"):
        sandbox().diff_mount()


@pytest.mark.both
def test_a_promotion_is_decided_and_recorded(sandbox: SandboxFactory, project: Path) -> None:
    box = changed(sandbox, project, "echo new > text; rm gone")
    box.promote_mount()
    (record,) = (r for r in local().perform(ListAudit(sandbox=box.id)) if r.action == "mount.promote")
    assert record.result["source"] == str(project)
    digest = hashlib.sha256(b"new\n").hexdigest()
    assert record.result["first"] == ["deleted gone -", f"modified text {digest}"]


@pytest.mark.anyio
async def test_texts_that_have_nothing_in_common_do_not_take_for_ever() -> None:
    lines = [b"%d\n" % (n * n % 7) for n in range(400_000)]
    other = [b"%d\n" % (n * n % 11) for n in range(400_000)]
    with tempfile.TemporaryFile() as stream:
        for name, text in ((b"old", lines), (b"new", other)):
            write_side(stream, name, [FileVersion(b"f", 0o100644, b"".join(text))])
        told, patch = await compare(stream, patch=True)
    assert told[b"f"].insertions
    assert patch.startswith(b"diff --git a/f b/f\n")


@pytest.mark.anyio
@pytest.mark.both
async def test_no_name_stops_a_comparison() -> None:
    names = [b".gitattributes", b"a\\b", b'a "quoted" name', b"-r", b"\xff\n", b"con", b"git~2/x"]
    with tempfile.TemporaryFile() as stream:
        write_side(stream, b"old", [])
        write_side(stream, b"new", [FileVersion(name, 0o100644, b"* -diff\nx\n") for name in names])
        told, _ = await compare(stream, patch=False)
    assert told == dict.fromkeys(names, Lines(2, 0, None))


def test_the_command_line_shows_and_promotes(sandbox: SandboxFactory, project: Path, tmp_path: Path) -> None:
    def paddock(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([sys.executable, "-m", "paddock", *arguments], capture_output=True, check=False)

    box = changed(sandbox, project, "echo more >> text; chmod +x script; rm gone; printf x > $(printf '\\033[31mred')")
    shown = paddock("diff", box.id).stdout.decode()
    assert "M  +1 -0" in shown
    assert "644 → 755" in shown
    assert "\x1b" not in shown
    assert (
        "3 files"
        in paddock("diff", box.id, "--mount", "/workspace", "--stat", "text", "script", "gone").stdout.decode()
    )
    copy = tmp_path / "copy"
    shutil.copytree(project, copy, symlinks=True)
    patch = paddock("diff", box.id, "--mount", "text", "--patch").stdout
    subprocess.run(["git", "apply", "-"], cwd=copy, input=patch, check=True)
    assert (copy / "text").read_text().endswith("more\n")
    document = json.loads(paddock("promote", box.id, "text", "--dry-run", "--json").stdout)
    assert [change["path"] for change in document["applied"]] == ["text"]
    assert paddock("promote", box.id, "text").returncode == 0
    assert (project / "text").read_text().endswith("more\n")
    assert (project / "gone").exists()
    audit = paddock("audit", "ls", box.id).stdout.decode()
    assert "mount.promote" in audit
