"""Sandboxes behind networks of their own on one gateway with a package cache, and an index that does as a test says."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from paddock.gateway.registries.package_cache import PackageStore
from tests.gateway.registry_files import Outside, world_of
from tests.gateway.rig import Rig, running

PAGE, NAME = "/simple/demo/", "demo-1.0-py3-none-any.whl"
FILE, PLACE = f"/p/{NAME}", f"files.test/p/{NAME}"
ANY_AGE = ", unknown_age: allow"
LARGE, RIGHT = os.urandom(300_000), os.urandom(1000)


class Upstream(Outside):
    """`odd` answers in its own way; what a page says about the file is what `answers` had when it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.odd: dict[str, Callable[[asyncio.StreamWriter], Awaitable[None]]] = {}

    def becomes(self, data: bytes) -> None:
        self.answers[PLACE] = ("application/zip", data)
        self.files[0]["hashes"] = {"sha256": hashlib.sha256(data).hexdigest()}

    @property
    def fetched(self) -> int:
        return self.asked.count(PLACE)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.odd:
            return await super().serve(reader, writer)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            host = head.lower().split(b"\r\nhost: ")[1].split(b"\r\n")[0].decode()
            path = host + head.split()[1].decode()
            if path not in self.odd:
                reader.feed_data(head)  # as if nobody had looked
                return await super().serve(reader, writer)
            self.asked.append(path)
            await self.odd[path](writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


class H2Streams:
    """A sandbox behind a network of its own."""

    def __init__(self, world: Rig, sandbox: str, port: int) -> None:
        self.world, self.sandbox, self.port = world, sandbox, port

    async def start(
        self, host: str, path: str, *fields: str, method: str = "GET"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.world.origin = (self.world.synthetic(host, self.sandbox), 443)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.world.client_context(), server_hostname=host
        )
        more = "".join(f"{field}\r\n" for field in fields)
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n".encode())
        return reader, writer

    async def fetch(self, host: str, path: str, *fields: str) -> tuple[int, bytes]:
        """Status and body; 0: it was cut off."""
        reader, writer = await self.start(host, path, *fields)
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            return int(head.split()[1]), await asyncio.wait_for(reader.readexactly(length), 60)
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0, b""
        finally:
            writer.close()

    async def file(self, *fields: str) -> tuple[int, bytes]:
        return await self.fetch("files.test", FILE, *fields)

    async def page(self) -> int:
        return (await self.fetch("index.test", PAGE, "Accept: application/vnd.pypi.simple.v1+json"))[0]

    async def install(self) -> tuple[int, bytes]:
        """What an installer does: the page, then its file."""
        assert await self.page() == 200
        return await self.file()


class Scene:
    def __init__(self, world: Rig, upstream: Upstream, store: PackageStore, directory: Path) -> None:
        self.world, self.upstream, self.store, self.directory = world, upstream, store, directory
        self.one = H2Streams(world, "sb_1", world.port)

    async def another(self, policy: Any = None, sandbox: str = "sb_2") -> H2Streams:
        await self.world.gateway.open(self.world.network(sandbox, policy))
        return H2Streams(self.world, sandbox, self.world.port)

    @property
    def kept(self) -> list[Path]:
        return [one for one in self.directory.iterdir() if not one.name.startswith("draft-")]

    @property
    def drafts(self) -> list[Path]:
        return [one for one in self.directory.iterdir() if one.name.startswith("draft-")]


def play(
    directory: Path,
    work: Callable[[Scene], Awaitable[None]],
    terms: str = ANY_AGE,
    *,
    most_bytes: int = 64 << 20,
    spare_bytes: int = 0,
    pages: str = "Cache-Control: no-store\r\n",
) -> None:
    """`pages`: what the index says in the heads of its own; unless a test is about them they are not kept."""

    async def run() -> None:
        world = world_of(terms)
        store = PackageStore(directory / "packages", most_bytes=most_bytes, spare_bytes=spare_bytes)
        world.packages = store
        async with running(world):
            upstream = Upstream()
            upstream.more = pages
            await upstream.join(world)
            await work(Scene(world, upstream, store, directory / "packages"))

    asyncio.run(run())
