"""The guest of the other architecture as pid 1 of a virtual machine: a kernel of Debian's, the real controller, QEMU.

The machine has the devices of level `microvm`. What differs is what an x86_64 one has no name for: board and console.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import time
import uuid
from pathlib import Path

import pytest

from paddock.backends.guest import PING, orders
from paddock.backends.guest.connection import GuestConnection
from paddock.backends.microvm._kernel import find, initramfs
from paddock.backends.microvm._qemu import BOOT, PLACE, Machine, Qemu
from paddock.errors import PaddockError
from paddock.model import PtySize
from paddock.wire.guest import PartFlags as Part
from paddock.wire.guest import PingReply, Renew, RenewReply
from tests.native.driver import build_module
from tests.tools.aarch64 import KIT, PROGRAM
from tests.vmm.controllers import ControllerProcess, collect, start

pytestmark = [pytest.mark.slow, pytest.mark.root]

MACHINE = Machine(memory_mib=512, processors=2, accelerator="tcg")
COMMANDS = ("cat", "grep", "hostname", "id", "kill", "ls", "pidof", "setsid", "sh", "sleep", "stty", "uname")
BOARD = {
    "q35": "virt,memory-backend=ram",
    "isa-serial,": "",
    "console=": "console=ttyAMA0 quiet loglevel=3 panic=-1 rdinit=/machine",
}
SECONDS = 300


def _argv(qemu: Qemu, place: Path) -> list[str]:
    """Level `microvm`'s, on this board."""
    argv: list[str] = []
    for word in qemu.command(MACHINE, boot=True):
        own = next((own for start, own in BOARD.items() if word.startswith(start)), word)
        argv.append(own.replace(f"{PLACE}/", f"{place}/"))
    device = argv.index("")
    argv[device - 1 : device + 1] = ["-serial", "chardev:console"]
    return argv


def _boot(place: Path) -> ControllerProcess:
    if platform.machine() != "x86_64" or not PROGRAM.exists() or not (KIT / "boot").exists():
        pytest.skip("needs qemu-system-aarch64 and a kernel for it: make levels, as root, fetches both")
    build, kernel, qemu = build_module(), find(places=(KIT,)), Qemu(PROGRAM, "")
    try:
        guest = build.build(arch="aarch64").read_bytes()
    except build.NoCompiler as error:
        pytest.skip(str(error))
    root, files = place / "template", [place / name.removeprefix(f"{PLACE}/") for name in BOOT]
    for directory in (files[0].parent, root / "bin", root / "etc", root / "home"):
        directory.mkdir(parents=True)
    for name in ("hostname", "hosts", "machine-id"):
        (root / "etc" / name).touch()
    shutil.copy(kernel.image, files[0])
    files[1].write_bytes(initramfs(guest, kernel.chain(qemu.modules)))
    shutil.copy(KIT / "bin/busybox", root / "bin/busybox")
    for name in COMMANDS:
        (root / "bin" / name).symlink_to("busybox")
    disks = {
        "sources": [{"place": str(root), "path": "/", "owners": None}],
        "disk_bytes": 64 << 20,
        "format": ["/usr/sbin/mke2fs", "-q", "-F", "-t", "ext4", "-m", "0"],
    }
    options = {"argv": _argv(qemu, place), "place": str(place), "stamp": "", "exports": [], "make": disks}
    return ControllerProcess(place, driver="microvm", options={**qemu.options(MACHINE, boot=True), **options})


def test_the_guest_is_pid_1_of_a_machine_of_the_other_architecture(tmp_path: Path) -> None:
    machine = _boot(tmp_path)

    async def main() -> None:
        try:
            async with asyncio.timeout(SECONDS):
                await machine.begin()
                connection = machine.dial("user")
                for check in (_says_what_it_is, _is_plain, _moves_bytes, _has_terminals, _ends_all, _forgets):
                    await check(connection)
                await _is_renewed(machine, connection)
                await _ends_with_its_agent(machine, connection)
                connection.close()
        except (PaddockError, TimeoutError, AssertionError):
            print((await machine.control("log"))["log"])  # its console: only that says why
            raise

    try:
        asyncio.run(main())
    finally:
        machine.stop()


async def _sh(connection: GuestConnection, script: str) -> tuple[int | None, str]:
    status, out, err = await collect(await start(connection, "sh", "-c", script))
    assert err == b""
    return status.code, out.decode()


