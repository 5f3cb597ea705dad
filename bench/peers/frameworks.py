"""Sandboxes of other frameworks for agents, each in its own way: `python -m bench.worker` in the peers' environment.

One life: made ready, `true` by a shell where that is their way, gone. Which of them isolate is in `PEERS`.
"""

# What is imported here is installed in the peers' environment, where no type checker sees it.
# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false

from __future__ import annotations

import asyncio
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.peers.podman import IMAGE, Store
from bench.worker import TOTAL


class Peer(ABC):
    """`make` gives what `run` and `end` take. `warm`: only `run` is measured, in one that was made before."""

    distribution: str

    def __init__(self, warm: bool = False) -> None:
        self.version = version(self.distribution)
        self._loop = asyncio.new_event_loop()
        self._directory = tempfile.TemporaryDirectory(prefix="pb-", dir="/var/tmp")
        self.place = Path(self._directory.name)
        self._living = self._await(self.make) if warm else None

    @abstractmethod
    async def make(self) -> Any: ...

    @abstractmethod
    async def run(self, made: Any) -> int:
        """The exit code."""

    async def end(self, made: Any) -> None:  # noqa: B027 - some have no end
        ...

    def once(self) -> dict[str, float]:
        start = time.perf_counter()
        if self._living is not None:
            self._check(self._await(self.run, self._living))
            return {TOTAL: time.perf_counter() - start}
        made = self._await(self.make)
        created = time.perf_counter()
        code = self._await(self.run, made)
        executed = time.perf_counter()
        self._await(self.end, made)
        ended = time.perf_counter()
        self._check(code)
        return {
            TOTAL: ended - start,
            "create": created - start,
            "first exec": executed - created,
            "destroy": ended - executed,
        }

    def close(self) -> None:
        if self._living is not None:
            self._await(self.end, self._living)
        self._loop.close()
        self._directory.cleanup()

    def _await(self, act: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        return self._loop.run_until_complete(act(*arguments))

    def _check(self, code: int) -> None:
        if code != 0:
            raise RuntimeError(f"`true` ended with {code}")


class SweRex(Peer):
    distribution = "swe-rex"

    async def make(self) -> Any:
        from swerex.deployment.local import LocalDeployment
        from swerex.runtime.abstract import CreateBashSessionRequest

        deployment = LocalDeployment()
        await deployment.start()
        await deployment.runtime.create_session(CreateBashSessionRequest())
        return deployment

    async def run(self, made: Any) -> int:
        from swerex.runtime.abstract import BashAction

        return (await made.runtime.run_in_session(BashAction(command="true"))).exit_code

    async def end(self, made: Any) -> None:
        await made.stop()


class InspectLocal(Peer):
    distribution = "inspect-ai"

    async def make(self) -> Any:
        from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

        return await LocalSandboxEnvironment.sample_init("bench", None, {})

    async def run(self, made: Any) -> int:
        return (await made["default"].exec(["true"])).returncode

    async def end(self, made: Any) -> None:
        from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

        await LocalSandboxEnvironment.sample_cleanup("bench", None, made, False)


class OpenaiLocal(Peer):
    distribution = "openai-agents"

    async def make(self) -> Any:
        from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient

        client = UnixLocalSandboxClient()
        session = await client.create()
        await session.start()
        return client, session

    async def run(self, made: Any) -> int:
        return (await made[1].exec("true")).exit_code

    async def end(self, made: Any) -> None:
        client, session = made
        await session.stop()
        await client.delete(session)


class PydanticBubblewrap(Peer):
    distribution = "pydantic-ai-harness"

    async def make(self) -> Any:
        from pydantic_ai.workspaces import Workspace
        from pydantic_ai.workspaces.local import LocalWorkspaceBackend
        from pydantic_ai_harness.bubblewrap_sandbox._workspace import BubblewrapWorkspace

        return BubblewrapWorkspace(Workspace(LocalWorkspaceBackend(tempfile.mkdtemp(dir=self.place))))

    async def run(self, made: Any) -> int:
        return (await made.run(["true"])).exit_code


class LlmSandboxBubblewrap(Peer):
    distribution = "llm-sandbox"

    async def make(self) -> Any:
        from llm_sandbox.bubblewrap import BubblewrapSession

        session = BubblewrapSession(lang="python", skip_environment_setup=True)
        session.open()
        return session

    async def run(self, made: Any) -> int:
        return made.execute_command("true").exit_code

    async def end(self, made: Any) -> None:
        made.close()


class LlmSandboxPodman(Peer):
    """Through Docker's API, as podman serves it."""

    distribution = "llm-sandbox"

    def __init__(self, warm: bool = False) -> None:
        import docker

        self._place = tempfile.TemporaryDirectory(prefix="pb-", dir="/var/tmp", ignore_cleanup_errors=True)
        self._store = Store(Path(self._place.name))
        try:
            self._client = docker.DockerClient(base_url=self._store.serve())
            super().__init__(warm)
        except BaseException:
            self._store.close()
            raise

    async def make(self) -> Any:
        from llm_sandbox.docker import SandboxDockerSession

        session = SandboxDockerSession(
            client=self._client,
            image=IMAGE,
            lang="python",
            skip_environment_setup=True,
            keep_template=True,
            runtime_configs={"network_mode": "none"},
        )
        session.open()
        return session

    async def run(self, made: Any) -> int:
        return made.execute_command("true").exit_code

    async def end(self, made: Any) -> None:
        made.close()

    def close(self) -> None:
        super().close()
        self._client.close()
        self._store.close()
        self._place.cleanup()


class Smolagents(Peer):
    distribution = "smolagents"

    async def make(self) -> Any:
        from smolagents.local_python_executor import LocalPythonExecutor

        executor = LocalPythonExecutor([])
        executor.send_tools({})
        return executor

    async def run(self, made: Any) -> int:
        made("1 + 1")
        return 0
