"""No program of a sandbox runs on the host when the host's git looks at what was promoted."""

from __future__ import annotations

import hashlib
import os
import pty
import struct
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from paddock.client._promote import promote as write
from paddock.errors import InvalidStateError
from paddock.storage.diff._git_names import in_git, is_dot_git, names_only_work
from paddock.storage.diff.differences import Difference
from paddock.storage.diff.mount_changes import mount_changes
from tests.results.test_mount_results import git

# Shell in the sandbox's layer, which covers the directory of the host: $EVIL is the program that must not run.
REPOSITORY = "mkdir -p fake/objects fake/refs/heads; echo 'ref: refs/heads/main' > fake/HEAD"
HOOKS = "for hook in reference-transaction pre-commit post-checkout; do install -D $EVIL {}/$hook; done"
CONFIG = (
    "printf '[core]\\nbare = false\\nworktree = ..\\npager = %s\\nfsmonitor = %s\\neditor = %s\\n' $EVIL $EVIL $EVIL"
    " > {}; printf '[log]\\nshowSignature = true\\n[alias]\\nlog = !%s\\n[gpg]\\nprogram = %s\\n' $EVIL $EVIL >> {}"
)
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""An object that every repository has."""
ATTACKS = {
    "a bare repository without a configuration": f"{REPOSITORY}; {HOOKS.format('fake/hooks')}",
    "a bare repository with one": f"{REPOSITORY}; {CONFIG.format('fake/config', 'fake/config')}",
    "in capitals": f"{REPOSITORY}; mv fake/objects fake/Objects; mv fake/HEAD fake/head; {HOOKS.format('fake/HOOKS')}",
    "its git directory is another": (
        f"{REPOSITORY}; mv fake real; mkdir fake; mv real/HEAD fake/HEAD;"
        f" echo ../real > fake/commondir; {CONFIG.format('real/config', 'real/config')}; {HOOKS.format('real/hooks')}"
    ),
    "the root is one": (
        f"mkdir objects refs; echo 'ref: refs/heads/main' > HEAD; {HOOKS.format('hooks')};"
        f" {CONFIG.format('config', 'config')}"
    ),
    "its parts are links": (
        f"{REPOSITORY}; mv fake/objects o; mv fake/refs r; ln -s ../o fake/objects; ln -s ../r fake/refs;"
        f" {HOOKS.format('h')}; ln -s ../h fake/hooks"
    ),
    "one made with git": f"git init -q --bare fake; {HOOKS.format('fake/hooks')}; git -C fake config core.pager $EVIL",
    "nested in another": f"mkdir -p a/b; cd a/b; {REPOSITORY}; {HOOKS.format('fake/hooks')}",
    "a .git file": (
        f"{REPOSITORY}; {HOOKS.format('fake/hooks')}; {CONFIG.format('fake/config', 'fake/config')};"
        " mkdir in; echo 'gitdir: ../fake' > in/.git"
    ),
    "the host's .git becomes a file": (
        f"{REPOSITORY}; {HOOKS.format('fake/hooks')}; {CONFIG.format('fake/config', 'fake/config')};"
        " echo 'gitdir: fake' > .git"
    ),
    "the host's .git becomes a link": f"{REPOSITORY}; {HOOKS.format('fake/hooks')}; ln -s fake .git",
    "a repository of its own": f"git init -q in; {HOOKS.format('in/.git/hooks')}; git -C in config core.pager $EVIL",
    "a working tree of the host's": (
        "mkdir -p .git/worktrees/in in; echo ../.. > .git/worktrees/in/commondir; echo ref: refs/heads/main >"
        " .git/worktrees/in/HEAD; echo 'gitdir: ../.git/worktrees/in' > in/.git;"
        f" {CONFIG.format('.git/worktrees/in/config.worktree', '.git/worktrees/in/config.worktree')}"
    ),
    "a submodule's directory": (
        "mkdir -p .git/modules in; git init -q --bare .git/modules/in; echo 'gitdir: ../.git/modules/in' > in/.git;"
        f" {HOOKS.format('.git/modules/in/hooks')}; git -C .git/modules/in config core.pager $EVIL"
    ),
    "a repository among the refs": (
        f"mkdir -p .git/refs; cd .git/refs; {REPOSITORY}; {HOOKS.format('fake/hooks')};"
        f" {CONFIG.format('fake/config', 'fake/config')}"
    ),
    "hooks and configuration of the host's": (
        f"mkdir .git; {HOOKS.format('.git/hooks')}; {CONFIG.format('.git/config', '.git/config')};"
        f" {CONFIG.format('.git/CONFIG', '.git/config.worktree')}"
    ),
    "in other spellings": "; ".join(
        f"{HOOKS.format(name)}; {CONFIG.format(f'{name}/config', f'{name}/config')}"
        for name in (".GIT", ".g\u200cit", "git~1", ".git.", ".git::X")
    ),
    "a message that becomes a hook": "mkdir .git; ln -s hooks/commit-msg .git/COMMIT_EDITMSG",
    "a log that becomes a configuration": "mkdir -p .git/logs; ln -s ../config .git/logs/HEAD",
    "links to its parts": "ln -s .git/hooks tools; mkdir d; ln -s ../.git d/x; ln -s d/x/hooks y",
    "alternates": (
        f"mkdir -p .git/objects; mkdir info; echo {'/' * 8}tmp > info/alternates; ln -s ../../info .git/objects/info"
    ),
    "a rebase under way": "mkdir -p .git/rebase-merge; echo exec $EVIL > .git/rebase-merge/git-rebase-todo",
}


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "evil"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    for name, value in {"EVIL": str(program), "HOME": str(tmp_path), "PAGER": "cat", "EDITOR": "true"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return program


@pytest.fixture
def project(tmp_path: Path, evil: Path) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    git(place, "init", "-q", "-b", "main")
    (place / "text").write_text("one\n")
    git(place, "add", "-A")
    git(place, "commit", "-qm", "base")
    return place


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    layer = tmp_path / "tree" / "mount0"
    layer.mkdir(parents=True)
    return layer


def promote(layer: Path, project: Path, *paths: str, with_git: bool = True) -> None:
    (layer.parent / "basis").touch()
    tree = os.open(layer.parent, os.O_RDONLY)
    try:
        with mount_changes(tree, 0, str(project), paths) as changes:
            plan = changes.message(changes.plan(git=with_git, force=True, most_bytes=1 << 30), str(project))
            inside, journal = changes.open_layer(), os.memfd_create("journal")
            try:
                write(plan, inside, journal)
            finally:
                os.close(inside)
                os.close(journal)
    finally:
        os.close(tree)


def everything(layer: Path, project: Path) -> None:
    with suppress(InvalidStateError):
        promote(layer, project, with_git=False)
    with suppress(InvalidStateError):
        promote(layer, project)


def piece_by_piece(layer: Path, project: Path) -> None:
    """As a caller may who names each path that is not refused, in whichever order."""
    paths = sorted(str(path.relative_to(layer)) for path in layer.rglob("*"))
    for path in (*paths, *reversed(paths)):
        with suppress(InvalidStateError):
            promote(layer, project, path)


def use_git(place: Path) -> None:
    """What a person does in a directory, and what a prompt or an editor does there by itself."""
    ways = (
        "log",
        "status",
        f"tag -f t {EMPTY_TREE}",
        "commit -q --allow-empty -m x",
        "checkout -- .",
        "diff",
        "branch -f b",
        "stash",
    )
    for way in ways:
        master, terminal = pty.openpty()  # git starts a pager only for one
        identity = {f"GIT_{who}_{what}": "a@x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        subprocess.run(
            ["git", *way.split()], cwd=place, env=os.environ | identity, stdout=terminal, stderr=terminal, check=False
        )
        os.close(terminal)
        os.close(master)


@pytest.mark.parametrize("taken", [everything, piece_by_piece])
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_program_of_the_sandbox_runs_when_git_looks_at_what_was_taken_over(
    layer: Path, project: Path, evil: Path, attack: str, taken: Callable[[Path, Path], None]
) -> None:
    subprocess.run(["/bin/sh", "-ec", ATTACKS[attack]], cwd=layer, check=True)
    untouched = {name: (project / ".git" / name).read_bytes() for name in ("config", "HEAD")}
    taken(layer, project)
    for place in [project, *(path for path in project.rglob("*") if path.is_dir() and ".git" not in path.parts[-1:])]:
        use_git(place)
    assert not (evil.parent / "ran").exists()
    assert {name: (project / ".git" / name).read_bytes() for name in untouched} == untouched
    assert [path for path in (project / ".git" / "hooks").iterdir() if path.suffix != ".sample"] == []


def entry(name: bytes, oid: str, mode: int) -> bytes:
    text = struct.pack(">10I", *(0,) * 6, mode, 0, 0, 0) + bytes.fromhex(oid) + struct.pack(">H", len(name)) + name
    return text + b"\0" * (8 - len(text) % 8)


def index(*entries: bytes, extensions: bytes = b"") -> bytes:
    data = b"DIRC" + struct.pack(">II", 2, len(entries)) + b"".join(entries) + extensions
    return data + hashlib.sha1(data, usedforsecurity=False).digest()


def test_an_index_that_names_a_hook_is_left_out(layer: Path, project: Path, evil: Path) -> None:
    oid = git(project, "hash-object", "-w", str(evil)).strip()
    hostile = index(entry(b".git/hooks/post-checkout", oid, 0o100755))
    (layer / ".git").mkdir()
    (layer / ".git" / "index").write_bytes(hostile)
    (layer / ".git" / "refs").mkdir()
    promote(layer, project)
    use_git(project)
    assert not (evil.parent / "ran").exists()
    with pytest.raises(InvalidStateError, match="index"):
        promote(layer, project, ".git/index")
    (project / ".git" / "index").write_bytes(hostile)
    use_git(project)
    assert (evil.parent / "ran").exists()  # so it would have been


def test_no_more_is_read_of_all_indexes_than_of_one(
    layer: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (layer / ".git", layer / "other" / ".git"):
        folder.mkdir(parents=True)
        (folder / "index").write_bytes(index(entry(b"text", "0" * 40, 0o100644)))
    monkeypatch.setattr("paddock.storage.diff.mount_changes.MOST_BYTES", (layer / ".git" / "index").stat().st_size)
    promote(layer, project, ".git/index")
    (project / ".git" / "index").unlink()
    with pytest.raises(InvalidStateError, match=r"other/\.git/index: git on the host would write"):
        promote(layer, project, ".git/index", "other/.git")


def test_an_index_is_judged_as_git_reads_it(project: Path) -> None:
    oid = "0" * 40
    own = (project / ".git" / "index").read_bytes()
    assert names_only_work(own)
    assert names_only_work(index(entry(b".gitignore", oid, 0o100644), entry(b"a/.github/x", oid, 0o120000)))
    for name in (b".git/config", b"a/.GIT/x", b"/etc/passwd", b"a/../../x", b"", b"git~1/x", b"a\0.git/x"):
        assert not names_only_work(index(entry(name, oid, 0o100644))), name
    assert not names_only_work(index(entry(b"a", oid, 0o040000)))
    assert not names_only_work(index(extensions=b"link" + struct.pack(">I", 20) + b"\1" * 20))
    assert not names_only_work(index(extensions=b"TREE" + struct.pack(">I", 1 << 31)))
    for cut in range(len(own)):
        names_only_work(own[:cut])


@pytest.mark.parametrize(
    "name", [".git", ".GIT", ".g\u200dit", ".git.", ".git \u200c", "GIT~1", ".git::$INDEX_ALLOCATION"]
)
def test_what_some_file_system_takes_for_dot_git_is_one(name: str) -> None:
    assert is_dot_git(name.encode())
    assert all(in_git(path.encode()) for path in (name, f"a/{name}", f"{name}/b", f"a/{name}/b"))


@pytest.mark.parametrize("name", [".gitignore", ".github", "git", "x.git", ".git2", "git~"])
def test_other_names_are_none(name: str) -> None:
    assert not is_dot_git(name.encode())
    assert not in_git(f"{name}/a/{name}/b/{name}".encode())


def test_what_is_no_attack_is_taken_over(layer: Path, project: Path) -> None:
    (project / "bare").mkdir()
    git(project / "bare", "init", "-q", "--bare")
    commands = """
        mkdir -p bare/refs/heads objects refs hooks; echo x > HEAD.md; echo x > hooks/run; echo y > bare/refs/heads/y
        echo x > refs/x; echo x > config; ln -s hooks/run link; echo x > .gitignore
    """
    subprocess.run(["/bin/sh", "-ec", commands], cwd=layer, check=True)
    promote(layer, project, with_git=False)
    assert {path.name for path in project.iterdir()} >= {"HEAD.md", "hooks", "refs", "config", "link", ".gitignore"}
    assert (project / "bare" / "refs" / "heads" / "y").exists()


def test_changes_in_git_are_told_apart_in_linear_time(
    layer: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[object] = []
    monkeypatch.setattr(Difference, "__eq__", lambda self, other: compared.append(other) or self is other)
    for folder in (layer / ".git" / "many", layer / "many"):
        folder.mkdir(parents=True)
        for number in range(100):
            (folder / str(number)).touch()
    promote(layer, project, with_git=False)
    assert len(list((project / "many").iterdir())) == 100
    assert not compared


def test_paths_of_changes_have_a_limit(layer: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paddock.storage.diff.differences._MOST_BYTES", 1000)
    for number in range(5):
        (layer / f"{number}{'x' * 200}").touch()
    with pytest.raises(InvalidStateError, match="MiB of paths"):
        promote(layer, project)
