"""Templates: what is in them, what never is, and that they are whole."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paddock.errors import NotConfiguredError, NotFoundError, UnsupportedError
from paddock.linux import mounts, namespaces
from paddock.storage import Pool, Templates, open_pool, prepare
from paddock.storage.templates import _debian
from paddock.storage.templates._host import manifest, recipe
from tests.conformance.trees import Root, exit_code, in_child
from tests.storage.faults import killed_before_step


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def pool(state: Path) -> Generator[Pool]:
    pool = open_pool(state, prepare(state, driver="copy"))
    yield pool
    pool.close()


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine's root directory, with secrets in its /etc."""
    root = tmp_path / "machine"
    for path in ("etc/alternatives", "etc/ld.so.conf.d", "etc/ssl/private", "usr/bin", "usr/lib/python3/dist-packages"):
        (root / path).mkdir(parents=True)
    for name in ("bin", "lib"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "usr/bin/python3").symlink_to("python3.11")
    (root / "etc/os-release").write_text("ID=debian\n")
    (root / "etc/services").write_text("secret\n")
    (root / "etc/services").chmod(0o640)
    (root / "etc/shadow").write_text("secret\n")
    (root / "etc/ssl/private/key").write_text("secret\n")
    (root / "etc/ld.so.conf.d/x.conf").write_text("/opt/lib\n")
    (root / "etc/ld.so.conf.d/private.conf").write_text("secret\n")
    (root / "etc/ld.so.conf.d/private.conf").chmod(0o600)
    os.mkfifo(root / "etc/protocols")
    (root / "etc/inputrc").symlink_to("shadow-link")
    (root / "etc/alternatives/vi").symlink_to("/usr/bin/vim")
    (root / "etc/alternatives/odd").symlink_to("/home/somebody/bin")
    return root


@pytest.mark.both
def test_only_what_anybody_may_read_goes_into_host(machine: Path) -> None:
    files = manifest(machine)
    assert all(b"secret" not in entry.content for entry in files.values())
    assert files["etc/os-release"].content == b"ID=debian\n"
    assert files["etc/ld.so.conf.d/x.conf"].content == b"/opt/lib\n"
    assert files["etc/alternatives/vi"].content == b"/usr/bin/vim"
    assert not {"etc/shadow", "etc/services", "etc/protocols", "etc/inputrc", "etc/alternatives/odd"} & set(files)
    assert files["usr/local/lib/python3.11/dist-packages"].kind == "directory"


def test_what_the_machine_puts_in_decides_the_digest(machine: Path, pool: Pool) -> None:
    first = Templates(pool, machine=machine)
    before = first.get("host")
    assert Templates(pool, machine=machine).get("host") == before
    (machine / "etc/os-release").write_text("ID=other\n")
    after = Templates(pool, machine=machine).get("host")
    assert after.digest != before.digest
    assert set(before.layers).isdisjoint(after.layers)
    assert first.get("host") == before
    assert set(pool.names()) == {*before.layers, *after.layers}


def test_an_old_version_is_discarded_once_no_program_uses_it(machine: Path, pool: Pool) -> None:
    (old,) = Templates(pool, machine=machine).get("host").layers
    (machine / "etc/os-release").write_text("ID=other\n")
    templates = Templates(pool, machine=machine)
    assert templates.is_version(old)
    assert old not in templates.versions()
    assert not templates.discard(old), "it is in use"
    assert pool.names() == (old,)
    pool.in_use.clear()  # as in the daemon after this one
    assert templates.discard(old)
    assert pool.names() == ()
    (new,) = templates.get("host").layers
    assert new in templates.versions()
    assert not any(templates.is_version(name) for name in ("tp_mine_0123456789ab", "tp_host", "sb_host_0123456789ab"))


def test_what_a_killed_builder_began_is_discarded_and_what_is_being_built_is_not(machine: Path, pool: Pool) -> None:
    templates = Templates(pool, machine=machine)
    tree, discarded = recipe(machine).tree, list[bool]()

    def tell(words: str) -> None:
        if words.startswith("building"):
            discarded.extend(templates.discard(name) for name in (tree, "tb" + tree[2:]))

    assert templates.get("host", tell).layers == (tree,)
    assert discarded == [False, False]
    begun = "tb" + tree[2:]
    pool.create(begun)
    pool.in_use.clear()
    assert templates.is_version(begun)
    assert templates.discard(begun)
    assert pool.names() == (tree,)


def test_a_machine_with_programs_outside_usr_is_refused(machine: Path, pool: Pool) -> None:
    (machine / "sbin").mkdir()
    with pytest.raises(UnsupportedError, match="/sbin"):
        Templates(pool, machine=machine).get("host")


def test_what_is_missing_is_named_with_its_command(machine: Path, pool: Pool) -> None:
    with pytest.raises(NotConfiguredError, match="apt-get install git"):
        Templates(pool, machine=machine).get("code-interpreter")
    with pytest.raises(NotFoundError, match="code-interpreter, debian, host"):
        Templates(pool, machine=machine).get("windows")
    assert pool.names() == ()


