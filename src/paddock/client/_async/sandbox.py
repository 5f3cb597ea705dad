"""The isolated computer that a caller holds."""

from __future__ import annotations

import sys

from paddock import model
from paddock.client._command import (
    checked,
    exec_spec,
    level_of,
    limits_of,
    mounts_of,
    network_of,
    policy_document,
    reference,
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

    ```python
    async with AsyncSandbox.create(ttl="2m") as sandbox:
        await sandbox.files.write("/workspace/cell.py", code)
        result = await sandbox.exec("python3 /workspace/cell.py", timeout=30)
        print(result.exit_code, result.stdout)
    ```

    `create` makes one; `connect` and `list` find those that live.
    """

    _warns = False
    """Whether dropping this object leaves a sandbox behind that only its TTL ends."""

    def __init__(self, info: SandboxInfo, transport: AsyncTransport) -> None:
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
        """Create a sandbox and return when it can be used.

        Args:
            template: `host` (the default), `code-interpreter`, `debian`, or an image by `oci:DIR[:TAG]`,
                `oci-archive:FILE`, `docker-archive:FILE` or `docker://HOST/NAME:TAG`.
            image: An image as Docker names it, such as `python:3.12`, in place of `template`.
            level: `jail`, `gvisor`, `microvm` or `container`: that level or an error. None is the default level of
                this machine.
            name: Another way to say which. It is unique among the sandboxes that live.
            ttl: How long it lives, whatever happens to this program: seconds, a timedelta, or a text such as `"5m"`.
            idle_timeout: paddock pauses it when it hasn't been used for so long. The next use wakes it: see `pause`.
            persistent: It outlives this program. Another one finds it by id or name.
            limits: `Limits(memory_mib=512)`, or a dict of some of its fields.
            env: Variables of its commands.
            labels: Texts that `info.spec.labels` repeats.
            mounts: Directories of the host: `["./project"]`, `{"./project": "/workspace"}` or Mounts.
            snapshot: It starts with the files of this snapshot: an id, a name, or what `snapshot` returned.
            workspace: This workspace is at `/workspace`: an id, a name, or a Workspace. One living sandbox may
                write it.
            network: False is no network. A list names hosts and registries: `["pypi", "api.github.com"]`, and an
                index of your own: `["pypi=https://pypi.example.com/simple"]`. A policy says more, as `policy` does.
            policy: A path to a `paddock.yaml`, its text, plain values, or a PolicyDocument.
            max_children: How many sandboxes programs inside may have at a time.
            idempotency_key: The same key returns the sandbox of the first call.
            transport: `paddock.local(DIR)` is another state directory.

        Raises LevelUnavailableError, NotFoundError (no such template), ImageInvalidError, AlreadyExistsError (the
        name), PolicyDeniedError, PolicyInvalidError, ResourceExhaustedError, NotConfiguredError.
        """
        if old:
            from paddock import _renamed

            ttl, idle_timeout, max_children = _renamed.keywords(
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
        """To a living one, by id, unique prefix of an id, or name. NotFoundError, SandboxDiedError."""
        transport = transport or default_async_transport()
        info = await transport.perform(model.GetSandbox(sandbox=id_or_name))
        if info.state in (State.KILLED, State.FAILED):
            raise model.died(info)
        return cls(info, transport)

    @classmethod
    async def list(cls, *, ended: bool = False, transport: AsyncTransport | None = None) -> tuple[AsyncSandbox, ...]:
        """All that live; with `ended`, those too that the records still know."""
        transport = transport or default_async_transport()
        return tuple(cls(info, transport) for info in await transport.perform(model.ListSandboxes(ended=ended)))

    @property
    def info(self) -> SandboxInfo:
        """As the records knew it at the last `create`, `connect`, `refresh`, `extend` or `kill`."""
        return self._info

    @property
    def id(self) -> str:
        return self._info.id

    @property
    def name(self) -> str | None:
        return self._info.spec.name

    @property
    def state(self) -> State:
        return self._info.state

    @property
    def level(self) -> Level:
        """The strength of the isolation that it got."""
        return self._info.level

    @property
    def policy(self) -> str | None:
        """The revision that it was held to when `info` was asked for; None: it had no network."""
        return self._info.policy

    @property
    def files(self) -> AsyncFilesystem:
        """Its files: read, write, list, upload, download."""
        from .filesystem import AsyncFilesystem

        return AsyncFilesystem(self.id, self._transport)

    @property
    def filesystem(self) -> AsyncFilesystem:
        """The same as `files`, by the name of before 1.0."""
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
        """Run a command to its end and return how it ended.

        A non-zero exit, a signal or an exceeded limit is a result, not an exception.

        Args:
            command: A text is a line for bash, or for sh where there is no bash. A list is executed as it is.
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
            wait_for_approval: How long to wait for a person, where the policy asks one about this command. Without it,
                and when the time is over, ApprovalNeededError has the `approval_id`.
        """
        if old:
            from paddock import _renamed

            (timeout,) = _renamed.keywords("exec", old, timeout=(timeout, None))
        spec = exec_spec(command, cwd=cwd, env=env, user=user, timeout=timeout, stdin=input is not None)
        if not isinstance(input, str | bytes | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"input is a {type(input).__name__}: write a text or bytes")
        data = input.encode() if isinstance(input, str) else input
        transport = waiting(self._transport, wait_for_approval)
        if on_stdout is not None or on_stderr is not None:
            from .watched import watched

            id = model.mint(model.Noun.EXEC)
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
        """Run a program from its text, and return how it ended: see `exec`.

        `language` is python, bash, sh, javascript, ruby or perl. The template has to have its interpreter. Each call is
        a process of its own.
        """
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

        ```python
        async with sandbox.start("make test") as process:
            async for line in process.stdout.lines():
                print(line)
            status = await process.wait()
        ```

        A `background` command outlives its handle: `processes` lists it and `attach` connects to it again.
        The other arguments are those of `exec`.
        """
        if old:
            from paddock import _renamed

            (timeout,) = _renamed.keywords("start", old, timeout=(timeout, None))
        spec = exec_spec(command, cwd=cwd, env=env, user=user, timeout=timeout, stdin=stdin, pty=pty)
        action = model.StartExec(sandbox=self.id, spec=spec, background=background, expect_revision=expect_revision)
        from .process import AsyncProcess

        return AsyncProcess(await waiting(self._transport, wait_for_approval).perform(action))

    @aopens
    async def attach(self, exec_id: str) -> AsyncProcess:
        """To a background command: its output from the start, and what follows. NotFoundError."""
        from .process import AsyncProcess

        return AsyncProcess(await self._transport.perform(model.AttachExec(sandbox=self.id, exec=exec_id)))

    @aopens
    async def output(self, exec_id: str, stream: Literal["stdout", "stderr"] = "stdout") -> AsyncReader:
        """Return what is kept of a command's output until now: all of a background one's, and of one that `exec` ran to
        its end what its result had no room for. NotFoundError."""
        from .process import AsyncReader

        return AsyncReader(
            await self._transport.perform(model.ReadOutput(sandbox=self.id, exec=exec_id, stream=stream))
        )

    async def processes(self) -> tuple[ExecInfo, ...]:
        """Return the commands that run, and the background ones that have ended."""
        return await self._transport.perform(model.ListExecs(sandbox=self.id))

    async def signal(self, exec_id: str, number: int) -> None:
        """To a command by its id, and its process group."""
        await self._transport.perform(model.SignalExec(sandbox=self.id, exec=exec_id, signal=number))

    async def usage(self) -> Usage:
        return await self._transport.perform(model.GetUsage(sandbox=self.id))

    async def audit(self, action: str | None = None, *, limit: int = 1000) -> tuple[AuditRecord, ...]:
        """Return the last `limit` records of what it did and what was done with it, oldest first.

        `action` is a kind of action, such as `exec.run`, or the beginning of one, such as `egress`.
        """
        return await self._transport.perform(model.ListAudit(sandbox=self.id, tag=action, limit=limit))

    async def why(self, *, limit: int = 20) -> tuple[AuditRecord, ...]:
        """Return the last `limit` records of what was refused, failed or exceeded a limit, oldest first.

        Each has the `rule` and the `reason`. `paddock why ID` adds what to do.
        """
        return await self._transport.perform(model.ListAudit(sandbox=self.id, trouble=True, limit=limit))

    @aopens
    async def dial(self, port: int) -> AsyncConnection:
        """Connect to a port that a program inside listens on, on its loopback. ConnectionRefusedError."""
        from .connection import AsyncConnection

        return AsyncConnection(await self._transport.perform(model.ConnectPort(sandbox=self.id, port=port)))

    async def forward(self, port: int, *, local_port: int = 0, host: str = "127.0.0.1") -> Forward:
        """Have a port of this machine lead to one inside, and return its URL.

        ```python
        url = await sandbox.forward(8000)  # http://127.0.0.1:41234
        ```

        The URL is a text with `close()`. It ends with the sandbox, with this object, or as a `with` block.

        Args:
            port: The port inside.
            local_port: The port here. 0 is any free one.
            host: The address here. Programs of other machines reach any but a loopback one.
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
        """Keep its files of this instant until the snapshot is deleted. The sandbox goes on.

        What is in memory is not kept: processes, /tmp.

        Args:
            name: Another way to say which.
            env: More variables of the sandboxes that start from it.
            workdir: Where their commands start, in place of the template's directory.
            user: Who their commands run as, in place of the template's user.
        """
        from .snapshot import AsyncSnapshot as Made

        action = model.CreateSnapshot(sandbox=self.id, name=name, env=texts(env, "env"), workdir=workdir, user=user)
        info = await self._transport.perform(action)
        return Made(info, self._transport)

    async def snapshots(self) -> tuple[AsyncSnapshot, ...]:
        """Return those made of this sandbox, oldest first."""
        from .snapshot import AsyncSnapshot as Made

        infos = await self._transport.perform(model.ListSnapshots(sandbox=self.id))
        return tuple(Made(info, self._transport) for info in infos)

    async def delete_snapshot(self, snapshot: str | AsyncSnapshot | SnapshotInfo) -> None:
        """Delete a snapshot of any sandbox, by id, name or object."""
        id = reference(snapshot, "snapshot")
        await self._transport.perform(model.DeleteSnapshot(snapshot=id or ""))

    async def rollback(self, snapshot: str | AsyncSnapshot | SnapshotInfo) -> None:
        """End all its processes; its files become those of the snapshot, and it runs on under its id."""
        action = model.RollbackSandbox(sandbox=self.id, snapshot=reference(snapshot, "snapshot") or "")
        self._info = await self._transport.perform(action)

    @overload
    async def fork(self, count: None = None, *, ttl: Duration | None = None, **old: Unpack[OldTtl]) -> Self: ...
    @overload
    async def fork(self, count: int, *, ttl: Duration | None = None, **old: Unpack[OldTtl]) -> Sequence[Self]: ...
    async def fork(
        self, count: int | None = None, *, ttl: Duration | None = None, **old: Unpack[OldTtl]
    ) -> Self | Sequence[Self]:
        """Create a sandbox with the files of this one at this instant, or a list of `count`. This one goes on.

        At level `microvm`, and at `gvisor` without a network, what runs in it goes on in them, too. Each has a TTL of
        its own: `ttl`, or the parent's, counted from now.
        """
        if old:
            from paddock import _renamed

            (ttl,) = _renamed.keywords("fork", old, ttl=(ttl, None))
        action = model.ForkSandbox(
            sandbox=self.id, count=1 if count is None else count, ttl_seconds=seconds(ttl, "ttl")
        )
        children = [type(self)(info, self._transport) for info in await self._transport.perform(action)]
        for child in children:
            child._warns = not child.info.spec.persistent
        return children[0] if count is None else children

    async def diff_mount(self, *paths: str, target: str | None = None, patch: bool = False) -> MountDiff:
        """Return what it has changed in a directory of the host that it has copy-on-write, at this instant.

        `target` says which, where there are several; `paths`, relative to it, leave out the rest. With `patch` the
        result holds what `git apply` takes.
        """
        from paddock.model import DiffMount

        return await self._transport.perform(DiffMount(sandbox=self.id, target=target, paths=paths, patch=patch))

    async def promote_mount(
        self, *paths: str, target: str | None = None, git: bool = False, force: bool = False, dry_run: bool = False
    ) -> Promotion:
        """Take those changes over into the host's directory; InvalidStateError lists what is in the way.

        Device nodes, set-id bits, links that lead out and what the host has changed since are refused, that one unless
        `force`. Changes in `.git` stay here; with `git`, its hooks and configuration.
        """
        from paddock.model import PromoteMount

        action = PromoteMount(sandbox=self.id, target=target, paths=paths, git=git, force=force, dry_run=dry_run)
        return await self._transport.perform(action)

    async def set_policy(self, policy: PolicySource | None, *, expect_revision: str | None = None) -> str | None:
        """Return the new revision when it holds, for connections that are open as well; None: no network from now on.

        With `expect_revision`, InvalidStateError if the policy is another one by now.
        """
        from paddock.model import SetPolicy

        action = SetPolicy(sandbox=self.id, policy=policy_document(policy), expect_revision=expect_revision)
        self._info = await self._transport.perform(action)
        return self._info.policy

    async def pause(self, *, to_disk: bool = False, force: bool = False) -> None:
        """Stop all that runs in the sandbox until `resume`, or until it is used: by a command, a file, a port, or by
        writing to a running command. Its TTL and the timeouts of its commands stand still meanwhile.

        paddock keeps a paused sandbox for 30 days (`paused_retention_days` in `config.toml`): `info.kept_until` says
        until when, `info.left_seconds` how much of the TTL is left.

        InvalidStateError names the commands that run in it, in the background too. With `force` they stand still with
        it, and a caller who waits for one is told in the log and waits on. Streams stay open. Idempotent.
        UnsupportedError where the level can't.

        With `to_disk` (a microVM) its memory is given back as well, and the next use wakes it where it stood. What
        runs goes on then; but a caller who waits for a command, or has a stream open, loses it: SandboxDiedError.
        """
        self._info = await self._transport.perform(model.PauseSandbox(sandbox=self.id, to_disk=to_disk, force=force))

    async def resume(self) -> None:
        """Idempotent."""
        self._info = await self._transport.perform(model.ResumeSandbox(sandbox=self.id))

    async def extend(self, ttl: Duration | None = None, **old: Unpack[OldTtl]) -> None:
        """Have it live for `ttl` from now."""
        if old:
            from paddock import _renamed

            (ttl,) = _renamed.keywords("extend", old, ttl=(ttl, None))
        action = model.ExtendSandbox(sandbox=self.id, ttl_seconds=required_seconds(ttl, "ttl"))
        self._info = await self._transport.perform(action)

    async def refresh(self) -> SandboxInfo:
        """Asks again what the records say; `info` and `state` follow."""
        self._info = await self._transport.perform(model.GetSandbox(sandbox=self.id))
        return self._info

    async def kill(self) -> None:
        """End it and everything in it, at once and for good. To kill a dead one isn't an error."""
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
                f"sandbox {self._info.id} was never killed, and lives until its TTL ends: use a `with` block or kill()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<{type(self).__name__} {self.id}{name} {self.state} at level {self.level}>"
