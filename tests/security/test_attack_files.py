"""Attacks on the host's files and secrets."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attacking import REFUSALS, Attacker, host_mounts, needs

from paddock import Sandbox
from paddock.errors import PaddockError


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """A file of the host that holds a secret; anybody on the host may read it."""
    place = Path("/tmp", f"paddock-canary-{secrets.token_hex(6)}")
    place.mkdir(mode=0o755)
    file = place / "secret"
    file.write_text(secrets.token_hex(16))
    file.chmod(0o666)
    yield file
    file.unlink()
    place.rmdir()


def test_a_file_of_the_host_is_not_found_by_any_road(attacker: Attacker, canary: Path) -> None:
    found = attacker.probe(
        "path, secret = sys.argv[1:]\n"
        "roads = [path, '/proc/1/root' + path, '/proc/1/cwd' + path, '/proc/self/root' + path, '/..' * 9 + path]\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    for link in ('root', 'cwd'): roads.append(f'/proc/{pid}/{link}{path}')\n"
        "    try: numbers = os.listdir(f'/proc/{pid}/fd')\n"
        "    except OSError: continue\n"
        "    for n in numbers: roads += [f'/proc/{pid}/fd/{n}{up}{path}' for up in ('', '/..', '/../../../..')]\n"
        "hits = []\n"
        "for road in roads:\n"
        "    try:\n"
        "        with open(road) as file: hits += [road] if secret in file.read() else []\n"
        "    except OSError: pass\n"
        "answer(hits)",
        str(canary),
        canary.read_text(),
    )
    assert found == []


def test_a_file_that_only_root_of_the_host_may_read_is_not_read_in_the_shared_usr(attacker: Attacker) -> None:
    if os.getuid() != 0:
        pytest.skip("needs uid 0 to own such a file")
    file = Path("/usr/share", f"paddock-canary-{secrets.token_hex(6)}")
    file.touch(mode=0o600)
    file.write_text("secret")
    try:
        assert attacker.sh(f"cat {file}").exit_code != 0
        assert attacker.sh(f"cp {file} /tmp/c; ln {file} /tmp/l; cat /tmp/c /tmp/l").stdout == ""
        assert (
            attacker.probe(
                "answer([attempt(os.chmod, sys.argv[1], 0o644), attempt(os.chown, sys.argv[1], 0, 0)])", str(file)
            )
            != []
        )
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.stat().st_uid == 0
    finally:
        file.unlink()


def test_the_machines_password_hashes_are_not_read(attacker: Attacker) -> None:
    result = attacker.sh(
        "cat /etc/shadow /etc/gshadow /etc/shadow- 2>/dev/null; find / -xdev -name 'ssh_host_*_key' -readable "
        "2>/dev/null"
    )
    assert "$" not in result.stdout
    assert "ssh_host" not in result.stdout


def test_nothing_of_the_machines_own_directories_is_there(attacker: Attacker, canary: Path) -> None:
    names = attacker.probe(
        "places = ('/tmp', '/run', '/mnt', '/boot', '/srv')\n"
        "answer({p: sorted(os.listdir(p)) if os.path.isdir(p) else [] for p in places})"
    )
    assert canary.parent.name not in names["/tmp"]
    assert not {"docker.sock", "systemd", "dbus", "containerd"} & set(names["/run"])
    assert names["/mnt"] == names["/boot"] == names["/srv"] == []


def test_the_shared_usr_cannot_be_changed(attacker: Attacker) -> None:
    before = os.stat("/usr/bin/env")
    answers = attacker.probe(
        "def write(path):\n"
        "    with open(path, 'r+b') as file: file.write(b'x')\n"
        "answer([attempt(write, '/usr/bin/env'), attempt(os.unlink, '/usr/bin/env'), attempt(os.rename, "
        "'/usr/bin/env', '/usr/bin/e'),\n"
        "        attempt(os.open, '/usr/bin/evil', os.O_CREAT | os.O_WRONLY), attempt(os.chmod, "
        "'/usr/bin/env', 0o4755),\n"
        "        attempt(os.setxattr, '/usr/bin/env', 'user.x', b'x'), attempt(os.utime, '/usr/bin/env', (1, 1)),\n"
        "        attempt(os.link, '/usr/bin/env', '/tmp/env'), attempt(os.open, '/usr/bin', os.O_TMPFILE | "
        "os.O_WRONLY)])"
    )
    after = os.stat("/usr/bin/env")
    assert set(answers) <= REFUSALS | {"EXDEV", "ENOTSUP"}
    assert (before.st_mode, before.st_ino, before.st_mtime, before.st_size, before.st_nlink) == (
        after.st_mode,
        after.st_ino,
        after.st_mtime,
        after.st_size,
        after.st_nlink,
    )
    assert not os.path.exists("/usr/bin/evil")


def test_the_mounts_name_no_path_of_the_host_and_pass_nothing_on(attacker: Attacker, shared_state: Path) -> None:
    table = attacker.sh("cat /proc/self/mountinfo /proc/self/mounts /proc/self/mountstats").stdout
    assert str(shared_state) not in table
    assert "shared:" not in table
    assert "master:" not in table


def test_every_mount_that_can_be_written_ignores_set_user_id_and_devices(attacker: Attacker) -> None:
    for line in attacker.sh("cat /proc/self/mounts").stdout.splitlines():
        _, where, kind, options, *_ = line.split()
        flags = set(options.split(","))
        assert "nosuid" in flags, line
        if "rw" in flags:
            devices = kind == "devpts" or where.startswith(
                ("/dev/", "/proc/")
            )  # an ordinary user's: bound from the host
            assert "nodev" in flags or devices, line
        assert "rw" in flags or "ro" in flags, where


def test_what_is_made_inside_never_belongs_to_a_person_of_the_host(attacker: Attacker, shared_state: Path) -> None:
    needs("ids")
    from paddock.supervisor.layout import TREE_ID_BASE

    name = f"mine-{secrets.token_hex(6)}"
    attacker.sh(f"cp /usr/bin/env /workspace/{name}; chmod 6755 /workspace/{name}")
    found = [path for path in shared_state.rglob(name) if path.is_file()]
    for path in found:  # none, where the supervisor's own mount namespace has the pool
        assert path.stat().st_uid >= TREE_ID_BASE
    assert stat.S_IMODE(shared_state.stat().st_mode) == 0o700


def test_a_program_of_ours_cannot_be_overwritten(attacker: Attacker) -> None:
    answers = attacker.probe(
        "found = []\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    for flags in (os.O_WRONLY, os.O_RDWR | os.O_TRUNC, os.O_WRONLY | os.O_APPEND):\n"
        "        found.append(attempt(lambda: os.close(os.open(f'/proc/{pid}/exe', flags))))\n"
        "answer(found)"
    )
    assert set(answers) <= REFUSALS | {"ETXTBSY", "ESRCH"}


def test_a_working_directory_does_not_lead_out(attacker: Attacker) -> None:
    for cwd in (
        "/proc/self/fd/3",
        "/proc/self/fd/8",
        "/proc/1/cwd",
        "/proc/1/root",
        "/proc/self/cwd",
        "/proc/self/fd/3/../../..",
    ):
        try:
            result = attacker.sandbox.exec(("sh", "-c", "pwd -P; ls -id / ."), cwd=cwd, user=attacker.user)
        except PaddockError:
            continue
        assert "unreachable" not in result.stdout
        assert os.path.realpath(os.getcwd()) not in result.stdout


def test_links_planted_for_the_host_lead_it_nowhere(create: Callable[..., Sandbox], canary: Path) -> None:
    """Whoever cleans up after the sandbox must not follow what it left."""
    for user in [None, *(["root"] if os.getuid() == 0 else [])]:
        sandbox = create()
        Attacker(sandbox, user).run(
            "import shutil\n"
            "target = sys.argv[1]\n"
            "for place in ('/workspace', '/etc', '/var', '/home', '/root', '/opt', '/usr/local', '/tmp', "
            "'/run', '/dev', '/proc', '/'):\n"
            "    for name in ('link', 'a', 'root', 'work'):\n"
            "        attempt(os.symlink, target, f'{place}/{name}')\n"
            "        attempt(os.symlink, '../' * 30 + target, f'{place}/{name}.up')\n"
            "for place in ('/workspace', '/etc', '/var', '/home', '/opt', '/root', '/srv', '/mnt', '/run', "
            "'/boot', '/media'):\n"
            "    attempt(os.rename, place, place + '.old')\n"
            "    attempt(os.symlink, target, place)\n",
            str(canary.parent),
        )
        content = canary.read_text()
        sandbox.kill()
        assert canary.read_text() == content
        assert os.listdir(canary.parent) == [canary.name]


def test_file_actions_after_the_directories_were_replaced_stay_inside(attacker: Attacker, canary: Path) -> None:
    attacker.run(
        "target = sys.argv[1]\n"
        "for place in ('/workspace', '/home', '/var'):\n"
        "    attempt(os.rename, place, place + '.old')\n"
        "    attempt(os.symlink, target, place)\n"
        "attempt(os.symlink, target, '/workspace/way')\n",
        str(canary.parent),
    )
    content = canary.read_text()
    files = attacker.sandbox.filesystem
    for path in (
        f"/workspace/{canary.name}",
        f"/workspace/way/{canary.name}",
        str(canary),
        "evil",
        "/workspace/way/evil",
    ):
        with contextlib.suppress(PaddockError):
            assert content.encode() not in files.read(path)
        with contextlib.suppress(PaddockError):
            files.write(path, b"overwritten", append=True)
    assert canary.read_text() == content
    assert os.listdir(canary.parent) == [canary.name]


def test_the_table_of_mounts_of_the_host_is_the_same_after_a_life(create: Callable[..., Sandbox]) -> None:
    create().kill()  # the first one may prepare the pool
    before = host_mounts()
    create().kill()
    assert host_mounts() == before


# Everything that a careless caller may have: variables, descriptors that are inherited, a directory as descriptor.
_CARELESS = """
import json, os, socket, sys
canary = sys.argv[1]
os.environ['PADDOCK_CANARY_TOKEN'] = canary
for descriptor in (os.open('/', os.O_RDONLY), os.open('/tmp', os.O_RDONLY | os.O_DIRECTORY), os.memfd_create(canary),
                   os.pidfd_open(os.getpid()), *os.pipe()):
    os.set_inheritable(descriptor, True)
    for number in range(50, 60):
        os.dup2(descriptor, number, inheritable=True)
