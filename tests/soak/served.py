"""A service in a process of its own, asked by lines of JSON: it can be killed in the middle of an answer.

Run as a program, it is that process.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.in_process import in_process

PATIENCE_SECONDS = 90.0


class Served:
    """Starts with the first question, and again with the first after it was killed."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """`{"value": …}`, or `{"error": code, "message": …}`."""
        self.send(op, **arguments)
        answer = self.answer(PATIENCE_SECONDS)
        assert answer is not None, f"{op} {arguments} was not answered in {PATIENCE_SECONDS:g} s"
        return answer

    def send(self, op: str, **arguments: Any) -> None:
        process = self._started()
        assert process.stdin is not None
        process.stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")

    def answer(self, seconds: float) -> dict[str, Any] | None:
        """None: not in that time, or never, because it was killed. One that is late is not asked again: its answer
        would be taken for that to the next question."""
        assert self._process is not None
        stream = self._process.stdout
        assert stream is not None
        if not select.select([stream], [], [], seconds)[0]:
            self.close()
            return None
        line = stream.readline()
        if not line.endswith(b"\n"):
            assert self._process.wait() == -signal.SIGKILL, f"the service ended by itself: {self._process.returncode}"
            return None
        return json.loads(line)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.served"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PADDOCK_STATE_DIR": str(self._state_dir)},
                cwd=Path(__file__).parents[2],
                bufsize=0,
            )
        return self._process


LOOK = "find . -type f -exec sha256sum {} + | sort"


def _serve() -> None:
    from paddock import Sandbox
    from paddock.client import default_transport
    from paddock.errors import PaddockError
    from paddock.model import (
        CheckStorage,
        CollectGarbage,
        CreateSandbox,
        DeleteSnapshot,
        DeleteWorkspace,
        ForkSandbox,
        GetWorkspace,
        KillSandbox,
        ListSnapshots,
        ListWorkspaces,
        OpenWorkspace,
        RollbackSandbox,
        SandboxSpec,
    )
    from paddock.supervisor.layout import default_state_dir

    transport = default_transport()

    def create(name: str, snapshot: str | None, workspace: str | None) -> str:
        spec = SandboxSpec(name=name, snapshot=snapshot, workspace=workspace, persistent=True, ttl_seconds=1200)
        return transport.perform(CreateSandbox(spec=spec)).id

    def files(id: str) -> dict[str, str]:
        lines = Sandbox.connect(id).exec(LOOK, cwd="/workspace", check=True).stdout.splitlines()
        return {path: digest for digest, path in (line.split(maxsplit=1) for line in lines)}

    def write(id: str, path: str, size: int, seed: int) -> None:
        Sandbox.connect(id).filesystem.write(f"/workspace/{path}", content(size, seed))

    def run(id: str, path: str, size: int) -> str:
        command = f"head -c {size} /dev/urandom >{path} && sync {path} && sha256sum <{path}"
        return Sandbox.connect(id).exec(command, cwd="/workspace", check=True).stdout.split()[0]

    def sweep() -> None:
        with in_process(default_state_dir()) as daemon:
            daemon.run(daemon.service.recovery.sweep)

    def evict(name: str) -> None:
        id = transport.perform(GetWorkspace(workspace=name)).id
        with in_process(default_state_dir()) as daemon:
            daemon.run(daemon.service.workspaces.evict, id)

    operations = {
        "open": lambda name: transport.perform(OpenWorkspace(name=name)).id,
        "evict": evict,
        "workspaces": lambda: [one.name for one in transport.perform(ListWorkspaces())],
        "delete_workspace": lambda name: transport.perform(DeleteWorkspace(workspace=name, discard=True)),
        "create": create,
        "files": files,
        "write": write,
        "run": run,
        "sweep": sweep,
        "fork": lambda id, count: [one.id for one in transport.perform(ForkSandbox(sandbox=id, count=count))],
        "snapshot": lambda id: Sandbox.connect(id).snapshot().id,
        "rollback": lambda id, snapshot: transport.perform(RollbackSandbox(sandbox=id, snapshot=snapshot)).id,
        "kill": lambda id: transport.perform(KillSandbox(sandbox=id)).state,
        "delete_snapshot": lambda id: transport.perform(DeleteSnapshot(snapshot=id)),
        "list": lambda: {
            one.id: {"state": one.state, "name": one.name, "origin": one.info.origin, "reason": one.info.reason}
            for one in Sandbox.list(ended=True)
        },
        "snapshots": lambda: {one.id: one.source for one in transport.perform(ListSnapshots())},
        "gc": lambda: [i.what for i in transport.perform(CollectGarbage()).items if i.kept_because is None],
        "check": lambda: [
            f"{c.name}: {c.detail}" for c in transport.perform(CheckStorage(scrub=True)) if c.status == "missing"
        ],
    }
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any]
        try:
            answer = {"value": operations[asked.pop("op")](**asked)}
        except PaddockError as error:
            answer = {"error": error.code, "message": str(error)}
        print(json.dumps(answer), flush=True)


def content(size: int, seed: int) -> bytes:
    """The same bytes for the same numbers, in every process."""
    import random

    return random.Random(seed).randbytes(size)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        _serve()
