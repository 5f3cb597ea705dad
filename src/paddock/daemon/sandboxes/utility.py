"""Utility sandboxes: short-lived ones of the daemon's own, for work on trees that must not run on the host.

No caller can name one: it has no row among the sandboxes. Its output is an attacker's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from paddock import model
from paddock.backends.base import Backend, Instance, SandboxPlan, TreeMount
from paddock.backends.pump import Meter
from paddock.daemon.context import Component, Operation
from paddock.daemon.store.trees import REPOSITORY, WORKSPACE
from paddock.daemon.tasks import in_thread
from paddock.errors import ErrandFailedError, PlatformError, SandboxDiedError
from paddock.model import ByteWriter, ExecId, ExecSpec, IdPrefix, Level, Limits, SandboxId, SandboxSpec, mint

from .running import destroy

TEMPLATE = "host"
LIMITS = Limits(memory_mib=4096, disk_mib=1024, processes=256, tmp_mib=1024)
OUTPUT_BYTES = 16 << 20
SECONDS = 1800.0
READING_SECONDS = 60.0
"""Seconds for all git commands together in a sandbox that reads an attacker's repository. It also ends what the names
below miss, such as a pipe behind a link."""
_CHUNK = 1 << 18
_ERROR_BYTES = 4096
_log = logging.getLogger("paddock")

# The first step of each script in which git reads a workspace: it names files that git would block on.
# Git opens these by name, of any kind. It opens no hook here. No program can open a socket file; fsmonitor leaves one.
# Links to plain files and directories are common.
PLAIN_FILES = f"""
odd=$(find {WORKSPACE} \\( -path '*/.git/hooks' -o -name fsmonitor--daemon.ipc \\) -prune -o \\
    \\( -path '*/.git/*' -o -name .gitignore -o -name .gitattributes -o -name .gitmodules -o -name .git \\) \\
    \\( -xtype p -o -xtype b -o -xtype c -o -xtype s -o -type f -size +256M ! -path '*/.git/objects/*' \\) \\
    -print -quit 2>/dev/null) || :  # where find may not look, git may not either
if [ -n "$odd" ]; then
    echo "$odd is a pipe, device or socket, or larger than 256 MiB, and git would read it" >&2
    exit 1
fi
"""


def git_environment(settings: Mapping[str, str] = {}, author: str = "", email: str = "") -> dict[str, str]:
    """Return the environment of git in a utility sandbox. It runs no program that a repository or the template names,
    and fetches nothing."""
    settings = {
        "core.hooksPath": "/dev/null",
        "core.fsmonitor": "false",
        "core.excludesFile": "/dev/null",
        "core.attributesFile": "/dev/null",
        "core.quotePath": "true",
        "core.autocrlf": "false",
        "core.safecrlf": "false",
        "commit.gpgSign": "false",
        "gc.auto": "0",
        "advice.addEmbeddedRepo": "false",
        "advice.graftFileDeprecated": "false",
        "safe.directory": "*",
        **settings,
    }
    numbered = {f"GIT_CONFIG_KEY_{n}": key for n, key in enumerate(settings)}
    numbered |= {f"GIT_CONFIG_VALUE_{n}": value for n, value in enumerate(settings.values())}
    return {
        "WORKSPACE": WORKSPACE,
        "REPOSITORY": REPOSITORY,
        "LC_ALL": "C",
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_COUNT": str(len(settings)),
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_GRAFT_FILE": "/dev/null",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_AUTHOR_NAME": author,
        "GIT_AUTHOR_EMAIL": email,
        "GIT_COMMITTER_NAME": author,
        "GIT_COMMITTER_EMAIL": email,
        **numbered,
    }


class UtilitySandbox:
    """A utility sandbox that is open. Its commands run one after the other, as the template's own user."""

    def __init__(self, instance: Instance, done: list[dict[str, object]], *, root_user: bool, seconds: float) -> None:
        self.instance, self._done, self._left = instance, done, seconds
        self.owner = "root" if root_user else None
        """The user who may read and write all files of its trees."""

    async def run(
        self,
        script: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        input: Iterable[bytes] | None = None,
        sink: Callable[[bytes], None] | None = None,
        output_bytes: int = OUTPUT_BYTES,
        user: str | None = None,
    ) -> bytes:
        """Return what a shell script prints on stdout, or nothing if `sink` takes it. All scripts share the seconds.

        ErrandFailedError: it doesn't end with 0, or not in time, or prints more than `output_bytes`.
        """
        began, seconds = time.monotonic(), self._left
        env = git_environment() if env is None else dict(env)
        argv = ("/bin/sh", "-c", script, "sh", *arguments)
        spec = ExecSpec(argv=argv, env=env, user=user, stdin=input is not None)
        handle = await self.instance.start(spec, id=ExecId(mint(IdPrefix.EXEC)), background=False)
        out, errors = bytearray(), Meter(digests=False, keeps_end=True)

        def take(data: bytes) -> None:
            if len(out) + len(data) > output_bytes:
                raise ErrandFailedError(f"{argv[0]} printed more than {output_bytes} bytes")
            out.extend(data)

        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                assert handle.stdout is not None
                assert handle.stderr is not None
                group.create_task(_pump(handle.stdout, sink or take))
                group.create_task(_pump(handle.stderr, errors.add))
                if input is not None:
                    assert handle.stdin is not None
                    group.create_task(_feed(handle.stdin, input))
                status = await handle.wait()
        except TimeoutError:
            raise ErrandFailedError(f"{argv[0]} did not come to an end in {seconds:.0f} s") from None
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
        finally:
            await handle.aclose()
            self._left = max(0.0, seconds - (time.monotonic() - began))
        self._done.append({"argv": list(argv[:2]), "status": status})
        if status.exit_code:
            text = errors.ending.decode(errors="replace").strip() or "no words"
            raise ErrandFailedError(f"{argv[0]} ended with {status.exit_code}: {text}"[:_ERROR_BYTES])
        return bytes(out)


