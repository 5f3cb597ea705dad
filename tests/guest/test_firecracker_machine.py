"""All of what Firecracker is given, in a machine that is as its are: the kernel as ELF, devices of virtio-mmio found by
ACPI, the view in one file, the lines over a vsock. Only Firecracker itself is another: QEMU's `microvm`, emulated."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from test_exec import collect, start
from test_firecracker import Bench

from paddock.backends.microvm import _initramfs, _kernel
from paddock.backends.microvm._firecracker import Firecracker
from paddock.errors import NotConfigured
from paddock.storage._kit import COMMAND, manifest
from tests.guest.pilots import IDENTITIES, PilotProcess

ON_QEMU = Path(__file__).with_name("firecracker_on_qemu.py")
PYTHON = (*COMMAND[:-1], "-c")
USER = {"name": "user", "uid": 1000, "gid": 1000, "home": "/home/user"}
ROOT = {"name": "root", "uid": 0, "gid": 0, "home": "/root"}
pytestmark = pytest.mark.slow


def _kernel_here() -> _kernel.Kernel:
    for program in ("qemu-system-x86_64", "mke2fs"):
        if shutil.which(program, path="/usr/bin:/usr/sbin:/sbin") is None:
            pytest.skip(f"this machine has no {program}")
    try:
        return _kernel.find()
    except NotConfigured as error:
        pytest.skip(error.message)


class MachineBench(Bench):
    def boot(self, kernel: _kernel.Kernel) -> PilotProcess:
        vmm = Firecracker(Path("/none"), "1.10.0")
        modules = kernel.chain(vmm.modules)
        streams = vmm.streams(IDENTITIES)
        agents = {
            name: {"user": user, "workdir": "/home/user", "exec_dir": f"{user['home']}/execs", "env": {}, "users": []}
            for name, user in (("user", USER), ("root", ROOT))
        }
        owned = {"/home/user": (1000, 1000), "/root": (0, 0)}
        machine = {"files": streams["files"], "modules": _initramfs.module_places(modules), "directories": owned}
        lines = {name: streams[name] for name in IDENTITIES}
        config = {"streams": lines, "agents": agents, "deadline": 1e15, "machine": machine}
        (self.place / "boot/kernel").write_bytes(vmm.kernel(kernel))
        (self.place / "boot/initrd").write_bytes(_initramfs.build(manifest(), modules, config))
        template = self.directory / "template"
        for path, entry in manifest().items():
            there = template / ".paddock" / path
            if entry.kind == "directory":
                there.mkdir(parents=True, exist_ok=True)
            elif entry.kind == "link":
                there.symlink_to(entry.content.decode())
            else:
                there.parent.mkdir(parents=True, exist_ok=True)
                there.write_bytes(entry.content)
                there.chmod(entry.mode)
        mke2fs = shutil.which("mke2fs", path="/usr/sbin:/sbin:/usr/bin")
        source = {"place": str(template), "path": "/", "readable": True, "owners": {"/": [0, 0]}}
        make = {"sources": [source], "disk_bytes": 64 << 20}
        make["format"] = [mke2fs, "-q", "-F", "-t", "ext4", "-E", "root_owner=0:0"]
        (self.directory / "work").mkdir(exist_ok=True)
        (self.directory / "work").chmod(0o777)
        export = {"name": "0", "place": str(self.directory / "work"), "writable": True, "shared": False}
        return self.pilot(program=ON_QEMU, memory_mib=256, make=make, exports=[export])


@pytest.fixture
def machines(tmp_path: Path):
    bench = MachineBench(tmp_path)
    yield bench
    bench.close()


def test_a_machine_boots_serves_and_goes_on_after_its_connections_were_cut(machines: MachineBench) -> None:
    kernel = _kernel_here()
    pilot, work = machines.boot(kernel), machines.directory / "work"

    async def say(words: str, who: str = "user") -> bytes:
        connection = pilot.dial(who)
        try:
            return (await collect(await start(connection, *PYTHON, words)))[1]
        finally:
            connection.close()

    async def scene() -> None:
        assert (await pilot.ask("init", op="ping"))["pid"] == 1
        told = await say("import os; print(os.uname().release, os.getuid(), open('/file').read())")
        assert told.decode().split(maxsplit=2) == [kernel.release, "1000", "of the template\n"]
        assert await say("import os; print(os.getuid())", "root") == b"0\n"
        large = await say("import sys; sys.stdout.write('x' * 3_000_000)")
        assert large == b"x" * 3_000_000
        files = [{"name": "0", "target": "/workspace", "writable": True}]
        renewed = await pilot.ask("init", op="renew", files=files, hostname="renewed", entropy="00" * 32)
        assert renewed["failed"] == {}
        assert await say("open('/workspace/one', 'w').write('1' * 500_000)", "root") == b""
        assert (work / "one").read_text() == "1" * 500_000
        user, control = pilot.dial("user"), pilot.dial("control")
        command = await start(user, *PYTHON, "import sys; print(sys.stdin.read())", stdin=True)
        await command.stdin.write(b"before ")
        freeze = machines.freeze(control)
        await freeze.reply(dict)
        await command.stdin.write(b"meanwhile ")
        freeze.close()
        await command.stdin.write(b"after")
        await command.stdin.aclose()
        assert (await collect(command))[1] == b"before meanwhile after\n"
        assert (
            await say("print(len(open('/workspace/one').read())); open('/workspace/two', 'w')", "root") == b"500000\n"
        )
        assert (work / "two").exists()
        user.close()
        control.close()

    async def whole() -> None:
        async with asyncio.timeout(500):
            await scene()

    asyncio.run(whole())
    assert machines.calls()[-3:] == ["PATCH /vm", "PUT /snapshot/create", "PATCH /vm"]
