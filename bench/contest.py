"""Contenders take turns: in every round each does one block, in a process of its own, in alternating order."""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from bench.account import kernel_seconds, supervisor_pid
from bench.worker import TOTAL
from paddock.client import stop_daemon
from paddock.wire import Kind, pack

ROOT = Path(__file__).parent.parent
PATIENCE_SECONDS = 30.0
POOL_DRIVER = "BENCH_POOL_DRIVER"


@dataclass(frozen=True)
class Contender:
    """`subject` is `module:class` (see `worker.Subject`). `paths` come before this checkout on the path of modules.

    `state`: it is paddock, and gets an empty state directory. `block`: how often per round, if not as often as others.
    """

    name: str
    subject: str
    arguments: Mapping[str, object] = field(default_factory=dict[str, object])
    python: str = sys.executable
    paths: tuple[Path, ...] = ()
    state: bool = False
    block: int | None = None


@dataclass
class Record:
    """What one contender did. `failure` says why there is nothing."""

    name: str
    samples: list[list[dict[str, float]]] = field(default_factory=list[list[dict[str, float]]])
    cpu: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    kernel: list[float] = field(default_factory=list[float])
    """Seconds of the kernel's threads by round: for this, and for all else on the machine."""
    exact: bool = True
    version: str | None = None
    source: str | None = None
    """Where its paddock was loaded from."""
    failure: str | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.samples[0][0]) if self.samples else ()

    def rounds(self, part: str = TOTAL) -> list[list[float]]:
        """Seconds, by round."""
        return [[sample[part] for sample in block] for block in self.samples]

    def seconds(self, part: str = TOTAL) -> list[float]:
        return list(chain.from_iterable(self.rounds(part)))

    def cpu_rounds(self, *parts: str) -> list[list[float]]:
        """Processor seconds per repetition, by round; of all parts if none is named."""
        pairs = zip(self.cpu, self.samples, strict=True)
        return [[sum(v for k, v in cpu.items() if not parts or k in parts) / len(block)] for cpu, block in pairs]


class Failed(Exception):
    """A contender cannot take part; the message says why."""


class Worker:
    """A contender's process, from its start to the end of what it left behind."""

    def __init__(self, contender: Contender, directory: Path) -> None:
        self.contender = contender
        self._directory = directory
        self._state = directory / "s" if contender.state else None
        self._log = (directory / "stderr").open("w+b")
        # An installed program has its byte code.
        kept = (name for name in os.environ if not name.startswith(("PADDOCK_", "PYTHONDONTWRITEBYTECODE")))
        environment = {name: os.environ[name] for name in kept}
        environment["PYTHONPATH"] = os.pathsep.join(map(str, (*contender.paths, ROOT)))
        if self._state is not None:
            environment["PADDOCK_STATE_DIR"] = str(self._state)
            if driver := os.environ.get(POOL_DRIVER):
                self._state.mkdir(mode=0o700)
                (self._state / "config.toml").write_text(f'pool_driver = "{driver}"\n')
        argv = [contender.python, "-m", "bench.worker", contender.subject, json.dumps(dict(contender.arguments))]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                argv, stdin=pipe, stdout=pipe, stderr=self._log, env=environment, text=True, cwd=directory
            )
        except OSError:
            self._log.close()
            raise

    def ready(self) -> dict[str, Any]:
        return self._answer()

    def block(self, count: int, interval: float | None) -> dict[str, Any]:
        stdin = cast("IO[str]", self._process.stdin)
        with suppress(BrokenPipeError):  # then there is an error to be read
            stdin.write(json.dumps({"count": count, "interval": interval}) + "\n")
            stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = cast("IO[str]", self._process.stdout).readline()
        answer = json.loads(line) if line else {"error": self._last_words()}
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it ended with {self._process.wait()}"

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cast("IO[str]", self._process.stdin).close()
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        cast("IO[str]", self._process.stdout).close()
        self._log.close()
        if self._state is not None:
            stop_daemon(self._state)
            stop_supervisor(self._state)


def stop_supervisor(state: Path) -> None:
    """Has it end what lives, and leave; returns when it has. Nothing if there is none."""
    pid = supervisor_pid(state)
    if pid is None:
        return
    pidfd = os.pidfd_open(pid)
    try:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as door:
            door.settimeout(PATIENCE_SECONDS)
            door.connect(str(state / "supervisor.sock"))
            door.sendall(pack(Kind.OPEN, 1, b'{"op":"stop"}'))
            while door.recv(65536):
                pass
        select.select([pidfd], [], [], PATIENCE_SECONDS)
    finally:
        os.close(pidfd)


def contest(
    contenders: Sequence[Contender],
    *,
    rounds: int,
    block: int,
    interval: float | None = None,
    warm_up: int = 1,
) -> dict[str, Record]:
    """Records by name. Who fails is out, with the reason; `warm_up` rounds are not counted."""
    records = {contender.name: Record(contender.name) for contender in contenders}
    with ExitStack() as stack:
        top = Path(tempfile.mkdtemp(prefix="pb-", dir="/var/tmp"))  # not /tmp, which may be memory
        stack.callback(shutil.rmtree, top, ignore_errors=True)
        workers: list[Worker] = []
        for number, contender in enumerate(contenders):
            directory = top / str(number)
            directory.mkdir()
            try:
                worker = stack.enter_context(Worker(contender, directory))
                ready = worker.ready()
                records[contender.name].version, records[contender.name].source = ready["version"], ready["source"]
            except (Failed, OSError) as reason:  # OSError: its Python is not installed
                records[contender.name].failure = str(reason)
            else:
                workers.append(worker)
        for number in range(-warm_up, rounds):
            for worker in list(workers if number % 2 == 0 else reversed(workers)):
                record = records[worker.contender.name]
                kernel = kernel_seconds()
                try:
                    answer = worker.block(worker.contender.block or block, interval)
                except Failed as reason:
                    record.failure = str(reason)
                    workers.remove(worker)
                    continue
                if number >= 0:
                    record.samples.append(answer["samples"])
                    record.cpu.append(answer["cpu"])
                    record.kernel.append(kernel_seconds() - kernel)
                    record.exact = record.exact and answer["exact"]
    return records
