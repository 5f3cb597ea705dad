"""The isolated computer that a caller holds."""

from __future__ import annotations

from paddock import model
from paddock.client._command import absolute, absolute_template, checked, exec_spec, policy_document
from paddock.errors import InvalidArgument, SandboxDied
from paddock.model import Level, Limits, State

from .daemon import default_async_transport

TYPE_CHECKING = False
if not TYPE_CHECKING:

    def overload(function):
        return function

else:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Literal, Self, overload

    from paddock.client._command import PolicySource
    from paddock.model import ExecInfo, ExecResult, Mount, MountDiff, Promotion, PtySize, Usage
    from paddock.model import Sandbox as SandboxInfo
    from paddock.model import Snapshot as SnapshotInfo

    from .filesystem import AsyncFilesystem
    from .process import AsyncProcess, AsyncReader
    from .transport import AsyncTransport


class AsyncSandbox:
    """A disposable computer, dead at the end of its `with` block, on success and on exception.

    ```python
    async with await AsyncSandbox.create(ttl_seconds=120) as sandbox:
        await sandbox.filesystem.write("/workspace/cell.py", code)
        result = await sandbox.exec("python3 /workspace/cell.py", timeout_seconds=30)
        print(result.exit_code, result.stdout)
    ```

    Made by `create`, found again by `connect` and `list`.
    """

    def __init__(self, info: SandboxInfo, transport: AsyncTransport) -> None:
        self._info = info
        self._transport = transport

    @classmethod
    async def create(
        cls,
        template: str = "host",
        *,
        level: Level | str | None = None,
        name: str | None = None,
        ttl_seconds: float = 300.0,
        persistent: bool = False,
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        mounts: Sequence[Mount] = (),
        snapshot: str | SnapshotInfo | None = None,
        workspace: str | None = None,
        nested: int = 0,
        policy: PolicySource | None = None,
        idle_seconds: float | None = None,
        idempotency_key: str | None = None,
        transport: AsyncTransport | None = None,
    ) -> AsyncSandbox:
        """A new sandbox, ready to be used.

        `level=None` is `jail`, or what `config.toml` says; a named one is that one or an error. It dies
        after `ttl_seconds` whatever happens to this program. A `persistent` one outlives this program; another
        finds it by id or name. The same `idempotency_key` returns the sandbox of the first call. Of `mounts`, a
        `source` may be relative to this program's directory. With `snapshot` it starts with those files. With
        `workspace` (an id or a name) that one is at `/workspace`; no other living sandbox may write it.
        Programs inside may have `nested` children of it at a time (`from paddock import Sandbox` in there).
        A `template` may be an OCI image: `oci:DIR[:TAG]`, `oci-archive:FILE`, `docker-archive:FILE` or
        `docker://HOST/NAME:TAG`; a path may be relative to this program's directory.
        Without `policy` it has no network: a path to a `paddock.yaml`, its text, plain values, or a PolicyDocument.
        When nobody has used it for `idle_seconds` it is paused, and the next use wakes it: see `pause`.

        Raises LevelUnavailable, NotFound (no such template), ImageInvalid, AlreadyExists (the name), PolicyDenied,
        PolicyInvalid, ResourceExhausted, NotConfigured.
        """
        spec = model.SandboxSpec(
            template=absolute_template(template),
            level=_level(level),
            name=name,
            ttl_seconds=ttl_seconds,
            persistent=persistent,
            limits=limits or Limits(),
            env=dict(env or {}),
            labels=dict(labels or {}),
            mounts=tuple(map(absolute, mounts)),
            snapshot=snapshot if snapshot is None or isinstance(snapshot, str) else snapshot.id,
            workspace=workspace,
            nested=nested,
            policy=policy_document(policy),
            idle_seconds=idle_seconds,
        )
        transport = transport or default_async_transport()
        return cls(await transport.perform(model.CreateSandbox(spec=spec, idempotency_key=idempotency_key)), transport)

    @classmethod
    async def connect(cls, id_or_name: str, *, transport: AsyncTransport | None = None) -> AsyncSandbox:
        """To a living one, by id, unique prefix of an id, or name. NotFound, SandboxDied."""
        transport = transport or default_async_transport()
        info = await transport.perform(model.GetSandbox(sandbox=id_or_name))
        if info.state in (State.KILLED, State.FAILED):
            task = info.spec.name or info.spec.workspace
            raise SandboxDied(
                f"sandbox {info.id} is {info.state}: {info.reason or 'no reason is recorded'}",
                hint=f"its workspace lives on: paddock up --task {task}" if info.spec.workspace else None,
            )
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
        """The strength of the wall that it got."""
        return self._info.level

    @property
    def policy(self) -> str | None:
        """The revision that it was held to when `info` was asked for; None: it had no network."""
        return self._info.policy

    @property
    def filesystem(self) -> AsyncFilesystem:
        from .filesystem import AsyncFilesystem

        return AsyncFilesystem(self.id, self._transport)

    @property
    def files(self) -> AsyncFilesystem:
        """The same as `filesystem`."""
        return self.filesystem

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout_seconds: float | None = None,
        input: str | bytes | None = None,
        check: bool = False,
        capture_bytes: int = 1 << 20,
        expect_revision: str | None = None,
    ) -> ExecResult:
        """Runs a command to its end.

        A text is a line for `/bin/sh -c`; a sequence is executed as it is. A non-zero exit, a signal or a limit
        that struck is a result and no exception, unless `check` asks for CommandFailed. At the timeout everything
        that the command started is killed and `result.limit` is `"time"`. Of each stream `capture_bytes` are kept,
        half from the start and half from the end; the sandbox's own records hold the rest. With `expect_revision`
        it is not run (InvalidState) under another policy.
        """
        spec = exec_spec(command, cwd=cwd, env=env, user=user, timeout_seconds=timeout_seconds, stdin=input is not None)
        data = input.encode() if isinstance(input, str) else input
        result = await self._transport.perform(
            model.RunExec(
                sandbox=self.id, spec=spec, input=data, capture_bytes=capture_bytes, expect_revision=expect_revision
            )
        )
        return checked(result, command) if check else result

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
        timeout_seconds: float | None = None,
        expect_revision: str | None = None,
    ) -> AsyncProcess:
        """Starts a command and returns while it runs.

        ```python
        async with await sandbox.start("make test") as process:
            async for line in process.stdout.lines():
                print(line)
            status = await process.wait()
        ```

        A `background` command outlives its handle: `processes` lists it and `attach` takes it up again.
        `expect_revision`: as in `exec`.
        """
        spec = exec_spec(command, cwd=cwd, env=env, user=user, timeout_seconds=timeout_seconds, stdin=stdin, pty=pty)
        action = model.StartExec(sandbox=self.id, spec=spec, background=background, expect_revision=expect_revision)
        from .process import AsyncProcess

        return AsyncProcess(await self._transport.perform(action))

    async def attach(self, exec_id: str) -> AsyncProcess:
        """To a background command: its output from the start, and what follows. NotFound."""
        from .process import AsyncProcess

        return AsyncProcess(await self._transport.perform(model.AttachExec(sandbox=self.id, exec=exec_id)))

    async def output(self, exec_id: str, stream: Literal["stdout", "stderr"] = "stdout") -> AsyncReader:
        """What is kept of a command's output until now: all of a background one's, and of one that `exec` ran to its
        end what its result had no room for. NotFound."""
        from .process import AsyncReader

        return AsyncReader(
            await self._transport.perform(model.ReadOutput(sandbox=self.id, exec=exec_id, stream=stream))
        )

    async def processes(self) -> tuple[ExecInfo, ...]:
        """The commands that run, and the background ones that have ended."""
        return await self._transport.perform(model.ListExecs(sandbox=self.id))

    async def signal(self, exec_id: str, number: int) -> None:
        """To a command by its id, and its process group."""
        await self._transport.perform(model.SignalExec(sandbox=self.id, exec=exec_id, signal=number))

    async def usage(self) -> Usage:
        return await self._transport.perform(model.GetUsage(sandbox=self.id))

    async def snapshot(self, name: str | None = None) -> SnapshotInfo:
        """Its files at this instant, kept until `delete_snapshot`. It goes on.

        What is in memory is not kept: processes, /tmp.
        """
        return await self._transport.perform(model.CreateSnapshot(sandbox=self.id, name=name))

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        """Those made of this sandbox, oldest first."""
        return await self._transport.perform(model.ListSnapshots(sandbox=self.id))

    async def delete_snapshot(self, snapshot: str | SnapshotInfo) -> None:
        reference = snapshot if isinstance(snapshot, str) else snapshot.id
        await self._transport.perform(model.DeleteSnapshot(snapshot=reference))

    async def rollback(self, snapshot: str | SnapshotInfo) -> None:
        """Ends all its processes; its files become those of the snapshot, and it runs on under its id."""
        reference = snapshot if isinstance(snapshot, str) else snapshot.id
        self._info = await self._transport.perform(model.RollbackSandbox(sandbox=self.id, snapshot=reference))

    @overload
    async def fork(self, count: None = None, *, ttl_seconds: float | None = None) -> Self: ...
    @overload
    async def fork(self, count: int, *, ttl_seconds: float | None = None) -> Sequence[Self]: ...
    async def fork(self, count: int | None = None, *, ttl_seconds: float | None = None) -> Self | Sequence[Self]:
        """A new sandbox with the files of this one at this instant, or `count` of them; this one goes on. At level
        `microvm`, and `gvisor` without a way out, what runs in it goes on in them, too.

        They are sandboxes like any other, with a TTL of their own: the parent's, counted anew, if none is given.
        """
        action = model.ForkSandbox(sandbox=self.id, count=1 if count is None else count, ttl_seconds=ttl_seconds)
        children = [type(self)(info, self._transport) for info in await self._transport.perform(action)]
        return children[0] if count is None else children

    async def diff_mount(self, *paths: str, target: str | None = None, patch: bool = False) -> MountDiff:
        """What it has changed in a directory of the host that it has copy-on-write, at this instant.

        `target` says which, where there are several; `paths`, relative to it, leave out the rest. With `patch` the
        result holds what `git apply` takes.
        """
        from paddock.model import DiffMount

        return await self._transport.perform(DiffMount(sandbox=self.id, target=target, paths=paths, patch=patch))

    async def promote_mount(
        self, *paths: str, target: str | None = None, git: bool = False, force: bool = False, dry_run: bool = False
    ) -> Promotion:
        """Takes those changes over into the host's directory; InvalidState lists what is in the way.

        Device nodes, set-id bits, links that lead out and what the host has changed since are refused, that one
        unless `force`. Changes in `.git` stay here; with `git`, its hooks and configuration.
        """
        from paddock.model import PromoteMount

        action = PromoteMount(sandbox=self.id, target=target, paths=paths, git=git, force=force, dry_run=dry_run)
        return await self._transport.perform(action)

    async def set_policy(self, policy: PolicySource | None, *, expect_revision: str | None = None) -> str | None:
        """Returns the new revision when it holds, for connections that are open as well; None: no network from now on.

        With `expect_revision`, InvalidState if the policy is another one by now."""
        from paddock.model import SetPolicy

        action = SetPolicy(sandbox=self.id, policy=policy_document(policy), expect_revision=expect_revision)
        self._info = await self._transport.perform(action)
        return self._info.policy

    async def pause(self, *, to_disk: bool = False, force: bool = False) -> None:
        """Stop all that runs in the sandbox until `resume`, or until it is used: by a command, a file, a port, or by
        writing to a running command. Its TTL and the timeouts of its commands stand still meanwhile.

        paddock keeps a paused sandbox for 30 days (`paused_retention_days` in `config.toml`): `info.kept_until` says
        until when, `info.left_seconds` how much of the TTL is left.

        InvalidState names the commands that run in it, in the background too. With `force` they stand still with it,
        and a caller who waits for one is told in the log and waits on. Streams stay open. Idempotent. Unsupported where
        the level can't.

        With `to_disk` (a microVM) its memory is given back as well, and the next use wakes it where it stood. What
        runs goes on then; but a caller who waits for a command, or has a stream open, loses it: SandboxDied.
        """
        self._info = await self._transport.perform(model.PauseSandbox(sandbox=self.id, to_disk=to_disk, force=force))

    async def resume(self) -> None:
        """Idempotent."""
        self._info = await self._transport.perform(model.ResumeSandbox(sandbox=self.id))

    async def extend(self, ttl_seconds: float) -> None:
        """It dies `ttl_seconds` from now."""
        self._info = await self._transport.perform(model.ExtendSandbox(sandbox=self.id, ttl_seconds=ttl_seconds))

    async def refresh(self) -> SandboxInfo:
        """Asks again what the records say; `info` and `state` follow."""
        self._info = await self._transport.perform(model.GetSandbox(sandbox=self.id))
        return self._info

    async def kill(self) -> None:
        """Ends it and everything in it, at once and for good. Killing what is dead is not an error."""
        self._info = await self._transport.perform(model.KillSandbox(sandbox=self.id))

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A persistent one too: `persistent` is about the end of the program, a block is about this one's end.
        await self.kill()

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<{type(self).__name__} {self.id}{name} {self.state} at level {self.level}>"


def _level(level: Level | str | None) -> Level | None:
    try:
        return None if level is None else Level(level)
    except ValueError:
        raise InvalidArgument(f"no level {level!r}: there are {', '.join(Level)}", hint="paddock doctor") from None