class UtilitySandboxes(Component):
    @asynccontextmanager
    async def open(
        self,
        trees: Sequence[TreeMount],
        op: Operation | None,
        *,
        command_seconds: float = SECONDS,
    ) -> AsyncGenerator[UtilitySandbox]:
        """Run a utility sandbox with `trees` while the block lasts. `op`: the action that needs it. `command_seconds`:
        the limit for its commands, together.

        Raises PlatformError if it died, and what a backend raises that can't make one.
        """
        backend = self._backends.choose(Level.JAIL)  # for sandboxes of any template: it is the quickest to begin
        backend.capabilities.require("trees", backend.name)
        template = await asyncio.to_thread(self._templates().get, TEMPLATE, _log.info)
        id = SandboxId(mint(IdPrefix.WORKSHOP))
        plan = SandboxPlan(
            id=id,
            hostname="workshop",
            spec=SandboxSpec(template=TEMPLATE, limits=LIMITS, ttl_seconds=SECONDS),
            template=template,
            tree=id,
            deadline=self._clock.boottime() + SECONDS,
            trees=tuple(trees),
        )
        done: list[dict[str, object]] = []
        self._store.execute("INSERT INTO workshops (id) VALUES (?)", (id,))
        try:
            limit = LIMITS.disk_mib << 20
            await in_thread(self._pool().create, id, layers=template.layers, limit_bytes=limit)
            instance = await backend.create(plan)
            try:
                yield UtilitySandbox(instance, done, root_user=backend.capabilities.root_user, seconds=command_seconds)
            except SandboxDiedError as error:
                raise PlatformError(f"the workshop died: {error.message}", hint="paddock audit") from None
            finally:
                await self._tasks.finish(instance.aclose(), name=f"let go of {id}")
        finally:
            await self._tasks.finish(self._end(id, backend), name=f"end {id}")
            names = [tree.tree for tree in trees]
            self._audit.event("workshop", asked_by=op and op.number, workshop=id, trees=names, commands=done)

    def living(self) -> set[str]:
        return {id for (id,) in self._store.execute("SELECT id FROM workshops", ()).fetchall()}

    async def recover(self) -> None:
        """End those that the daemon before this one has left open."""
        for id in self.living():
            self._audit.event("workshop.orphan", workshop=id, message="the daemon that opened it died; removed")
            await self._end(SandboxId(id), self._backends.choose(Level.JAIL))

    async def _end(self, id: SandboxId, backend: Backend) -> None:
        """End one. The row goes last: until then the next daemon tries again."""
        await destroy(backend, id)
        await in_thread(self._pool().delete, id)
        self._store.execute("DELETE FROM workshops WHERE id = ?", (id,))


async def _pump(reader: model.ByteReader, take: Callable[[bytes], None]) -> None:
    while data := await reader.read(_CHUNK):
        take(data)


async def _feed(writer: ByteWriter, chunks: Iterable[bytes]) -> None:
    each = iter(chunks)
    try:
        while (data := await asyncio.to_thread(next, each, b"")) != b"":
            await writer.write(data)
    except (BrokenPipeError, ConnectionError):
        return  # it need not read what it is given; how it ends says what became of it
    await writer.aclose()
