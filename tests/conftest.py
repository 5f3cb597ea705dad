"""Fixtures that every room shares, and the look at what the tests have left behind.

`state_dir` is a private, empty state directory. Take it in tests that kill a supervisor or a gateway, fill the disk, or
count what lies there. `module_state` is one for all tests of a module. `sandbox` makes sandboxes in the session's.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import shutil
import signal
import socket
import struct
import tempfile
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from paddock.backends.jail import SupervisorClient
from paddock.backends.microvm import _accelerator, _kernel, _qemu
from paddock.client import session, stop_daemon
from paddock.errors import SupervisorUnavailableError
from paddock.linux import local_sockets, pidfd
from paddock.model.config import FILE
from paddock.supervisor import layout
from paddock.wire import Kind, pack
from tests import modes, orphans

# Before they are first imported, or their assertions would fail without saying what they compared.
pytest.register_assert_rewrite("tests.conformance")
from tests.conformance.leaks import Snapshot, wait_until_clean  # noqa: E402

if TYPE_CHECKING:
    from paddock.client import Sandbox

SandboxFactory = Callable[..., "Sandbox"]

# A test that has a home of its own finds the guest all the same, and doesn't compile it again.
os.environ.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))

# Neither deadline nor `too_slow`: how long an example takes says nothing on a busy machine.
hypothesis.settings.register_profile(
    "search",  # new examples each time, and many: `make test-all`
    deadline=None,
    max_examples=300,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    **({} if os.access(".", os.W_OK) else {"database": None}),  # nowhere to keep one
)
# The same examples each time, so that a change is judged by what it changes: more of them would find nothing new.
hypothesis.settings.register_profile(
    "repeat", hypothesis.settings.get_profile("search"), derandomize=True, max_examples=25
)
hypothesis.settings.load_profile("repeat")


_KVM_BOOTS = "PADDOCK_TESTS_KVM"
"""The kernel that /dev/kvm is known to boot (`tools/vm`, lane `kvm`): tests of virtual machines use both."""


def configure(state_dir: Path, **settings: object) -> None:
    """Write the `config.toml` of a state directory. None: without that key."""
    # Where /dev/kvm boots nothing, each new state directory would find that out anew, for half a minute.
    # Spares are made beside what other tests do; those that are about them ask for them.
    values = {"accelerator": "tcg", "spares": 0, **settings}
    if kernel := os.environ.get(_KVM_BOOTS):
        values |= {"accelerator": None, "kernel": kernel}
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in values.items() if value is not None]
    (state_dir / FILE).write_text("".join(lines))
    (state_dir / FILE).chmod(0o600)
    if kernel:  # emulated, a machine needs longer than a trial gives it
        _accelerator.booted(state_dir, (_qemu.find().stamp, _kernel.find(kernel).stamp))


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests send it, and a shell's background job ignores it
    # A worker of xdist has the controller above it, which is supervised.
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        orphans.supervise()
        config.stash[_SUPERVISED] = True


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A process that outlives the session fails it."""
    if not session.config.stash.get(_SUPERVISED, False):
        return
    if found := orphans.end_strays():
        session.config.stash[_STRAYS] = found
        session.exitstatus = exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for stray in config.stash.get(_STRAYS, list[str]()):
        terminalreporter.write_line(f"LEAK: {stray}", red=True)


