"""A sandbox's files at one instant, which outlive it."""

from __future__ import annotations

import os

from paddock import model
from paddock.errors import NotFoundError, PaddockError, UnsupportedError

from .daemon import default_async_transport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from paddock.client._command import Duration, Network, PolicySource
    from paddock.model import Level, Limits
    from paddock.model import Snapshot as SnapshotInfo

    from .transport import AsyncTransport


class AsyncSnapshot:
    """A sandbox's files at one instant. They live until `delete`, even after the sandbox has ended.

    Example:
        ```python
        snapshot = await sandbox.snapshot("before")
        async with AsyncSandbox.create(snapshot=snapshot) as other:
            await other.exec("ls")
        await snapshot.delete()
        ```
    """

    def __init__(self, info: SnapshotInfo, transport: AsyncTransport) -> None:
        self._info = info
        self._transport = transport

    @classmethod
    async def build(
        cls,
        directory: str | os.PathLike[str] = ".",
        *,
        dockerfile: str = "Dockerfile",
        name: str | None = None,
        args: Mapping[str, str] | None = None,
        level: Level | str | None = None,
        limits: Limits | Mapping[str, float] | None = None,
        network: Network = False,
        policy: PolicySource | None = None,
        ttl: Duration = "1h",
        on_output: Callable[[str], object] | None = None,
        transport: AsyncTransport | None = None,
    ) -> AsyncSnapshot:
        """Build a snapshot from a Dockerfile, in a sandbox that ends afterwards.

        It does FROM, RUN, COPY, ENV, WORKDIR, USER and ARG. It passes over what says nothing about files, such as CMD.
        Sandboxes from the snapshot have its variables, directory and user, and not the network of the build.

        Args:
            directory: COPY takes files from it. `.dockerignore` leaves names out.
            dockerfile: The file in `directory`.
            name: The name of the snapshot. An older snapshot of that name keeps only its id.
            args: Values of ARG.
            level: The level of the build, and of the sandboxes from the snapshot.
            limits: Of the build.
            network: What RUN may reach, as for `AsyncSandbox.create`.
            policy: The same as a policy.
            ttl: Seconds that the build may take, a timedelta or a text such as `"1h"`.
            on_output: Called with each line that a RUN prints.
            transport: `paddock.local(DIR)` is another state directory.

        Returns:
            The snapshot. `AsyncSandbox.create(snapshot=...)` starts from it.

        Raises:
            InvalidArgumentError: paddock can't do an instruction; the message has its line.
            UnsupportedError: USER needs ids that an ordinary user doesn't have, or the level has no snapshots.
            CommandFailedError: A RUN failed; the message has its line.
            ImageInvalidError, NotFoundError: FROM names an image that paddock can't get.

        Example:
            ```python
            tools = await AsyncSnapshot.build("./tools", network=["pypi"])
            async with AsyncSandbox.create(snapshot=tools) as sandbox:
                await sandbox.exec("ruff check .")
            ```
        """
        from paddock.client._dockerfile import Dockerfile

        from .sandbox import AsyncSandbox

        if level == "process":
            raise UnsupportedError("level 'process' has no snapshots", hint="build at another level: paddock doctor")
        model.check_name(name, model.IdPrefix.SNAPSHOT)
        transport = transport or default_async_transport()
        file = Dockerfile(directory, dockerfile, args or {})
        base = file.image()
        template, image = (base, None) if base in ("host", "code-interpreter") else (None, base)
        try:
            sandbox = await AsyncSandbox.create(
                template,
                image=image,
                level=level,
                limits=limits,
                network=network,
                policy=policy,
                ttl=ttl,
                transport=transport,
            )
        except PaddockError as error:
            error.message = f"{file.place()}: {error.message}"
            raise
        async with sandbox:
            said = (await sandbox.exec("env -0", check=True)).stdout.split("\0")
            file.base.update({name: value for name, _, value in (one.partition("=") for one in said)})
            file.workdir = file.base.get("PWD", "/")
            for word, what in file.steps():
                files = sandbox.files if file.owner is None else sandbox.files.as_user(file.owner)
                try:
                    if word == "RUN":
                        await sandbox.exec(
                            what,
                            cwd=file.workdir,
                            env=file.variables(),
                            user=file.user,
                            check=True,
                            on_stdout=on_output,
                            on_stderr=on_output,
                        )
                    elif word == "WORKDIR":
                        await sandbox.exec(["mkdir", "-p", *what], user=file.owner, check=True)
                    elif word == "TREE":
                        await files.upload(what[0], what[1], exclude=file.exclude)
                    else:
                        source, target = what
                        await sandbox.exec(["mkdir", "-p", os.path.dirname(target)], user=file.owner, check=True)
                        if await files.exists(target) and (await files.stat(target, follow=True)).kind == "directory":
                            target += f"/{os.path.basename(source)}"
                        await files.write_from(target, source, mode=os.stat(source).st_mode & 0o777)
                except PaddockError as error:
                    error.message = f"{file.place()}: {error.message}"
                    if word == "RUN":
                        try:
                            await sandbox.exec("true", user="root")
                        except UnsupportedError as refused:
                            error.hint = f"if it needs root, useradd or chown: {refused.hint}"
                    elif file.owner is None and "Permission denied" in error.message:
                        error.hint = "write USER root above it, and the user's name below"
                    raise
            if sandbox.policy is not None:
                await sandbox.set_policy(None)  # else sandboxes from it could reach what the build could
            action = model.CreateSnapshot(
                sandbox=sandbox.id, name=name, takes_name=True, env=file.env, workdir=file.workdir, user=file.user
            )
            return cls(await transport.perform(action), transport)

    @classmethod
    async def get(cls, id_or_name: str, *, transport: AsyncTransport | None = None) -> AsyncSnapshot:
        """Return the snapshot of that id or name.

        Args:
            id_or_name: The whole id, or the name.
            transport: `paddock.local_async(DIR)` is another state directory.

        Returns:
            The snapshot.

        Raises:
            NotFoundError: It doesn't exist.

        Example:
            ```python
            snapshot = await sandbox.snapshot("green")
            print((await AsyncSnapshot.get("green")) == snapshot)  # True
            ```
        """
        for snapshot in await cls.list(transport=transport):
            if id_or_name in (snapshot.id, snapshot.name):
                return snapshot
        raise NotFoundError(f"no snapshot {id_or_name[:64]!r}", hint="paddock snapshot ls", snapshot=id_or_name)

    @classmethod
    async def list(cls, *, transport: AsyncTransport | None = None) -> tuple[AsyncSnapshot, ...]:
        """List all your snapshots.

        Args:
            transport: `paddock.local_async(DIR)` is another state directory.

        Returns:
            A tuple of snapshots, oldest first.

        Raises:
            DaemonUnavailableError: The daemon doesn't start, or doesn't answer.

        Example:
            ```python
            for snapshot in await AsyncSnapshot.list():
                print(snapshot.id, snapshot.name, snapshot.source)
            ```
        """
        transport = transport or default_async_transport()
        return tuple(cls(info, transport) for info in await transport.perform(model.ListSnapshots()))

    @property
    def info(self) -> SnapshotInfo:
        """Its record, which never changes."""
        return self._info

    @property
    def id(self) -> str:
        """The id, such as `sn_0vbrktv8zz3wggyw`."""
        return self._info.id

    @property
    def name(self) -> str | None:
        """The name that `snapshot` gave it, or None."""
        return self._info.name

    @property
    def source(self) -> str:
        """The id of the sandbox that it is of."""
        return self._info.source

    @property
    def policy(self) -> str | None:
        """The revision of the policy that the sandbox had."""
        return self._info.policy

    @property
    def created_at(self) -> float:
        """Its time, in seconds since the epoch."""
        return self._info.created_at

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncSnapshot) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    async def delete(self) -> None:
        """Delete the snapshot. Sandboxes that started from it keep their files.

        Raises:
            NotFoundError: It doesn't exist any more.
            ApprovalNeededError: The policy of its sandbox asks a person first.

        Example:
            ```python
            snapshot = await sandbox.snapshot()
            await snapshot.delete()
            ```
        """
        await self._transport.perform(model.DeleteSnapshot(snapshot=self.id))

    def __repr__(self) -> str:
        named = f" {self.name!r}" if self.name else ""
        return f"<{type(self).__name__} {self.id}{named} of {self.source}>"
