"""An agent that may act for others starts commands as them, and as nobody else."""

from __future__ import annotations

import asyncio
import os

import pytest
from test_exec import alive, collect, start
from test_start import GUEST, Init

from paddock.backends._guest_exec import start_foreground
from paddock.errors import NotFound, Unsupported
from paddock.model import ExecId, ExecSpec, PtySize

pytestmark = pytest.mark.root
OTHER = {"name": "other", "uid": 54321, "gid": 54322, "groups": [54323], "home": "/tmp"}


def with_agent(tmp_path, body, **fields):
    if os.getuid() != 0:
        pytest.skip("needs uid 0: becomes another user")

    async def main():
        connection = await init.dial("user")
        await body(connection)
        connection.close()

    init = Init(GUEST, tmp_path, users=[OTHER], **fields)
    try:
        asyncio.run(main())
    finally:
        init.stop()


def test_a_command_runs_as_whom_it_was_asked_for(tmp_path):
    async def body(connection):
        for fields in ({}, {"pty": PtySize()}):
            script = "id -u; id -g; id -G; echo $USER $HOME; echo $$ $PPID"
            spec = ExecSpec(argv=("sh", "-c", script), cwd="/", **fields)
            handle = await start_foreground(connection, spec, ExecId(f"ex_{len(fields)}"), "other")
            out = b""
            while data := await handle.stdout.read():
                out += data
            assert (await handle.wait()).code == 0
            assert out.split()[:6] == [b"54321", b"54322", b"54322", b"54323", b"other", b"/tmp"]
            await handle.aclose()

    with_agent(tmp_path, body, may_switch_user=True)


def test_kill_reaches_other_users(tmp_path):
    async def body(connection):
        spec = ExecSpec(argv=("sh", "-c", "setsid sleep 1000 & echo $!; wait"), cwd="/")
        handle = await start_foreground(connection, spec, ExecId("ex_1"), "other")
        daemon = int(await handle.stdout.read())
        await handle.kill()
        assert not alive(daemon)
        await handle.aclose()

    with_agent(tmp_path, body, may_switch_user=True)


def test_who_may_not_switch_refuses(tmp_path):
    async def body(connection):
        for name, kind in (("other", Unsupported), ("54321", Unsupported), ("nobody-here", NotFound)):
            with pytest.raises(kind):
                await start_foreground(connection, ExecSpec(argv=("true",)), ExecId("ex_1"), name)
        status, _, _ = await collect(await start(connection, "true"))
        assert status.code == 0

    with_agent(tmp_path, body)
