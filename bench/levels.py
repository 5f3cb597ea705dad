"""create + first exec + destroy at each level, a warm command, and a fork, beside what other tools make of the same
walls: runsc, Podman over runc and over runsc, and QEMU with a kernel that boots each time."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from bench.contest import Contender, contest
from bench.cycle import Cycle
from bench.peers.containers import PodmanRun, Tool
from bench.peers.podman import Store
from bench.plan import Plan
from bench.report import Section
from bench.warm import Exec
from bench.worker import TOTAL
from paddock import Sandbox
from paddock.backends.guest import program
from paddock.linux import proc

LEVELS = ("jail", "container", "gvisor", "microvm")
WALLED = ("gvisor", "microvm")
_KERNELS = "/usr/local/lib/paddock/kernel/boot"
_STARTS = 10
_PATIENCE_SECONDS = 120
_IDLE_SECONDS = 0.1  # of processor time in one second
_INIT = "#!/bin/busybox sh\necho the machine is up\nexec /bin/busybox poweroff -f\n"


class LevelCycle(Cycle):
    def __init__(self, level: str, spares: int = 0) -> None:
        """`spares`: none, so that each is started."""
        self._level = level
        state = Path(os.environ["PADDOCK_STATE_DIR"])
        state.mkdir(mode=0o700, exist_ok=True)
        (state / "config.toml").write_text(f"spares = {spares}\n")
        super().__init__()

    def create(self) -> Sandbox:
        return Sandbox.create(level=self._level, ttl=600)


class WaitingCycle(LevelCycle):
    """As it is when nobody has asked for a while: one waits."""

    def __init__(self, level: str) -> None:
        self._run = Path(os.environ["PADDOCK_STATE_DIR"], "run")
        self._made_one = False
        super().__init__(level, spares=1)

    def once(self) -> dict[str, float]:
        if self._made_one:
            self._await_one()
        self._made_one = True
        return super().once()

    def _await_one(self) -> None:
        """Until there is one, and its processes do nothing any more."""
        used: float | None = None
        for _ in range(_PATIENCE_SECONDS):
            now = sum(map(_processor_seconds, self._run.glob("wv_*/state.json")))
            if used is not None and now > 0 and now - used < _IDLE_SECONDS:
                return
            used = now or None
            time.sleep(1)
        raise RuntimeError("none waits")


def _processor_seconds(record: Path) -> float:
    """Of all processes of what the record is of; 0 if it has just gone."""
    try:
        first = int(json.loads(record.read_bytes())["pid"])
        family = [first, *proc.descendants(first)]
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in family]
    except OSError:
        return 0.0
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")


class LevelExec(Exec):
    """The part of a static program, which no loader links and which ends at once, is what the level itself takes. The
    other part is the same `true`, started by a shell inside: what the level's kernel takes, without us."""

    def __init__(self, level: str) -> None:
        super().__init__(["true"], level=level)
        self._sandbox.files.write("/tmp/static", program().read_bytes())
        self._sandbox.exec(["chmod", "755", "/tmp/static"], check=True)

    def once(self) -> dict[str, float]:
        whole = super().once()
        inside = self._seconds(["sh", "-c", "/bin/true;" * _STARTS]) - self._seconds(["sh", "-c", ":"])
        static = self._seconds(["/tmp/static"])
        return {**whole, "a static program": static, "started by a shell inside": inside / _STARTS}

    def _seconds(self, command: list[str]) -> float:
        start = time.perf_counter()
        self._sandbox.exec(command)
        return time.perf_counter() - start


class LevelFork:
    """Until a command has run in the child."""

    def __init__(self, level: str) -> None:
        self._sandbox = Sandbox.create(level=level, ttl=1800)
        self._sandbox.exec(["true"], check=True)

    def once(self) -> dict[str, float]:
        start = time.perf_counter()
        child = self._sandbox.fork()
        forked = time.perf_counter()
        try:
            child.exec(["true"], check=True)
            end = time.perf_counter()
        finally:
            child.kill()
        return {TOTAL: end - start, "fork": forked - start, "first exec": end - forked}

    def close(self) -> None:
        self._sandbox.kill()


