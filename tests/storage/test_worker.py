"""The process that works on trees: what it gives back, what it reaches, and what becomes of it."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paddock.errors import AlreadyExistsError, InternalError, ResourceExhaustedError
from paddock.linux import caps, landlock, pidfd
from paddock.storage.pool._jobs import MEMORY_BYTES
from paddock.storage.pool.worker import Worker
from tests.orphans import wait_until


@pytest.fixture
def worker() -> Generator[Worker]:
    worker = Worker(None)
    yield worker
    worker.close()


def _fail(kind: str) -> None:
    if kind == "ours":
        raise AlreadyExistsError("twice", hint="once", name="x")
    raise ValueError("bad")


def _hold(*fds: int) -> str:
    return os.read(fds[0], 100).decode()


def _square(number: int) -> int:
    return number * number


def _die() -> None:
    ctypes.string_at(0)  # it may signal nobody, itself included


def _huge() -> int:
    return len(bytearray(MEMORY_BYTES + 1))


def _forever(fd: int) -> None:
    os.write(fd, f"{os.getpid()}\n".encode())
    while True:
        pass


def _much() -> str:
    return "x" * (8 << 20)


def _attempts(directory: int, outside: str) -> dict[str, str]:
    """What a worker that has been taken over may try."""
    told: dict[str, str] = {}

    def attempt(name: str, what: object, *arguments: object) -> None:
        try:
            assert callable(what)
            what(*arguments)
        except OSError as error:
            told[name] = type(error).__name__
        else:
            told[name] = "done"

    attempt("network", socket.socket)
    attempt("fork", os.fork)
    attempt("program", os.execv, "/bin/true", ["true"])
    attempt("signal", os.kill, os.getppid(), 0)
    attempt("read", open, outside)
    attempt("write", os.mkdir, outside + ".new")
    attempt("change", os.truncate, outside, 0)
    attempt("inside", os.mkdir, "made", 0o755)
    attempt("device", os.mknod, f"/proc/self/fd/{directory}/device", 0o600 | 0o020000, os.makedev(1, 3))
    fd = os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=directory)
    os.close(fd)
    os.mkdir("sub", dir_fd=directory)
    os.rename("file", "sub/file", src_dir_fd=directory, dst_dir_fd=directory)
    told["capabilities"] = str(caps.get().permitted)
    told["environment"] = ",".join(sorted(os.environ))
    return told


def test_a_worker_gives_what_its_function_returns_or_raises(worker: Worker) -> None:
    assert worker.confined(_square, (), 12) == 144
    with pytest.raises(AlreadyExistsError, match="twice") as caught:
        worker.confined(_fail, (), "ours")
    assert (caught.value.hint, caught.value.details) == ("once", {"name": "x"})
    with pytest.raises(FileNotFoundError, match="/dev/nowhere"):
        worker.confined(os.listdir, (), "/dev/nowhere")
    with pytest.raises(InternalError, match="ValueError: bad"):
        worker.confined(_fail, (), "other")


def test_a_worker_has_no_descriptor_but_those_of_its_job(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    with (tmp_path / "kept").open() as kept, (tmp_path / "other").open("w") as other:
        assert worker.confined(_hold, (kept.fileno(),)) == "kept"
        told = worker.confined(_count, (kept.fileno(),))
        assert not other.closed
    assert told == 2  # the job's socket and the file


def _count(*_: int) -> int:
    found = 0
    for fd in range(3, 1000):
        try:
            os.fstat(fd)
        except OSError:
            continue
        found += 1
    return found


@pytest.fixture
def elsewhere() -> Generator[Path]:
    """A directory below none that Python finds modules in: pytest's own may lie in the checkout."""
    with tempfile.TemporaryDirectory(prefix="pd-", dir="/var/tmp") as directory:
        yield Path(directory)


