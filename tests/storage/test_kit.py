"""The kit: the guest with a Python that needs nothing of the place where it is seen."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from paddock.guest._frames import VERSION, Decoder, Kind, pack
from paddock.storage import Templates, open_pool, prepare
from paddock.storage._kit import COMMAND, PLACE, manifest, recipe
from paddock.storage._recipe import Manifest
from tests.conformance.trees import Root


@pytest.fixture(scope="module")
def files() -> Manifest:
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


def test_the_guest_serves_where_there_is_nothing_but_the_kit(files: Manifest, tmp_path: Path) -> None:
    _write(tmp_path / PLACE.lstrip("/"), files)
    for name in ("dev", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "dev/null").touch()
    agent = {"user": {"name": "root", "uid": 0, "gid": 0}, "workdir": "/tmp", "exec_dir": "/tmp", "env": {}}
    config = json.dumps({"stream": [0, 0], "agent": agent, "fatal_imports": True})
    ours, theirs = socket.socketpair()
    command = ["/usr/bin/unshare", "--user", "--map-root-user", f"--root={tmp_path}", *COMMAND, config]
    with ours, subprocess.Popen(command, stdin=theirs.fileno(), env={}) as guest:
        theirs.close()
        ours.sendall(pack(Kind.HELLO, 0, {"version": VERSION}))
        ours.sendall(pack(Kind.OPEN, 1, {"op": "stat", "path": "/.paddock/bin/python3"}))
        ours.sendall(pack(Kind.OPEN, 2, {"op": "ping"}))
        decoder, said = Decoder(), list[tuple[Kind, object]]()
        while not said or said[-1] != (Kind.REPLY, sys.version.split()[0]):
            data = ours.recv(65536)
            assert data, "the guest ended"
            said += [
                (frame.kind, frame.body.get("python")) for frame in decoder.feed(data) if frame.kind is not Kind.CLOSE
            ]
        assert [kind for kind, _ in said] == [Kind.HELLO, Kind.REPLY, Kind.REPLY]
        ours.shutdown(socket.SHUT_RDWR)
    assert guest.returncode == 0


def test_only_what_the_guest_uses_is_in_it(files: Manifest) -> None:
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
        assert (root / "guest/__main__.pyc").exists()
        assert not (root / "guest/__main__.pyc").stat().st_mode & 0o022
    assert templates.is_version(tree)
    assert tree in templates.versions()
    assert "kit" not in templates.names()
    assert not templates.discard(tree), "it is in use"
    pool.close()