from paddock import Sandbox
users = [None, 'root'] if os.getuid() == 0 else [None]
probe = '''
import os, sys, json
found = {"fds": [], "environ": ""}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try: found["environ"] += open(f"/proc/{pid}/environ", errors="replace").read()
    except OSError: pass
    try: numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError: continue
    for number in numbers:
        try: found["fds"].append(os.readlink(f"/proc/{pid}/fd/{number}"))
        except OSError: pass
print(json.dumps(found))
'''
with Sandbox.create(level='jail') as sandbox:
    print(json.dumps([json.loads(sandbox.exec(('python3', '-I', '-S', '-c', probe), user=u).stdout) for u in users]))
"""


def test_variables_and_descriptors_of_a_careless_caller_do_not_come_in(state_dir: Path) -> None:
    canary = secrets.token_hex(16)
    environment = {**os.environ, "PADDOCK_STATE_DIR": str(state_dir), "PADDOCK_OTHER_CANARY": canary}
    result = subprocess.run(
        [sys.executable, "-c", _CARELESS, canary], capture_output=True, text=True, env=environment, check=False
    )
    if "level_unavailable" in result.stderr or "LevelUnavailableError" in result.stderr:
        pytest.skip(f"no jail here: {result.stderr.splitlines()[-1]}")
    assert result.returncode == 0, result.stderr
    for seen in json.loads(result.stdout.splitlines()[-1]):
        assert canary not in json.dumps(seen)
        inherited = [link for link in seen["fds"] if link.startswith("/") and not link.startswith(("/dev/", "/proc/"))]
        assert inherited == []
