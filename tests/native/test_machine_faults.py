"""The n-th system call of the start of a virtual machine's pid 1 fails, for every n: it is refused, or complete.

One boot serves for all: `starter.c` starts pid 1 again and again, in namespaces of its own.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import select
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from paddock.backends.guest import orders
from paddock.backends.microvm import _kernel, _qemu
from paddock.errors import NotConfiguredError
from paddock.model import User
from paddock.vmm._blocks import View
from paddock.vmm._erofs import Source, write_view
from paddock.wire.guest import Exec, Exit, Kind, Op, PartFlags, Renew, RenewReply
from tests.native.driver import ROOT, Ended, build_module
from tests.native.test_init_faults import fail_each, in_the_end
from tests.native.test_led import DATA, END, GREETING, OPEN, Sentry
from tests.orphans import PATIENCE_SECONDS, wait_until

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the board is an x86_64 one"),
]
STEP = 19
MOST = 260
"""More calls than pid 1 and its first agents make until they have shown what isolates a command."""
MACHINE = _qemu.Machine(memory_mib=256, processors=1, accelerator="tcg")
STARTER = "/starter"
BOARD = {
    "socket,id=monitor,": "null,id=monitor",
    "socket,id=files,": "null,id=files",
    "socket,id=line,": "socket,id=line,path=/vm/line,server=on,wait=off",
    "file,id=console,": "socket,id=console,path=/vm/console,server=on",
    "driver=nbd,": "driver=file,filename=/vm/view,read-only=on,locking=off,node-name=view-file",
}
PARTS = int(~PartFlags(0))
SHOWN = """
/proc/self/status /proc/self/limits /proc/self/mountinfo /proc/self/cgroup /proc/self/oom_score_adj
/ /etc /dev/pts /dev/shm /dev/fd /dev/stdin /dev/stdout /dev/stderr /tmp /run /run/lock
/etc/hostname /etc/hosts /etc/machine-id /proc/sys/kernel/hostname /sys/fs/cgroup/sandbox/pids.max
/proc/sys/net/ipv4/ip_unprivileged_port_start
/sys/class/net/lo/flags /sys/class/net/eth0/flags /sys/class/net/eth0/address /proc/net/route
"""
OTHERWISE = re.compile(
    rb"^(?!Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp:)[A-Za-z]\w+:\t.*\n|^\d+ \d+ \d+:\d+ |^Max resident.*\n", re.MULTILINE
)
"""What differs from one to the next."""


class Vmm:
    """QEMU with the devices of level `microvm`, whose pid 1 is `starter.c`."""

    def __init__(self, place: Path) -> None:
        try:
            kernel, qemu = _kernel.find(), _qemu.find()
        except NotConfiguredError as error:
            pytest.skip(f"no virtual machines here: {error}")
        self.place, self.numbers = place, itertools.count(1)
        self._furnish(kernel, qemu)
        self._heard = b""
        self.process = subprocess.Popen(self._argv(qemu), stdin=subprocess.DEVNULL)
        with ExitStack() as parts:
            parts.callback(self.process.wait)
            parts.callback(self.process.kill)
            self.console = parts.enter_context(self.call("console"))
            self.wait()
            self._parts = parts.pop_all()

    def _furnish(self, kernel: _kernel.Kernel, qemu: _qemu.Qemu) -> None:
        build, place = build_module(), self.place
        starter, root = place / "template" / "starter", place / "template"
        for directory in (place / "boot", root / "etc"):
            directory.mkdir(parents=True)
        subprocess.run(
            [*build.find_compiler(), "-static", "-O1", "-o", starter, ROOT / "tests/native/starter.c"], check=True
        )
        for name in ("hostname", "hosts", "machine-id"):
            (root / "etc" / name).touch()
        (place / "boot/kernel").symlink_to(kernel.image)
        guest = _kernel.initramfs(build.build(faults=True).read_bytes(), kernel.chain(qemu.modules))
        first = _kernel.initramfs(starter.read_bytes(), ()).replace(b"machine\0", b"starter\0", 1)
        (place / "boot/initrd").write_bytes(guest + first)
        with open(place / "metadata", "wb") as metadata, open(place / "table", "wb") as table:
            write_view((Source(str(root), "/"),), metadata, table)
        view = View(str(place / "metadata"), str(place / "table"))
        (place / "view").write_bytes(view.read(0, view.size))
        with open(place / "disk", "wb") as disk:
            disk.truncate(64 << 20)
        subprocess.run(["/usr/sbin/mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", place / "disk"], check=True)

    def _argv(self, qemu: _qemu.Qemu) -> list[str]:
        words = qemu.command(MACHINE, boot=True)
        argv = [next((own for start, own in BOARD.items() if word.startswith(start)), word) for word in words]
        first = f"rdinit={_kernel.PROGRAM}", f"rdinit={STARTER}"
        return [word.replace("/vm/", f"{self.place}/").replace(*first) for word in argv]

    def call(self, name: str) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)

        def called() -> bool:
            assert self.process.poll() is None
            with suppress(OSError):
                made.connect(str(self.place / name))
                return True
            return False

        assert wait_until(called)
        return made

    def tell(self, line: str) -> None:
        self.console.sendall(line.encode() + b"\n")

    def hear(self) -> bool:
        """Whether the pid 1 that was started last has ended, by what there is to hear."""
        got = self.console.recv(1 << 16)
        assert got, "the kernel has ended"
        self._heard += got
        *lines, self._heard = self._heard.split(b"\n")
        print(b"\n".join(lines).decode(errors="replace"))
        return any(line.startswith(b"ended ") for line in lines)

    def wait(self) -> None:
        self.console.settimeout(PATIENCE_SECONDS)
        while not self.hear():
            pass

    def close(self) -> None:
        self._parts.close()


class FaultyMachine(Sentry):
    """Pid 1 of a machine, whose start is complete. The constructor raises what refuses it."""

    def __init__(self, vmm: Vmm, words: str) -> None:
        self._vmm, self._own = vmm, next(vmm.numbers)
        self._line = vmm.call("line")
        self.reader = self.writer = self._line.fileno()
        self._buffer, self._data = b"", dict[int, bytes]()
        self._connections, self._ended = 0, False
        vmm.tell(words + _kernel.PROGRAM)
        try:
            self.greet()
            self.begin()
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        control = self._open("init")
        users = [User(name=name, uid=uid, gid=uid, home="/") for name, uid in (("user", 1000), ("root", 0))]
        wanted = [
            *(orders.identity(user.name, user, filter=b"") for user in users),
            orders.begin(deadline=1e9, idle=0.0, retention=0.0, limits={}),
            orders.renew(self._renewal()),
        ]
        *_, renewed = [self.ask(control, 1 + at, order.op, order.body) for at, order in enumerate(wanted)]
        if RenewReply.unpack(renewed).failed:
            raise Ended

    def _renewal(self) -> Renew:
        """Whatever another machine has left in the kernel or on the disk is not what this one asks for."""
        name = b"%032d" % self._own
        return Renew(
            parts=PARTS,
            online=1,
            open_files=500,
            processes=200,
            tmp_bytes=1 << 20,
            clock=time.time_ns(),
            absent=(b"/nothing",),
            entropy=os.urandom(64),
            hostname=name,
            hosts=name,
            mac_address=b"\2\0" + self._own.to_bytes(4, "big"),
            machine_id=name,
        )

    def _open(self, name: str) -> int:
        self._connections += 1
        self.say(OPEN, self._connections, name.encode())
        self.say(DATA, self._connections, GREETING)
        return self._connections

    def whole(self) -> list[bytes]:
        return [in_the_end(lambda name=name: self._shown(name)) for name in ("user", "root")]

    def _shown(self, identity: str) -> bytes:
        number = self._open(identity)
        argv = (STARTER, *SHOWN.split())
        request = Exec(id=b"%d" % number, argv=tuple(map(str.encode, argv)), cwd=b"/", umask=0o22)
        self.ask(number, 1, Op.EXEC, request.pack())
        said, code = b"", -1
        while (got := self.frame(number))[0] != Kind.CLOSE:
            said += got[2] if got[0] == Kind.DATA else b""
            code = Exit.unpack(got[2]).code if got[0] == Kind.EXIT else code
        self.say(END, number)
        while self.hear()[0] != END:
            pass
        if code != 0 or not said.endswith(b"all\n"):  # a call of the agent's has failed
            raise Ended
        renewal = self._renewal()
        address = renewal.mac_address.hex(":").encode()
        return OTHERWISE.sub(b"", said).replace(renewal.hostname, b"name").replace(address, b"address")

    def _readable(self, seconds: float) -> bool:
        """Its end is heard on the console."""
        end = time.monotonic() + seconds
        while not self._ended:
            left = max(0.0, end - time.monotonic())
            ready = select.select([self._line, self._vmm.console], [], [], left)[0]
            if self._line in ready or not ready:
                return bool(ready)
            self._ended = self._vmm.hear()
        raise Ended

    def close(self) -> None:
        self._vmm.tell("")
        if not self._ended:
            self._vmm.wait()
        self._line.close()


@pytest.fixture(scope="module")
def vmm(tmp_path_factory: pytest.TempPathFactory) -> Generator[Vmm]:
    vmm = Vmm(tmp_path_factory.mktemp("machine"))
    try:
        for number in (1, 2):  # the first machine that is complete has loaded the modules for all
            with pytest.raises(Ended):
                FaultyMachine(vmm, f"guest {number} {errno.ENOMEM} ")
        yield vmm
    finally:
        vmm.close()


def test_pid_1_is_whole_or_refused_if_a_system_call_of_its_start_fails(vmm: Vmm, tmp_path: Path) -> None:
    fail_each(lambda _, words: FaultyMachine(vmm, words), tmp_path, range(3, MOST, STEP), errno.ENOMEM)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("error", [errno.ENOMEM, errno.EIO, errno.EPERM], ids=lambda number: errno.errorcode[number])
def test_pid_1_is_whole_or_refused_if_any_system_call_of_its_start_fails(vmm: Vmm, error: int, tmp_path: Path) -> None:
    fail_each(lambda _, words: FaultyMachine(vmm, words), tmp_path, range(1, MOST), error)
