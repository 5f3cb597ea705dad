"""Directories of the host in a container: the same modes, owners and refusals as in a jail."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from paddock.backends import TreeMount
from paddock.backends.container import ContainerBackend
from paddock.errors import InvalidArgumentError, PaddockError, UnsupportedError
from paddock.model import Mount, MountMode, SandboxId, SandboxSpec
from paddock.supervisor.layout import TREE_ID_BASE
from tests.backends.containers import ContainerHarness
from tests.backends.test_container_engine import backend_of
from tests.conformance import Box

pytestmark = pytest.mark.root

COW, READ_ONLY, READ_WRITE = MountMode.COPY_ON_WRITE, MountMode.READ_ONLY, MountMode.READ_WRITE


@contextlib.asynccontextmanager
async def with_mounts(
    harness: ContainerHarness, backend: ContainerBackend, *mounts: Mount, tree: SandboxId | None = None
) -> AsyncGenerator[Box]:
    plan = await harness.plan(SandboxSpec(mounts=mounts))
    if tree is None:
        layers = plan.template.layers
        harness.pool.create(plan.tree, layers=layers, limit_bytes=1 << 30, mounts=len(mounts))
    else:
        plan = msgspec.structs.replace(plan, tree=tree, begun=True)
    instance = await backend.create(plan)
    try:
        yield Box(instance, plan)
    finally:
        await instance.kill()
        await instance.aclose()


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A directory of uid 4321 with a file of its own, and one of somebody else's that is nobody's business."""
    (tmp_path / "file").write_text("host")
    (tmp_path / "secret").write_text("of others")
    (tmp_path / "secret").chmod(0o600)
    for path in (tmp_path, tmp_path / "file"):
        os.chown(path, 4321, 4321)
    return tmp_path


def test_each_mode_is_what_it_is_in_a_jail(containers: ContainerHarness, host: Path) -> None:
    async def main() -> None:
        mounts = [Mount(source=str(host), target=f"/srv/{mode}", mode=mode) for mode in MountMode]
        async with backend_of(containers) as backend, with_mounts(containers, backend, *mounts) as box:
            for mode in MountMode:
                assert (await box.sh(f"cd /srv/{mode}; cat file; stat -c ' %U' file")).text == "host user"
            assert (await box.sh("echo x > /srv/ro/file")).status.code
            await box.sh("cd /srv/cow; echo cow > file; echo cow > new; rm -f secret")
            assert (host / "file").read_text() == "host"
            await box.sh("cd /srv/rw; echo rw > file; echo rw > made")
            assert (host / "file").read_text() == "rw\n"
            made = (host / "made").stat()
            assert (made.st_uid, made.st_gid) == (4321, 4321)
            assert not (host / "new").exists()
            assert (await box.sh("cat /srv/cow/file")).text == "cow"

    asyncio.run(main())


def test_root_inside_has_no_power_over_what_is_others(containers: ContainerHarness, host: Path) -> None:
    attempts = ("chown 0:0 secret", "chown 1000:1000 secret", "chmod 777 secret", "cat secret", "mknod d c 1 3")

    async def main() -> None:
        mounts = [Mount(source=str(host), target=f"/srv/{mode}", mode=mode) for mode in MountMode]
        async with backend_of(containers) as backend, with_mounts(containers, backend, *mounts) as box:
            for mode in MountMode:
                for attempt in attempts:
                    done = await box.sh(f"cd /srv/{mode} && {attempt}", user="root")
                    assert done.status.code, (mode, attempt)
            for attempt in ("touch made", "chown 0:0 file"):
                assert (await box.sh(f"cd /srv/ro && {attempt}", user="root")).status.code, attempt
            assert sorted(os.listdir(host)) == ["file", "secret"]
            secret = (host / "secret").stat()
            assert (secret.st_uid, secret.st_gid, stat.S_IMODE(secret.st_mode)) == (0, 0, 0o600)

    asyncio.run(main())


