"""Keep artifacts: files and directories taken out of a workspace by name and stored on the host."""

from __future__ import annotations

import asyncio
import os
import re

from paddock import model
from paddock.backends.base import Instance
from paddock.daemon.context import Component, Context, Operation, handles
from paddock.daemon.sandboxes import validate
from paddock.daemon.sandboxes.outputs import KeptOutput
from paddock.daemon.store.results import ResultStore
from paddock.daemon.tasks import in_thread
from paddock.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from paddock.model import Artifact, ByteReader, FileKind
from paddock.storage.pool.kept import Artifacts as Contents
from paddock.supervisor.layout import ARTIFACTS

from .results import Source, Sources

MOST_BYTES = 4 << 30
_CHUNK = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")


class ArtifactResults(Component):
    def __init__(self, context: Context, sources: Sources) -> None:
        super().__init__(context)
        self._sources, self._rows = sources, ResultStore(self._store)
        self._contents = Contents(self._state_dir / ARTIFACTS)
        self._changing = asyncio.Lock()
        """Between the contents and the rows that need them."""

    @handles(model.AddArtifact)
    async def add(self, action: model.AddArtifact, op: Operation) -> Artifact:
        validate.check_file(action)
        name = action.name or action.path.rstrip("/").rpartition("/")[2]
        if not _NAME.fullmatch(name):
            raise InvalidArgumentError(
                f"{name[:200]!r} is not the name of an artifact: write 1 to 128 letters, digits, `.`, `_`, `+` and `-`",
                hint="give it another with --name",
                field="name",
            )
        source = await self._sources.find(action.workspace, op)
        if source.running is not None:
            artifact = await self._take(source, source.running[1].instance, action.path, name, op)
        else:
            async with self._sources.utility(source, op) as utility:
                artifact = await self._take(source, utility.instance, action.path, name, op)
        op.done({"of": artifact.of, "name": name, "sha256": artifact.digest, "length": artifact.size_bytes})
        return artifact

    @handles(model.ListArtifacts)
    async def list(self, action: model.ListArtifacts, op: Operation) -> tuple[Artifact, ...]:
        return self._rows.artifacts(op.principal.id, action.workspace)

    @handles(model.GetArtifact)
    async def get(self, action: model.GetArtifact, op: Operation) -> ByteReader:
        """Return a reader. The outcome names what was handed out; how much of it was read is not recorded."""
        artifact = self._find(action.workspace, action.name, op)
        file = os.fdopen(await in_thread(self._contents.open, artifact.digest), "rb")
        op.done({"of": artifact.of, "sha256": artifact.digest, "length": artifact.size_bytes})
        return KeptOutput(file)

    @handles(model.RemoveArtifact)
    async def remove(self, action: model.RemoveArtifact, op: Operation) -> None:
        self._rows.forget(op.principal.id, self._find(action.workspace, action.name, op))
        async with self._changing:
            await in_thread(self._contents.keep_only, self._rows.digests())

    async def _take(self, source: Source, instance: Instance, path: str, name: str, op: Operation) -> Artifact:
        info = await instance.file(model.StatFile(sandbox=instance.id, path=path))
        if info.kind not in (FileKind.FILE, FileKind.DIRECTORY):
            raise InvalidArgumentError(
                f"{path!r} is a {info.kind.value}: an artifact is a file or a directory", field="path"
            )
        tree = info.kind is FileKind.DIRECTORY
        action = model.DownloadTree if tree else model.ReadFile
        reader: ByteReader = await instance.file(action(sandbox=instance.id, path=path))
        incoming = self._contents.incoming(MOST_BYTES)
        try:
            await in_thread(incoming.open)
            while data := await reader.read(_CHUNK):
                await in_thread(incoming.write, data)
            artifact = Artifact(
                of=source.id,
                name=name,
                path=path,
                digest=incoming.digest,
                size_bytes=incoming.size,
                tree=tree,
                created_at=self._clock.wall(),
            )
            async with self._changing:
                await in_thread(incoming.keep, incoming.digest)
                if not self._rows.keep(op.principal.id, artifact, source.name):
                    await self._refuse_other(op.principal.id, artifact)
        finally:
            await in_thread(incoming.close)
            await reader.aclose()
        return artifact

    async def _refuse_other(self, owner: str, artifact: Artifact) -> None:
        """Refuse another content under the same name. The same content again isn't an error."""
        (known,) = self._rows.artifacts(owner, artifact.of, artifact.name)
        if known.digest != artifact.digest:
            await in_thread(self._contents.keep_only, self._rows.digests())
            raise AlreadyExistsError(
                f"{artifact.name!r} is there already, with other content (sha256 {known.digest})",
                hint="give it another name, or remove that one: paddock artifact rm",
            )

    def _find(self, of: str, name: str, op: Operation) -> Artifact:
        found = self._rows.artifacts(op.principal.id, of, name)
        if not found:
            raise NotFoundError(f"no artifact {name!r} of {of!r}", hint="`paddock artifact list` lists them")
        return found[-1]