class PodmanRunsc(PodmanRun):
    """As Podman would have gVisor."""

    def command(self) -> Sequence[str]:
        run = super().command()
        at = len(self.podman)
        return [*run[:at], "--runtime=runsc", "--runtime-flag=ignore-cgroups", "--runtime-flag=network=none", *run[at:]]


class ColdBoot(Tool):
    """QEMU with Debian's cloud kernel, and a machine that says so and goes off: no disk, no guest, no limits."""

    program, package = "qemu-system-x86_64", "qemu-system-x86"
    place: Path
    accelerator: ClassVar[str] = "tcg"

    def prepare(self) -> None:
        kernels = sorted(Path(_KERNELS).glob("vmlinuz-*"))
        busybox = shutil.which("busybox")
        if not kernels or busybox is None:
            raise FileNotFoundError("no kernel or no busybox; as root: make levels")
        self._kernel = kernels[-1]
        self._disk = self.place / "initrd"
        files = {"bin": None, "dev": None, "bin/busybox": Path(busybox).read_bytes(), "init": _INIT.encode()}
        self._disk.write_bytes(archive(files))

    def command(self) -> Sequence[str]:
        boot = ["-kernel", str(self._kernel), "-initrd", str(self._disk), "-append", "console=ttyS0 quiet panic=-1"]
        machine = ["-accel", self.accelerator, "-m", "256", "-nodefaults", "-display", "none", "-serial", "stdio"]
        return [self.program, *machine, "-no-reboot", *boot]

    def run(self, argv: Sequence[str]) -> str:
        said = super().run(argv)
        if "the machine is up" not in said:
            raise RuntimeError(f"it did not come up: {said[-300:]}")
        return said


def archive(files: dict[str, bytes | None]) -> bytes:
    """A cpio archive (newc), as Linux unpacks it; None is a directory."""
    parts: list[bytes] = []
    for number, (name, data) in enumerate({**files, "TRAILER!!!": b""}.items(), 1):
        mode = 0o40755 if data is None else 0o100755
        body = data or b""
        fields = (number, mode, 0, 0, 1, 0, len(body), 0, 0, 0, 0, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        parts += [head, bytes(-len(head) % 4), body, bytes(-len(body) % 4)]
    return b"".join(parts)


def contenders(subject: str, levels: Sequence[str] = LEVELS) -> list[Contender]:
    return [Contender(f"paddock {level}", f"bench.levels:{subject}", {"level": level}, state=True) for level in levels]


PEERS = (
    Contender("runsc run", "bench.peers.containers:Runsc"),
    Contender("podman run", "bench.peers.containers:PodmanRun"),
    Contender("podman run, over runsc", "bench.levels:PodmanRunsc"),
    Contender("podman run -d, exec, rm", "bench.peers.containers:PodmanLife"),
    Contender("qemu, a kernel booted", "bench.levels:ColdBoot", block=1),
)
WARM_PEERS = (Contender("podman exec", "bench.peers.containers:PodmanLife", {"warm": True}),)


def measure(plan: Plan) -> list[Section]:
    """Peers of the same walls are always among them; who is not installed says so."""
    with an_engine():
        return list(_sections(plan))


@contextmanager
def an_engine() -> Generator[None]:
    """For our containers: Podman with a store of its own, unless one was named."""
    if "DOCKER_HOST" in os.environ or shutil.which("podman") is None:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="pb-", dir="/var/tmp", ignore_cleanup_errors=True) as place:
        store = Store(Path(place))
        try:
            os.environ["DOCKER_HOST"] = store.serve()
            yield
        finally:
            os.environ.pop("DOCKER_HOST", None)
            store.close()


def _sections(plan: Plan) -> Iterator[Section]:
    for name, title, mine, peers in (
        ("levels", "create + exec true + destroy", contenders("LevelCycle"), PEERS),
        ("levels waiting", "the same, of one that waited", contenders("WaitingCycle", WALLED), ()),
        ("levels warm", 'exec("true") in a living sandbox', contenders("LevelExec"), WARM_PEERS),
        ("levels fork", "a child until its first command has ended", contenders("LevelFork"), ()),
    ):
        section = Section(name, title)
        records = contest([*mine, *peers], rounds=plan.rounds(5), block=3)
        ours = [record for label, record in records.items() if label.startswith("paddock")]
        for record in records.values():
            section.add(record)
        for one in ours:
            section.compare(one, [record for record in records.values() if record not in ours])
        yield section