def test_what_root_inside_makes_in_a_writable_directory_belongs_to_no_account(
    containers: ContainerHarness, host: Path
) -> None:
    """So a set-user-id program of root inside gives a host user who runs it the rights of no account."""

    async def main() -> None:
        mount = Mount(source=str(host), target="/srv/rw", mode=READ_WRITE)
        async with backend_of(containers) as backend, with_mounts(containers, backend, mount) as box:
            done = await box.sh("cd /srv/rw && cp /bin/true run && chmod 6755 run", user="root")
            assert done.status.code == 0, done.err
            info = (host / "run").stat()
            assert (info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)) == (TREE_ID_BASE, TREE_ID_BASE, 0o6755)

    asyncio.run(main())


def test_nobody_is_reached_by_a_socket_that_is_only_shown(containers: ContainerHarness, host: Path) -> None:
    async def main() -> None:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(host / "door"))
            server.listen()
            os.chown(host / "door", 4321, 4321)
            mounts = [Mount(source=str(host), target=f"/srv/{mode}", mode=mode) for mode in (COW, READ_ONLY)]
            async with backend_of(containers) as backend, with_mounts(containers, backend, *mounts) as box:
                for mode in (COW, READ_ONLY):
                    call = f"import socket; socket.socket(socket.AF_UNIX).connect('/srv/{mode}/door')"
                    done = await box.python(call)
                    assert b"ConnectionRefused" in done.err

    asyncio.run(main())


def test_what_no_sandbox_may_be_given_leaves_nothing(containers: ContainerHarness, host: Path) -> None:
    async def main() -> None:
        async with backend_of(containers) as backend:
            (host / "link").symlink_to(containers.state_dir)
            for source in (containers.state_dir, containers.state_dir.parent, host / "link", "/proc/self", host / "no"):
                with pytest.raises(InvalidArgumentError):
                    async with with_mounts(containers, backend, Mount(source=str(source), target="/srv")):
                        pass
            assert (await backend.state()).living == {}

    asyncio.run(main())


def test_a_mount_in_a_workspace_is_refused(containers: ContainerHarness, host: Path) -> None:
    async def main() -> None:
        async with backend_of(containers) as backend:
            for target in ("/workspace/in", "/workspace"):
                plan = await containers.plan(SandboxSpec(mounts=(Mount(source=str(host), target=target),)))
                tree = TreeMount(tree="ws_1", target="/workspace", writable=True, layers=())
                with pytest.raises(UnsupportedError, match="nothing is mounted in a workspace"):
                    await backend.create(msgspec.structs.replace(plan, trees=(tree,)))

    asyncio.run(main())


def test_a_copy_has_what_was_written_and_a_moved_way_to_it_harms_nobody(
    containers: ContainerHarness, host: Path
) -> None:
    async def main() -> None:
        mounts = (
            Mount(source=str(host), target="/srv/way/cow"),
            Mount(source=str(host), target="/srv/way/rw", mode=READ_WRITE),
        )
        async with backend_of(containers) as backend, with_mounts(containers, backend, *mounts) as box:
            await box.sh("echo cow > /srv/way/cow/new; echo rw > /srv/way/rw/kept")
            copies = [SandboxId(f"sb_copy{number}") for number in range(2)]
            for copy in copies:
                async with box.instance.frozen():
                    containers.pool.snapshot(box.plan.tree, copy, limit_bytes=1 << 30)
                await box.sh("mv /srv/way /srv/away; ln -s /etc /srv/way", user="root")
            async with with_mounts(containers, backend, *mounts, tree=copies[0]) as child:
                assert (await child.sh("cat /srv/way/cow/new /srv/way/rw/kept")).text == "cow\nrw"
            with pytest.raises(PaddockError, match="mounted below it"):
                async with with_mounts(containers, backend, *mounts, tree=copies[1]):
                    pass
            assert (host / "kept").read_text() == "rw\n"
            assert (host / "file").read_text() == "host"

    asyncio.run(main())