def test_a_worker_that_is_taken_over_reaches_nothing_but_its_tree(worker: Worker, elsewhere: Path) -> None:
    if landlock.kernel_abi() < 2:
        pytest.skip("this kernel has no Landlock that a worker can use")
    (elsewhere / "tree").mkdir()
    (elsewhere / "precious").write_text("precious")
    directory = os.open(elsewhere / "tree", os.O_RDONLY | os.O_DIRECTORY)
    try:
        told = worker.confined(_attempts, (directory,), str(elsewhere / "precious"))
    finally:
        os.close(directory)
    refused = dict.fromkeys(("network", "fork", "program", "signal", "read", "write", "change", "device"))
    assert {name: told[name] for name in refused} == dict.fromkeys(refused, "PermissionError")
    assert told["environment"] in ("", "LC_CTYPE")  # Python sets it where there is no locale (PEP 538)
    powers = caps.mask_of(caps.CHOWN, caps.DAC_OVERRIDE, caps.FOWNER, caps.FSETID, caps.SETFCAP)
    assert int(told["capabilities"]) == (powers if os.geteuid() == 0 else 0)
    assert (elsewhere / "precious").read_text() == "precious"
    assert (elsewhere / "tree/sub/file").exists()


def test_many_threads_have_work_done_at_once(worker: Worker) -> None:
    busy = threading.Event()

    def spin() -> None:
        while not busy.is_set():
            sum(range(100))

    spinner = threading.Thread(target=spin)
    spinner.start()
    try:
        with ThreadPoolExecutor(8) as threads:
            squares = [threads.submit(worker.confined, _square, (), number) for number in range(32)]
            assert [square.result() for square in squares] == [number * number for number in range(32)]
    finally:
        busy.set()
        spinner.join()


def test_a_job_has_a_bound_in_seconds_in_memory_and_in_what_it_says(worker: Worker) -> None:
    reader, writer = os.pipe()
    with open(reader) as said:
        try:
            with pytest.raises(ResourceExhaustedError, match="more than 1 seconds"):
                worker.confined(_forever, (writer,), seconds=1)
        finally:
            os.close(writer)
        # The end of the pipe: the job is dead. If it was killed before its first line, there is no pid.
        assert not any(os.path.exists(f"/proc/{line.strip()}") for line in said)
    with pytest.raises(ResourceExhaustedError, match="MiB of memory"):
        worker.confined(_huge, ())
    with pytest.raises(InternalError):
        worker.confined(_much, ())
    assert worker.confined(_square, (), 3) == 9


def test_a_job_that_is_killed_says_so_and_the_next_one_is_done(worker: Worker) -> None:
    with pytest.raises(InternalError, match="killed by signal"):
        worker.confined(_die, ())
    assert worker.confined(_square, (), 3) == 9
    process = worker._process  # pyright: ignore[reportPrivateUsage]
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert worker.confined(_square, (), 3) == 9


def test_a_worker_that_hangs_is_replaced_and_closed(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paddock.storage.pool.worker._LATE_SECONDS", 0.1)

    def stop() -> None:
        process = worker._process  # pyright: ignore[reportPrivateUsage]
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)

    assert worker.confined(_square, (), 3) == 9
    stop()
    with pytest.raises(InternalError, match="died before it answered"):
        worker.confined(_square, (), 3, seconds=0)
    assert worker.confined(_square, (), 3) == 9
    stop()
    worker.close()


def test_a_job_dies_with_the_program_that_wants_it_done(tmp_path: Path, worker: Worker) -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            worker.confined(_forever, (writer,))
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as said:
        job = pidfd.open(int(said.readline()))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        try:
            assert pidfd.wait(job, 30)
        finally:
            os.close(job)
        assert said.read() == ""


def test_an_idle_worker_leaves_and_the_next_job_starts_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paddock.storage.pool.worker._BOOTSTRAP", _IMPATIENT)
    worker = Worker(None)
    try:
        assert worker.confined(_square, (), 2) == 4
        process = worker._process  # pyright: ignore[reportPrivateUsage]
        assert process is not None
        assert wait_until(lambda: process.poll() is not None)
        assert worker.confined(_square, (), 3) == 9
    finally:
        worker.close()


_IMPATIENT = (
    "import sys,json;o=json.loads(sys.argv[1]);sys.path[:]=o.pop('path');"
    "from paddock.storage.pool import _jobs;_jobs._IDLE_SECONDS=0.01;_jobs.serve(**o)"
)