async def _says_what_it_is(connection: GuestConnection) -> None:
    code, said = await _sh(connection, "uname -m; cat /proc/1/comm; cat /proc/mounts; id -u; exit 3")
    machine, name, *mounts, user = said.splitlines()
    assert (code, machine, name, user) == (3, "aarch64", "machine", str(os.getuid()))
    kinds = {line.split()[1]: line.split()[2] for line in mounts}
    assert kinds["/"] == "overlay"
    assert kinds["/sys/fs/cgroup"] == "cgroup2"


async def _moves_bytes(connection: GuestConnection) -> None:
    data = os.urandom(1 << 20)
    handle = await start(connection, "cat", stdin=True)
    feeding = asyncio.ensure_future(handle.feed(data))
    status, out, _ = await collect(handle)
    await feeding
    assert (status.code, out) == (0, data)


async def _has_terminals(connection: GuestConnection) -> None:
    handle = await start(connection, "stty", "size", pty=PtySize(rows=20, columns=30))
    said = b""
    while part := await handle.stdout.read():
        said += part
    assert (said, (await handle.wait()).code) == (b"20 30\r\n", 0)
    await handle.aclose()


async def _ends_all(connection: GuestConnection) -> None:
    """What a command has started ends with it, in a session of its own, too."""
    handle = await start(connection, "sh", "-c", "setsid sleep 98765 & setsid sleep 98765 & echo; wait")
    assert await handle.stdout.read() == b"\n"
    await handle.kill()
    assert (await handle.wait()).signal == 9
    await handle.aclose()
    assert (await _sh(connection, "pidof sleep"))[0] == 1


# What `tests/native` cannot look at under `qemu-user` (EMULATOR_DIFFERS).


async def _is_plain(connection: GuestConnection) -> None:
    """A program has three descriptors and default signals."""
    assert (await _sh(connection, "ls /proc/self/fd"))[1].split() == ["0", "1", "2", "3"]  # the last is that of ls
    _, signals, _ = await collect(await start(connection, "grep", "-E", "^Sig(Blk|Ign|Pnd)", "/proc/self/status"))
    assert signals.split()[1::2] == [b"0" * 16] * 3  # a shell of Busybox's ignores one


async def _forgets(connection: GuestConnection) -> None:
    """Commands leave no descriptors behind, and of memory only their places in a list of the last thousand."""
    agent = (await connection.open(PING).call(PingReply)).pid

    async def held() -> tuple[str, int]:
        for _ in range(80):
            await collect(await start(connection, "id"))
        _, said = await _sh(connection, f"ls /proc/{agent}/fd; grep VmRSS /proc/{agent}/status")
        *descriptors, _, resident, _ = said.split()
        return " ".join(descriptors), int(resident)

    descriptors, resident = await held()
    after = await held()
    assert after[0] == descriptors
    assert after[1] < resident + 2 * 80, "not a page for each"


async def _ends_with_its_agent(machine: ControllerProcess, connection: GuestConnection) -> None:
    agent = (await connection.open(PING).call(PingReply)).pid
    handle = await start(connection, "sh", "-c", "setsid sleep 98765 & echo; wait")
    assert await handle.stdout.read() == b"\n"
    other = machine.dial("root")
    assert (await _sh(other, f"pidof sleep >/dev/null && kill -9 {agent}"))[0] == 0
    with pytest.raises(PaddockError):
        await handle.wait()
    while (await _sh(other, "pidof sleep"))[0] == 0:  # until the test's time is over
        pass
    other.close()


async def _is_renewed(machine: ControllerProcess, connection: GuestConnection) -> None:
    """Name, clock, limits, entropy, network card: by system calls that have other numbers here."""
    parts = Part.HOSTNAME | Part.HOSTS | Part.MACHINE_ID | Part.CLOCK | Part.ENTROPY | Part.MAC_ADDRESS | Part.LIMITS
    id, init = uuid.uuid4().hex, machine.dial("init")
    renewal = Renew(
        parts=parts | Part.NETWORK,
        online=1,
        open_files=500,
        processes=200,
        tmp_bytes=1 << 20,
        clock=time.time_ns(),
        entropy=os.urandom(64),
        hostname=b"other",
        hosts=b"other",
        mac_address=b"\x02abcde",
        machine_id=id.encode(),
    )
    answer = await init.open(orders.renew(renewal)).call(RenewReply)
    init.close()
    assert Part(answer.failed) == Part(0)
    asked = "hostname; cat /etc/machine-id /sys/class/net/eth0/address; ulimit -n"
    assert (await _sh(connection, asked))[1].split() == ["other", id, "02:61:62:63:64:65", "500"]
