"""The kit: the controller with a Python that needs nothing of the place where it is seen."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import cast

import pytest

from paddock.backends.guest import program
from paddock.backends.vmm import Control
from paddock.storage import Templates, open_pool, prepare
from paddock.storage.templates.kit import COMMAND, PLACE, manifest, recipe
from paddock.storage.templates.recipe import Manifest
from paddock.vmm.control import pack_orders
from tests.conformance.trees import Root
from tests.vmm.plain import in_kits


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    with in_kits(tmp_path_factory.mktemp("package")):
        return manifest()


def _write(root: Path, files: Manifest) -> None:
    for path, entry in sorted(files.items()):
        place = root / path
        if entry.kind == "directory":
            place.mkdir(parents=True, exist_ok=True)
        elif entry.kind == "link":
            place.symlink_to(os.fsdecode(entry.content))
        else:
            place.write_bytes(entry.content)
            place.chmod(entry.mode)


def test_the_controller_serves_where_there_is_nothing_but_the_kit(files: Manifest, tmp_path: Path) -> None:
    _write(tmp_path / PLACE.lstrip("/"), files)
    for name in ("dev", "proc"):
        (tmp_path / name).mkdir()
    (tmp_path / "dev/null").touch()
    shutil.copy(program(), tmp_path / "sentry")  # by this name it serves, and does not end
    told = {"name": f"paddock-kit-{os.urandom(8).hex()}", "identities": (), "fatal_imports": True}
    told |= {"driver": "plain", "options": {"argv": ["/sentry"]}}
    bound = 'mount --rbind /proc "$0/proc" && exec chroot "$0" "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", bound, str(tmp_path), *COMMAND]

    async def main() -> dict[str, object]:
        ours, theirs = socket.socketpair()
        with theirs:
            controller = await asyncio.create_subprocess_exec(*command, stdin=theirs.fileno())
        ours.sendall(pack_orders(told))
        control = Control(ours)
        try:
            async with asyncio.timeout(60):
                return await control.call("ping", dict)
        finally:
            control.close()
            controller.kill()
            await controller.wait()

    assert len(cast("list[int]", asyncio.run(main())["children"])) == 1


def test_only_what_the_controller_uses_is_in_it(files: Manifest) -> None:
    sources = [path for path in files if path.endswith(".py")]
    assert sources == [], "it is byte-compiled"
    standard = [path for path in files if path.startswith(f"lib/python3.{sys.version_info[1]}/")]
    assert not any("asyncio" in path or "/test/" in path or "/email/" in path for path in standard)
    assert sum(len(entry.content) for entry in files.values()) < 60 << 20


def test_it_is_built_once_and_held_while_it_is_in_use(tmp_path: Path) -> None:
    state = tmp_path / "state"
    pool = open_pool(state, prepare(state, driver="copy"))
    templates = Templates(pool)
    tree = templates.kit()
    assert tree == Templates(pool).kit() == recipe().tree
    assert pool.names() == (tree,)
    with Root(pool, tree) as root:
        (controller,) = root.glob("lib/python3.*/paddock/vmm/controller.pyc")
        assert not controller.stat().st_mode & 0o022
    assert templates.is_version(tree)
    assert tree in templates.versions()
    assert "kit" not in templates.names()
    assert not templates.discard(tree), "it is in use"
    pool.close()
