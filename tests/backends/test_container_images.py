"""Any image will do: our guest needs nothing of it, and what an image has in the places of mounts is not believed."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from paddock.errors import UnsupportedError
from paddock.model import SandboxSpec, Template, User
from paddock.storage.templates.recipe import Entry, Manifest, write_manifest
from tests.backends.containers import ContainerHarness
from tests.backends.engines import PodmanService
from tests.conformance import Box

USERS = (User(name="root", uid=0, gid=0, home="/root"), User(name="user", uid=1000, gid=1000, home="/home/user"))


def busybox() -> bytes:
    found = shutil.which("busybox")
    if found is None:
        pytest.skip("no busybox here: apt-get install --no-install-recommends busybox-static")
    return Path(found).read_bytes()


@pytest.fixture
def made(containers: ContainerHarness) -> Generator[list[str]]:
    names: list[str] = []
    try:
        yield names
    finally:
        for name in names:
            containers.pool.delete(name)


def template(containers: ContainerHarness, made: list[str], *layers: Manifest) -> Template:
    """Of these layers, the topmost first."""
    names: list[str] = []
    for manifest in layers:
        name = f"tq_{os.urandom(6).hex()}"
        containers.pool.create(name)
        made.append(name)
        names.append(name)
        tree = containers.pool.open(name)
        root = os.open("root", os.O_RDONLY | os.O_DIRECTORY, dir_fd=tree)
        try:
            write_manifest(root, containers.pool.worker, manifest)
        finally:
            os.close(root)
            os.close(tree)
    return Template(
        name="image", digest="x", layers=tuple(names), host_usr=False, users=USERS, default_user="user", workdir="/"
    )


async def live(containers: ContainerHarness, image: Template, script: str, **spec: object) -> str:
    backend = containers.backend()
    try:
        plan = await containers.plan(SandboxSpec(), image)
        instance = await backend.create(plan)
        try:
            done = await Box(instance, plan).run(*script.split(), **spec)
            assert done.status.code == 0, done.err
            return done.text
        finally:
            await instance.kill()
            await instance.aclose()
    finally:
        await backend.aclose()


def test_one_static_program_is_enough(containers: ContainerHarness, made: list[str]) -> None:
    image = template(containers, made, {".": Entry("directory", 0o755), "busybox": Entry("file", 0o755, busybox())})
    assert asyncio.run(live(containers, image, "/busybox echo hello")) == "hello"


def test_layers_lie_over_each_other_in_their_order(containers: ContainerHarness, made: list[str]) -> None:
    lower: Manifest = {
        ".": Entry("directory", 0o755),
        "bin": Entry("directory", 0o755),
        "bin/busybox": Entry("file", 0o755, busybox()),
        "a": Entry("file", 0o644, b"lower"),
        "b": Entry("file", 0o644, b"b"),
    }
    upper: Manifest = {".": Entry("directory", 0o755), "a": Entry("file", 0o644, b"upper")}
    image = template(containers, made, upper, lower)
    assert asyncio.run(live(containers, image, "/bin/busybox cat /a /b")) == "upperb"


@pytest.mark.parametrize("place", [".paddock", ".paddock-host", "tmp", "proc", "dev", "sys", "etc"])
def test_a_link_where_engines_mount_never_reaches_one(
    containers: ContainerHarness, engine: PodmanService, made: list[str], tmp_path: Path, place: str
) -> None:
    """runc 1.1.5 makes files where a link at /dev leads on the host."""
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o777)
    (outside / "file").write_text("untouched")
    image = template(
        containers,
        made,
        {
            ".": Entry("directory", 0o755),
            "busybox": Entry("file", 0o755, busybox()),
            place: Entry("link", 0o777, os.fsencode(outside)),
        },
    )
    with pytest.raises(UnsupportedError, match=f"/{place} of this template is not a directory"):
        asyncio.run(live(containers, image, "/busybox echo hello"))
    assert engine.containers() == []
    assert os.listdir(outside) == ["file"]
    assert (outside / "file").read_text() == "untouched"
