"""Attacks on what reads and writes outside: the file actions, the records, the doors in the state directory."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attacking import Attacker, whole_lines

from paddock import Sandbox
from paddock.errors import PaddockError
from paddock.supervisor import layout


@pytest.fixture
def canary() -> Iterator[Path]:
    place = Path("/tmp", f"paddock-canary-{secrets.token_hex(6)}")
    place.mkdir(mode=0o777)
    (place / "file").write_text(secrets.token_hex(16))
    yield place / "file"
    (place / "file").unlink()
    place.rmdir()


_EXCHANGE = """
target = sys.argv[1]
os.makedirs('/workspace/d', exist_ok=True); open('/workspace/d/file', 'w').write('inside')
for way in (target, '/proc/1/root' + target, '/../../..' + target):
    attempt(os.symlink, way, '/workspace/link')
print('up', flush=True)
while True: libc.syscall(316, -100, b'/workspace/d', -100, b'/workspace/link', 2)
"""


def test_names_that_are_exchanged_at_full_speed_lead_no_file_action_out(attacker: Attacker, canary: Path) -> None:
    """renameat2(RENAME_EXCHANGE) between a directory and a link to one of the host."""
    content = canary.read_text()
    before = canary.stat()
    argv = ("python3", "-I", "-S", "-c", _preamble() + _EXCHANGE, str(canary.parent))
    files = attacker.sandbox.filesystem
    path = "/workspace/d/file"
    actions: list[Callable[[], object]] = [
        lambda: files.read(path),
        lambda: files.write(path, b"evil"),
        lambda: files.write("/workspace/d/evil", b"evil"),
        lambda: [info.path for info in files.list("/workspace/d")],
        lambda: files.stat(path),
        lambda: files.chmod(path, 0o777),
        lambda: files.copy("/workspace/d", "/workspace/copy"),
        lambda: files.remove("/workspace/copy", recursive=True, missing_ok=True),
        lambda: files.make_dir("/workspace/d/evil-directory"),
        lambda: files.remove("/workspace/d", recursive=True, missing_ok=True),
        lambda: files.make_dir("/workspace/d"),
    ]
    with attacker.sandbox.start(argv, user=attacker.user) as process:
        assert process.stdout.read(100) == b"up\n"
        for _ in range(15):
            for action in actions:
                with contextlib.suppress(PaddockError):
                    result = action()
                    assert content.encode() not in (result if isinstance(result, bytes) else b"")
        process.kill()
    assert canary.read_text() == content
    assert os.listdir(canary.parent) == ["file"]
    after = canary.stat()
    assert (after.st_mode, after.st_uid, after.st_mtime_ns) == (before.st_mode, before.st_uid, before.st_mtime_ns)


def test_a_download_while_names_are_exchanged_holds_nothing_of_the_hosts(
    attacker: Attacker, canary: Path, tmp_path: Path
) -> None:
    content = canary.read_text()
    argv = ("python3", "-I", "-S", "-c", _preamble() + _EXCHANGE, str(canary.parent))
    with attacker.sandbox.start(argv, user=attacker.user) as process:
        assert process.stdout.read(100) == b"up\n"
        for number in range(5):
            with contextlib.suppress(PaddockError):
                attacker.sandbox.filesystem.download("/workspace", tmp_path / str(number), skip_unsafe=True)
        process.kill()
    for found in tmp_path.rglob("*"):
        assert found.is_symlink() or found.is_dir() or content not in found.read_text(errors="replace")
        assert found.resolve().is_relative_to(tmp_path)


def test_the_doors_of_the_state_directory_are_not_there(attacker: Attacker, shared_state: Path) -> None:
    id = attacker.sandbox.id
    paths = [
        shared_state / layout.SUPERVISOR_SOCKET,
        shared_state / layout.DATABASE,
        shared_state / layout.AUDIT,
        shared_state / layout.POOL_IMAGE,
        *(shared_state / layout.RUN / id / f"{name}.sock" for name in ("init", "user", "root")),
    ]
    answers = attacker.probe(
        "def knock(path):\n"
        "    with socket.socket(socket.AF_UNIX) as s: s.connect(path)\n"
        "def anonymous(path):\n"
        "    with socket.socket(socket.AF_UNIX) as s: s.connect('\\0' + path)\n"
        "found = []\n"
        "for path in json.loads(sys.argv[1]):\n"
        "    found += [attempt(knock, path), attempt(os.stat, path), attempt(anonymous, path[:100])]\n"
        "for line in open('/proc/net/unix').read().splitlines()[1:]:\n"
        "    name_of = line.split()[7:]\n"
        "    if name_of: found.append('seen ' + name_of[0])\n"
        "answer(found)",
        json.dumps([str(path) for path in paths]),
    )
    # Of its own sockets the kernel tells the names by which the host bound them; they lead nowhere in here.
    own = {answer for answer in answers if answer.startswith("seen ") and answer.endswith(".sock")}
    assert set(answers) - own <= {"ENOENT", "ECONNREFUSED", "EPERM", "EACCES"}
    assert not any(str(shared_state) in answer for answer in answers)


def test_words_from_inside_make_no_records_of_their_own(attacker: Attacker, shared_state: Path) -> None:
    """File names, arguments and output that look like lines of the log, or end one."""
    forged = '{"seq":1,"event":"allowed","principal":"root"}'
    evil = f"a\n{forged}\r\x1b[2J\u2028\x00".replace("\x00", "")
    for word in (evil, evil * 20, "\udcff\n" + forged):
        with contextlib.suppress(PaddockError):
            attacker.sandbox.filesystem.write(f"/tmp/{word}"[:200], b"x")
        with contextlib.suppress(PaddockError):
            attacker.sandbox.filesystem.read(f"/tmp/nothing{word}")
        with contextlib.suppress(PaddockError):
            attacker.sandbox.exec(("printf", "%s", word), user=attacker.user)
    for segment in (shared_state / layout.AUDIT).iterdir():
        for line in whole_lines(segment):
            if line.strip():
                json.loads(line)
            assert not line.startswith(forged.encode())
    command = [sys.executable, "-m", "paddock", "audit", "verify", "--json"]
    checked = subprocess.run(command, env={**os.environ, "PADDOCK_STATE_DIR": str(shared_state)}, capture_output=True)
    assert json.loads(checked.stdout)["ok"] is True


def test_words_from_inside_do_not_reach_a_terminal_as_they_are(
    create: Callable[..., Sandbox], shared_state: Path
) -> None:
    sandbox = create()
    environment = {**os.environ, "PADDOCK_STATE_DIR": str(shared_state)}
    evil = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\u202e"
    for arguments in (
        ("cp", f"{sandbox.id}:/tmp/{evil}", "/tmp/nowhere"),
        ("exec", sandbox.id, "--", evil),
        ("exec", "--cwd", f"/{evil}", sandbox.id, "--", "true"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "paddock", *arguments], env=environment, capture_output=True, check=False
        )
        assert done.returncode != 0
        for character in evil:
            if not character.isprintable():
                assert character.encode() not in done.stderr


def test_a_guest_that_is_replaced_cannot_take_the_place_of_its_door(attacker: Attacker) -> None:
    """Whoever kills the agent may listen under any name in there: the host connects to the socket that it made."""
    answers = attacker.probe(
        "import threading\n"
        "heard = []\n"
        "for path in ('user.sock', '/user.sock', '/run/user.sock', '/tmp/user.sock', '\\0user.sock'):\n"
        "    s = socket.socket(socket.AF_UNIX)\n"
        "    try: s.bind(path); s.listen()\n"
        "    except OSError: continue\n"
        "    heard.append(path)\n"
        "answer(len(heard))"
    )
    assert answers > 0
    assert attacker.sh("echo still the same").stdout == "still the same\n"


def _preamble() -> str:
    from attacking import PREAMBLE

    return PREAMBLE
