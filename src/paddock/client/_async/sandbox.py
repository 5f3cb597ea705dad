"""The isolated computer that a caller holds."""

from __future__ import annotations

import sys

from paddock import model
from paddock.client._command import (
    checked,
    exec_spec,
    kind_of,
    level_of,
    limits_of,
    mounts_of,
    network_of,
    policy_document,
    reference,
    renamed,
    required_seconds,
    seconds,
    template_of,
    texts,
)
from paddock.client._opening import aopens
from paddock.errors import InvalidArgumentError
from paddock.model import State

from .approvals import waiting
from .daemon import default_async_transport

TYPE_CHECKING = False
if not TYPE_CHECKING:

    def overload(function):
        return function

else:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Literal, NoReturn, Self, Unpack, overload

    from paddock._renamed import OldCreate, OldTimeout, OldTtl
    from paddock.client._command import Duration, Network, PolicySource
    from paddock.client._forward import Forward
    from paddock.model import (
        AuditRecord,
        ExecInfo,
        ExecResult,
        Level,
        Limits,
        Mount,
        MountDiff,
        Promotion,
        PtySize,
        Usage,
    )
    from paddock.model import Sandbox as SandboxInfo
    from paddock.model import Snapshot as SnapshotInfo
    from paddock.model import Workspace as WorkspaceInfo

    from .connection import AsyncConnection
    from .filesystem import AsyncFilesystem
    from .process import AsyncProcess, AsyncReader
    from .snapshot import AsyncSnapshot
    from .transport import AsyncTransport
    from .workspace import AsyncWorkspace


_INTERPRETERS = {
    "bash": ("bash", "-s"),
    "javascript": ("node", "-"),
    "perl": ("perl", "-"),
    "python": ("python3", "-"),
    "ruby": ("ruby", "-"),
    "sh": ("sh", "-s"),
}


