"""Runs a command over a mount with this machine's kernel as the other side: `mounted.py DIRECTORY TARGET COMMAND…`.

In a mount namespace of its own (`unshare -m`, as an ordinary user `unshare -rm`). On a line `swap` of standard input
the server is replaced by another one that takes up the state of the first while the command goes on; `swapped` is
written.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

from paddock.vmm._fuse_nodes import Export
from paddock.vmm._fuse_server import FileServer, start_file_server
from tests.vmm.relay import Share, mount_shares


def main(directory: str, target: str, command: list[str]) -> int:
    ours, theirs = socket.socketpair()
    exports = (Export(b"work", os.open(directory, os.O_PATH), writable=True),)
    server = start_file_server(ours.fileno(), exports)
    # Beside the target, where nobody cleans up: over a mount that stands still that would never end.
    scratch = f"{target}-scratch"
    top = os.path.join(scratch, "top")
    os.mkdir(scratch)
    relay = mount_shares(theirs.fileno(), (Share(name=b"work", target=target.encode(), writable=True),), top.encode())
    theirs.close()
    running = subprocess.Popen(command, cwd=target, stdin=subprocess.DEVNULL)
    for line in sys.stdin:
        if line == "swap\n":
            server = _swap(server, ours, exports, scratch)
            print("swapped", flush=True)
    status = running.wait()
    for place in (target, top):
        subprocess.run(["umount", place], check=True)
    os.waitpid(relay, 0)
    server.control.close()
    _, ended = os.waitpid(server.pid, 0)
    print(f"server {os.waitstatus_to_exitcode(ended)}", flush=True)
    return status


def _swap(server: FileServer, stream: socket.socket, exports: tuple[Export, ...], scratch: str) -> FileServer:
    saved = os.path.join(scratch, "saved")
    os.makedirs(saved, exist_ok=True)
    # A directory or pipe that was just removed counts as lost until the kernel forgets it, which it may not have yet.
    answer = _ask(server, {"op": "pause", "directory": saved})
    assert "lost" in answer, answer
    os.kill(server.pid, signal.SIGKILL)
    os.waitpid(server.pid, 0)
    server.control.close()
    place = os.open(saved, os.O_RDONLY)
    try:
        return start_file_server(stream.fileno(), exports, saved=place)
    finally:
        os.close(place)


def _ask(server: FileServer, order: dict[str, object]) -> dict[str, object]:
    server.control.send(json.dumps(order).encode())
    return json.loads(server.control.recv(4096))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
