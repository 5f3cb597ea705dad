"""Where other programs of the user have as many descriptors under way as one program may (unix(7)), these send theirs.

Daemon, supervisor and gateway have their hard limit from the start. Programs that embed paddock may not.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

_MANY = """
import array, errno, os, resource, socket
from paddock.linux import caps

def fill():
    "As an ordinary user, beside another program of that user."
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    caps.drop_all()
    full = socket.socketpair()
    for _ in range(2):
        full[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 250))])
    return full
"""
_WORKER = """
from paddock.storage.pool.worker import Worker
full, worker = fill(), Worker(None)
print(worker.confined(os.isatty, (os.open("/", os.O_RDONLY),)))
worker.close()
"""
_CONTROLLER = """
import asyncio
from paddock.backends.vmm._control import Control
from paddock.wire import Kind, pack

async def main():
    ours, theirs = socket.socketpair()
    control = Control(ours)
    asking = asyncio.ensure_future(control.call("x", fds=[0]))
    print(len((await asyncio.to_thread(socket.recv_fds, theirs, 100, 1))[1]))
    theirs.send(pack(Kind.REPLY, 1, b"{}"))
    await asking
    control.close()
full = fill()
asyncio.run(main())
"""
_NAMESPACE_ENTRY = """
from paddock.backends.container._egress import NamespaceEntry
from paddock.errors import PlatformError
full, entry = fill(), NamespaceEntry()
try:
    entry.send(os.getpid(), {"pid": os.getpid()}, ())
except PlatformError as error:
    print(error if os.strerror(errno.ETOOMANYREFS) in str(error) else "heard")  # this process is in no container
"""


@pytest.mark.parametrize(
    ("sends", "says"),
    [
        pytest.param(_WORKER, "False", id="to the pool's worker"),
        pytest.param(_CONTROLLER, "1", id="to a VMM's controller"),
        pytest.param(_NAMESPACE_ENTRY, "heard", id="to the process that enters a container"),
    ],
)
def test_descriptors_are_sent(sends: str, says: str) -> None:
    done = subprocess.run([sys.executable, "-c", _MANY + sends], capture_output=True, text=True, check=False)
    assert done.stdout == f"{says}\n", done.stderr