class AsyncSandbox:
    """A disposable computer. Its `with` block ends it, on success and on exception.

    `create` makes a sandbox. `connect` and `list` find those that live.

    Example:
        ```python
        async with await AsyncSandbox.create(ttl="2m") as sandbox:
            await sandbox.files.write("/workspace/cell.py", "print(6 * 7)")
            result = await sandbox.exec("python3 /workspace/cell.py", timeout=30)
            print(result.exit_code, result.stdout)  # 0 42
        ```
    """

    _warns = False
    """Whether dropping this object leaves a sandbox that only its TTL ends."""

    def __init__(self, info: SandboxInfo | None = None, transport: AsyncTransport | None = None) -> None:
        if info is None or transport is None:
            raise TypeError(f"{type(self).__name__}() makes no sandbox: write {type(self).__name__}.create()")
        self._info = info
        self._transport = transport
        self._forwards: list[Forward] = []

    @classmethod
    @aopens
    async def create(
        cls,
        template: str | None = None,
        *,
        image: str | None = None,
        level: Level | str | None = None,
        name: str | None = None,
        ttl: Duration = 300.0,
        idle_timeout: Duration | None = None,
        persistent: bool = False,
        limits: Limits | Mapping[str, float] | None = None,
        env: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        mounts: Sequence[Mount | str] | Mapping[str, str] = (),
        snapshot: str | AsyncSnapshot | SnapshotInfo | None = None,
        workspace: str | AsyncWorkspace | WorkspaceInfo | None = None,
        network: Network = False,
        policy: PolicySource | None = None,
        max_children: int = 0,
        idempotency_key: str | None = None,
        transport: AsyncTransport | None = None,
        **old: Unpack[OldCreate],
    ) -> AsyncSandbox:
        """Create a sandbox and return when you can use it.

        Args:
            template: `host` (the default), `code-interpreter`, `debian`, or an image by `oci:DIR[:TAG]`,
                `oci-archive:FILE`, `docker-archive:FILE` or `docker://HOST/NAME:TAG`.
            image: An image as Docker names it, such as `python:3.12`, in place of `template`.
            level: `jail`, `gvisor`, `microvm` or `container`: that level or an error. None is the default level of
                this machine.
            name: Another way to say which. It is unique among the sandboxes that live.
            ttl: How long it lives, even if this program ends earlier: seconds, a timedelta, or a text such as `"5m"`.
            idle_timeout: paddock pauses it after so long without use: seconds, a timedelta or a text. The next use
                wakes it: see `pause`.
            persistent: It outlives this program. Another one finds it by id or name.
            limits: `Limits(memory_mib=512)`, or a dict of some of its fields.
            env: Variables of its commands.
            labels: Texts that `info.spec.labels` repeats.
            mounts: Directories of the host: `["./project"]`, `{"./project": "/workspace"}` or Mounts.
            snapshot: It starts with the files of this snapshot: an id, a name, or what `snapshot` returned.
            workspace: This workspace is at `/workspace`: an id, a name, or a Workspace. One living sandbox may
                write it.
            network: False means no network. A list names hosts and registries: `["pypi", "api.github.com"]`, and an
                index of your own: `["pypi=https://pypi.example.com/simple"]`. A policy says more, as `policy` does.
            policy: A path to a `paddock.yaml`, its text, plain values, or a PolicyDocument.
            max_children: How many sandboxes programs inside may have at a time.
            idempotency_key: The same key returns the sandbox of the first call.
            transport: `paddock.local_async(DIR)` is another state directory.

        Returns:
            The running sandbox.

        Raises:
            InvalidArgumentError: A value isn't possible, such as an unknown level.
            LevelUnavailableError: This machine can't give the level.
            NotFoundError: The template, snapshot or workspace doesn't exist.
            ImageInvalidError: The image has a defect, or holds files that no sandbox may have.
            AlreadyExistsError: A living sandbox has the name.
            InvalidStateError: Another living sandbox has the workspace.
            PolicyDeniedError: The owner of this machine doesn't allow that much.
            PolicyInvalidError: The policy has a mistake. The message says where.
            ResourceExhaustedError: The machine is out of memory, disk or processes.
            NotConfiguredError: This machine lacks a program. The message has the command that installs it.

        Example:
            ```python
            sandbox = await AsyncSandbox.create(ttl="5m", limits={"memory_mib": 512}, env={"MODE": "test"})
            print((await sandbox.exec("echo $MODE")).stdout)  # test
            await sandbox.kill()
            ```
        """
        if old:
            ttl, idle_timeout, max_children = renamed(
                "create", old, ttl=(ttl, 300.0), idle_timeout=(idle_timeout, None), max_children=(max_children, 0)
            )
        spec = model.SandboxSpec(
            template=template_of(template, image),
            level=level_of(level),
            name=name,
            ttl_seconds=required_seconds(ttl, "ttl"),
            persistent=persistent,
            limits=limits_of(limits),
            env=texts(env, "env"),
            labels=texts(labels, "labels"),
            mounts=mounts_of(mounts) if mounts else (),
            snapshot=reference(snapshot, "snapshot"),
            workspace=reference(workspace, "workspace"),
            nested=max_children,
            policy=network_of(network, policy),
            idle_seconds=seconds(idle_timeout, "idle_timeout"),
        )
        transport = transport or default_async_transport()
        info = await transport.perform(model.CreateSandbox(spec=spec, idempotency_key=idempotency_key))
        made = cls(info, transport)
        made._warns = not persistent
        return made

    @classmethod
    @aopens
    async def connect(cls, id_or_name: str, *, transport: AsyncTransport | None = None) -> AsyncSandbox:
        """Return a living sandbox. It keeps its TTL.

        Args:
            id_or_name: Its id, a unique prefix of the id, or its name.
            transport: `paddock.local_async(DIR)` is another state directory.

        Returns:
            A second object for the same sandbox. Dropping it ends nothing.

        Raises:
            NotFoundError: The sandbox doesn't exist.
            SandboxDiedError: It has ended. The message says why.

        Example:
            ```python
            again = await AsyncSandbox.connect(sandbox.id)
            print(again.state)  # running
            ```
        """
        transport = transport or default_async_transport()
        info = await transport.perform(model.GetSandbox(sandbox=id_or_name))
        if info.state in (State.KILLED, State.FAILED):
            raise model.died(info)
        return cls(info, transport)

    @classmethod
    async def list(cls, *, ended: bool = False, transport: AsyncTransport | None = None) -> tuple[AsyncSandbox, ...]:
        """List your sandboxes.

        Args:
            ended: List those as well that have ended and are still on record.
            transport: `paddock.local_async(DIR)` is another state directory.

        Returns:
            A tuple of sandboxes, oldest first.

        Raises:
            DaemonUnavailableError: The daemon doesn't start, or doesn't answer.

        Example:
            ```python
            for one in await AsyncSandbox.list():
                print(one.id, one.name, one.state)
            ```
        """
        transport = transport or default_async_transport()
        return tuple(cls(info, transport) for info in await transport.perform(model.ListSandboxes(ended=ended)))

    @property
    def info(self) -> SandboxInfo:
        """The record at the last `create`, `connect`, `refresh`, `extend`, `pause` or `kill`."""
        return self._info

    @property
    def id(self) -> str:
        """The id, such as `sb_0vbrkvtb04eez01c`."""
        return self._info.id

    @property
    def name(self) -> str | None:
        """The name that `create` gave it, or None."""
        return self._info.spec.name

    @property
    def state(self) -> State:
        """The state in `info`. `refresh` asks again."""
        return self._info.state

    @property
    def level(self) -> Level:
        """The strength of its isolation."""
        return self._info.level

    @property
    def policy(self) -> str | None:
        """The revision of its policy in `info`. None: it has no network."""
        return self._info.policy

    @property
    def files(self) -> AsyncFilesystem:
        """The files of the sandbox: read, write, list, upload, download."""
        from .filesystem import AsyncFilesystem

        return AsyncFilesystem(self.id, self._transport)

    @property
    def filesystem(self) -> AsyncFilesystem:
        """The same as `files`, by its name from before 1.0."""
        return self.files

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: Duration | None = None,
        input: str | bytes | None = None,
        check: bool = False,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        capture_bytes: int = 1 << 20,
        expect_revision: str | None = None,
        wait_for_approval: Duration | None = None,
        **old: Unpack[OldTimeout],
    ) -> ExecResult:
        """Run a command to its end, and return the result.

        A non-zero exit, a signal or an exceeded limit is a result, not an exception.

        Args:
            command: A text is a line for bash, or for sh without bash. A list is a program and its arguments.
            cwd: The directory, in place of the template's.
            env: More variables.
            user: A user of the sandbox, such as `root`.
            timeout: Seconds, a timedelta or a text such as `"5m"`. Then paddock kills everything that the command
                started, and `result.limit` is `"time"`.
            input: What the command reads from stdin.
            check: Raise CommandFailedError unless the exit code is 0.
            on_stdout: Called with each line as the command prints it, without its end. `print` is one.
            on_stderr: The same of the other stream. Callbacks may run on another thread.
            capture_bytes: How much of each stream the result keeps: half from the start, half from the end. `output`
                has the rest.
            expect_revision: Run it only under this policy, else raise InvalidStateError.
            wait_for_approval: Wait so many seconds (or a timedelta, or a text) for a person, where the policy asks one
                about this command. Without it, and when the time is over, ApprovalNeededError has the `approval_id`.

        Returns:
            How it ended, with the output of both streams.

        Raises:
            CommandFailedError: With `check`, the exit code isn't 0. `result` is the whole result.
            InvalidArgumentError: A value isn't possible, such as a timeout of 0.
            NotFoundError: The sandbox has no such user or directory.
            PolicyDeniedError: The policy denies the command.
            ApprovalNeededError: A person has to approve the command first.
            InvalidStateError: The policy isn't `expect_revision`.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            result = await sandbox.exec("echo hello; exit 3", timeout=30)
            print(result.exit_code, result.stdout)  # 3 hello
            ```
        """
        if old:
            (timeout,) = renamed("exec", old, timeout=(timeout, None))
        spec = exec_spec(command, cwd=cwd, env=env, user=user, timeout=timeout, stdin=input is not None)
        if not isinstance(input, str | bytes | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"input is {kind_of(input)}: write a text or bytes")
        data = input.encode() if isinstance(input, str) else input
        transport = waiting(self._transport, wait_for_approval)
        if on_stdout is not None or on_stderr is not None:
            from .watched import watched

            id = model.mint(model.IdPrefix.EXEC)
            action = model.StartExec(sandbox=self.id, spec=spec, expect_revision=expect_revision, id=id)
            result = await watched(transport, action, data, on_stdout, on_stderr, capture_bytes=capture_bytes)
        else:
            result = await transport.perform(
                model.RunExec(
                    sandbox=self.id, spec=spec, input=data, capture_bytes=capture_bytes, expect_revision=expect_revision
                )
            )
        return checked(result, command) if check else result

    async def run_code(
        self,
        code: str,
        language: str = "python",
        *,
        timeout: Duration | None = None,
        check: bool = False,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        wait_for_approval: Duration | None = None,
    ) -> ExecResult:
        """Run a program from its text, and return how it ended. Each call starts a new process.

        Args:
            code: The program.
            language: `python`, `bash`, `sh`, `javascript`, `ruby` or `perl`. The template has to have its interpreter.
            timeout: Seconds, a timedelta or a text such as `"5m"`. Then paddock kills everything that the program
                started.
            check: Raise CommandFailedError unless the exit code is 0.
            on_stdout: Called with each line as the program prints it, without its end.
            on_stderr: The same of the other stream. Callbacks may run on another thread.
            wait_for_approval: Wait so many seconds (or a timedelta, or a text) for a person, where the policy asks one.

        Returns:
            How it ended, with the output of both streams.

        Raises:
            InvalidArgumentError: The language doesn't exist.
            CommandFailedError: With `check`, the exit code isn't 0.
            PolicyDeniedError: The policy denies the interpreter.
            ApprovalNeededError: A person has to approve the interpreter first.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            result = await sandbox.run_code("print(6 * 7)")
            print(result.stdout)  # 42
            ```
        """
        if not isinstance(code, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"code is {kind_of(code)}: write the text of a program")
        argv = _INTERPRETERS.get(language)
        if argv is None:
            raise InvalidArgumentError(
                f"no language {language!r}: there are {', '.join(_INTERPRETERS)}", hint="exec() runs any program"
            )
        return await self.exec(
            argv,
            input=code,
            timeout=timeout,
            check=check,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            wait_for_approval=wait_for_approval,
        )

    @aopens
    async def start(
        self,
        command: str | Sequence[str],
        *,
        background: bool = False,
        stdin: bool = False,
        pty: PtySize | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: Duration | None = None,
        expect_revision: str | None = None,
        wait_for_approval: Duration | None = None,
        **old: Unpack[OldTimeout],
    ) -> AsyncProcess:
        """Start a command and return while it runs.

        Args:
            command: A text is a line for bash, or for sh without bash. A list is a program and its arguments.
            background: It outlives its handle: `processes` lists it and `attach` connects to it again.
            stdin: Give it a pipe to read from, which is `stdin` of the result. Otherwise it reads `/dev/null`.
            pty: Run it in a terminal of this size. Its stderr is then part of stdout.
            cwd: The directory, in place of the template's.
            env: More variables.
            user: A user of the sandbox, such as `root`.
            timeout: Seconds, a timedelta or a text such as `"5m"`. Then paddock kills everything that the command
                started.
            expect_revision: Start it only under this policy, else raise InvalidStateError.
            wait_for_approval: Wait so many seconds (or a timedelta, or a text) for a person, where the policy asks one.

        Returns:
            The running command.

        Raises:
            ProgramNotFoundError: The program doesn't exist.
            ProgramNotExecutableError: The file isn't a program.
            NotFoundError: The sandbox has no such user or directory.
            PolicyDeniedError: The policy denies the command.
            ApprovalNeededError: A person has to approve the command first.
            InvalidStateError: The policy isn't `expect_revision`.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            async with await sandbox.start("seq 3") as process:
                async for line in process.stdout.lines():
                    print(line)
                status = await process.wait()
            ```
        """
        if old:
            (timeout,) = renamed("start", old, timeout=(timeout, None))
        spec = exec_spec(command, cwd=cwd, env=env, user=user, timeout=timeout, stdin=stdin, pty=pty)
        action = model.StartExec(sandbox=self.id, spec=spec, background=background, expect_revision=expect_revision)
        return await waiting(self._transport, wait_for_approval).perform(action)

    @aopens
    async def attach(self, exec_id: str) -> AsyncProcess:
        """Connect to a background command: its output from the start, and all that follows.

        Args:
            exec_id: The `id` of the process that `start` returned. `processes` lists them.

        Returns:
            A second handle of the same command.

        Raises:
            NotFoundError: The command doesn't exist.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            server = await sandbox.start("echo ready; sleep 60", background=True)
            async with await sandbox.attach(server.id) as again:
                print((await again.stdout.read(100)).decode())  # ready
                await again.kill()
            ```
        """
        return await self._transport.perform(model.AttachExec(sandbox=self.id, exec=exec_id))

    @aopens
    async def output(self, exec_id: str, stream: Literal["stdout", "stderr"] = "stdout") -> AsyncReader:
        """Read the output of a command that the sandbox keeps.

        Of a background command that is all of it. Of a command of `exec` it is all that the result had no room for.

        Args:
            exec_id: The `id` of a result or of a process.
            stream: `"stdout"` or `"stderr"`.

        Returns:
            A reader of the bytes until now.

        Raises:
            NotFoundError: The command doesn't exist, or the sandbox keeps no output of it.
            InvalidArgumentError: That isn't the id of a command.

        Example:
            ```python
            result = await sandbox.exec("seq 1000", capture_bytes=100)
            async with await sandbox.output(result.id) as reader:
                print(len(await reader.read_all()))  # 3893
            ```
        """
        return await self._transport.perform(model.ReadOutput(sandbox=self.id, exec=exec_id, stream=stream))

    async def processes(self) -> tuple[ExecInfo, ...]:
        """List the commands that run, and the background commands that have ended.

        Returns:
            A tuple of ExecInfo. Its `status` is None while the command runs.

        Raises:
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            for command in await sandbox.processes():
                print(command.id, command.argv, command.status)
            ```
        """
        return await self._transport.perform(model.ListExecs(sandbox=self.id))

    async def signal(self, exec_id: str, number: int) -> None:
        """Send a signal to a command and its process group.

        Args:
            exec_id: The `id` of the process that `start` returned.
            number: 1 to 64, such as `signal.SIGTERM`.

        Raises:
            NotFoundError: The command doesn't exist.
            InvalidArgumentError: The signal doesn't exist.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            server = await sandbox.start("sleep 60", background=True)
            await sandbox.signal(server.id, 15)
            print((await server.wait()).signal)  # 15
            ```
        """
        await self._transport.perform(model.SignalExec(sandbox=self.id, exec=exec_id, signal=number))

    async def usage(self) -> Usage:
        """Measure what the sandbox uses now.

        Returns:
            Memory and disk in bytes, processor time in seconds, and the number of processes.

        Raises:
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            usage = await sandbox.usage()
            print(usage.processes, usage.memory_bytes)
            ```
        """
        return await self._transport.perform(model.GetUsage(sandbox=self.id))

    async def audit(self, action: str | None = None, *, limit: int = 1000) -> tuple[AuditRecord, ...]:
        """List the records of what the sandbox did, and of what others did with it.

        Args:
            action: A kind of action, such as `exec.run`, or the beginning of one, such as `egress`.
            limit: The last so many records, 1 to 100000.

        Returns:
            A tuple of records, oldest first. It also works after the sandbox has ended.

        Raises:
            InvalidArgumentError: `limit` isn't possible.

        Example:
            ```python
            await sandbox.exec("true")
            (record,) = await sandbox.audit("exec.run", limit=1)
            print(record.action, record.allowed)  # exec.run True
            ```
        """
        return await self._transport.perform(model.ListAudit(sandbox=self.id, tag=action, limit=limit))

    async def why(self, *, limit: int = 20) -> tuple[AuditRecord, ...]:
        """List what paddock refused, what failed, and what exceeded a limit.

        Args:
            limit: The last so many records, 1 to 100000.

        Returns:
            A tuple of records, oldest first, each with the `rule` and the `reason`. `paddock why ID` adds what to do.

        Raises:
            InvalidArgumentError: `limit` isn't possible.

        Example:
            ```python
            for record in await sandbox.why():
                print(record.action, record.rule, record.reason)
            ```
        """
        return await self._transport.perform(model.ListAudit(sandbox=self.id, trouble=True, limit=limit))

    @aopens
    async def dial(self, port: int) -> AsyncConnection:
        """Connect to a port that a program inside listens on, on its loopback.

        Args:
            port: The TCP port inside, 1 to 65535.

        Returns:
            The open connection.

        Raises:
            FileError: No program listens there: `details["errno"]` is `"ECONNREFUSED"`.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            async with await sandbox.dial(8000) as connection:
                await connection.write("ping")
                print(await connection.read())  # b'ping'
            ```
        """
        return await self._transport.perform(model.ConnectPort(sandbox=self.id, port=port))

    async def forward(self, port: int, *, local_port: int = 0, host: str = "127.0.0.1") -> Forward:
        """Have a port of this machine lead to one inside.

        Args:
            port: The port inside.
            local_port: The port here. 0 is any free one.
            host: The address here. Programs of other machines reach any but a loopback one.

        Returns:
            The URL, a text with `close()`. It ends with the sandbox, with this object, or as a `with` block.

        Raises:
            InvalidArgumentError: The number is outside of 1 to 65535.
            OSError: Another program has the port here.

        Example:
            ```python
            url = await sandbox.forward(8000)
            print(url)  # http://127.0.0.1:…
            url.close()
            ```
        """
        from paddock.client._forward import Forward, blocking

        made = Forward.listen(blocking(self._transport), self.id, port, host, local_port)
        self._forwards.append(made)
        return made

    async def snapshot(
        self,
        name: str | None = None,
        *,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        user: str | None = None,
    ) -> AsyncSnapshot:
        """Keep the files of this instant until you delete the snapshot. The sandbox goes on.

        The snapshot doesn't hold memory: processes and /tmp.

        Args:
            name: Another way to say which. It is unique among your snapshots.
            env: More variables of the sandboxes that start from it.
            workdir: Where their commands start, in place of the template's directory.
            user: The user of their commands, in place of the template's.

        Returns:
            The snapshot.

        Raises:
            AlreadyExistsError: Another snapshot has the name.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            snapshot = await sandbox.snapshot()
            async with await AsyncSandbox.create(snapshot=snapshot) as other:
                await other.exec("ls")
            ```
        """
        from .snapshot import AsyncSnapshot as Made

        action = model.CreateSnapshot(sandbox=self.id, name=name, env=texts(env, "env"), workdir=workdir, user=user)
        info = await self._transport.perform(action)
        return Made(info, self._transport)

    async def snapshots(self) -> tuple[AsyncSnapshot, ...]:
        """List the snapshots of this sandbox. It also works after the sandbox has ended.

        Returns:
            A tuple of snapshots, oldest first.

        Raises:
            DaemonUnavailableError: The daemon doesn't start, or doesn't answer.

        Example:
            ```python
            for snapshot in await sandbox.snapshots():
                print(snapshot.id, snapshot.name)
            ```
        """
        from .snapshot import AsyncSnapshot as Made

        infos = await self._transport.perform(model.ListSnapshots(sandbox=self.id))
        return tuple(Made(info, self._transport) for info in infos)

    async def delete_snapshot(self, snapshot: str | AsyncSnapshot | SnapshotInfo) -> None:
        """Delete a snapshot of any sandbox. Sandboxes that started from it keep their files.

        Args:
            snapshot: An id, a name, or the object.

        Raises:
            NotFoundError: The snapshot doesn't exist.
            ApprovalNeededError: The policy of its sandbox asks a person first.

        Example:
            ```python
            snapshot = await sandbox.snapshot("old")
            await sandbox.delete_snapshot("old")
            ```
        """
        id = reference(snapshot, "snapshot")
        await self._transport.perform(model.DeleteSnapshot(snapshot=id or ""))

    async def rollback(self, snapshot: str | AsyncSnapshot | SnapshotInfo) -> None:
        """End all processes and put the files of a snapshot in place of the sandbox's. It keeps its id and TTL.

        Args:
            snapshot: An id, a name, or the object.

        Raises:
            NotFoundError: The snapshot doesn't exist.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            async with await AsyncSandbox.create() as other:
                before = await other.snapshot()
                await other.exec("rm -rf /workspace/*")
                await other.rollback(before)
            ```
        """
        action = model.RollbackSandbox(sandbox=self.id, snapshot=reference(snapshot, "snapshot") or "")
        self._info = await self._transport.perform(action)

    @overload
    async def fork(self, count: None = None, *, ttl: Duration | None = None, **old: Unpack[OldTtl]) -> Self: ...
    @overload
    async def fork(self, count: int, *, ttl: Duration | None = None, **old: Unpack[OldTtl]) -> Sequence[Self]: ...
    async def fork(
        self, count: int | None = None, *, ttl: Duration | None = None, **old: Unpack[OldTtl]
    ) -> Self | Sequence[Self]:
        """Create sandboxes with the files of this one at this instant. This one goes on.

        At level `microvm`, and at `gvisor` without a network, its processes go on in the children, too.

        Args:
            count: How many, 1 to 1000. All of them start from one instant.
            ttl: How long each lives from now: seconds, a timedelta or a text. None is the parent's TTL.

        Returns:
            The new sandbox, or with `count` a list of them.

        Raises:
            InvalidArgumentError: `count` or `ttl` isn't possible.
            ResourceExhaustedError: The machine is out of memory, disk or processes. Then it creates no child.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            for number, child in enumerate(await sandbox.fork(2)):
                async with child:
                    await child.exec(f"echo {number} > answer")
            ```
        """
        if old:
            (ttl,) = renamed("fork", old, ttl=(ttl, None))
        action = model.ForkSandbox(
            sandbox=self.id, count=1 if count is None else count, ttl_seconds=seconds(ttl, "ttl")
        )
        children = [type(self)(info, self._transport) for info in await self._transport.perform(action)]
        for child in children:
            child._warns = not child.info.spec.persistent
        return children[0] if count is None else children

    async def diff_mount(self, *paths: str, target: str | None = None, patch: bool = False) -> MountDiff:
        """Compare a copy-on-write directory of the sandbox with the host's, at this instant.

        Args:
            paths: Only these paths and those below them, relative to the directory. None given: all.
            target: Where the directory is inside. Needed where the sandbox has several.
            patch: Put a patch into the result, as `git apply` takes it.

        Returns:
            The changed paths, in `changes`.

        Raises:
            InvalidArgumentError: The sandbox has no such directory, or has several and `target` doesn't say which.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            async with await AsyncSandbox.create(mounts=["./project"]) as other:
                await other.exec("echo new > notes.txt")
                diff = await other.diff_mount()
                print([(str(change.kind), change.path) for change in diff.changes])  # [('added', 'notes.txt')]
            ```
        """
        return await self._transport.perform(model.DiffMount(sandbox=self.id, target=target, paths=paths, patch=patch))

    async def promote_mount(
        self, *paths: str, target: str | None = None, git: bool = False, force: bool = False, dry_run: bool = False
    ) -> Promotion:
        """Write the changes of a copy-on-write directory into the host's directory: all of them, or none.

        It refuses device nodes, set-id bits and links that lead out, and files that the host has changed since.

        Args:
            paths: Only these paths and those below them, relative to the directory. None given: all.
            target: Where the directory is inside. Needed where the sandbox has several.
            git: Write changes in `.git` too, except its hooks and configuration.
            force: Overwrite files that the host has changed since.
            dry_run: Only say what it would write.

        Returns:
            What it wrote, in `applied`, and changes in `.git` that it left out.

        Raises:
            InvalidStateError: It refuses a change. The message lists all of these.
            InvalidArgumentError: The sandbox has no such directory, or has several and `target` doesn't say which.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            async with await AsyncSandbox.create(mounts=["./project"]) as other:
                await other.exec("echo new > notes.txt")
                promotion = await other.promote_mount(dry_run=True)
                print([change.path for change in promotion.applied])  # ['notes.txt']
            ```
        """
        action = model.PromoteMount(sandbox=self.id, target=target, paths=paths, git=git, force=force, dry_run=dry_run)
        return await self._transport.perform(action)

    async def set_policy(self, policy: PolicySource | None, *, expect_revision: str | None = None) -> str | None:
        """Replace the policy, and return when it holds, for open connections as well.

        Args:
            policy: A path to a `paddock.yaml`, its text, plain values, or a PolicyDocument. None: no network any more.
            expect_revision: Replace only this revision.

        Returns:
            The new revision. None: no policy.

        Raises:
            PolicyInvalidError: The policy has a mistake. The message says where.
            InvalidStateError: The policy isn't `expect_revision`.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            async with await AsyncSandbox.create() as other:
                revision = await other.set_policy({"commands": {"deny": [{"prefix": ["rm"]}]}})
                print(other.policy == revision)  # True
            ```
        """
        action = model.SetPolicy(sandbox=self.id, policy=policy_document(policy), expect_revision=expect_revision)
        self._info = await self._transport.perform(action)
        return self._info.policy

    async def pause(self, *, to_disk: bool = False, force: bool = False) -> None:
        """Stop all that runs in the sandbox, until `resume` or its next use.

        A command, a file, a port, or input for a running command is a use. Its TTL and the timeouts of its commands
        stand still meanwhile. Pausing a paused sandbox does nothing.

        Its TTL and the timeouts of its commands don't run meanwhile. paddock keeps a paused sandbox for 30 days
        (`paused_retention_days` in `config.toml`). `info.kept_until` is the end, and `info.left_seconds` the rest of
        the TTL.

        Args:
            to_disk: Write the memory of a microVM to disk, and give it back. The next use wakes it where it stood. Its
                commands go on then, but a caller who waits for one, or has a stream open, gets SandboxDiedError.
            force: Pause running commands as well. A caller who waits for one goes on waiting, and streams stay open.

        Raises:
            InvalidStateError: Commands run in it, and `force` is False. The message names them.
            UnsupportedError: The level can't pause, or not to disk.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            async with await AsyncSandbox.create() as other:
                await other.pause()
                print(other.state)  # paused
            ```
        """
        self._info = await self._transport.perform(model.PauseSandbox(sandbox=self.id, to_disk=to_disk, force=force))

    async def resume(self) -> None:
        """Continue a paused sandbox. Resuming a running one does nothing.

        Raises:
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            async with await AsyncSandbox.create() as other:
                await other.pause()
                await other.resume()
                print(other.state)  # running
            ```
        """
        self._info = await self._transport.perform(model.ResumeSandbox(sandbox=self.id))

    async def extend(self, ttl: Duration | None = None, **old: Unpack[OldTtl]) -> None:
        """Set a new TTL, which counts from now.

        Args:
            ttl: How long it lives from now: seconds, a timedelta, or a text such as `"5m"`.

        Raises:
            InvalidArgumentError: `ttl` isn't a duration of at least a second.
            PolicyDeniedError: The owner of this machine doesn't allow that much.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            await sandbox.extend("10m")
            ```
        """
        if old:
            (ttl,) = renamed("extend", old, ttl=(ttl, None))
        action = model.ExtendSandbox(sandbox=self.id, ttl_seconds=required_seconds(ttl, "ttl"))
        self._info = await self._transport.perform(action)

    async def refresh(self) -> SandboxInfo:
        """Ask for the record again. `info` and `state` are then up to date.

        Returns:
            The record, also of a sandbox that has ended.

        Raises:
            NotFoundError: The sandbox ended so long ago that paddock dropped its record.

        Example:
            ```python
            info = await sandbox.refresh()
            print(info.state, info.level)  # running jail
            ```
        """
        self._info = await self._transport.perform(model.GetSandbox(sandbox=self.id))
        return self._info

    async def kill(self) -> None:
        """End the sandbox and everything in it, at once and for good. Killing a dead one does nothing.

        Raises:
            DaemonUnavailableError: The daemon doesn't start, or doesn't answer.

        Example:
            ```python
            sandbox = await AsyncSandbox.create()
            await sandbox.kill()
            print(sandbox.state)  # killed
            ```
        """
        self._warns = False
        while self._forwards:
            self._forwards.pop().close()
        self._info = await self._transport.perform(model.KillSandbox(sandbox=self.id))

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A persistent one too: `persistent` is about the end of the program, a block is about this one's end.
        await self.kill()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} can't be pickled: send {self.id!r}, and have the other program connect to it"
        )

    def __del__(self) -> None:
        if self._warns and not sys.is_finalizing() and self._info.state not in (State.KILLED, State.FAILED):
            import warnings

            warnings.warn(
                f"sandbox {self._info.id} was never killed, and lives until its TTL or this program ends: "
                "use a `with` block or kill()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            from paddock import _renamed

            _renamed.attribute(self, name)

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<{type(self).__name__} {self.id}{name} {self.state} at level {self.level}>"
