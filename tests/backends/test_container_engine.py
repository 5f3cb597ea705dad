"""What becomes of a container when its engine, its image or somebody else does what nobody asked for."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import msgspec
import pytest

from paddock.backends import Ending, SandboxPlan
from paddock.backends.container import ContainerBackend, _probe
from paddock.backends.container._options import OWNER, SANDBOX
from paddock.backends.container._records import Record, Records
from paddock.errors import PaddockError, PlatformError, SandboxDiedError, UnsupportedError
from paddock.linux import proc, subordinate_ids
from paddock.model import Limits, Mount, SandboxSpec
from tests.backends.containers import ContainerHarness
from tests.backends.engines import PodmanService
from tests.conformance import Box, eventually
from tests.orphans import descriptors, none_lost


@contextlib.asynccontextmanager
async def backend_of(harness: ContainerHarness) -> AsyncGenerator[ContainerBackend]:
    backend = harness.backend()
    try:
        yield backend
    finally:
        await backend.aclose()


@contextlib.asynccontextmanager
async def boxed(harness: ContainerHarness, **spec: object) -> AsyncGenerator[tuple[ContainerBackend, Box]]:
    async with backend_of(harness) as backend:
        plan = await harness.plan(SandboxSpec(**spec))  # type: ignore[arg-type]
        instance = await backend.create(plan)
        try:
            yield backend, Box(instance, plan)
        finally:
            await instance.kill()
            await instance.aclose()


def left(harness: ContainerHarness) -> list[str]:
    return sorted(name for name in os.listdir(harness.state_dir / "containers") if name.startswith("sb_"))


def record(plan: SandboxPlan) -> Record:
    return Record(
        id=plan.id,
        instance_id=0,
        deadline=plan.deadline,
        template=plan.template,
        boot=proc.boot_id(),
    )


# no engine, or none that can be used


@pytest.fixture
def strange_engine(tmp_path: Path) -> Generator[tuple[Path, list[bytes]]]:
    """Answers every request with what lies in the list."""
    answer: list[bytes] = []
    place = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place))
        server.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    caller, _ = server.accept()
                    with caller:
                        caller.recv(65536)
                        caller.sendall(answer[0])

        thread = threading.Thread(target=serve)
        thread.start()
        yield place, answer
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def _http(status: str, body: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


def test_without_an_engine_the_level_is_refused_with_what_would_fix_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    backend = ContainerBackend(tmp_path)
    assert "no container engine listens" in (backend.probe() or "")
    (line,) = backend.checks()
    assert (line.area, line.name, line.status) == ("level", "container", "missing")
    assert line.fix is not None
    assert "podman" in line.fix


@pytest.mark.parametrize(("mode", "owner", "taken"), [(0o700, 0, True), (0o702, 0, False), (0o700, 1, False)])
def test_where_nobody_made_a_directory_for_a_user_his_own_engine_is_found_and_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, owner: int, taken: bool
) -> None:
    uid = tmp_path.stat().st_uid + owner + (os.getuid() == 0) * 4711
    directory = tmp_path / f"podman-run-{uid}"
    directory.mkdir()
    directory.chmod(mode)
    if os.getuid() == 0:
        os.chown(directory, 4711, 4711)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: uid)
    assert (directory / "podman/podman.sock" in _probe.places()) == taken


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (_http("400 Bad Request", '{"message":"client version 1.41 is too new"}'), "too new"),
        (_http("200 OK", "nonsense"), "nothing that could be used"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "nothing that could be used"),
        (b"", "nothing that could be used"),
        (_http("200 OK", '{"KernelVersion":"1.0-vm"}'), "another kernel"),
        (_http("200 OK", '{"SecurityOptions":[]}'), "filters no system calls"),
        (_http("200 OK", '{"SecurityOptions":["name=seccomp","name=selinux"]}'), "SELinux"),
    ],
)
def test_an_engine_that_cannot_be_used_is_refused_with_the_reason(
    strange_engine: tuple[Path, list[bytes]], answer: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, answers = strange_engine
    answers.append(answer)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{place}")
    backend = ContainerBackend(place.parent)
    assert words in (backend.probe() or "")
    assert backend.checks()[0].status == "missing"


def test_an_engine_without_subordinate_ids_is_refused_with_the_command_that_gives_them(
    strange_engine: tuple[Path, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, answers = strange_engine
    answers.append(_http("200 OK", '{"SecurityOptions":["name=seccomp"],"Rootless":true}'))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{place}")
    monkeypatch.setattr(subordinate_ids, "granted", lambda: "/etc/subuid gives you none")
    backend = ContainerBackend(place.parent)
    assert "/etc/subuid gives you none" in (backend.probe() or "")


@pytest.mark.parametrize(("mode", "closed"), [(0o600, "podman"), (0o755, "podman/podman.sock")])
def test_an_engine_of_another_user_is_one_missing_row_with_the_reason(mode: int, closed: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "podman").mkdir()
        place = directory / "podman/podman.sock"
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(place))
            server.listen()
            place.chmod(0)
            (directory / "podman").chmod(mode)
            level, detail, fix = _as_another_user(place)
            (directory / "podman").chmod(0o755)
    assert level == "missing"
    assert detail == f"{place} may not be used by this user: {directory / closed} is closed to it"
    assert "podman" in fix


def _as_another_user(place: Path) -> list[str]:
    """Return status, detail and fix of the container level for a user who is not root."""
    script = (
        "import os, sys; from paddock.backends.container import ContainerBackend; from pathlib import Path\n"
        "if os.getuid() == 0: os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
        "(line,) = ContainerBackend(Path('/none')).checks(); print(line.status, line.detail, line.fix, sep='\\n')"
    )
    environment = {**os.environ, "DOCKER_HOST": f"unix://{place}"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_engine_elsewhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://10.0.0.1:2375")
    assert "another machine" in (ContainerBackend(tmp_path).probe() or "")


# an engine that dies


class Cutter:
    """Stands between a backend and its engine, and hangs up instead of passing on the request number `at`, counted from
    the first that changes something; with `after`, instead of passing on its answer."""

    def __init__(self, place: Path, engine: Path, at: int, *, after: bool) -> None:
        self._place, self._engine, self._at, self._after = place, engine, at, after
        self._changes = 0
        self._serving: set[asyncio.Task[None]] = set()
        self.was_reached = False

    async def __aenter__(self) -> Cutter:
        self._server = await asyncio.start_unix_server(self._called, str(self._place))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.get_running_loop().create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        change = not head.startswith(b"GET")
        self._changes += change
        cut = change and self._changes == self._at
        self.was_reached |= cut
        if cut and not self._after:
            writer.close()
            return
        to, back = await asyncio.open_unix_connection(str(self._engine))
        back.write(head)

        async def forward() -> None:
            while data := await reader.read(65536):
                back.write(data)
            back.close()

        forwarding = asyncio.ensure_future(forward())
        while data := await to.read(65536):
            if cut:
                break  # the engine would keep the connection
            writer.write(data)
        forwarding.cancel()
        await asyncio.gather(forwarding, return_exceptions=True)
        back.close()
        writer.close()


@pytest.mark.parametrize(("at", "after"), [(1, True), (2, False)], ids=["created", "not-started"])
def test_an_engine_that_dies_in_a_create_leaves_nothing(
    containers: ContainerHarness, engine: PodmanService, tmp_path: Path, at: int, after: bool
) -> None:
    async def main() -> None:
        async with backend_of(containers) as warm:  # its image is there
            plan = await containers.plan(SandboxSpec())
            await (await warm.create(plan)).kill()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", f"unix://{tmp_path}/c")
            cutter = Cutter(tmp_path / "c", engine.socket, at, after=after)
            async with cutter, backend_of(containers) as backend:
                plan = await containers.plan(SandboxSpec())
                with pytest.raises(PlatformError):
                    await backend.create(plan)
                assert cutter.was_reached
        assert left(containers) == []
        assert engine.containers() == []

    asyncio.run(main())


def test_what_a_killed_service_had_half_made_is_removed_by_the_next(
    containers: ContainerHarness, engine: PodmanService
) -> None:
    async def main() -> None:
        async with boxed(containers) as (_, box):
            image = engine.run("inspect", "--format={{.Image}}", f"paddock-{box.id}")
            labels = [f"--label={OWNER}={containers.state_dir}/containers", f"--label={SANDBOX}=sb_unknown"]
            engine.run("create", "--network=none", "--name=paddock-sb_unknown", *labels, image, "true")
            plan = await containers.plan(SandboxSpec())
            containers.backend().records.make(record(plan))
            async with backend_of(containers) as later:
                ending = (await later.state()).living[plan.id]
                assert ending is not None
                assert "before it was complete" in ending.reason
                assert await later.adopt(plan.id) is None
                await later.forget(plan.id)
                assert len(engine.containers()) == 1
                assert left(containers) == [box.plan.id]

    asyncio.run(main())


def test_without_its_engine_what_runs_is_used_and_found_and_ends_on_time(
    containers: ContainerHarness, engine: PodmanService
) -> None:
    async def main() -> None:
        async with boxed(containers) as (_, box):
            engine.kill()
            try:
                assert (await box.run("echo", "here")).text == "here"
                async with backend_of(containers) as later:
                    assert (await later.state()).living[box.plan.id] is None
                    adopted = await later.adopt(box.plan.id)
                    assert adopted is not None
                    assert (await Box(adopted, box.plan).run("echo", "there")).text == "there"
                    await adopted.aclose()
                    with pytest.raises(PaddockError, match=r"cannot be reached|not available"):
                        await later.create(await containers.plan(SandboxSpec()))
                usage = await box.instance.usage()
                assert usage.processes is None or usage.processes > 0
            finally:
                engine.start()

    asyncio.run(main())


# somebody else


def test_a_container_that_somebody_removes_says_so(containers: ContainerHarness, engine: PodmanService) -> None:
    async def main() -> None:
        async with boxed(containers) as (backend, box):
            engine.run("rm", "--force", "--time=0", f"paddock-{box.id}")
            async with asyncio.timeout(60):
                ending = await box.instance.wait_ended()
            assert "somebody else" in ending.reason
            with pytest.raises(SandboxDiedError):
                await box.run("true")
            await box.instance.kill()
            await backend.forget(box.plan.id)
        assert left(containers) == []

    asyncio.run(main())


def test_an_image_that_somebody_removes_is_made_again(containers: ContainerHarness, engine: PodmanService) -> None:
    async def main() -> None:
        async with backend_of(containers) as backend:
            for _ in range(2):
                instance = await backend.create(await containers.plan(SandboxSpec()))
                await instance.kill()
                engine.run("rmi", "--all", "--force")

    asyncio.run(main())


def test_a_pid_1_that_dies_is_told(containers: ContainerHarness) -> None:
    async def main() -> None:
        async with boxed(containers) as (backend, box):
            os.kill(backend.records.read(box.plan.id).pid, signal.SIGKILL)
            async with asyncio.timeout(60):
                ending = await box.instance.wait_ended()
            assert ending.limit is None
            assert "pid 1" in ending.reason

    asyncio.run(main())


def test_what_has_its_name_by_now_is_not_taken_for_it(containers: ContainerHarness, engine: PodmanService) -> None:
    async def main() -> None:
        async with boxed(containers) as (_, box):
            image = engine.run("inspect", "--format={{.Image}}", f"paddock-{box.id}")
            engine.run("rename", f"paddock-{box.id}", "ours")
            engine.run("create", "--network=none", f"--name=paddock-{box.id}", image, "true")
            left = set(engine.containers())
            try:
                await box.instance.kill()
                assert len(left) == 2
                (theirs,) = engine.containers()
                assert engine.run("inspect", "--format={{.Name}}", theirs) == f"paddock-{box.id}"
            finally:
                for one in engine.containers():
                    engine.run("rm", "--force", one)

    asyncio.run(main())


def test_it_is_killed_though_there_is_no_room_to_note_why(
    containers: ContainerHarness, engine: PodmanService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(records: Records, record: Record) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def main() -> None:
        async with boxed(containers) as (_, box):
            monkeypatch.setattr(Records, "write", full)
            try:
                await box.instance.kill()
            finally:
                monkeypatch.undo()
            assert engine.containers() == []

    asyncio.run(main())


def test_one_that_stands_still_past_its_deadline_is_ended_by_whoever_looks(
    containers: ContainerHarness, engine: PodmanService
) -> None:
    async def main() -> None:
        async with boxed(containers) as (backend, box):
            try:
                engine.run("pause", f"paddock-{box.id}")
            except subprocess.CalledProcessError as error:
                pytest.skip(f"this engine cannot pause: {error.stderr.strip()[-200:]}")
            known = backend.records.read(box.plan.id)
            assert known is not None
            backend.records.write(msgspec.structs.replace(known, deadline=1.0))
            async with backend_of(containers) as later:
                ending = await eventually("it is ended", lambda: _ending_of(later, box))
            assert ending.limit == "ttl"

    asyncio.run(main())


async def _ending_of(backend: ContainerBackend, box: Box) -> Ending | None:
    return (await backend.state()).living[box.plan.id]


# inside


def test_what_the_engine_and_the_host_keep_is_not_seen_inside(containers: ContainerHarness) -> None:
    async def main() -> None:
        async with boxed(containers, env={"TOKEN": "canary-4711"}) as (_, box):
            # What lies over some files of /proc is a directory there.
            found = await box.sh("ls -A /.paddock-host; touch /.paddock-host/x /.paddock/x", user="root")
            assert found.text == "told"
            found = await box.sh("cat /proc/*/environ /proc/*/cmdline | grep -ac canary-4711", user="root")
            assert (
                found.text == "1"
            )  # the environments of what looks for it: the shell's, cat's and grep's are one line
            checks = {check.name: (check.status, check.detail) for check in await box.instance.posture()}
            assert [
                checks[name]
                for name in ("capabilities", "privileges", "system calls", "namespaces")
                if checks[name][0] == "missing"
            ] == []

    asyncio.run(main())


def test_root_inside_cannot_end_pid_1_nor_become_more(containers: ContainerHarness) -> None:
    async def main() -> None:
        async with boxed(containers) as (_, box):
            tried = await box.sh(
                "kill -9 1; kill -STOP 1; mount -t tmpfs none /mnt; unshare -m true; chroot / true; "
                "mknod /null c 1 3; echo b >/proc/sysrq-trigger; ip link add d type dummy; dmesg; "
                "cat /proc/1/environ /proc/1/mem; grep ^CapEff /proc/self/status",
                user="root",
            )
            assert tried.text == "CapEff:\t00000000000000fb"
            assert (await box.run("echo", "alive")).text == "alive"

    asyncio.run(main())


@pytest.mark.parametrize("user", [None, "root"])
def test_calls_are_those_of_the_jail(containers: ContainerHarness, user: str | None) -> None:
    """An engine's own filter lets user namespaces, keys and io_uring through, this one or that."""

    async def main() -> None:
        async with boxed(containers) as (_, box):
            assert (await box.sh("unshare --user true", user=user)).status.code != 0
            tried = await box.python(
                "import ctypes\n"
                "libc = ctypes.CDLL(None, use_errno=True)\n"
                "for number, *rest in ((250, 0, -3, 1), (425, 1, 0), (321, 0, 0, 0), (323, 0), (298, 0, 0)):\n"
                "    print(libc.syscall(number, *rest, 0, 0))",
                user=user,
            )
            assert set(tried.text.split()) == {"-1"}  # keyctl, io_uring_setup, bpf, userfaultfd, perf_event_open
            filters = await box.sh("grep Seccomp_filters /proc/self/status", user=user)
            assert filters.text.split()[-1] == "2"

    asyncio.run(main())


