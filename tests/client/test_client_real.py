"""The whole way: the client, the service in this process, the strongest level of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paddock import AsyncSandbox, Limit, PtySize, Sandbox, local_async
from paddock.errors import FileError, NotFoundError, PolicyDeniedError, ResourceExhaustedError, SandboxDiedError
from tests.client.test_exports import HEAVY_FOR_A_CLIENT, loaded
from tests.orphans import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
Make = Callable[..., Sandbox]


def test_exec_reports_streams_codes_signals_and_time(sandbox: Make) -> None:
    box = sandbox()
    result = box.exec("echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert box.exec("kill -9 $$").signal == 9
    assert box.exec(["cat"], input=b"typed").stdout == "typed"
    assert box.exec("pwd; echo $X", cwd="/tmp", env={"X": "y"}).stdout == "/tmp\ny\n"
    late = box.exec("sleep 60 & sleep 60", timeout_seconds=0.2)
    assert late.limit is Limit.TIME
    assert "limit reached: time" in late.observation()


def test_an_observation_fits_a_prompt_and_counts_what_it_leaves_out(sandbox: Make) -> None:
    result = sandbox().exec("echo first; seq 1 200000; echo last; echo oops >&2; exit 2")
    text = result.observation(max_chars=2000)
    assert len(text) < 2200
    assert text.startswith("[exit code 2, ")
    assert "first" in text
    assert "last" in text
    assert text.endswith("[stderr]\noops\n")
    assert "bytes left out" in text


def test_streams_of_any_size_go_through_unchanged(sandbox: Make) -> None:
    box = sandbox()
    digest = hashlib.sha256()

    def blocks() -> Iterator[bytes]:
        for number in range(64):
            block = number.to_bytes(4, "big") * (1 << 18)
            digest.update(block)
            yield block

    assert box.files.write("big", blocks()).size_bytes == 64 << 20
    assert box.exec("sha256sum < big").stdout.split()[0] == digest.hexdigest()
    back = hashlib.sha256()
    with box.files.open("big", "rb") as reader:
        for chunk in reader:
            back.update(chunk)
    assert back.digest() == digest.digest()
    piped = hashlib.sha256()
    with box.start("cat big") as process:
        for chunk in process.stdout:
            piped.update(chunk)
        assert process.wait().code == 0
    assert piped.digest() == digest.digest()


def test_files_and_their_refusals(sandbox: Make) -> None:
    files = sandbox().files
    files.write("a/b/c", "text", mode=0o640)
    assert files.stat("a/b/c").mode == 0o640
    assert files.chmod("a/b/c", 0o600).mode == 0o600
    assert [info.name for info in files.list("a")] == ["b"]
    files.copy("a", "copy")
    files.move("copy/b/c", "moved")
    assert files.read_text("moved") == "text"
    assert [match.line for match in files.grep("^te", "a")] == ["text"]
    assert [info.name for info in files.find("a", "c*")] == ["c"]
    files.write("a/b/c", b"+more", append=True)
    assert files.read("a/b/c") == b"text+more"
    with pytest.raises(FileError) as caught:
        files.read("/nothing")
    assert caught.value.details["errno"] == "ENOENT"
    files.remove("a", recursive=True)
    files.remove("a", missing_ok=True)
    assert not files.exists("a")


@pytest.mark.root
def test_a_tilde_in_front_is_the_users_home(sandbox: Make) -> None:
    box = sandbox(policy={"files": {"protect": ["~/kept", "/root/kept"]}})
    files = box.files
    assert files.write("~/a/b", "mine").path == "/home/user/a/b"
    files.copy("~/a/b", "~/c")
    files.move("~/c", "~/d")
    assert files.read_text("~/d") == "mine"
    assert [info.name for info in files.list("~/a")] == ["b"]
    assert box.exec("pwd; ls", cwd="~/a").stdout == "/home/user/a\nb\n"
    assert box.exec("pwd", cwd="~", user="root").stdout == "/root\n"
    root = files.as_user("root")
    assert root.write("~/kept.not", "").path == "/root/kept.not"
    for one in (files, root):
        with pytest.raises(PolicyDeniedError):
            one.write("~/kept", "")
    files.write("./~/x", "literal")
    assert box.exec("cat '/workspace/~/x'").stdout == "literal"


def test_a_tree_goes_in_and_comes_back_the_same(sandbox: Make, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "pkg").mkdir(parents=True)
    (tree / "pkg" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tree / "pkg" / "run.sh").chmod(0o755)
    (tree / "pkg" / ("ü" * 60)).write_bytes(os.urandom(100_000))
    (tree / "link").symlink_to("pkg/run.sh")
    box = sandbox()
    assert box.files.upload(tree, "/workspace/tree").skipped == ()
    assert box.exec("./link", cwd="/workspace/tree").stdout == "ran\n"
    box.exec("ln -s /etc/passwd evil; mkfifo pipe", cwd="/workspace/tree", check=True)
    report = box.files.download("/workspace/tree", tmp_path / "back", skip_unsafe=True)
    assert "evil" in str(report.skipped)
    assert subprocess.run(["diff", "-r", tree, tmp_path / "back"], check=False).returncode == 0
    assert os.readlink(tmp_path / "back" / "link") == "pkg/run.sh"
    assert os.stat(tmp_path / "back" / "pkg" / "run.sh").st_mode & 0o777 == 0o755


def test_a_background_command_is_listed_taken_up_again_and_signalled(sandbox: Make) -> None:
    box = sandbox()
    with box.start("echo begun; sleep 60", background=True) as process:
        name = process.id
    assert [info.id for info in box.processes() if info.status is None] == [name]
    with box.attach(name) as again:
        assert next(again.stdout.lines()) == "begun"
        box.signal(name, signal.SIGTERM)
        assert again.wait().signal == signal.SIGTERM


def test_a_terminal_has_the_size_it_was_given(sandbox: Make) -> None:
    with sandbox().start("stty size; read x; stty size", stdin=True, pty=PtySize(rows=5, columns=40)) as process:
        lines = process.stdout.lines()
        assert next(lines).strip() == "5 40"
        process.resize(rows=6, columns=50)
        process.stdin.write("\n")
        assert "6 50" in [line.strip() for line in lines]


def test_changes_are_seen(sandbox: Make) -> None:
    box = sandbox()
    with box.files.watch("/workspace") as changes:
        box.files.write("/workspace/new", "x")
        assert any(change.path.endswith("new") for change, _ in zip(changes, range(5), strict=False))


def test_what_is_dead_says_so(sandbox: Make) -> None:
    box = sandbox()
    box.kill()
    box.kill()
    with pytest.raises(SandboxDiedError):
        box.exec("true")
    with pytest.raises(SandboxDiedError):
        Sandbox.connect(box.id)
    with pytest.raises(NotFoundError):
        Sandbox.connect("no-such-sandbox")


def test_the_asynchronous_side_runs_many_at_once(sandbox: Make) -> None:
    name = sandbox(name="shared").id

    async def scenario() -> list[str]:
        box = await AsyncSandbox.connect(name)
        results = await asyncio.gather(*(box.exec(f"sleep 0.1; echo {n}") for n in range(8)))
        return [result.stdout for result in results]

    assert asyncio.run(scenario()) == [f"{n}\n" for n in range(8)]


def test_control_c_stops_what_runs_and_leaves_the_sandbox_usable(sandbox: Make) -> None:
    box, main = sandbox(), threading.get_ident()

    def interrupt_when_it_runs() -> None:
        pause = threading.Event()
        while not box.files.exists("/tmp/runs"):
            pause.wait(0.01)
        signal.pthread_kill(main, signal.SIGINT)  # the kernel may give another thread one for the process

    thread = threading.Thread(target=interrupt_when_it_runs)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        box.exec("touch /tmp/runs; exec sleep 61")
    thread.join()
    # The daemon kills it when it hears of that, beside what it is asked next.
    assert wait_until(lambda: box.exec("pgrep -x sleep").exit_code == 1)


def test_a_dropped_handle_keeps_no_pipe_of_this_program(sandbox: Make) -> None:
    box = sandbox()
    box.exec("true")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.warns(ResourceWarning, match="never closed"):
            box.start("sleep 62", stdin=True)
    assert wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)
    assert wait_until(lambda: box.exec("pgrep -x sleep").exit_code == 1), "it runs on although nobody holds it"


def test_a_forked_child_gets_a_service_of_its_own(sandbox: Make) -> None:
    box = sandbox()
    child = os.fork()
    if child == 0:
        try:
            os._exit(42 if box.exec("exit 5").exit_code == 5 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert box.exec("true").ok


def program(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True)


def test_what_a_program_leaves_dies_with_it_unless_it_is_persistent(shared_state: Path) -> None:
    program("from paddock import Sandbox; Sandbox.create(name='left')")
    made = program("from paddock import Sandbox; print(Sandbox.create(name='kept', persistent=True).id)").stdout.strip()
    assert [box.id for box in Sandbox.list()] == [made]
    box = Sandbox.connect("kept")
    assert box.exec("true").ok
    box.kill()


def test_a_process_level_sandbox_has_the_same_interface(shared_state: Path) -> None:
    with Sandbox.create(level="process") as box:
        box.files.write("cell.py", "print(6 * 7)")
        assert box.exec("python3 cell.py").stdout == "42\n"
        assert box.level == "process"


@pytest.mark.parametrize("name", ["step1", "step2"])
def test_the_programs_of_the_guide_run_with_only_the_import_changed(shared_state: Path, name: str) -> None:
    assert (EXAMPLES / f"{name}.py").read_text().startswith("from paddock import Sandbox\n")
    use = {
        "step1": "import examples.step1",
        "step2": (
            "from examples.step2 import agent_loop\n"
            "from types import SimpleNamespace as N\n"
            'steps = iter([N(is_final=False, code=\'open("x", "w").write("41")\'),'
            " N(is_final=False, code='print(int(open(\"x\").read()) + 1)'), N(is_final=True, text='done')])\n"
            "seen = []\n"
            "client = N(next_action=lambda messages: (seen.extend(messages[-1:]), next(steps))[1])\n"
            "print(agent_loop(client, 'task'), seen)"
        ),
    }[name]
    done = subprocess.run(
        [sys.executable, "-c", use], cwd=EXAMPLES.parent, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert ("hello from" if name == "step1" else "'stdout': '42\\n'") in done.stdout
    assert Sandbox.list() == ()


def test_a_forgotten_asynchronous_transport_closes_its_socket_without_a_warning(shared_state: Path) -> None:
    transport = local_async()
    cycle: list[object] = [transport]
    cycle.append(cycle)
    asyncio.run(AsyncSandbox.list(transport=transport))
    del transport, cycle
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(one.message) for one in said if issubclass(one.category, ResourceWarning)] == []


def test_a_program_that_runs_a_command_loads_nothing_of_the_daemon(sandbox: Make) -> None:
    sandbox()  # the daemon is there
    code = "from paddock import Sandbox; box = Sandbox.create(); assert box.exec(['true']).ok; box.kill()"
    assert loaded(code, HEAVY_FOR_A_CLIENT) == []


def test_an_awaiting_program_loads_what_asyncio_does_and_nothing_of_the_daemon(sandbox: Make) -> None:
    sandbox()
    code = (
        "import asyncio; from paddock import AsyncSandbox as A; run = asyncio.Runner().run; box = run(A.create());"
        " assert run(box.exec(['true'])).ok; run(box.kill())"
    )
    assert loaded(code, HEAVY_FOR_A_CLIENT) == loaded("import asyncio", HEAVY_FOR_A_CLIENT)


_PORT = """
import socket, struct
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
kept = []
while True:
    connection, _ = server.accept()
    kept.append(connection)
    if connection.recv(1) == b"r":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        kept.pop().close()
    del connection
"""


def test_a_writer_hears_that_a_port_was_reset_and_how_many_connections_are_too_many(sandbox: Make) -> None:
    box = sandbox()
    with box.start(["python3", "-c", _PORT]) as server, ThreadPoolExecutor(1) as threads:
        assert server.stdout is not None
        port = int(next(iter(server.stdout)))

        with box.dial(port) as connection:
            connection.write("r")
            writing = threads.submit(lambda: [connection.write(bytes(1 << 16)) for _ in range(1000)])
            with pytest.raises(BrokenPipeError):
                writing.result(20)
            assert connection.read() == b""
        with contextlib.ExitStack() as connections:
            stack = (connections.enter_context(box.dial(port)) for _ in range(1000))
            with pytest.raises(ResourceExhaustedError, match="too many connections"):
                list(stack)
        server.kill()
