"""What suites of tests expect of the computer that they run on, at every level."""

from __future__ import annotations

import errno
import shutil

import pytest

from paddock.errors import FileError, ProgramNotExecutableError, ProgramNotFoundError
from tests.conftest import SandboxFactory
from tests.levels.conftest import LEVELS

pytestmark = pytest.mark.timeout(900)  # a machine that is emulated, and the first is baked

ATTRIBUTE = """
import os, sys
try: os.setxattr("file", "user.note", b"kept")
except OSError: sys.exit(0)  # a file system without them
"""
KEPT = """
import os, stat
info = os.stat("file")
kept = [os.getxattr("file", name) for name in os.listxattr("file")]
print(oct(stat.S_IMODE(info.st_mode)), info.st_uid == os.getuid(), kept)
"""
SERVES = """
import ctypes, socket, subprocess, threading
server = socket.create_server(("127.0.0.1", 8765))
print(subprocess.run(["ss", "-ltnp"], capture_output=True, text=True).stdout)
def name_itself():
    ctypes.CDLL(None).prctl(15, b"of-a-thread", 0, 0, 0)
    print(open(f"/proc/self/task/{threading.get_native_id()}/comm").read())
thread = threading.Thread(target=name_itself)
thread.start()
thread.join()
print(open("/proc/self/comm").read())
print("score", int(open("/proc/self/oom_score_adj").read()))
"""


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_program_that_is_missing_or_not_executable_is_an_exit_code(create: SandboxFactory) -> None:
    box = create()
    box.files.write("text", "no program")
    for argv, code, error in (
        (["no-such-program"], 127, ProgramNotFoundError),
        (["/workspace/none"], 127, ProgramNotFoundError),
        (["/workspace/text"], 126, ProgramNotExecutableError),
    ):
        assert box.exec(argv).exit_code == code
        with pytest.raises(error):
            box.exec(argv, check=True)


def test_a_write_is_refused_where_open_is_and_keeps_what_the_file_had(create: SandboxFactory) -> None:
    box = create()
    for mode in (0, 0o444):
        box.files.write("file", "old")
        box.files.chmod("file", mode)
        with pytest.raises(FileError) as refused:
            box.files.write("file", "new")
        assert refused.value.details["errno"] == errno.errorcode[errno.EACCES]
        box.files.chmod("file", 0o640)
        assert box.files.read_text("file") == "old"
    box.exec(["python3", "-c", ATTRIBUTE], check=True)
    before = box.exec(["python3", "-c", KEPT], check=True).stdout
    assert before.startswith("0o640 True")
    box.files.write("file", "new")
    assert box.exec(["python3", "-c", KEPT], check=True).stdout == before
    assert box.files.read_text("file") == "new"


def test_sockets_threads_and_scores_of_ones_own_are_seen(create: SandboxFactory) -> None:
    if shutil.which("ss") is None:
        pytest.skip("no ss on this machine, and so in its template `host`: apt-get install iproute2")
    said = create().exec(["python3", "-c", SERVES], check=True).stdout
    assert "127.0.0.1:8765" in said
    assert "of-a-thread" in said
    assert "python3" in said
    assert "score " in said