_SUPERVISED = pytest.StashKey[bool]()
_STRAYS = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--differing", action="store_true", help="only what can differ for an ordinary user (tests/modes.py)"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    from xdist.scheduler import LoadFileScheduling  # pyright: ignore[reportMissingTypeStubs]

    class Pieces(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return modes.piece(nodeid)

    return Pieces(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file of which nothing would be taken isn't imported: that is half of what a collection costs."""
    return True if config.option.differing and not modes.may_differ(collection_path) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end: the garbage collector never looks at it, which took a tenth of the tests'
    processor time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    modes.mark(items)
    if config.option.differing:
        left_out = [item for item in items if not modes.differs(item)]
        items[:] = [item for item in items if modes.differs(item)]
        config.hook.pytest_deselected(items=left_out)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose condition, `root` or `user`, isn't met. Fail a `pure` one that asks for a state directory."""
    modes.begin(item)
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs uid 0")
    if item.get_closest_marker("user") and os.geteuid() == 0:
        pytest.skip("needs an ordinary user")


@contextlib.contextmanager
def private_state(*, ignore: tuple[str, ...] = (), suffix: str = "") -> Generator[Path]:
    """A state directory; what still lives in it at the end is an error.

    `ignore` names kinds of `Snapshot` that are not compared.
    """
    modes.refuse_if_pure()
    directory = Path(tempfile.mkdtemp(prefix="pd-", suffix=suffix))
    configure(directory)
    before = Snapshot.take(directory)
    try:
        yield directory
        # One that has just reached its deadline goes by itself.
        orphans.wait_until(lambda: not live_sandboxes(directory))
        alive = live_sandboxes(directory)
        stop_supervisor(directory)
        stop_gateway(directory)
        wait_until_clean(before, directory, ignore=("files", *ignore))
        assert not alive, f"sandboxes that nobody killed: {alive}"
    except BaseException:
        succeed_supervisor(directory)
        raise
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def leave_session(state_dir: Path) -> None:
    """End this process's session with the daemon of this directory, and the daemon."""
    session(state_dir).close()
    stop_daemon(state_dir)


def live_sandboxes(state_dir: Path) -> list[str]:
    return sorted(entry.name for entry in (state_dir / layout.RUN).glob("*") if entry.is_dir())


def stop_supervisor(state_dir: Path) -> None:
    """End this process's session, the daemon, and the supervisor with what lives in it; kill a supervisor that doesn't
    leave.

    The supervisor serves one client: it isn't told anything while the daemon has its connection.
    """
    leave_session(state_dir)
    with _processes(supervisors(state_dir)) as leaving:
        with contextlib.suppress(OSError), _connected(state_dir, layout.SUPERVISOR_SOCKET) as door:
            door.sendall(pack(Kind.OPEN, 1, b'{"op":"stop"}'))
            while door.recv(65536):  # it closes when it leaves
                pass
        left = orphans.wait_until(lambda: not supervisors(state_dir))
        if not left or not all(pidfd.wait(process, orphans.PATIENCE_SECONDS) for process in leaving):
            _kill(leaving)
            pytest.fail(f"the supervisor of {state_dir} did not leave when it was told to")


@contextlib.contextmanager
def _processes(pids: Iterable[int]) -> Generator[list[int]]:
    """Pidfds of those that live. A process that ends frees its locks and sockets before its other files, so that only
    its end says that it holds nothing.
    """
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                found.append(pidfd.open(pid))
                stack.callback(os.close, found[-1])
        yield found


def _kill(processes: Iterable[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            pidfd.send_signal(process, signal.SIGKILL)


@contextlib.contextmanager
def _connected(state_dir: Path, name: str) -> Generator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as door:
        door.settimeout(orphans.PATIENCE_SECONDS)
        with local_sockets.reached(state_dir) as short:
            door.connect(f"{short}/{name}")
        yield door


def gateway_pid(state_dir: Path) -> int | None:
    with contextlib.suppress(OSError), _connected(state_dir, layout.GATEWAY_SOCKET) as door:
        return struct.unpack("=3i", door.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return None


def stop_gateway(state_dir: Path) -> None:
    """It leaves by itself, but not while a test waits."""
    pid = gateway_pid(state_dir)
    with _processes(() if pid is None else (pid,)) as gateways:
        _kill(gateways)
        assert all(pidfd.wait(gateway, orphans.PATIENCE_SECONDS) for gateway in gateways)


def succeed_supervisor(state_dir: Path) -> None:
    """Ends all that lives in this directory, even where a test that failed has killed its supervisor: what that one had
    is left to its successor, and nobody starts one for a directory that is gone.
    """
    stop_supervisor(state_dir)
    left = Snapshot.take(state_dir)
    if live_sandboxes(state_dir) or left.cgroups or left.processes:
        with contextlib.suppress(SupervisorUnavailableError):  # a test has seen to that
            asyncio.run(_start_supervisor(state_dir))
        stop_supervisor(state_dir)


async def _start_supervisor(state_dir: Path) -> None:
    client = SupervisorClient(state_dir)
    try:
        await client.connect()
    finally:
        client.close()


def supervisors(state_dir: Path) -> list[int]:
    """Who holds the lock of this state directory, by the kernel's list."""
    try:
        found = (state_dir / layout.SUPERVISOR_LOCK).stat()
    except OSError:
        return []
    major, minor = os.major(found.st_dev), os.minor(found.st_dev)
    devices = {line.split()[2] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    # Another file system has the same numbers of inodes. (Of btrfs the list has a device that stat(2) does not tell.)
    wanted = f"{major:02x}:{minor:02x}:{found.st_ino}" if f"{major}:{minor}" in devices else f":{found.st_ino}"
    rows = (line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" not in line)
    holders = {int(row[4]) for row in rows if row[5].endswith(wanted)}
    return sorted(holders - {-1, 0, os.getpid()})


@pytest.fixture
def state_dir() -> Generator[Path]:
    with private_state() as directory:
        yield directory


@pytest.fixture(scope="module")
def state_of_module() -> Generator[Path]:
    """What `module_state` shares. A module that needs a special one overrides this."""
    with private_state() as directory:
        yield directory


@pytest.fixture
def module_state(state_of_module: Path) -> Generator[Path]:
    """The state directory that the tests of a module share, with one pool, supervisor and `host` template.

    A test fails if it leaves a sandbox alive. `private_state` looks for all else after the last test.
    """
    with no_new_sandbox(state_of_module):
        yield state_of_module


@contextlib.contextmanager
def no_new_sandbox(state_dir: Path, *, seconds: float = orphans.PATIENCE_SECONDS) -> Generator[None]:
    """Fails if the block leaves a sandbox alive in this state directory. One that lived before it may live on."""
    before = live_sandboxes(state_dir)

    def left() -> list[str]:
        return [name for name in live_sandboxes(state_dir) if name not in before]

    yield
    assert orphans.wait_until(lambda: not left(), seconds=seconds), f"sandboxes that nobody killed: {left()}"


@pytest.fixture(scope="session")
def shared_state() -> Generator[Path]:
    """The state directory of the sandboxes that `sandbox` makes: one pool and one supervisor for all."""
    # It lives as long as the session: descriptors that other tests open meanwhile are not its own.
    with private_state(ignore=("descriptors",)) as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PADDOCK_STATE_DIR", str(directory))
        patch.delenv("PADDOCK_URL", raising=False)
        yield directory


@pytest.fixture
def sandbox(shared_state: Path) -> Generator[SandboxFactory]:
    """`sandbox(**arguments of Sandbox.create)`; all are dead at the end of the test, and nothing of them is left.

    Skips, with the platform's own reason, where this machine cannot give the level.
    """
    from paddock import Sandbox
    from paddock.errors import LevelUnavailableError

    with contextlib.ExitStack() as stack:

        def make(**arguments: object) -> Sandbox:
            try:
                made = Sandbox.create(**arguments)  # type: ignore[arg-type]
            except LevelUnavailableError as error:
                pytest.skip(str(error))
            stack.callback(made.kill)
            return made

        yield make
    assert orphans.wait_until(lambda: not live_sandboxes(shared_state)), "a killed sandbox is still there"
