"""In place of Firecracker, as a program: an API server that takes what its document allows and nothing else, and behind
its vsock the real guest, without a machine.

    firecracker_double.py SOURCES SCRIPT --api-sock PATH --id NAME

`SCRIPT` is JSON: `lines`: a socket where the host's ends of the guest's lines are given, in the order of `ports`;
`log`: where all calls are written; and `mischief`, by method and path: how a call is answered otherwise.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, sys.argv[1])

from paddock.guest._ferry import Ferry
from paddock.guest._loop import IN, Loop
from tests.guest import firecracker_api as api

MISCHIEF = {
    "endless": b"HTTP/1.1 204 \r\nX-More: " + b"more " * 100_000,
    "huge": b"HTTP/1.1 200 \r\nContent-Length: 9999999999\r\n\r\n",
    "two": b"HTTP/1.1 204 \r\n\r\nHTTP/1.1 204 \r\n\r\n",
    "garbage": b"\x00\xff garbage\r\n\r\n",
    "chunked": b"HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "refusal": b'HTTP/1.1 400 \r\nContent-Length: 35\r\n\r\n{"fault_message": "it is too much"}',
    "full": b'HTTP/1.1 400 \r\nContent-Length: 55\r\n\r\n{"fault_message": "No space left on device (os error)"}',
    "cut": b"HTTP/1.1 2",
}


class Double:
    def __init__(self, script: dict[str, Any], path: str) -> None:
        self.loop, self.script = Loop(), script
        self.state, self.configured = api.NOT_STARTED, dict[str, Any]()
        self.ferries: dict[int, Ferry] = {}
        self.carried: list[socket.socket] = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)  # fails where there is one, as Firecracker does
        self.listener.listen()
        self.loop.watch(self.listener.fileno(), IN, self.called)

    def called(self, events: int) -> None:
        stream, _ = self.listener.accept()
        received = bytearray()

        def ready(events: int) -> None:
            data = stream.recv(1 << 16)
            if not data:
                self.loop.unwatch(stream.fileno())
                stream.close()
                return
            received.extend(data)
            head, separator, rest = bytes(received).partition(b"\r\n\r\n")
            if not separator:
                return
            lines = head.decode("ascii").split("\r\n")
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            length = int(fields["content-length"])
            if len(rest) < length:
                return
            assert len(rest) == length, "more than one request at once"
            assert fields["content-type"] == fields["accept"] == "application/json"
            received.clear()
            method, path, protocol = lines[0].split(" ")
            assert protocol == "HTTP/1.1"
            stream.sendall(self.answer(method, path, json.loads(rest), stream))

        self.loop.watch(stream.fileno(), IN, ready)

    def answer(self, method: str, path: str, body: Any, stream: socket.socket) -> bytes:
        with open(self.script["log"], "a") as log:
            log.write(json.dumps([method, path, body]) + "\n")
        mischief = self.script.get("mischief", {}).get(f"{method} {path}")
        if mischief == "death":
            os._exit(7)
        if mischief is not None:
            if mischief == "cut":
                stream.sendall(MISCHIEF["cut"])
                stream.shutdown(socket.SHUT_RDWR)
                return b""
            return MISCHIEF[mischief]
        fault = self.fault(method, path, body)
        if fault is None:
            return b"HTTP/1.1 204 \r\nServer: Firecracker API\r\nConnection: keep-alive\r\n\r\n"
        said = json.dumps({"fault_message": fault}).encode()
        head = f"HTTP/1.1 400 \r\nServer: Firecracker API\r\nContent-Length: {len(said)}\r\n\r\n"
        return head.encode() + said

    def fault(self, method: str, path: str, body: Any) -> str | None:
        first, _, rest = path.strip("/").partition("/")
        key = (method, f"{first}/{rest}" if first == "snapshot" else first)
        if key not in api.CALLS:
            return f"Invalid request method and/or path: {method} {path}."
        name, states, boots = api.CALLS[key]
        if found := api.faults(name, body):
            return f"An error occurred when deserializing the json body of a request: {'; '.join(found)}"
        if self.state not in states:
            when = "before" if self.state == api.NOT_STARTED else "after"
            return f"The requested operation is not supported {when} starting the microVM."
        if first == "drives" and body["drive_id"] != rest:
            return "The id from the path does not match the id from the body!"
        if key == ("PUT", "snapshot/load") and self.configured:
            return "Loading a microVM snapshot not allowed after configuring boot-specific resources."
        if boots:
            self.configured[path] = body
        return getattr(self, key[1].replace("-", "_").replace("/", "_"))(body)

    # configuration

    def machine_config(self, body: Any) -> None: ...

    def entropy(self, body: Any) -> None: ...

    def vsock(self, body: Any) -> None: ...

    def boot_source(self, body: Any) -> str | None:
        return _missing(body["kernel_image_path"], body["initrd_path"])

    def drives(self, body: Any) -> str | None:
        if "is_read_only" not in body or "path_on_host" not in body:  # the document: required for virtio-block
            return "no virtio-block"
        return _missing(body["path_on_host"])

    # life

    def actions(self, body: Any) -> str | None:
        if body["action_type"] != "InstanceStart":
            return "not here"
        if "/boot-source" not in self.configured:
            return "Cannot start microvm without kernel configuration."
        self.run(self.configured["/vsock"]["uds_path"])
        return None

    def run(self, path: str) -> None:
        with socket.socket(socket.AF_UNIX) as giver:
            giver.connect(self.script["lines"])
            _, given, _, _ = socket.recv_fds(giver, 1, 8)
        for port, fd in zip(self.script["ports"], given, strict=True):
            self.ferries[port] = Ferry(self.loop, socket.socket(fileno=fd), lambda: None)
        self.machine = socket.socket(socket.AF_UNIX)
        self.machine.bind(path)
        self.machine.listen()
        self.loop.watch(self.machine.fileno(), IN, self.dialled)
        self.state = api.RUNNING

    def dialled(self, events: int) -> None:
        stream, _ = self.machine.accept()
        if self.state != api.RUNNING:
            stream.close()
            return
        asked = b""
        while not asked.endswith(b"\n"):
            asked += stream.recv(1)
        port = int(asked.decode("ascii").removeprefix("CONNECT "))
        if port not in self.ferries:
            stream.close()
            return
        stream.sendall(b"OK 1073741824\n")
        self.ferries[port].cross(stream)

    def vm(self, body: Any) -> None:
        self.state = api.PAUSED if body["state"] == "Paused" else api.RUNNING

    def snapshot_create(self, body: Any) -> str | None:
        for ferry in self.ferries.values():  # the transport is reset
            ferry.leave()
        memory = body["mem_file_path"]
        with open(memory, "wb") as file:
            file.truncate(self.configured["/machine-config"]["mem_size_mib"] << 20)
        Path(body["snapshot_path"]).write_text(json.dumps({"state": self.configured}))
        return None

    def snapshot_load(self, body: Any) -> str | None:
        if "mem_backend" not in body or body["mem_backend"]["backend_type"] != "File":
            return "no memory"
        fault = _missing(body["snapshot_path"], body["mem_backend"]["backend_path"])
        if fault is not None:
            return fault
        self.configured = json.loads(Path(body["snapshot_path"]).read_text())["state"]
        self.actions({"action_type": "InstanceStart"})
        self.state = api.RUNNING if body.get("resume_vm") else api.PAUSED
        return None


def _missing(*paths: str) -> str | None:
    return next((f"{path}: No such file or directory (os error 2)" for path in paths if not os.path.exists(path)), None)


def main(kind: type[Double]) -> None:
    script = json.loads(sys.argv[2])
    assert sys.argv[3::2] == ["--api-sock", "--id"], sys.argv
    kind(script, sys.argv[4]).loop.run()


if __name__ == "__main__":
    main(Double)