@pytest.mark.parametrize("feature", [pytest.param("mounts", marks=pytest.mark.user), "nested"])
def test_what_it_cannot_do_is_refused_before_anything_is_made(containers: ContainerHarness, feature: str) -> None:
    async def main() -> None:
        async with backend_of(containers) as backend:
            plan = await containers.plan(
                SandboxSpec(
                    mounts=(Mount(source="/usr", target="/mnt"),) if feature == "mounts" else (),
                    nested=1 if feature == "nested" else 0,
                )
            )
            with pytest.raises(UnsupportedError) as caught:
                await backend.create(plan)
            assert caught.value.details == {"feature": feature}
            assert (await backend.state()).living == {}

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_hundred_lives_leave_nothing(containers: ContainerHarness, engine: PodmanService) -> None:
    async def main() -> None:
        async with backend_of(containers) as backend:
            before = 0
            for number in range(300):
                plan = await containers.plan(SandboxSpec(limits=Limits(memory_mib=64)))
                instance = await backend.create(plan)
                await instance.kill()
                await instance.aclose()
                await backend.forget(plan.id)
                if number == 0:  # from now on nothing is opened for good
                    before = len(descriptors())
            assert await asyncio.to_thread(none_lost, before)

    asyncio.run(main())
    assert left(containers) == []
    assert engine.containers() == []
