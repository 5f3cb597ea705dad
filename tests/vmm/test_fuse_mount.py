"""The kernel's own client on files that are served over a stream: what programs do there works as on a disk."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE_SECONDS = 300
RANDOM = Path(__file__).with_name("random_files.py")
_UNSHARE = ["unshare", "--mount", "--pid", "--fork", "--kill-child"] + (
    [] if os.geteuid() == 0 else ["--map-root-user"]
)


def _missing() -> str | None:
    if "fuse" not in Path("/proc/filesystems").read_text().split():
        return "this kernel has no FUSE, or not loaded: modprobe fuse"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse may not be opened"
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, check=False)
    return f"no mount namespace: {tried.stderr.strip()}" if tried.returncode else None


_REASON = _missing()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))


class Mounted:
    def __init__(self, directory: Path) -> None:
        self.work, self.target = directory / "work", directory / "target"
        self.work.mkdir()
        self.target.mkdir()

    def run(self, *command: str, orders: str = "", first: tuple[str, ...] = ()) -> str:
        """`first` runs in the mount namespace before anything is served."""
        before = ("bash", "-euc", f'{shlex.join(first)}; exec "$@"', "bash") if first else ()
        process = subprocess.Popen(
            [
                *_UNSHARE,
                *before,
                sys.executable,
                "-m",
                "tests.vmm.mounted",
                str(self.work),
                str(self.target),
                *command,
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                output, errors = process.communicate(orders, timeout=_PATIENCE_SECONDS)
            finally:
                process.kill()  # and with it all that it has started
        assert output.endswith("server 0\n"), errors
        assert "paddock guest:" not in errors, errors
        return output.removesuffix("server 0\n")

    def shell(self, script: str) -> str:
        output = self.run("bash", "-euc", script + "\necho done")
        assert output.endswith("done\n"), output
        return output.removesuffix("done\n")


@pytest.fixture
def mounted(tmp_path: Path) -> Mounted:
    return Mounted(tmp_path)


@pytest.mark.both
def test_files_and_their_kinds(mounted: Mounted) -> None:
    out = mounted.shell(
        """
        mkdir -p a/b; echo one > a/b/file; ln -s b/file a/link; ln a/b/file hard; mkfifo pipe; chmod 2755 a; mkdir a/c
        chmod 0751 a/b/file; test "$(stat -c %a hard)" = 751; test "$(stat -c %h hard)" = 2; test -p pipe
        cat a/link; mv a/b moved; cat moved/file; rm moved/file; cat hard; test -g a
        touch -d '1969-01-01 00:00:00 UTC' old; stat -c %Y old
        exec 9<>hard; rm hard; echo two >&9; cat /proc/self/fd/9; exec 9>&-
        dd if=/dev/zero of=sparse bs=1 count=1 seek=5000000 status=none
        fallocate -p -o 0 -l 4096 sparse; stat -c %s sparse
        cp sparse copy; cmp sparse copy; rm -r moved; ls -A
        """
    )
    assert out.split() == ["one", "one", "one", "-31536000", "two", "5000001", "a", "copy", "old", "pipe", "sparse"]
    assert os.readlink(mounted.work / "a/link") == "b/file"
    assert not list(mounted.target.iterdir())


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_clones_commits_and_sees_nothing_changed(mounted: Mounted) -> None:
    out = mounted.shell(
        f"""
        export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
        git init -q source; cp -r {ROOT}/src/paddock/vmm source/code; cd source; git add .
        git -c user.name=a -c user.email=a@b.c commit -qm first; cd ..; git clone -q source clone; cd clone
        git status --porcelain; echo x >> code/__init__.py; git status --porcelain
        git -c user.name=a -c user.email=a@b.c commit -qam second; git gc -q; git fsck 2>&1; git log --format=%s
        """
    )
    assert out.splitlines() == [" M code/__init__.py", "second", "first"]


def test_sqlite_keeps_its_promises_with_shared_memory_and_locks(mounted: Mounted) -> None:
    program = """
import sqlite3, fcntl, os
one, two = (sqlite3.connect("base", timeout=0.1) for _ in "ab")
print(*one.execute("pragma journal_mode=wal").fetchone())
one.execute("create table t(a)"); one.commit()
one.execute("begin immediate"); one.execute("insert into t values (7)")
try:
    two.execute("begin immediate")
except sqlite3.OperationalError as error:
    print(error)
one.commit()
print(*two.execute("select a from t").fetchone(), *two.execute("pragma integrity_check").fetchone())
first, second = open("lock", "w"), open("lock", "w")
fcntl.flock(first, fcntl.LOCK_EX)
try:
    fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("held")
"""
    assert mounted.run(sys.executable, "-c", program).splitlines() == ["wal", "database is locked", "7 ok", "held"]


def test_a_directory_that_is_emptied_while_it_is_read_ends_up_empty(mounted: Mounted) -> None:
    out = mounted.shell(
        "mkdir d; cd d; seq 3000 | xargs touch; ls | wc -l; cd ..; find d -type f -delete; rmdir d; ls -A"
    )
    assert out.split() == ["3000"]


def test_a_programs_tree_is_installed_and_runs(mounted: Mounted) -> None:
    """pip itself, from what this interpreter brings: some hundred files, scripts, byte code, mapped libraries."""
    out = mounted.shell(
        f"{sys.executable} -m venv --without-pip --symlinks env; cp {shutil.which('true')} mine; ./mine; "
        "env/bin/python -c 'import sys; print(sys.prefix.endswith(\"env\"))'"
    )
    assert out == "True\n"


@pytest.mark.parametrize("seed", range(3))
def test_random_operations_do_what_they_do_on_a_disk(mounted: Mounted, tmp_path: Path, seed: int) -> None:
    (tmp_path / "twin").mkdir()
    out = mounted.run(sys.executable, str(RANDOM), str(seed), "1500", str(mounted.target), str(tmp_path / "twin"))
    assert out.startswith("alike ")


@pytest.mark.root
@pytest.mark.skipif(shutil.which("mkfs.btrfs") is None, reason="needs mkfs.btrfs (btrfs-progs)")
def test_on_btrfs_as_well(mounted: Mounted, tmp_path: Path) -> None:
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(256 << 20)
    subprocess.run(["mkfs.btrfs", "-q", image], check=True, capture_output=True)
    mounted.work = disk
    (tmp_path / "twin").mkdir()
    program = (sys.executable, str(RANDOM), "3", "1500", str(mounted.target), str(tmp_path / "twin"))
    assert mounted.run(*program, first=("mount", "-o", "loop", str(image), str(disk))).startswith("alike ")


def test_a_server_is_replaced_under_a_living_mount(mounted: Mounted, tmp_path: Path) -> None:
    """What a fork with memory does: quiet, state kept, another process takes it up; open and nameless files go on."""
    (tmp_path / "twin").mkdir()
    command = (sys.executable, str(RANDOM), "9", "3000", str(mounted.target), str(tmp_path / "twin"))
    out = mounted.run(*command, orders="swap\n" * 4)
    assert sorted(line.split()[0] for line in out.splitlines()) == ["alike", *["swapped"] * 4]