@pytest.mark.both
def test_a_template_is_there_as_its_users_need_it(pool: Pool) -> None:
    template = Templates(pool).get("host")
    assert template.host_usr
    assert [user.name for user in template.users] == ["root", "user"]
    before = os.umask(0)
    os.umask(before)
    with Root(pool, template.layers[0]) as root:
        base = root.stat().st_uid
        own = 1000 if os.geteuid() == 0 else 0
        for path, mode, owner in (
            (".", 0o755, 0), ("tmp", 0o1777, 0), ("var/tmp", 0o1777, 0), ("root", 0o700, 0),
            ("home/user", 0o755, own), ("workspace", 0o755, own), ("usr/local/bin", 0o755, 0), ("etc/passwd", 0o644, 0),
        ):  # fmt: skip
            info = (root / path).stat()
            assert (stat.S_IMODE(info.st_mode), info.st_uid - base) == (mode, owner), path
        assert (root / "proc").is_dir()
        assert (root / "sys").is_dir()


@pytest.mark.parametrize("name", ["host", pytest.param("code-interpreter", marks=pytest.mark.slow)])
def test_a_killed_build_is_never_used(pool: Pool, name: str) -> None:
    whole = Templates(pool).get(name)
    contents = {layer: listing(pool, layer) for layer in whole.layers}
    step = 1
    while True:
        for layer in pool.names():
            pool.delete(layer)
        killed = killed_before_step(step, lambda: Templates(pool).get(name))
        for layer in pool.names():
            if layer.startswith("tp_"):  # what has the name of a template is one
                assert listing(pool, layer) == contents[layer]
        assert Templates(pool).get(name) == whole
        assert set(pool.names()) == set(whole.layers)
        if not killed:
            break
        step += 1 + step // 2
    assert step > 50


def listing(pool: Pool, layer: str) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    with Root(pool, layer) as root:
        for path, directories, files, fd in os.fwalk(f"{root}/."):
            for name in (*directories, *files):
                info = os.stat(name, dir_fd=fd, follow_symlinks=False)
                size = 0 if stat.S_ISDIR(info.st_mode) else info.st_size
                found.append((os.path.relpath(os.path.join(path, name), root), info.st_mode, size))
    assert found
    return sorted(found)


def test_of_several_threads_one_builds_and_the_others_wait(pool: Pool) -> None:
    templates, lines = Templates(pool), list[str]()
    with ThreadPoolExecutor() as threads:
        found = list(threads.map(lambda _: templates.get("code-interpreter", lines.append), range(3)))
    assert found[0] == found[1] == found[2]
    assert lines.count("building template code-interpreter") == 1
    assert lines.count("building template host") == 1


@pytest.mark.root
def test_python_in_code_interpreter_finds_pytest_and_git_works(pool: Pool) -> None:
    template = Templates(pool).get("code-interpreter")
    pool.create("sb_1", layers=template.layers)
    with Root(pool, "sb_1") as root:
        (root / "workspace/test_it.py").write_text("def test_it():\n    assert 1 + 1 == 2\n")
        script = (
            "set -e; cd /workspace; pytest -q -p no:cacheprovider test_it.py; git init -q; git add .; "
            "python3 -c 'import pytest; print(pytest.__file__)'; date +%Z"
        )

        real = root.resolve()

        def inside() -> None:
            namespaces.unshare(namespaces.NEWNS | namespaces.NEWNET)
            mounts.make_all_private()
            place = os.open(real, os.O_RDONLY | os.O_DIRECTORY)  # not by what was opened in another namespace
            local = mounts.open_tree(b"usr/local", place)
            mounts.bind(b"/usr", place, b"usr", attributes=mounts.RDONLY)
            mounts.bind(b"/dev", place, b"dev")
            mounts.move_mount(local, place, b"usr/local")
            os.fchdir(place)
            os.chroot(".")
            out = os.open("/workspace/out", os.O_WRONLY)
            os.dup2(out, 1)
            os.dup2(out, 2)
            os.execve("/bin/sh", ["sh", "-c", script], template.env)

        (root / "workspace/out").write_text("")
        code = exit_code(in_child(inside))
        said = (root / "workspace/out").read_text()
        assert code == 0, said
        assert "1 passed" in said
        assert "/usr/local/lib/python3" in said
        assert "UTC" in said


@pytest.mark.slow
@pytest.mark.root
def test_debian_is_built_from_packages(pool: Pool) -> None:
    try:
        template = Templates(pool).get("debian", lambda words: print(words, file=sys.stderr))
    except (NotConfiguredError, UnsupportedError) as error:
        pytest.skip(str(error))
    assert not template.host_usr
    with Root(pool, template.layers[0]) as root:
        script = "set -e; python3 --version; command -v git; id user; ls -ld /workspace"
        done = subprocess.run(
            ["chroot", str(root.resolve()), "/bin/sh", "-c", script],
            capture_output=True, text=True, env=template.env, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "uid=1000(user)" in done.stdout
        for path in (root / "dev").iterdir():
            assert stat.S_IFMT(path.lstat().st_mode) in (stat.S_IFDIR, stat.S_IFLNK)


def test_what_builds_debian_finds_programs_of_the_machine_alone() -> None:
    """It may run as root: a directory that another user of this machine writes must not be on its PATH."""
    assert not [folder for folder in _debian._environment()["PATH"].split(":") if folder.startswith("/home")]
