"""What a container has is brought to its tree while it stands still, and from a tree to another one."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import msgspec
import pytest

from paddock.backends.container import ContainerBackend
from paddock.errors import PaddockError
from paddock.model import IdPrefix, SandboxId, SandboxSpec, mint
from tests.backends.containers import ContainerHarness
from tests.backends.test_container_engine import backend_of
from tests.conformance import Box

MAKE = r"""
import os, subprocess
os.makedirs("/srv/a/b", exist_ok=True)
open("/srv/a/b/file", "w").write("content")
os.chmod("/srv/a/b/file", 0o640)
os.chown("/srv/a/b/file", 1000, 1000)
os.link("/srv/a/b/file", "/srv/a/hard")
os.symlink("../nowhere", "/srv/a/link")
os.mkfifo("/srv/a/fifo")
os.utime("/srv/a/b/file", ns=(1_500_000_000_123_456_789,) * 2)
open(b"/srv/a/\xff name\n", "w").close()
try: os.setxattr("/srv/a/b/file", "user.note", b"\x00\xff")
except OSError: pass
os.remove("/etc/passwd-") if os.path.exists("/etc/passwd-") else None
open("/etc/motd", "w").write("changed")
os.rename("/etc/hostname.new", "/etc/x") if os.path.exists("/etc/hostname.new") else None
os.remove("/etc/group")
"""
LOOK = r"""
import hashlib, json, os
mounts = {line.split()[4] for line in open("/proc/self/mountinfo")}
seen = {}
def look(top):
    for name in sorted(os.listdir(top)):
        path = os.path.join(top, name)
        if path in mounts: continue
        status = os.lstat(path)
        row = [oct(status.st_mode), status.st_uid, status.st_gid]
        if os.path.islink(path): row.append(os.readlink(path))
        elif os.path.isdir(path): look(path)
        elif os.path.isfile(path):
            row += [status.st_nlink, hashlib.sha256(open(path, "rb").read()).hexdigest(), status.st_mtime_ns]
            row += [[name, list(os.getxattr(path, name))] for name in os.listxattr(path) if name.startswith("user.")]
        seen[ascii(path)] = row
for top in ("/etc", "/srv", "/root", "/var", "/workspace"): look(top)
print(json.dumps(seen))
"""


async def look(box: Box) -> dict[str, Any]:
    return json.loads((await box.python(LOOK, user="root")).text)


def test_all_that_a_container_has_is_in_its_copy(containers: ContainerHarness) -> None:
    async def main() -> None:
        async with backend_of(containers) as backend:
            first = await _made(containers, backend)
            try:
                await first.python(MAKE, user="root")
                await first.write("/workspace/mine", b"mine")
                before = await look(first)
                fork = await _copied(containers, first)
                await first.instance.pause()
                again = await _copied(containers, first)  # of a tree that has been brought up to date before
                assert (await backend.state()).paused.keys() == {first.id}
                await first.instance.resume()
                assert len(before) > 5 * _written(containers, again)  # what is the template's takes no room
                for copy in (fork, again):
                    second = await _made(containers, backend, tree=copy)
                    try:
                        found = await look(second)
                        if containers.pool.worker.base is None:  # an ordinary user's pool has one owner
                            assert _anybodys(found) == _anybodys(before)
                        else:
                            assert found == before
                    finally:
                        await second.instance.kill()
                        await second.instance.aclose()
            finally:
                await first.instance.kill()
                await first.instance.aclose()

    asyncio.run(main())


def _written(harness: ContainerHarness, tree: str) -> int:
    root = f"/proc/self/fd/{harness.pool._fd}/{tree}/root"  # type: ignore[attr-defined]  # pyright: ignore
    return sum(len(files) for _, _, files in os.walk(root))


def _anybodys(seen: dict[str, Any]) -> dict[str, Any]:
    return {path: [row[0], *row[3:]] for path, row in seen.items()}


async def _made(harness: ContainerHarness, backend: ContainerBackend, tree: str | None = None) -> Box:
    plan = await harness.plan(SandboxSpec())
    if tree is None:
        harness.pool.create(plan.tree, layers=plan.template.layers, limit_bytes=1 << 30)
    else:
        plan = msgspec.structs.replace(plan, tree=tree, begun=True)
    return Box(await backend.create(plan), plan)


async def _copied(harness: ContainerHarness, box: Box) -> str:
    name = SandboxId(mint(IdPrefix.SANDBOX))
    async with box.instance.frozen():
        harness.pool.snapshot(box.plan.tree, name, limit_bytes=1 << 30)
    return name


def test_two_copies_at_once_are_both_whole(containers: ContainerHarness) -> None:
    async def main() -> None:
        async with backend_of(containers) as backend:
            box = await _made(containers, backend)
            try:
                await asyncio.gather(_copied(containers, box), _copied(containers, box))
                assert (await box.run("echo", "on")).text == "on"
            finally:
                await box.instance.kill()
                await box.instance.aclose()

    asyncio.run(main())


def test_what_does_not_fit_into_its_tree_is_said_and_it_goes_on(containers: ContainerHarness) -> None:
    async def main() -> None:
        async with backend_of(containers) as backend:
            box = await _made(containers, backend)
            try:
                containers.pool.delete(box.plan.tree)  # as good as one that is full
                with pytest.raises(PaddockError):
                    await _copied(containers, box)
                assert (await box.run("echo", "on")).text == "on"
                assert (await backend.state()).paused == {}
            finally:
                await box.instance.kill()
                await box.instance.aclose()

    asyncio.run(main())
