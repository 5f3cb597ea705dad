"""A virtio-vsock device for QEMU (vhost-user), which on the host's side is what Firecracker's is: a unix socket where
one says `CONNECT PORT`.

Formats: QEMU, docs/interop/vhost-user.rst; virtio 1.2, 2.7 (split queues) and 5.10 (socket device).
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import threading
from collections import deque
from dataclasses import dataclass, field
from struct import Struct, pack, pack_into, unpack, unpack_from

HOST, GUEST = 2, 3
_MESSAGE = Struct("<III")
_REGION = Struct("<QQQQ")
_PACKET = Struct("<QQIIIHHIII")
_REQUEST, _RESPONSE, _RST, _SHUTDOWN, _RW, _CREDIT, _ASK = range(1, 8)
_STREAM = 1
_ROOM = 256 * 1024
_VERSION_1, _PROTOCOL = 1 << 32, 1 << 30
_CONFIG = 1 << 9  # VHOST_USER_PROTOCOL_F_CONFIG


@dataclass
class Region:
    guest: int
    size: int
    user: int
    memory: mmap.mmap
    offset: int


@dataclass
class Queue:
    size: int = 0
    next: int = 0
    descriptors: int = 0
    used: int = 0
    available: int = 0
    kick: int = -1
    call: int = -1


@dataclass
class Stream:
    socket: socket.socket
    port: int
    established: bool = False
    received: int = 0
    sent: int = 0
    their_room: int = 0
    their_count: int = 0
    unsent: bytearray = field(default_factory=bytearray)


class VsockDevice:
    """`path`: QEMU connects there. `hybrid`: the host's own socket. Serves in a thread until it is closed."""

    def __init__(self, path: str, hybrid: str) -> None:
        self.control = socket.socket(socket.AF_UNIX)
        self.control.bind(path)
        self.control.listen()
        self.host = socket.socket(socket.AF_UNIX)
        self.host.bind(hybrid)
        self.host.listen()
        self.regions: list[Region] = []
        self.queues = [Queue(), Queue(), Queue()]
        self.streams: dict[int, Stream] = {}
        self.asking: list[socket.socket] = []
        self.pending: deque[bytes] = deque()
        self.last = 1 << 30
        self.stop_reader, self.stop_writer = os.pipe()
        self.vmm: socket.socket | None = None
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def close(self) -> None:
        os.write(self.stop_writer, b".")
        self.thread.join(60)
        for stream in (self.control, self.host, *self.asking, *(one.socket for one in self.streams.values())):
            stream.close()
        if self.vmm is not None:
            self.vmm.close()
        for region in self.regions:
            region.memory.close()
        for fd in (self.stop_reader, self.stop_writer, *(fd for one in self.queues for fd in (one.kick, one.call))):
            if fd >= 0:
                os.close(fd)

    def _serve(self) -> None:
        while True:
            watched = [self.stop_reader, self.control, self.host, *self.asking]
            if self.vmm is not None:
                watched.append(self.vmm)
            transmit = self.queues[1].kick
            if transmit >= 0:
                watched.append(transmit)
            if self.queues[0].kick >= 0:
                watched.append(self.queues[0].kick)
            watched += [one.socket for one in self.streams.values() if one.established and self._room(one)]
            ready, _, _ = select.select(watched, [one.socket for one in self.streams.values() if one.unsent], [], 1.0)
            if self.stop_reader in ready:
                return
            if self.control in ready:
                self.vmm, _ = self.control.accept()
            elif self.vmm in ready and not self._order():
                return
            for queue in self.queues[:2]:
                if queue.kick in ready:
                    os.read(queue.kick, 8)
            if self.host in ready:
                self.asking.append(self.host.accept()[0])
            for stream in [one for one in self.asking if one in ready]:
                self._asked(stream)
            self._transmitted()
            for number, stream in list(self.streams.items()):
                self._pass_on(number, stream)
                if stream.socket in ready and number in self.streams:
                    self._said(number, stream)
            self._receive()

    # the host

    def _asked(self, stream: socket.socket) -> None:
        self.asking.remove(stream)
        line = b""
        while not line.endswith(b"\n"):
            if not (data := stream.recv(1)):
                stream.close()
                return
            line += data
        self.last += 1
        one = self.streams[self.last] = Stream(stream, int(line.split()[1]))
        stream.setblocking(False)
        self._send(self.last, one, _REQUEST)

    def _room(self, one: Stream) -> int:
        return one.their_room - (one.sent - one.their_count)

    def _said(self, number: int, one: Stream) -> None:
        if not one.established:
            return
        try:
            data = one.socket.recv(min(self._room(one), 3072))
        except (BlockingIOError, ConnectionError):
            return
        if data:
            one.sent += len(data)
            self._send(number, one, _RW, data)
        else:
            self._send(number, one, _RST)
            self._drop(number)

    def _pass_on(self, number: int, one: Stream) -> None:
        if not one.unsent:
            return
        try:
            sent = one.socket.send(one.unsent)
        except (BlockingIOError, ConnectionError):
            return
        del one.unsent[:sent]
        one.received += sent
        self._send(number, one, _CREDIT)

    def _drop(self, number: int) -> None:
        self.streams.pop(number).socket.close()

    def reset(self) -> None:
        """As Firecracker does when it saves, but for the event: the guest is not even told."""
        for number in list(self.streams):
            self._drop(number)

    # the machine

    def _send(self, number: int, one: Stream, kind: int, data: bytes = b"") -> None:
        head = (HOST, GUEST, number, one.port, len(data), _STREAM, kind, 0, _ROOM, one.received & 0xFFFFFFFF)
        self.pending.append(_PACKET.pack(*head) + data)

    def _heard(self, packet: bytes) -> None:
        _, to, port, number, length, _, kind, _, room, count = _PACKET.unpack_from(packet)
        assert to == HOST
        one = self.streams.get(number)
        if one is None or one.port != port:
            if kind != _RST:
                head = (HOST, GUEST, number, port, 0, _STREAM, _RST, 0, 0, 0)
                self.pending.append(_PACKET.pack(*head))
            return
        one.their_room, one.their_count = room, count
        if kind == _RESPONSE:
            one.established = True
            one.socket.send(b"OK %d\n" % number)
        elif kind == _RW:
            one.unsent += packet[_PACKET.size : _PACKET.size + length]
        elif kind == _ASK:
            self._send(number, one, _CREDIT)
        elif kind in (_RST, _SHUTDOWN):
            self._drop(number)

    def _transmitted(self) -> None:
        queue = self.queues[1]
        while (chain := self._take(queue)) is not None:
            head, parts = chain
            self._heard(b"".join(bytes(memory[at : at + size]) for memory, at, size in parts))
            self._give(queue, head, 0)

    def _receive(self) -> None:
        queue = self.queues[0]
        while self.pending and (chain := self._take(queue)) is not None:
            head, parts = chain
            packet = self.pending.popleft()
            total = len(packet)
            for memory, at, size in parts:
                piece, packet = packet[:size], packet[size:]
                memory[at : at + len(piece)] = piece
            assert not packet
            self._give(queue, head, total)

    def _take(self, queue: Queue) -> tuple[int, list[tuple[mmap.mmap, int, int]]] | None:
        if queue.size == 0 or queue.kick < 0:
            return None
        memory, at = self._find(queue.available, user=True)
        (index,) = unpack_from("<H", memory, at + 2)
        if index == queue.next & 0xFFFF:
            return None
        (head,) = unpack_from("<H", memory, at + 4 + 2 * (queue.next % queue.size))
        queue.next += 1
        parts: list[tuple[mmap.mmap, int, int]] = []
        table, where = self._find(queue.descriptors, user=True)
        number = head
        while True:
            address, size, flags, following = unpack_from("<QIHH", table, where + 16 * number)
            assert not flags & 4, "indirect descriptors were not offered"
            parts.append((*self._find(address), size))
            if not flags & 1:
                return head, parts
            number = following

    def _give(self, queue: Queue, head: int, length: int) -> None:
        memory, at = self._find(queue.used, user=True)
        (index,) = unpack_from("<H", memory, at + 2)
        pack_into("<II", memory, at + 4 + 8 * (index % queue.size), head, length)
        pack_into("<H", memory, at + 2, (index + 1) & 0xFFFF)
        if queue.call >= 0:
            os.write(queue.call, pack("<Q", 1))

    def _find(self, address: int, *, user: bool = False) -> tuple[mmap.mmap, int]:
        for region in self.regions:
            start = region.user if user else region.guest
            if start <= address < start + region.size:
                return region.memory, region.offset + address - start
        raise ValueError(f"no memory at {address:#x}")

    # QEMU

    def _order(self) -> bool:
        assert self.vmm is not None
        head, descriptors, _, _ = socket.recv_fds(self.vmm, _MESSAGE.size, 16)
        if not head:
            return False
        request, flags, size = _MESSAGE.unpack(head)
        body = b""
        while len(body) < size:
            body += self.vmm.recv(size - len(body))
        answer = self._do(request, body, list(descriptors))
        if answer is not None:
            self.vmm.sendall(_MESSAGE.pack(request, 5, len(answer)) + answer)
        elif flags & 8:
            self.vmm.sendall(_MESSAGE.pack(request, 5, 8) + pack("<Q", 0))
        return True

    def _do(self, request: int, body: bytes, descriptors: list[int]) -> bytes | None:
        if request == 1:
            return pack("<Q", _VERSION_1 | _PROTOCOL)
        if request == 15:
            return pack("<Q", _CONFIG)
        if request == 17:
            return pack("<Q", 3)
        if request == 24:  # the guest's own address
            at, size, flags = unpack("<III", body[:12])
            return pack("<III", at, size, flags) + pack("<Q", GUEST)[at : at + size].ljust(size, b"\0")
        if request == 5:
            (count,) = unpack_from("<I", body)
            for number in range(count):
                guest, size, user, offset = _REGION.unpack_from(body, 8 + number * _REGION.size)
                fd = descriptors[number]
                self.regions.append(Region(guest, size, user, mmap.mmap(fd, size + offset), offset))
                os.close(fd)
        elif request in (8, 10):
            number, value = unpack("<II", body)
            if request == 8:
                self.queues[number].size = value
            else:
                self.queues[number].next = value
        elif request == 9:
            number, _, descriptor, used, available, _ = unpack("<IIQQQQ", body)
            queue = self.queues[number]
            queue.descriptors, queue.used, queue.available = descriptor, used, available
        elif request == 11:
            number, _ = unpack("<II", body)
            self.queues[number].size = 0
            return pack("<II", number, self.queues[number].next & 0xFFFF)
        elif request in (12, 13, 14):
            number = body[0]
            fd = descriptors[0] if descriptors else -1
            if request == 12:
                self.queues[number].kick = fd
            elif request == 13:
                self.queues[number].call = fd
            elif fd >= 0:
                os.close(fd)
        return None
